"""Fuzz the loader alone: a plan is neither shown nor run, so coverage is of the loader."""

from __future__ import annotations

from tests.fuzz.target import load


def check(blob: bytes) -> str:
    """Load a file; return what became of it.

    Raises
    ------
    Exception
        Whatever a user would not expect from the documents.
    """
    plan = load(blob)
    return plan if isinstance(plan, str) else "loaded"
