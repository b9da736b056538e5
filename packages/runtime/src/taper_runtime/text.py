"""Text that a stranger wrote, made safe to show on a terminal."""

from __future__ import annotations


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
    """Do that for each line of ``text``."""
    return "\n".join(map(printable, text.split("\n")))
