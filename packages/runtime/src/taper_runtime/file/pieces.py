"""Parse JSON piece by piece, so that a load can be stopped between two pieces.

Python's parser in C takes seconds for the longest header, and no other thread runs meanwhile.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from taper_runtime.base.loading import look

if TYPE_CHECKING:
    from collections.abc import Callable
    from json import JSONDecoder

_SPACE = re.compile(r"[ \t\n\r]*")


class Pieces:
    """A parser of one JSON text, with the same results as a decoder.

    Parameters
    ----------
    decoder : JSONDecoder
        A decoder with an ``object_pairs_hook``.
    text : str
    short, long : int
        Python's parser parses arrays and objects of up to so many characters. ``short`` is tried
        first.
    """

    def __init__(
        self, decoder: JSONDecoder, text: str, short: int = 1 << 10, long: int = 1 << 16
    ) -> None:
        self._scan: Callable[[str, int], tuple[Any, int]] = decoder.scan_once  # type: ignore[attr-defined]
        self._object = decoder.object_pairs_hook
        self._text = text
        self._lengths = short, long
        self._row = re.compile(rf'[^\[\]{{}}"]{{1,{long}}},')

    def parse(self) -> Any:
        """Return the value of the whole text.

        Raises
        ------
        ValueError, RecursionError
            If the decoder raises it; positions and messages may differ.
        """
        value, at = self._value(self._skip(0))
        if self._skip(at) != len(self._text):
            raise ValueError(f"Extra data: char {at}")
        return value

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None  # the pattern always matches, because it also matches no spaces
        return found.end()

    def _value(self, at: int) -> tuple[Any, int]:
        """Return the value that begins at a character, and its end."""
        look()
        text = self._text
        first = text[at : at + 1]
        if first not in ("[", "{") or not first:
            return self._one(text, at)
        for length in self._lengths:
            try:
                value, end = self._scan(text[at : at + length], 0)
            except StopIteration:
                continue  # the value is longer than the piece, or it is wrong, which is found below
            except ValueError:
                if at + length >= len(text):
                    raise
                continue
            return value, at + end
        return self._array(at + 1) if first == "[" else self._pairs(at + 1)

    def _one(self, text: str, at: int) -> tuple[Any, int]:
        try:
            return self._scan(text, at)
        except StopIteration:
            raise ValueError(f"Expecting value: char {at}") from None

    def _array(self, at: int) -> tuple[list[Any], int]:
        """Return the items of the array whose first item begins at a character, and its end."""
        items: list[Any] = []
        at = self._skip(at)
        if self._text.startswith("]", at):
            return items, at + 1
        while True:
            while row := self._row.match(self._text, at):  # numbers, true, false and null
                look()
                items += self._one(f"[{row[0][:-1]}]", 0)[0]
                at = self._skip(row.end())
            value, at = self._value(at)
            items.append(value)
            at, ends = self._next(at, "]")
            if ends:
                return items, at

    def _pairs(self, at: int) -> tuple[Any, int]:
        """Return the pairs of the object that begins at a character, and its end."""
        assert self._object is not None
        pairs: list[tuple[str, Any]] = []
        at = self._skip(at)
        if self._text.startswith("}", at):
            return self._object(pairs), at + 1
        while True:
            if not self._text.startswith('"', at):
                raise ValueError(f"Expecting property name enclosed in double quotes: char {at}")
            key, at = self._one(self._text, at)
            at = self._skip(at)
            if not self._text.startswith(":", at):
                raise ValueError(f"Expecting ':' delimiter: char {at}")
            value, at = self._value(self._skip(at + 1))
            pairs.append((key, value))
            at, ends = self._next(at, "}")
            if ends:
                return self._object(pairs), at

    def _next(self, at: int, end: str) -> tuple[int, bool]:
        """Return the position of the next item, or one past the end; and whether it is the end."""
        at = self._skip(at)
        if self._text.startswith(end, at):
            return at + 1, True
        if not self._text.startswith(",", at):
            raise ValueError(f"Expecting ',' delimiter: char {at}")
        return self._skip(at + 1), False
