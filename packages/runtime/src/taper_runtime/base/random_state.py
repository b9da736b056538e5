"""Implement torch's CPU random number generator: a Mersenne Twister whose state is an array.

The state is a plain int64 vector, so that a plan can pass it from draw to draw like any tensor. It
holds the twister's 624 words, the number of used words, whether a normal is left over from the last
pair, and that normal (the bits of a float64).

M. Matsumoto and T. Nishimura, "Mersenne Twister: a 623-dimensionally equidistributed uniform
pseudorandom number generator", 1998; numpy's ``RandomState``, whose numbers are frozen, implements
it. docs/random-numbers.md documents how torch makes numbers from its words. Kernels in C draw from
the same state (``src/random``); they are tested against this module, which also makes new states.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np

from taper_runtime.base.errors import InputError
from taper_runtime.base.forks import watch

_WORDS = 624
#: The number of elements of a state.
STATE_SIZE = _WORDS + 3
_USED, _HAS_NORMAL, _NORMAL = _WORDS, _WORDS + 1, _WORDS + 2

#: The seeds that ``torch.manual_seed`` accepts.
_LEAST_SEED, _LARGEST_SEED = -(2**63), 2**64 - 1

_CHUNK = 1 << 16  # words that are skipped at a time; they fit in cache

#: Unused twisters for reuse: making one takes longer than most draws.
_idle: list[np.random.RandomState] = []


def check_seed(seed: object) -> int | None:
    """Return ``seed`` if it is None or a number that ``torch.manual_seed`` accepts.

    Raises
    ------
    InputError
    """
    if seed is None:
        return None
    try:
        value = operator.index(seed)  # type: ignore[arg-type]
    except TypeError:
        value = None
    if value is None or isinstance(seed, bool) or not _LEAST_SEED <= value <= _LARGEST_SEED:
        raise InputError(
            f"seed: expected None or an int from {_LEAST_SEED} to {_LARGEST_SEED}, got {seed!r}"
        )
    return value


def new_state(seed: int | None) -> np.ndarray:
    """Return a new state of a generator, int64 ``[STATE_SIZE]``.

    Parameters
    ----------
    seed : int or None
        The seed, for the state after ``torch.manual_seed(seed)``, which uses the lower 32 bits.
        None gives a unique state, which derives from the operating system's entropy.
    """
    if seed is None:
        state = np.zeros(STATE_SIZE, np.int64)
        state[:_WORDS] = _UNSEEDED.words()
        state[_USED] = _WORDS
        return state
    generator = MersenneTwister(new_state(None))
    generator.seed(seed)
    return generator.state


class _Unseeded:
    """Draws the words of unseeded states; asking the system each time is as slow as a small run.

    The words come from another generator (M. O'Neill, "PCG: a family of simple fast space-efficient
    statistically good algorithms for random number generation", 2014), which numpy locks.
    """

    def __init__(self) -> None:
        self._source: np.random.PCG64 | None = None
        watch(self)

    def words(self) -> np.ndarray:
        """Draw the words of a state, as uint32."""
        source = self._source
        if source is None:
            source = self._source = np.random.PCG64()
        return source.random_raw(_WORDS // 2).view(np.uint32)

    def after_fork(self) -> None:
        """Draw new words in a forked child, so that they differ from the parent's."""
        self._source = None


_UNSEEDED = _Unseeded()


def check_state(state: np.ndarray) -> int:
    """Return how many words of ``state`` are used.

    Raises
    ------
    InputError
        If it is not a valid state, or the number is not from 0 to 624.
    """
    used = int(state[_USED])
    if not 0 <= used <= _WORDS:
        raise InputError(f"the random generator's state: expected 0 to 624 words, got {used}")
    return used


class MersenneTwister:
    """Draws numbers from a state, as torch does.

    Parameters
    ----------
    state : numpy.ndarray
        int64 ``[STATE_SIZE]``; it is not changed.

    Raises
    ------
    InputError
        If it is no state.
    """

    def __init__(self, state: np.ndarray) -> None:
        used = check_state(state)
        key = (state[:_WORDS] & 0xFFFFFFFF).astype(np.uint32)
        try:
            self._source = _idle.pop()
        except IndexError:
            self._source = np.random.RandomState(0)
        self._source.set_state(("MT19937", key, used, 0, 0.0))
        self._normal = float(state[_NORMAL:].view(np.float64)[0]) if state[_HAS_NORMAL] else None

    def __del__(self) -> None:
        if hasattr(self, "_source"):
            _idle.append(self._source)

    def seed(self, seed: int) -> None:
        """Reset the state, as ``torch.manual_seed`` does."""
        self._source.seed(seed % 2**32)
        self._normal = None

    @property
    def state(self) -> np.ndarray:
        """Return the current state."""
        return _encode(self._source, self._normal)

    def words(self, count: int) -> np.ndarray:
        """Draw ``count`` words of 32 bits, as uint32."""
        return self._source.randint(0, 2**32, count, np.uint32)

    def skip(self, count: int) -> None:
        """Skip ``count`` words."""
        for start in range(0, count, _CHUNK):
            self.words(min(_CHUNK, count - start))

    def long_words(self, count: int) -> np.ndarray:
        """Draw ``count`` 64-bit numbers, as uint64; each takes two words, the upper one first."""
        words = self.words(2 * count).astype(np.uint64)
        return words[0::2] << np.uint64(32) | words[1::2]

    def doubles(self, count: int) -> np.ndarray:
        """Draw ``count`` numbers in [0, 1) with 53 random bits, as float64."""
        return (self.long_words(count) & np.uint64(2**53 - 1)) * 2.0**-53

    def normals(self, count: int) -> np.ndarray:
        """Draw ``count`` standard normals one after the other, as float64.

        They come in pairs (G. Box and M. Muller, "A note on the generation of random normal
        deviates", 1958); the second one of a pair is kept for the next call. Functions of the C
        library compute them, as in kernels, because the state holds the bits of a normal.
        """
        values = [] if self._normal is None else [self._normal]
        for first, second in self.doubles(2 * (max(count - len(values), 0) + 1 >> 1)).reshape(
            -1, 2
        ):
            radius, angle = math.sqrt(-2 * math.log1p(-second)), 2 * math.pi * first
            values += radius * math.cos(angle), radius * math.sin(angle)
        self._normal = values[count] if len(values) > count else None
        return np.array(values[:count], np.float64)


def _encode(source: np.random.RandomState, normal: float | None = None) -> np.ndarray:
    fields: Any = source.get_state()
    state = np.zeros(STATE_SIZE, np.int64)
    state[:_WORDS] = fields[1]
    state[_USED] = fields[2]
    if normal is not None:
        state[_HAS_NORMAL] = 1
        state[_NORMAL:].view(np.float64)[0] = normal
    return state
