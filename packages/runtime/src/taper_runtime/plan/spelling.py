"""Format parts of a plan for people: calls of ops, types, sizes and ranges."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.sizes import UNBOUNDED, Size
from taper_runtime.formats import PLAIN

if TYPE_CHECKING:
    from taper_runtime.plan.plan import PlanNode, TensorSpec


def call_text(node: PlanNode) -> str:
    """Format what a node computes, as in ``ADD(a, b)``."""
    inputs = ", ".join("-" if name is None else name for name in node.inputs)
    return f"{node.op}({inputs})"


def type_text(spec: TensorSpec) -> str:
    """Format dtype and shape of a tensor, as in ``float32[B, 4]``."""
    text = f"{spec.seen.dtype}[{', '.join(map(str, spec.seen.shape))}]"
    return text if spec.format == PLAIN else f"{text} {spec.format}"


def size_text(nbytes: int) -> str:
    """Format a number of bytes in kB or MB; a size expression is printed as it is."""
    if isinstance(nbytes, Size):
        return f"{nbytes} bytes"
    return f"{nbytes / 1e3:.1f} kB" if nbytes < 1_000_000 else f"{nbytes / 1e6:.1f} MB"


def range_text(limits: tuple[int, int]) -> str:
    """Format the range of a size variable."""
    low, high = limits
    if isinstance(high, Size):
        return f"{low} to {high}"
    return f"{low} or more" if high >= UNBOUNDED else f"{low} to {high}"
