"""What passes ask about MATMUL nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

if TYPE_CHECKING:
    from taper_frontend.graph.node import Node


def is_plain_matmul(node: Node | None) -> TypeGuard[Node]:
    """Whether ``node`` is a MATMUL of two tensors as they are: nothing packed, no epilogue."""
    return (
        node is not None
        and node.op == "MATMUL"
        and not node.attrs.get("columns")
        and not node.attrs.get("code")
    )
