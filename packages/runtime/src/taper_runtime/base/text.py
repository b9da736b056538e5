"""Write text for messages: words of strangers made safe for a terminal, similar names, counts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from typing import TypeGuard

#: Characters of a message about a stranger's file: names in it may be of any length.
MAX_MESSAGE = 500


def printable(text: str) -> str:
    r"""Return ``text`` as one line without characters that steer a terminal.

    What Unicode calls a control, format, surrogate, private or unassigned character, and every
    separator but the space, stands as its escape: ``\x1b``, ``\n``, ``\u202e``. So a name can
    neither move the cursor nor begin a line, nor turn the direction of what follows it.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def printable_lines(text: str) -> str:
    """Make each line of ``text`` printable."""
    return "\n".join(map(printable, text.split("\n")))


def with_end(message: str) -> str:
    """Return a message of at most :data:`MAX_MESSAGE` characters; dots stand for the rest."""
    return f"{message[:MAX_MESSAGE]}..." if len(message) > MAX_MESSAGE else message


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word that ``word`` is like, by a ratio of at least ``likeness``, or None."""
    from difflib import get_close_matches  # rarely needed

    return next(iter(get_close_matches(word, list(known), 1, likeness)), None)


def unknown(what: str, word: str, known: Iterable[str]) -> str:
    """Describe an unknown ``what``: name the closest known word and list all of them.

    ``"unknown pass 'folds'; did you mean 'fold'? expected one of 'fold', 'fuse'"``.
    """
    known = list(dict.fromkeys(known))
    near = nearest(word, known)
    hint = f"did you mean {near!r}? " if near else ""
    return f"unknown {what} {word!r}; {hint}expected one of {', '.join(map(repr, known)) or 'none'}"


def counted(count: int, what: str) -> str:
    """Return ``"1 node"`` or ``"2 nodes"``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def is_one_of(word: object, known: Container[str]) -> TypeGuard[str]:
    """Whether ``word`` is a string, and one of the known: other objects may not even compare."""
    return isinstance(word, str) and word in known
