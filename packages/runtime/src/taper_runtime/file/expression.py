"""Parse the text of a size expression."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.errors import OpError
from taper_runtime.base.sizes import CALLS, Size

if TYPE_CHECKING:
    from collections.abc import Mapping

#: The most characters of an expression's text.
MAX_TEXT = 2000

#: The most nested calls.
MAX_NESTING = 16


def parse(text: str, known: Mapping[str, int]) -> int:
    """Parse the canonical text of an expression.

    Parameters
    ----------
    text : str
        The text that ``str`` returns for an expression.
    known : mapping of str to size
        The variables.

    Raises
    ------
    ValueError
        If the text is not the canonical form of an expression over these variables.
    """
    if len(text) > MAX_TEXT:
        raise ValueError(f"expected at most {MAX_TEXT} characters")
    parser = _ExpressionParser(text, known)
    try:
        size = parser.sum(0)
    except OpError as error:
        raise ValueError(str(error)) from error
    if parser.at != len(text) or not isinstance(size, Size) or str(size) != text:
        raise ValueError("expected the canonical form of an expression")
    return size


class _ExpressionParser:
    """A recursive-descent parser of ``sum := ['-'] product ((' + ' | ' - ') product)*``."""

    def __init__(self, text: str, known: Mapping[str, int]) -> None:
        self.text = text
        self.known = known
        self.at = 0

    def take(self, token: str) -> bool:
        if not self.text.startswith(token, self.at):
            return False
        self.at += len(token)
        return True

    def expect(self, token: str) -> None:
        if not self.take(token):
            raise ValueError(f"expected {token!r} at character {self.at}")

    def sum(self, depth: int) -> int:
        if depth > MAX_NESTING:
            raise ValueError(f"expected at most {MAX_NESTING} levels of calls")
        total = -self.product(depth) if self.take("-") else self.product(depth)
        while True:
            if self.take(" + "):
                total += self.product(depth)
            elif self.take(" - "):
                total -= self.product(depth)
            else:
                return total

    def product(self, depth: int) -> int:
        result = self.factor(depth)
        while self.take("*"):
            result = result * self.factor(depth)
        return result

    def factor(self, depth: int) -> int:
        """Parse a number, a variable or a call; ``depth`` counts the enclosing calls."""
        start = self.at
        while self.at < len(self.text) and (
            self.text[self.at].isalnum() or self.text[self.at] == "_"
        ):
            self.at += 1
        word = self.text[start : self.at]
        if word.isascii() and word.isdigit() and len(word) < 20:
            return int(word)
        if word in CALLS and self.take("("):
            a = self.sum(depth + 1)
            self.expect(", ")
            b = self.sum(depth + 1)
            self.expect(")")
            call = CALLS[word](a, b)
            if str(call) != self.text[start : self.at]:
                raise ValueError(f"expected a call in canonical form at character {start}")
            return call
        if word not in self.known:
            raise ValueError(f"expected a size variable at character {start}")
        return self.known[word]
