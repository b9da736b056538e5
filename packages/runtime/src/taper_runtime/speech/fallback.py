"""Judge whether what was written of a window is doubtful, so that it is drawn again, or silence.

A. Radford et al., "Robust Speech Recognition via Large-Scale Weak Supervision", 2022, section 4.5,
with the measures of transformers' ``generate``.
"""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.random_state import check_seed
from taper_runtime.base.records import NamedTuple
from taper_runtime.generation.sampling import keep_top_k, log_softmax

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

#: Draws are from so many most likely tokens, as transformers' are.
_DRAWN_FROM = 50


class SpeechFallback(NamedTuple):
    """Conditions under which a window is written again, at the next temperature.

    Attributes
    ----------
    temperature : tuple of float
        Temperatures, in the order in which they are tried; 0 takes the most likely tokens.
    compression_ratio_threshold : float or None
        The tokens' bytes divided by those of zlib, more than which is a doubtful repetition.
    logprob_threshold : float or None
        The mean logarithm of the tokens' probabilities, less than which is doubtful.
    no_speech_threshold : float or None
        The probability of silence, more than which a window is silence, if its tokens are doubtful
        by ``logprob_threshold``.
    seed : int or None
        The same seed draws the same tokens.
    """

    temperature: tuple[float, ...] = (0.0,)
    compression_ratio_threshold: float | None = None
    logprob_threshold: float | None = None
    no_speech_threshold: float | None = None
    seed: int | None = None

    def check(self) -> None:
        """Check all values.

        Raises
        ------
        InputError
            If one is out of range.
        """
        if not self.temperature or not all(map(_is_temperature, self.temperature)):
            raise InputError(
                "temperature: expected a number of at least 0, or several, got "
                f"{describe(self.temperature)}"
            )
        for name in ("compression_ratio_threshold", "logprob_threshold", "no_speech_threshold"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and math.isfinite(value)):
                raise InputError(f"{name}: expected None or a number, got {describe(value)}")
        if self.no_speech_threshold is not None and self.logprob_threshold is None:
            raise InputError(
                "no_speech_threshold: expected a logprob_threshold beside it, which says what is "
                "doubtful"
            )
        check_seed(self.seed)

    def draws(self, temperature: float, number: int) -> dict[str, Any]:
        """Return the options of the generator for the attempt with this number."""
        if not temperature:
            return {}
        seed = None if self.seed is None else self.seed + number
        return {
            "do_sample": True,
            "temperature": temperature,
            "top_k": _DRAWN_FROM,
            "seed": seed,
        }


class ScoredRules:
    """Applies rules to logits, and sums up the probabilities of the tokens that are chosen.

    Parameters
    ----------
    rules : callable
        A logits processor.
    is_drawn : bool
        Whether tokens are drawn, from the most likely ones.
    """

    def __init__(
        self, rules: Callable[[np.ndarray, np.ndarray], np.ndarray], *, is_drawn: bool
    ) -> None:
        self._rules, self._is_drawn = rules, is_drawn
        self._likely: np.ndarray | None = None
        self._sum = 0.0

    def __call__(self, ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Return the logits by the rules, float32 ``[words]``."""
        if self._likely is not None:
            self._sum += float(self._likely[ids[-1]])
        logits = self._rules(ids, logits)
        self._likely = log_softmax(keep_top_k(logits, _DRAWN_FROM) if self._is_drawn else logits)
        return logits

    def mean(self, tokens: Sequence[int]) -> float:
        """Return the mean logarithm of the probabilities of all tokens that were written."""
        assert self._likely is not None
        return (self._sum + float(self._likely[tokens[-1]])) / len(tokens)


def compression_ratio(tokens: Sequence[int], vocabulary: int) -> float:
    """Return the bytes of tokens divided by those that zlib makes of them."""
    length = int(math.log2(vocabulary) / 8) + 1
    data = b"".join(token.to_bytes(length, "little") for token in tokens)
    return len(data) / len(zlib.compress(data))


def as_temperatures(value: Any) -> tuple[Any, ...]:
    """Return one temperature or several as a tuple."""
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_temperature(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and value >= 0
