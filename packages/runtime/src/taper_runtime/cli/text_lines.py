"""Split what a command reads from the standard input into lines."""

from __future__ import annotations

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
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(line.removesuffix(b"\r").decode())
        except UnicodeDecodeError as error:
            raise InputError(f"line {number}: expected UTF-8: {error.reason}") from None
    return found
