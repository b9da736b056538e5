"""Embed sentences with a plan of a text encoder, batch by batch."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.sizes import is_static
from taper_runtime.base.text import is_one_of
from taper_runtime.plan.spelling import type_text
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.text.encoder_settings import read_settings
from taper_runtime.text.tokens import SentenceTokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from taper_runtime.plan.plan import Plan
    from taper_runtime.session.options import SessionOptions

#: The inputs that a plan may have.
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pooling_mask")

#: The least length that an embedding is divided by, as in ``torch.nn.functional.normalize``.
_LEAST = 1e-12


class Encoder:
    """Embeds sentences with a plan of :func:`taper_frontend.export_encoder`, without torch.

    Many threads may use one encoder at once.

    Parameters
    ----------
    path_or_bytes : str, os.PathLike, bytes or Plan
        The plan, as :class:`taper_runtime.InferenceSession` takes it.
    sess_options : SessionOptions, optional
    model : str, optional
        The plan's name, if the file has several.

    Raises
    ------
    InputError
        If the plan has no tokenizer, or one that does not fit, or is not of an encoder.
    TaperError
        If the package tokenizers is not installed. Also as :class:`taper_runtime.InferenceSession`.
    """

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | Plan,
        sess_options: SessionOptions | None = None,
        *,
        model: str | None = None,
    ) -> None:
        self.session = InferenceSession(path_or_bytes, sess_options, model=model)
        self._dimension = _check_plan(self.session.plan)
        self._settings = read_settings(self.session.plan)
        self._tokenizer = SentenceTokenizer(self.session.plan, self._settings.vocab_size)

    @property
    def dimension(self) -> int:
        """Return the numbers of an embedding."""
        return self._dimension

    @property
    def max_length(self) -> int | None:
        """Return the most tokens of a sentence, with special ones; longer ones are cut."""
        return self._tokenizer.max_length

    @property
    def prompts(self) -> dict[str, str]:
        """Return the prompts by name."""
        return dict(self._settings.prompts)

    def encode(
        self,
        sentences: str | Iterable[str],
        batch_size: int = 32,
        normalize_embeddings: bool = False,
        truncate_dim: int | None = None,
        prompt_name: str | None = None,
        show_progress_bar: bool = False,
    ) -> np.ndarray:
        """Return the embeddings of sentences.

        Sentences of similar length are computed together, so that little is padding. The results
        are in the order of the sentences.

        Parameters
        ----------
        sentences : str or iterable of str
            An empty sentence is one too.
        batch_size : int
            How many are computed at once.
        normalize_embeddings : bool
            Whether each embedding gets length 1, after it is truncated.
        truncate_dim : int, optional
            How many numbers of each embedding are kept: the first ones.
        prompt_name : str, optional
            The prompt that stands before each sentence, one of :attr:`prompts`; by default the one
            that the model has as its default, if it has one.
        show_progress_bar : bool
            Whether a bar is shown on a terminal, if the package rich is installed.

        Returns
        -------
        numpy.ndarray
            float32 [sentences, dimension], or [dimension] for one ``str``.

        Raises
        ------
        InputError
            If a sentence is not a ``str``, or a parameter is out of its range.
        """
        texts = _texts(sentences)
        size = _number("batch_size", batch_size, None)
        kept = self._dimension
        if truncate_dim is not None:
            kept = _number("truncate_dim", truncate_dim, self._dimension)
        prompt = self._prompt(prompt_name)
        tokens = self._tokenizer.tokens([prompt + text for text in texts] if prompt else texts)
        skipped = 0
        if prompt and not self._settings.include_prompt:
            skipped = self._tokenizer.prompt_length(prompt)
        order = np.argsort([-len(ids) for ids, _ in tokens], kind="stable")
        found = np.empty((len(texts), kept), np.float32)
        starts = range(0, len(texts), size)
        with _bar(len(starts), show_progress_bar) as advance:
            for start in starts:
                rows = order[start : start + size]
                feed = self._tokenizer.arrays([tokens[row] for row in rows], skipped)
                inputs = {name: feed[name] for name in self.session.plan.inputs}
                found[rows] = self.session.run(None, inputs)[0][:, :kept]
                advance()
        if normalize_embeddings:
            found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), _LEAST)
        return found[0] if isinstance(sentences, str) else found

    def count_tokens(self, sentences: str | Iterable[str], prompt_name: str | None = None) -> int:
        """Return how many tokens :meth:`encode` reads, special ones included.

        Raises
        ------
        InputError
            As :meth:`encode`.
        """
        prompt = self._prompt(prompt_name)
        texts = [prompt + text for text in _texts(sentences)]
        return sum(len(ids) for ids, _ in self._tokenizer.tokens(texts))

    def _prompt(self, name: str | None) -> str:
        """Return what stands before sentences."""
        settings = self._settings
        name = settings.default_prompt_name if name is None else name
        if name is None:
            return ""
        if not is_one_of(name, settings.prompts):
            raise InputError(
                f"prompt_name: expected one of {[*settings.prompts]} or None, got {name!r}"
            )
        return settings.prompts[name]


def _check_plan(plan: Plan) -> int:
    """Check the inputs and outputs of an encoder's plan; return the numbers of an embedding."""
    for name in plan.inputs:
        spec = plan.tensors[name]
        if name not in _INPUTS or spec.dtype != "int64" or len(spec.shape) != 2:
            raise InputError(
                f"plan: expected int64 inputs [batch, length] of {', '.join(_INPUTS)}, got "
                f"{name}: {type_text(spec)}"
            )
    specs = [plan.tensors[name] for name in plan.outputs]
    if (
        len(specs) != 1
        or specs[0].dtype != "float32"
        or len(specs[0].shape) != 2
        or not is_static(specs[0].shape[1])
    ):
        got = ", ".join(f"{spec.name}: {type_text(spec)}" for spec in specs)
        raise InputError(f"plan: expected one float32 output [batch, size], got {got}")
    return int(specs[0].shape[1])


def _texts(sentences: str | Iterable[str]) -> list[str]:
    try:
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
    except TypeError:
        got = type(sentences).__name__
        raise InputError(f"sentences: expected texts, got {got}") from None
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(f"sentences[{index}]: expected a str, got {type(text).__name__}")
        if not (text.isascii() or _is_unicode(text)):
            raise InputError(f"sentences[{index}]: expected valid Unicode, got a lone surrogate")
    return texts


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _number(name: str, value: object, most: int | None) -> int:
    if type(value) is not int or value < 1 or (most is not None and value > most):
        limit = "from 1 on" if most is None else f"from 1 to {most}"
        raise InputError(f"{name}: expected a number {limit}, got {value!r}")
    return value


def _bar(steps: int, is_shown: bool) -> Any:
    """Return a context that gives a function to call after each step."""
    if not is_shown:
        return nullcontext(lambda: None)
    from taper_runtime.base.progress import progress

    return progress("batches", steps)
