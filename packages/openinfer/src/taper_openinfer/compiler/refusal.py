"""Refuse what of a program has no place in a plan."""

from __future__ import annotations


class CannotLower(Exception):
    """A node cannot be lowered; the text is the reason. The walk adds the place and goes on."""
