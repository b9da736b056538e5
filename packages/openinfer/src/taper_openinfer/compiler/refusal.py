"""Define the error for a part of a program that a plan cannot express."""

from __future__ import annotations


class CannotLower(Exception):
    """A node cannot be lowered. The text is the reason; the walk adds the place and continues."""
