"""Decode the lines of the standard input, and write text that the standard output can encode."""

from __future__ import annotations

import sys

from taper_runtime.base.errors import InputError


def text_lines(data: bytes) -> list[str]:
    """Return the lines of UTF-8 text.

    Raises
    ------
    InputError
        Naming the first line that is no UTF-8.
    """
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [text_line(line, number) for number, line in enumerate(lines, 1)]


def text_line(data: bytes, number: int) -> str:
    """Return a line of UTF-8 text, without its end.

    Raises
    ------
    InputError
        Naming the line by its number if it is no UTF-8.
    """
    try:
        return data.removesuffix(b"\n").removesuffix(b"\r").decode()
    except UnicodeDecodeError as error:
        raise InputError(f"line {number}: expected UTF-8: {error.reason}") from None


def write_text(text: str) -> None:
    """Write text to the standard output; what its encoding lacks stands as an escape."""
    encoding = sys.stdout.encoding or "utf-8"  # a StringIO has none
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))
