"""Choose tokens by logits: penalties, filters and draws, with the names of transformers.

Penalties, processors of the user, temperature, top-k, top-p and min-p apply in the order of
transformers' ``generate``, in float32, and exclude the same tokens as its ``LogitsProcessor``s.
The mask of ``allowed_tokens`` comes after the processors.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.random_state import check_seed
from taper_runtime.base.records import NamedTuple
from taper_runtime.generation.decoder_convention import as_plain_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    #: Takes all tokens so far, int64 ``[n]``, and logits, float32 ``[words]``; returns logits.
    LogitsProcessor = Callable[[np.ndarray, np.ndarray], np.ndarray]

    #: Takes all tokens so far, int64 ``[n]``; returns the ids that may follow, or bool ``[words]``.
    AllowedTokens = Callable[[np.ndarray], Sequence[int] | np.ndarray]

_MAX_PENALTY = 2.0

#: The least and the largest number by which logits are divided: quotients are finite in float32.
_LEAST, _MOST = 1e-30, 1e30

#: For each number: the least value, whether it is allowed itself, the largest value, and the value
#: that changes nothing.
_RANGES = {
    "temperature": (_LEAST, True, _MOST, 1.0),
    "top_p": (0.0, False, 1.0, 1.0),
    "min_p": (0.0, True, 1.0, 0.0),
    "repetition_penalty": (_LEAST, True, _MOST, 1.0),
    "presence_penalty": (-_MAX_PENALTY, True, _MAX_PENALTY, 0.0),
    "frequency_penalty": (-_MAX_PENALTY, True, _MAX_PENALTY, 0.0),
}

#: Parameters that need ``do_sample``: without it the most likely token is chosen.
_FOR_DRAWS = ("temperature", "top_k", "top_p", "min_p", "seed")


class Sampling(NamedTuple):
    """Parameters by which tokens are chosen; see :meth:`.Generator.submit`."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    logits_processors: Sequence[LogitsProcessor] = ()
    allowed_tokens: AllowedTokens | None = None

    def check(self) -> None:
        """Check all values.

        Raises
        ------
        InputError
            If one is out of range, or has no effect because nothing is drawn.
        """
        if type(self.do_sample) is not bool:
            raise InputError(f"do_sample: expected a bool, got {describe(self.do_sample)}")
        for name, (least, closed, most, _) in _RANGES.items():
            value = getattr(self, name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not (least <= value <= most and (closed or value > least)):
                start = "at least" if closed else "more than"
                raise InputError(
                    f"{name}: expected a number {start} {least:g}, at most {most:g}, got "
                    f"{describe(value)}"
                )
        if self.top_k is not None and (type(self.top_k) is not int or self.top_k < 1):
            raise InputError(
                f"top_k: expected None or an int of at least 1, got {describe(self.top_k)}"
            )
        check_seed(self.seed)
        if not self.do_sample:
            for name in _FOR_DRAWS:
                if getattr(self, name) != self._field_defaults[name]:
                    raise InputError(
                        f"{name}: expected do_sample=True beside it, got do_sample=False, which "
                        "takes the most likely token"
                    )
        processors = self.logits_processors
        if not isinstance(processors, (list, tuple)) or not all(map(callable, processors)):
            raise InputError(
                f"logits_processors: expected a list of callables, got {describe(processors)}"
            )
        if self.allowed_tokens is not None and not callable(self.allowed_tokens):
            raise InputError(
                f"allowed_tokens: expected None or a callable, got {describe(self.allowed_tokens)}"
            )


class Sampler:
    """Chooses the tokens of one text, one after the other.

    Parameters
    ----------
    sampling : Sampling
    """

    def __init__(self, sampling: Sampling) -> None:
        self._sampling = sampling
        self._draws = np.random.Generator(_bits(sampling.seed)) if sampling.do_sample else None
        # what was returned or raised for the next token, if it was asked for
        self._mask: list[Any] = []

    @property
    def is_masked(self) -> bool:
        """Return whether tokens are chosen with a mask."""
        return self._sampling.allowed_tokens is not None

    def begin_mask(self, ids: Sequence[int]) -> None:
        """Ask for the mask of the token after ``ids``, once; :meth:`choose` raises its error."""
        if self._mask:
            return
        assert self._sampling.allowed_tokens is not None
        try:
            self._mask = [self._sampling.allowed_tokens(np.array(ids, np.int64))]
        except BaseException as error:
            self._mask = [error]

    def choose(self, logits: np.ndarray, ids: Sequence[int], prompt: int) -> int:
        """Return the next token.

        Parameters
        ----------
        logits : numpy.ndarray
            float32 ``[words]``; not changed.
        ids : sequence of int
            All tokens so far.
        prompt : int
            How many of them are the prompt.

        Raises
        ------
        InputError
            If a processor returns something else than logits, ``allowed_tokens`` something else
            than tokens, or no token can follow.
        """
        sampling = self._sampling
        logits = self._processed(logits, ids, prompt)
        if self._draws is None:
            token = int(logits.argmax())
            _check_likely(logits[token])
            return token
        if sampling.temperature != 1.0:
            logits = logits / np.float32(sampling.temperature)
        if sampling.top_k is not None:
            logits = keep_top_k(logits, sampling.top_k)
        if sampling.top_p != 1.0:
            logits = keep_top_p(logits, sampling.top_p)
        if sampling.min_p != 0.0:
            logits = keep_min_p(logits, sampling.min_p)
        _check_likely(logits.max())
        possible = np.flatnonzero(logits > -np.inf)
        ends = np.cumsum(softmax(logits[possible].astype(np.float64)))
        place = np.searchsorted(ends, self._draws.random() * ends[-1], side="right")
        return int(possible[min(int(place), len(possible) - 1)])

    def _processed(self, logits: np.ndarray, ids: Sequence[int], prompt: int) -> np.ndarray:
        """Apply penalties, the user's processors, and the mask of tokens that may follow."""
        sampling = self._sampling
        if sampling.repetition_penalty != 1.0:
            logits = penalize_repetition(logits, ids, sampling.repetition_penalty)
        if sampling.presence_penalty or sampling.frequency_penalty:
            logits = penalize_presence(
                logits, ids[prompt:], sampling.presence_penalty, sampling.frequency_penalty
            )
        for processor in sampling.logits_processors:
            before = logits.shape
            logits = np.asarray(processor(np.array(ids, np.int64), logits.copy()), np.float32)
            if logits.shape != before:
                raise InputError(
                    f"logits_processors: {processor!r}: expected logits of shape {before}, got "
                    f"{logits.shape}"
                )
        if self.is_masked:
            self.begin_mask(ids)
            found = self._mask.pop()
            if isinstance(found, BaseException):
                raise found
            logits = np.where(_as_mask(found, len(logits)), logits, np.float32(-np.inf))
        return logits


def _bits(seed: int | None) -> np.random.BitGenerator:
    # numpy takes no negative seeds
    return np.random.PCG64(seed if seed is None else seed % 2**64)


def _as_mask(allowed: Any, words: int) -> np.ndarray:
    """Return which tokens may follow, bool ``[words]``."""
    found = np.asarray(allowed)
    if found.dtype == bool and found.shape == (words,):
        mask = found
    else:
        mask = np.zeros(words, bool)
        mask[as_plain_ids(allowed, words, "allowed_tokens")] = True
    if not mask.any():
        raise InputError("allowed_tokens: expected at least one token that may follow, got none")
    return mask


def _check_likely(most: np.floating) -> None:
    if not math.isfinite(most):  # numpy's is slow for one number
        raise InputError(f"logits: expected a token with a finite logit, got {most} at most")


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return the probabilities ``exp(x) / sum(exp(x))``, in the dtype of the logits ``[n]``."""
    powers: np.ndarray = np.exp(logits - logits.max())
    powers /= powers.sum()
    return powers


def log_softmax(logits: np.ndarray) -> np.ndarray:
    """Return the natural logarithms of the probabilities, float64 ``[n]``."""
    shifted: np.ndarray = logits.astype(np.float64) - float(logits.max())
    shifted -= math.log(float(np.exp(shifted).sum()))
    return shifted


def penalize_repetition(logits: np.ndarray, ids: Sequence[int], penalty: float) -> np.ndarray:
    """Divide positive logits of tokens that occur in ``ids`` by a penalty, multiply negative ones.

    N. Keskar et al., "CTRL: a conditional transformer language model for controllable generation",
    2019.
    """
    seen = np.unique(np.array(ids, np.int64))
    found = logits[seen]
    result = logits.copy()
    result[seen] = np.where(found < 0, found * np.float32(penalty), found / np.float32(penalty))
    return result


def penalize_presence(
    logits: np.ndarray, ids: Sequence[int], presence: float, frequency: float
) -> np.ndarray:
    """Subtract ``presence``, and ``frequency`` for each occurrence, of tokens that are in ``ids``.

    The formula is that of OpenAI's protocol, over the tokens that were generated.
    """
    seen, counts = np.unique(np.array(ids, np.int64), return_counts=True)
    result = logits.copy()
    result[seen] -= (presence + frequency * counts).astype(np.float32)
    return result


def keep_top_k(logits: np.ndarray, count: int) -> np.ndarray:
    """Exclude all but the ``count`` largest logits, and those that equal the last of them."""
    if count >= len(logits):
        return logits
    least = np.partition(logits, len(logits) - count)[len(logits) - count]
    return np.where(logits < least, np.float32(-np.inf), logits)


def keep_top_p(logits: np.ndarray, mass: float) -> np.ndarray:
    """Exclude the least likely tokens whose probabilities add up to at most ``1 - mass``.

    A. Holtzman et al., "The curious case of neural text degeneration", 2020.
    """
    possible = np.flatnonzero(logits > -np.inf)
    order = possible[np.argsort(logits[possible], kind="stable")]
    excluded = np.cumsum(softmax(logits[order])) <= np.float32(1 - mass)
    excluded[-1:] = False
    result = logits.copy()
    result[order[excluded]] = -np.inf
    return result


def keep_min_p(logits: np.ndarray, share: float) -> np.ndarray:
    """Exclude tokens less likely than a share of the most likely one.

    M. Nguyen et al., "Turning up the heat: min-p sampling for creative and coherent LLM outputs",
    2024.
    """
    likely = softmax(logits)
    return np.where(likely < np.float32(share) * likely.max(), np.float32(-np.inf), logits)
