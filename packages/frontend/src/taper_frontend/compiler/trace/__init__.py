"""What the compiler did to a graph: every rule that fired, with the nodes before and after it."""

from __future__ import annotations

from taper_frontend.compiler.trace.recorder import Recorder

__all__ = ["Recorder"]
