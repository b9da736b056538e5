"""The loader alone: what it takes is shown and not run, so that coverage tells of the loader."""

from __future__ import annotations

from tests.fuzz.target import read


def check(blob: bytes) -> str:
    """Load a file; return what became of it.

    Raises
    ------
    Exception
        Whatever a user would not expect from the documents.
    """
    plan = read(blob)
    return plan if isinstance(plan, str) else "read"
