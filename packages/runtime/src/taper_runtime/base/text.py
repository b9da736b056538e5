"""Format text for messages: make foreign words safe for a terminal, suggest names, count."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from typing import TypeGuard

#: The most characters of a message about an untrusted file, whose names may have any length.
MAX_MESSAGE = 500


def printable(text: str) -> str:
    r"""Return ``text`` as one line without terminal control characters.

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
    """Return a message of at most :data:`MAX_MESSAGE` characters; dots replace the rest."""
    return f"{message[:MAX_MESSAGE]}..." if len(message) > MAX_MESSAGE else message


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str | None:
    """Return the known word most similar to ``word``, or None below a ratio of ``likeness``."""
    from difflib import get_close_matches  # imported here because it is rarely needed

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
    """Return whether ``word`` is one of the known strings; other types may not be comparable."""
    return isinstance(word, str) and word in known
