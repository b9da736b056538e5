"""Run plans that read sentences, in batches of similar lengths."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.sizes import is_static
from taper_runtime.base.text import is_one_of
from taper_runtime.plan.spelling import type_text
from taper_runtime.session.inference_session import InferenceSession
from taper_runtime.session.opening import thread_count
from taper_runtime.session.options import SessionOptions
from taper_runtime.text.encoder_settings import SETTINGS, read_settings
from taper_runtime.text.tokens import SentenceTokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Sequence

    from taper_runtime.plan.plan import Plan

#: The most tokens, with padding, that a run reads for each thread. What lies between the layers of
#: MiniLM then fits in the caches: beside other work, 32 sentences of about 200 tokens took half the
#: time in 16 runs. Shorter runs of sorted sentences have less padding, too.
_TOKENS = 512

#: The inputs that a plan may have.
_INPUTS = ("input_ids", "attention_mask", "token_type_ids", "pooling_mask")


class SentenceReader:
    """A plan that reads sentences, with its session, tokenizer and settings.

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
        If the plan has no tokenizer, or one that does not fit, or is of another kind.
    TaperError
        If the package tokenizers is not installed. Also as :class:`taper_runtime.InferenceSession`.
    """

    #: The asset that has the settings; each kind of plan has its own.
    settings_asset: ClassVar[str] = SETTINGS

    def __init__(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes | Plan,
        sess_options: SessionOptions | None = None,
        *,
        model: str | None = None,
    ) -> None:
        self.session = InferenceSession(path_or_bytes, sess_options, model=model)
        self._width = _check_plan(self.session.plan)
        self._settings = read_settings(self.session.plan, self.settings_asset)
        threads = (sess_options or SessionOptions()).intra_op_num_threads
        self._most_tokens = _TOKENS * thread_count(threads)
        self._tokenizer = SentenceTokenizer(self.session.plan, self._settings.vocab_size)

    @property
    def max_length(self) -> int | None:
        """Return the most tokens of a row, with special ones; longer ones are cut."""
        return self._tokenizer.max_length

    @property
    def prompts(self) -> dict[str, str]:
        """Return the prompts by name."""
        return dict(self._settings.prompts)

    def _prompt(self, name: str | None) -> str:
        """Return the prompt to put before sentences."""
        settings = self._settings
        name = settings.default_prompt_name if name is None else name
        if name is None:
            return ""
        if not is_one_of(name, settings.prompts):
            raise InputError(
                f"prompt_name: expected one of {[*settings.prompts]} or None, got {name!r}"
            )
        return settings.prompts[name]

    def _batches(
        self,
        texts: Sequence[str] | Sequence[tuple[str, str]],
        batch_size: int,
        prompt_length: int,
        show_progress_bar: bool,
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Run sentences, or pairs of them, batch by batch, the longest ones first.

        Yields
        ------
        tuple of numpy.ndarray
            The places of a batch in ``texts``, int64 [batch], and its output [batch, width].
        """
        tokens = self._tokenizer.tokens(texts)
        order = np.argsort([-len(ids) for ids, _ in tokens], kind="stable")
        lengths = [len(tokens[row][0]) for row in order]
        groups = _groups(lengths, batch_size, self._most_tokens)
        with _bar(len(groups), show_progress_bar) as advance:
            for group in groups:
                rows = order[group]
                feed = self._tokenizer.arrays([tokens[row] for row in rows], prompt_length)
                inputs = {name: feed[name] for name in self.session.plan.inputs}
                yield rows, self.session.run(None, inputs)[0]
                advance()


def _groups(lengths: Sequence[int], most_rows: int, most_tokens: int) -> list[slice]:
    """Return which texts run together: the lengths fall, so that all are padded to the first.

    A text that has more tokens than a run should read runs alone.
    """
    found = []
    start = 0
    while start < len(lengths):
        fitting = most_tokens // max(lengths[start], 1)
        end = min(start + max(1, min(most_rows, fitting)), len(lengths))
        found.append(slice(start, end))
        start = end
    return found


def _check_plan(plan: Plan) -> int:
    """Check the inputs and outputs of a plan; return the length of an output row."""
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


def listed_texts(sentences: str | Iterable[str], name: str) -> list[str]:
    """Return sentences as a list; one ``str`` is one sentence.

    Raises
    ------
    InputError
        If one is not a ``str`` of valid Unicode. It names the argument by ``name``.
    """
    try:
        texts = [sentences] if isinstance(sentences, str) else list(sentences)
    except TypeError:
        raise InputError(f"{name}: expected texts, got {type(sentences).__name__}") from None
    for index, text in enumerate(texts):
        check_text(text, f"{name}[{index}]")
    return texts


def check_text(text: object, name: str) -> None:
    """Check that a value is a ``str`` of valid Unicode.

    Raises
    ------
    InputError
        If it is not.
    """
    if not isinstance(text, str):
        raise InputError(f"{name}: expected a str, got {type(text).__name__}")
    if not (text.isascii() or _is_unicode(text)):
        raise InputError(f"{name}: expected valid Unicode, got a lone surrogate")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_number(name: str, value: object, most: int | None = None) -> int:
    """Check that a value is an int from 1 to ``most``, or of any size without one; return it.

    Raises
    ------
    InputError
        If it is not.
    """
    if type(value) is not int or value < 1 or (most is not None and value > most):
        limit = "from 1 on" if most is None else f"from 1 to {most}"
        raise InputError(f"{name}: expected a number {limit}, got {value!r}")
    return value


def _bar(steps: int, is_shown: bool) -> Any:
    """Return a context manager for a progress bar; it gives a function to call after each step."""
    if not is_shown:
        return nullcontext(lambda: None)
    from taper_runtime.base.progress import progress

    return progress("batches", steps)
