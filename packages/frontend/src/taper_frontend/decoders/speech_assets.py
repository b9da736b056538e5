"""Make the asset of a speech recognizer: its special tokens, from its generation config."""

from __future__ import annotations

import json
from typing import Any

from taper_frontend.errors import ExportError
from taper_runtime.speech.speech_settings import SPEECH, SpeechSettings

#: Options of transformers' ``generate`` for long audio that change the plain greedy form.
_OTHERS = (
    "compression_ratio_threshold",
    "condition_on_prev_tokens",
    "logprob_threshold",
    "no_speech_threshold",
)


def speech_assets(model: Any, vocabulary: int) -> dict[str, bytes]:
    """Return the asset by its name.

    Parameters
    ----------
    model : torch.nn.Module
        Whisper of transformers, with its ``generation_config``.
    vocabulary : int
        The tokens that the model has logits for.

    Raises
    ------
    ExportError
        If the config has no tokens of times, or asks for another than the plain greedy form.
    """
    config, kind = model.generation_config, type(model).__name__

    def of(name: str, other: Any = None) -> Any:
        found = getattr(config, name, None)
        return other if found is None else found

    for name in _OTHERS:
        if of(name):
            raise ExportError(
                f"generation_config.{name} of {kind}: expected None, for a plan writes down speech "
                f"in the plain greedy form, got {of(name)!r}"
            )
    end = of("eos_token_id")
    end = end[0] if isinstance(end, (list, tuple)) and len(end) == 1 else end
    tokens = {
        "start": of("decoder_start_token_id"),
        "end": end,
        "no_timestamps": of("no_timestamps_token_id"),
    }
    for name, token in tokens.items():
        if type(token) is not int:
            raise ExportError(
                f"generation_config of {kind}: expected a token of {name!r}, as those of trained "
                f"checkpoints have, got {token!r}"
            )
    settings = SpeechSettings(
        **tokens,
        forced=_forced(of),
        languages={code.strip("<|>"): token for code, token in of("lang_to_id", {}).items()},
        tasks=dict(of("task_to_id", {})),
        suppressed=_known(of("suppress_tokens", ()), vocabulary),
        suppressed_first=_known(of("begin_suppress_tokens", ()), vocabulary),
        last_first_time=of("max_initial_timestamp_index"),
    )
    return {SPEECH: json.dumps(settings._asdict()).encode()}


def _known(tokens: Any, vocabulary: int) -> tuple[int, ...]:
    """Return the tokens in the vocabulary; default configs also name tokens of larger ones."""
    return tuple(token for token in tokens if 0 <= token < vocabulary)


def _forced(of: Any) -> tuple[int | None, ...]:
    """Return the tokens that follow the first one if the user names no language and no task."""
    language, task = of("language"), of("task")
    if language is None and task is None:
        places = dict(of("forced_decoder_ids", ()))
        count = next(place for place in range(1, len(places) + 2) if place not in places)
        return tuple(places[place] for place in range(1, count))
    token = of("lang_to_id", {}).get(language if "<" in str(language) else f"<|{language}|>")
    if language is not None and token is None:
        raise ExportError(
            f"generation_config.language: expected one of {[*of('lang_to_id', {})]}, got "
            f"{language!r}"
        )
    return token, of("task_to_id", {}).get(task or "transcribe")
