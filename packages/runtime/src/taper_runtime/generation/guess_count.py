"""Choose how many tokens of a text to guess, by how many of the last guesses were right."""

from __future__ import annotations

#: The most guesses that one run checks. Attention computes up to 8 queries as it computes one, so a
#: text has the same bits with guesses and without; see FEW_ROWS of the kernel.
MOST_GUESSES = 7

#: The cost of a guess in a run that checks it, as a share of a run of one token, whose time is that
#: of reading the weights. Measured for a model of 90 M parameters in float32 on one thread of an
#: EPYC: 0.37 for one guess, 0.31 each for three, 0.16 each for seven.
_CHECK = 0.2

#: A guess of the past counts for this share of the next one.
_DECAY = 0.9

#: The least gain by which guesses are worth while, for the costs are estimates.
_GAIN = 1.05

#: The runs without a guess after guesses that were not worth while, at first and at most.
_FIRST_PAUSE, _LAST_PAUSE = 4, 64


class GuessCount:
    """Numbers of guesses of one text.

    With a share ``a`` of right guesses, a run of ``n`` guesses writes ``1 + a + ... + a**n`` tokens
    on average. Y. Leviathan et al., "Fast inference from transformers via speculative decoding",
    2023. The number with the best ratio of tokens and costs is taken. If none gains, a guess is
    tried now and then, at ever longer intervals.

    Parameters
    ----------
    cost : float
        The cost of making one guess, as a share of the cost of a run of one token.
    """

    def __init__(self, cost: float) -> None:
        self._cost = cost + _CHECK
        self._right, self._tried = 1.0, 2.0
        self._waited, self._pause = 0, _FIRST_PAUSE

    def choose(self, most: int) -> int:
        """Return how many guesses to make now, at most so many."""
        best = self._best(min(most, MOST_GUESSES))
        if best:
            self._waited, self._pause = 0, _FIRST_PAUSE
            return best
        if self._waited < self._pause:
            self._waited += 1
            return 0
        self._waited, self._pause = 0, min(2 * self._pause, _LAST_PAUSE)
        return min(most, 1)

    def learn(self, guessed: int, right: int) -> None:
        """Take over how many of some guesses were right; those after a wrong one do not count."""
        for is_right in [True] * right + [False] * (right < guessed):
            self._right = self._right * _DECAY + is_right
            self._tried = self._tried * _DECAY + 1

    def _best(self, most: int) -> int:
        share, best, gain, tokens = self._right / self._tried, 0, _GAIN, 1.0
        for count in range(1, most + 1):
            tokens += share**count
            if tokens / (1 + count * self._cost) > gain:
                best, gain = count, tokens / (1 + count * self._cost)
        return best
