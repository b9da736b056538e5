"""Count the steps of proofs about sizes, so that every proof and every load ends.

A step is roughly the work on one term of a polynomial, one or two microseconds. The count depends
only on the question, so that a file is refused on every machine or on none.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from taper_runtime.base.errors import UnsupportedOpError
from taper_runtime.base.loading import current_check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_Question = TypeVar("_Question")
_Answer = TypeVar("_Answer")
_More = ParamSpec("_More")

#: The most steps of one question about a size outside a load: less than half a second. The
#: questions of the zoo's plans take less than a hundredth of that.
MAX_STEPS = 200_000

#: Steps between two checks whether the load should stop: some milliseconds.
_BETWEEN_LOOKS = 2_000

#: The most characters of an expression in an error.
_MAX_TEXT = 200


class Steps:
    """A quota of proof steps.

    Attributes
    ----------
    left : int
    question : object
        The size or text of the current question, which the error names; None between two questions.
    lows : dict of str to int
        The lower bounds that the question has found so far, by the text of expressions.

    Parameters
    ----------
    most : int
    refuse : callable
        Makes the error for a question when the quota is exceeded.
    """

    __slots__ = ("_check", "_look_at", "_refuse", "left", "lows", "question")

    def __init__(self, most: int, refuse: Callable[[object], Exception]) -> None:
        self.left = most
        self._refuse = refuse
        self._check = current_check()
        self._look_at = most if self._check is not None else -1
        self.question: object = None
        self.lows: dict[str, int] = {}

    def spend(self, count: int, about: object = None) -> None:
        """Charge steps to the current question, or to ``about`` if there is none.

        Raises
        ------
        Exception
            The error of ``refuse``, if the quota is exceeded.
        StoppedError
            If the load should stop.
        """
        self.left -= count
        if self.left < self._look_at:
            self._look_at = self.left - _BETWEEN_LOOKS
            if self._check is not None:
                self._check()
        if self.left < 0:
            raise self._refuse(about if self.question is None else self.question)


#: The quota of the current load or question in this context; None if there is neither.
CURRENT: ContextVar[Steps | None] = ContextVar("steps", default=None)


def spend(count: int, about: object = None) -> None:
    """Charge steps to the current load or question, if there is one, on behalf of ``about``."""
    steps = CURRENT.get()
    if steps is not None:
        steps.spend(count, about)


@contextmanager
def limited(steps: Steps) -> Iterator[None]:
    """Charge all questions inside the context to the quota of one load."""
    token = CURRENT.set(steps)
    try:
        yield
    finally:
        CURRENT.reset(token)


def ask(
    answer: Callable[Concatenate[_Question, _More], _Answer],
    question: _Question,
    *more: _More.args,
    **named: _More.kwargs,
) -> _Answer:
    """Return ``answer(question, ...)``; inner questions count as part of this one.

    Raises
    ------
    UnsupportedOpError
        If that takes more than :data:`MAX_STEPS`. In a load, the error of its :class:`Steps` is
        raised if the quota of the load is exceeded.
    """
    steps = CURRENT.get()
    if steps is not None and steps.question is not None:
        return answer(question, *more, **named)
    if steps is None:
        with limited(Steps(MAX_STEPS, _refuse)):
            return ask(answer, question, *more, **named)
    steps.question = question
    try:
        return answer(question, *more, **named)
    finally:
        steps.question = None
        steps.lows.clear()


def _refuse(question: object) -> UnsupportedOpError:
    return UnsupportedOpError(
        f"sizes: expected to decide {shortened(question)} in at most {MAX_STEPS} steps, got no "
        "answer"
    )


def shortened(question: object) -> str:
    """Return the beginning of the text of a size, enough to identify it."""
    text = str(question)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
