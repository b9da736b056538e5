"""Split the text of a program into tokens with their positions."""

from __future__ import annotations

import re
from typing import NoReturn

from taper_openinfer.dtypes import DTYPES
from taper_openinfer.errors import (
    OpenInferError,
    Problem,
    ProgramError,
    TextPosition,
    shown,
)
from taper_runtime.base.records import NamedTuple

#: The most characters of a program's text, of its JSON, and of a literal number in a text.
MAX_TEXT = 1 << 20
MAX_JSON = 8 * MAX_TEXT
_MAX_DIGITS = 40
MAX_INTEGER = (1 << 64) - 1

_NAME, _NUMBER = r"[A-Za-z_][A-Za-z0-9_]*", r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
#: The type suffix that a number may have in OpenInfer's older programs: ``1u8``.
_SUFFIX = r"[iu](?:8|16|32|64)|f(?:16|32|64)"
_TOKEN = re.compile(
    rf"""(?P<space>(?:[ \t\r\n\f]+|//[^\n]*|/\*.*?\*/)+)
       | (?P<name>{_NAME})
       | (?P<number>{_NUMBER}(?:{_SUFFIX})?(?![A-Za-z0-9_]))
       | (?P<string>"[^"\r\n]*")
       | (?P<mark>>>|\.\.|[{{}}()\[\]:;,*@=.\-])""",
    re.VERBOSE | re.DOTALL,
)
_TYPED = re.compile(rf"({_NUMBER})({_SUFFIX})")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+|.", re.DOTALL)


class Token(NamedTuple):
    """A token of a program's text.

    Attributes
    ----------
    kind : str
        ``"name"``, ``"number"``, ``"string"``, ``"mark"`` or ``"end"``.
    text : str
    place : TextPosition
    """

    kind: str
    text: str
    place: TextPosition

    def __str__(self) -> str:
        return "the end of the text" if self.kind == "end" else shown(self.text)


def check_text(text: object) -> None:
    """Check that the argument is the text of a program, and not a path.

    Raises
    ------
    OpenInferError
    """
    if not isinstance(text, str):
        raise OpenInferError(f"expected the text of a program, got {type(text).__name__}")


def tokens(text: str, name: str) -> list[Token]:
    """Return the tokens of a text; the last one is of kind ``"end"``.

    Spaces and comments, ``// ...`` and ``/* ... */``, separate tokens.

    Raises
    ------
    ProgramError
        If the text is too long, or a character cannot begin a token.
    """
    check_text(text)
    if len(text) > MAX_TEXT:
        message = f"expected a text of at most {MAX_TEXT} characters, got {len(text)}"
        raise ProgramError([Problem(message)], name)
    found, at, line, line_start = [], 0, 1, 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        place = TextPosition(line, at - line_start + 1)
        if match is None:
            _refuse(text, at, place, name)
        if match.lastgroup == "space":
            line += match[0].count("\n")
            if "\n" in match[0]:
                line_start = at + match[0].rindex("\n") + 1
        else:
            found.append(Token(match.lastgroup or "", match[0], place))
        at = match.end()
    found.append(Token("end", "", TextPosition(line, at - line_start + 1)))
    return found


def _refuse(text: str, at: int, place: TextPosition, name: str) -> NoReturn:
    """Raise the error for a text that is no token."""
    if text.startswith("/*", at):
        message = "expected */ at the end of the comment, got the end of the text"
    elif text[at] == '"':
        message = 'expected " at the end of the string, got the end of the line'
    else:
        word = _WORD.match(text, at)
        what = "a number" if text[at].isdigit() else "a name, a number, a string or a mark"
        message = f"expected {what}, got {shown(word[0] if word else '')}"
    raise ProgramError([Problem(message, place)], name)


def number(token: Token, sign: int, name: str) -> int | float:
    """Return the value of a number token.

    Raises
    ------
    ProgramError
        If it has too many digits, exceeds u64 or f64, or is no value of the type in its suffix.
    """
    typed = _TYPED.fullmatch(token.text)
    if typed:
        value = number(token._replace(text=typed[1]), sign, name)
        row = DTYPES[typed[2]]
        if row.kind == "float":
            value = float(value)
        if not row.low <= value <= row.high or (row.kind != "float" and type(value) is float):
            message = f"expected a number of {row.name}, got {shown(token.text)}"
            raise ProgramError([Problem(message, token.place)], name)
        return value
    if len(token.text) > _MAX_DIGITS:
        message = f"expected a number of at most {_MAX_DIGITS} characters, got {len(token.text)}"
        raise ProgramError([Problem(message, token.place)], name)
    if token.text.isdigit():
        if int(token.text) > MAX_INTEGER:
            message = f"expected a whole number of at most {MAX_INTEGER}, got {token.text}"
            raise ProgramError([Problem(message, token.place)], name)
        return sign * int(token.text)
    value = sign * float(token.text)
    if value in (float("inf"), -float("inf")):
        message = f"expected a number within the range of f64, got {shown(token.text)}"
        raise ProgramError([Problem(message, token.place)], name)
    return value
