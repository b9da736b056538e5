"""Describe nodes that permute axes, whether they are TRANSPOSE or PERMUTE."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def permutation(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """Return the input axis of each output axis; None if ``node`` is neither of the two ops."""
    rank = len(graph.tensors[node.output].shape)
    attrs = node.attrs
    if node.op == "TRANSPOSE":
        axes = list(range(rank))
        axis0, axis1 = attrs["axis0"] % rank, attrs["axis1"] % rank
        axes[axis0], axes[axis1] = axis1, axis0
        return tuple(axes)
    if node.op == "PERMUTE":
        return tuple(axis % rank for axis in attrs["axes"])
    return None


def permutation_op(axes: Sequence[int]) -> tuple[str, dict[str, Any]]:
    """Return op and attrs of a permutation: TRANSPOSE if exactly two axes change, else PERMUTE."""
    moved = [i for i, axis in enumerate(axes) if axis != i]
    if len(moved) == 2:
        return "TRANSPOSE", {"axis0": moved[0], "axis1": moved[1]}
    return "PERMUTE", {"axes": tuple(axes)}


def swaps(axes: Sequence[int] | None, axis0: int, axis1: int) -> bool:
    """Return whether ``axes`` exchanges exactly these two axes (counted from either end)."""
    if axes is None:
        return False
    rank = len(axes)
    expected = list(range(rank))
    axis0, axis1 = axis0 % rank, axis1 % rank
    expected[axis0], expected[axis1] = axis1, axis0
    return list(axes) == expected
