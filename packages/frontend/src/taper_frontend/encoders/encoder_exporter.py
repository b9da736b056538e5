"""Export a text encoder with its tokenizer and settings."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from taper_frontend.encoders.sentence_folder import (
    SCORES_PAIRS,
    TASKS,
    SentenceFolder,
    SentenceStage,
    is_classifier,
    pooling_modes,
    read_classifier_folder,
    read_sentence_folder,
)
from taper_frontend.encoders.sentence_modules import (
    PairScorer,
    SentenceEncoder,
    make_stage,
    score_activation,
)
from taper_frontend.errors import ExportError
from taper_frontend.exporter import export
from taper_runtime.text.encoder_settings import PAIR_SETTINGS, SETTINGS, EncoderSettings
from taper_runtime.text.tokenizer_asset import TOKENIZER

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from taper_runtime.plan.plan import Plan

#: Lengths above this are what tokenizers say where they have no limit.
_NO_LIMIT = 10**9


def export_encoder(
    model: str | os.PathLike[str] | torch.nn.Module,
    *,
    pooling: str | Sequence[str] | None = None,
    normalize: bool = False,
    tokenizer: Any = None,
    max_length: int | None = None,
    **options: Any,
) -> Plan:
    """Export a text encoder, for :class:`taper_runtime.text.Encoder` or ``CrossEncoder``.

    The plan takes int64 tokens and masks [batch, length], both of which vary, and returns
    embeddings [batch, size]; that of a cross-encoder, which reads pairs of sentences, returns
    scores [batch, labels]. Its assets are the tokenizer, which cuts long sentences, and the
    settings of sentences, such as prompts.

    Parameters
    ----------
    model : str, os.PathLike or torch.nn.Module
        A folder of sentence-transformers, which is read without that package: a Transformer, then
        Pooling or SpladePooling, Dense, LayerNorm, Normalize; or a cross-encoder, which is a
        sequence classifier of transformers. Or a folder of transformers, or a module such as
        ``AutoModel`` returns, with ``pooling``. A folder's weights are read as float32.
    pooling : str or sequence of str, optional
        How the embeddings of tokens become one, where no ``modules.json`` says it: ``"cls"``,
        ``"max"``, ``"mean"``, ``"mean_sqrt_len_tokens"``, ``"weightedmean"``, ``"lasttoken"``;
        several are joined.
    normalize : bool
        Whether embeddings get length 1, where no ``modules.json`` says it.
    tokenizer : object, optional
        A module's tokenizer: a fast one of transformers. Without one the plan has no assets, and
        runs as any other.
    max_length : int, optional
        The most tokens of a sentence; by default what the folder or the tokenizer says.
    **options
        Further arguments of :func:`taper_frontend.export`, such as ``quantize``.

    Raises
    ------
    ExportError
        If a file of the folder is missing or damaged, a module has code of its own, the tokenizer
        has more tokens than the model, or arguments contradict the folder. Also as
        :func:`taper_frontend.export`.
    ImportError
        If a folder is given and transformers is not installed.
    """
    if isinstance(model, torch.nn.Module):
        folder, transformer = _described(Path(), pooling, normalize), model
    else:
        folder, transformer, tokenizer = _open(Path(model), pooling, normalize, tokenizer)
    config = getattr(transformer, "config", None)
    accepted = inspect.signature(transformer.forward).parameters
    fixed = {"use_cache": False} if "use_cache" in accepted else {}
    module, output, asset = _module(folder, transformer, fixed)
    include_prompt = False not in [s.settings.get("include_prompt") for s in folder.stages]
    vocabulary = getattr(config, "vocab_size", None)
    assets, side, limit = {}, "right", max_length or folder.max_length
    names = ["input_ids", "attention_mask"]
    if tokenizer is not None:
        if not getattr(tokenizer, "is_fast", False):
            raise ExportError(
                "tokenizer: expected a fast tokenizer of transformers, got "
                f"{type(tokenizer).__name__}"
            )
        side = tokenizer.padding_side
        limit = limit or _limit(tokenizer, config)
        text, count = _tokenizer_json(tokenizer, limit, lower_case=folder.lower_case)
        if type(vocabulary) is int and count > vocabulary:
            raise ExportError(
                f"tokenizer: expected at most the {vocabulary} tokens of the model, got {count}"
            )
        settings = EncoderSettings(
            folder.prompts, folder.default_prompt, include_prompt, vocabulary or count
        )
        assets = {TOKENIZER: text.encode(), asset: settings.to_json().encode()}
        if "token_type_ids" in tokenizer.model_input_names and "token_type_ids" in accepted:
            names.append("token_type_ids")
    if not include_prompt:
        names.append("pooling_mask")
    length = "length" if limit is None else torch.export.Dim("length", max=limit)
    plan = export(
        module.eval(),
        (),
        _example(names, vocabulary or 2, min(limit or 8, 8), side),
        dynamic_axes={name: {0: "batch", 1: length} for name in names},
        output_names=[output],
        **options,
    )
    return plan.with_assets(assets)


def _module(
    folder: SentenceFolder, transformer: torch.nn.Module, fixed: dict[str, Any]
) -> tuple[torch.nn.Module, str, str]:
    """Return the module to export, the name of its output and the name of its settings."""
    if folder.task == SCORES_PAIRS:
        labels = getattr(transformer.config, "num_labels", 0)
        activation = score_activation(folder.activation, labels, str(folder.transformer))
        return PairScorer(transformer, activation, fixed), "scores", PAIR_SETTINGS
    stages = [make_stage(stage) for stage in folder.stages]
    return SentenceEncoder(transformer, stages, fixed), "embeddings", SETTINGS


def _open(
    path: Path, pooling: str | Sequence[str] | None, normalize: bool, tokenizer: Any
) -> tuple[SentenceFolder, torch.nn.Module, Any]:
    """Return the description of a folder, its transformer and its tokenizer."""
    if not path.is_dir():
        raise ExportError(f"model: expected a folder or a module, got {str(path)!r}")
    if tokenizer is not None:
        raise ExportError("tokenizer: expected None for a folder, which has its own")
    if (path / "modules.json").is_file():
        if pooling is not None or normalize:
            raise ExportError("pooling, normalize: expected neither, for modules.json says them")
        folder = read_sentence_folder(path)
    elif pooling is None and is_classifier(path):
        if normalize:
            raise ExportError("normalize: expected False for a cross-encoder, got True")
        folder = read_classifier_folder(path)
    else:
        folder = _described(path, pooling, normalize)
    try:
        import transformers
    except ImportError as error:
        raise ImportError(
            "taper_frontend.export_encoder needs transformers for a folder; install it with "
            "`pip install transformers`",
            name="transformers",
        ) from error
    try:
        loaded = transformers.AutoTokenizer.from_pretrained(
            folder.transformer, local_files_only=True
        )
        model = getattr(transformers, TASKS[folder.task]).from_pretrained(
            folder.transformer, local_files_only=True, dtype=torch.float32
        )
    except (OSError, ValueError, KeyError) as error:
        raise ExportError(f"{folder.transformer}: transformers cannot read it: {error}") from error
    return folder, model, loaded


def _described(path: Path, pooling: str | Sequence[str] | None, normalize: bool) -> SentenceFolder:
    """Describe a folder without ``modules.json`` by the arguments."""
    if pooling is None:
        raise ExportError(
            "pooling: expected how token embeddings become one, such as 'mean', because no "
            "modules.json says it and config.json names no sequence classifier; got None"
        )
    settings = {"pooling_mode": pooling_modes({"pooling_mode": pooling}, "pooling")}
    stages = [SentenceStage("Pooling", path, settings)]
    if normalize:
        stages.append(SentenceStage("Normalize", path, {}))
    return SentenceFolder("feature-extraction", path, tuple(stages), None, False, {}, None, None)


def _limit(tokenizer: Any, config: Any) -> int | None:
    """Return the most tokens that tokenizer and model take, if they have a limit."""
    limits = [tokenizer.model_max_length, getattr(config, "max_position_embeddings", None)]
    known = [limit for limit in limits if type(limit) is int and 0 < limit < _NO_LIMIT]
    return min(known, default=None)


def _tokenizer_json(tokenizer: Any, limit: int | None, *, lower_case: bool) -> tuple[str, int]:
    """Return the JSON of a tokenizer that cuts and pads as the model wants, and its tokens."""
    from tokenizers import Tokenizer, normalizers

    own = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    if limit is None:
        own.no_truncation()
    else:
        own.enable_truncation(limit, direction=tokenizer.truncation_side)
    pad = tokenizer.pad_token_id
    own.enable_padding(
        direction=tokenizer.padding_side,
        pad_id=pad or 0,
        pad_type_id=tokenizer.pad_token_type_id,
        pad_token=tokenizer.pad_token or "",
    )
    if lower_case:
        before = [] if own.normalizer is None else [own.normalizer]
        own.normalizer = normalizers.Sequence([normalizers.Lowercase(), *before])
    return own.to_str(), own.get_vocab_size(with_added_tokens=True)


def _example(
    names: Sequence[str], vocabulary: int, length: int, side: str
) -> dict[str, torch.Tensor]:
    """Return inputs of two sentences, of which one is padded."""
    ids = (torch.arange(2 * length).reshape(2, length) * 7 + 5) % vocabulary
    mask = torch.ones_like(ids)
    padded = slice(length // 2) if side == "left" else slice(length - length // 2, None)
    mask[1, padded] = 0
    made = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids)}
    return {name: made[name] if name in made else mask.clone() for name in names}
