"""Keep the best unfinished and finished texts of a beam search.

The scores, the order and the ends are those of transformers' ``generate(num_beams=...)``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from taper_runtime.base.checks import describe
from taper_runtime.base.errors import InputError
from taper_runtime.base.records import NamedTuple
from taper_runtime.generation.sampling import log_softmax

#: The largest exponent of a text's length: scores are finite in float64.
_MAX_PENALTY = 30


class BeamOptions(NamedTuple):
    """Options of a beam search; see :meth:`.Generator.beam_search`."""

    num_beams: int
    max_new_tokens: int
    length_penalty: float = 1.0
    early_stopping: bool | str = False

    def check(self, vocabulary: int) -> None:
        """Check all values but ``max_new_tokens``.

        Raises
        ------
        InputError
            If one is out of range.
        """
        if type(self.num_beams) is not int or not 1 <= self.num_beams <= vocabulary:
            raise InputError(
                f"num_beams: expected an int from 1 to {vocabulary}, the number of tokens, got "
                f"{describe(self.num_beams)}"
            )
        penalty = self.length_penalty
        if type(penalty) not in (int, float) or not -_MAX_PENALTY <= penalty <= _MAX_PENALTY:
            raise InputError(
                f"length_penalty: expected a number from {-_MAX_PENALTY} to {_MAX_PENALTY}, got "
                f"{describe(penalty)}"
            )
        if type(self.early_stopping) is not bool and self.early_stopping != "never":
            raise InputError(
                "early_stopping: expected True, False or 'never', got "
                f"{describe(self.early_stopping)}"
            )


class Beam(NamedTuple):
    """A text and its score: the sum of its tokens' log-probabilities, or its final score."""

    tokens: tuple[int, ...]
    score: float


class BeamSearch:
    """A beam search of one prompt.

    Parameters
    ----------
    options : BeamOptions
    stops : frozenset of int
        Tokens that end a text.

    Attributes
    ----------
    running : list of Beam
        The texts that go on, the best one first; at first one without tokens.
    ended : list of Beam
        The best texts that have ended, the best one first.
    is_over : bool
        Whether none of the running texts goes on.
    """

    def __init__(self, options: BeamOptions, stops: frozenset[int]) -> None:
        self._options, self._stops = options, stops
        self.running = [Beam((), 0.0)]
        self.ended: list[Beam] = []
        self.is_over = False

    def advance(self, logits: np.ndarray) -> list[int]:
        """Choose the best texts that are one token longer.

        Parameters
        ----------
        logits : numpy.ndarray
            float ``[running, words]``, after each running text.

        Returns
        -------
        list of int
            The running text that each of the new ones continues.

        Raises
        ------
        InputError
            If a logit is no number.
        """
        if np.isnan(logits).any():
            raise InputError("logits: expected numbers, got nan")
        count, most = self._options.num_beams, self._options.max_new_tokens
        scores = np.stack(
            [log_softmax(row) + beam.score for row, beam in zip(logits, self.running, strict=True)]
        )
        words = scores.shape[1]
        # so many that as many go on even if all others end
        wanted = max(2, 1 + len(self._stops)) * count
        order = np.argsort(-scores, axis=None, kind="stable")[:wanted].tolist()
        length = len(self.running[0].tokens) + 1
        going: list[tuple[int, Beam]] = []
        for rank, place in enumerate(order):
            parent, token = divmod(place, words)
            made = Beam((*self.running[parent].tokens, token), float(scores.flat[place]))
            if token not in self._stops and length < most:
                going.append((parent, made))
            elif rank < count:
                self.ended.append(made._replace(score=made.score / self._divisor(length)))
        self.ended.sort(key=lambda beam: -beam.score)
        del self.ended[count:]
        going = going[:count]
        self.running = [beam for _, beam in going]
        self.is_over = not going or self._is_decided(length)
        return [parent for parent, _ in going]

    def _is_decided(self, length: int) -> bool:
        """Return whether no running text, of ``length`` tokens each, is expected to win."""
        options = self._options
        if len(self.ended) < options.num_beams:
            return False
        if options.early_stopping is True:
            return True
        longest = options.early_stopping == "never" and options.length_penalty > 0
        hoped = self._divisor(options.max_new_tokens if longest else length)
        return self.running[0].score / hoped <= self.ended[-1].score

    def _divisor(self, length: int) -> float:
        found: Any = length**self._options.length_penalty
        return float(found)
