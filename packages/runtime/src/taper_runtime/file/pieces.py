"""Parse JSON piece by piece, so that a load can be ended between two.

Python's parser in C takes seconds for the longest header, in which no other thread runs.
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
    """Parses one JSON text in pieces, with the results of a decoder.

    Parameters
    ----------
    decoder : JSONDecoder
        With an ``object_pairs_hook``.
    text : str
    short, long : int
        Characters of arrays and objects that are left to Python's parser; short ones are tried
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
        """Return the value that the whole text is.

        Raises
        ------
        ValueError, RecursionError
            As the decoder, with other places and words perhaps.
        """
        value, at = self._value(self._skip(0))
        if self._skip(at) != len(self._text):
            raise ValueError(f"Extra data: char {at}")
        return value

    def _skip(self, at: int) -> int:
        found = _SPACE.match(self._text, at)
        assert found is not None  # as it matches no space as well
        return found.end()

    def _value(self, at: int) -> tuple[Any, int]:
        """Return the value that begins at a character, and where it ends."""
        look()
        text = self._text
        first = text[at : at + 1]
        if first not in ("[", "{") or not first:
            return self._one(text, at)
        for length in self._lengths:
            try:
                value, end = self._scan(text[at : at + length], 0)
            except StopIteration:
                continue  # it goes on behind the piece, or is wrong: then that is found below
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
        """Return where the next item begins, or what is behind the end; which of the two it is."""
        at = self._skip(at)
        if self._text.startswith(end, at):
            return at + 1, True
        if not self._text.startswith(",", at):
            raise ValueError(f"Expecting ',' delimiter: char {at}")
        return self._skip(at + 1), False
