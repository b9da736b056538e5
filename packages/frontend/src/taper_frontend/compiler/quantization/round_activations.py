"""Let products by weights of few bits round their activations to int8."""

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

from taper_runtime.formats.blocks import LEVELS

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph

#: The most activations that share a scale.
_GROUP = 32

#: The bits of levels for which kernels multiply bytes.
_BITS = (4, 8)


def round_activations(graph: Graph) -> None:
    """Set the attr ``activation_group`` of each product that can round its activations.

    ::

        MATMUL(x, w in blocks of 4 or 8 bits)      MATMUL(x, w, activation_group=32)

    Products of integers are exact, whatever the rows beside them. A group is 32 activations, or 8
    or 16 where the weight's blocks are no multiple of 32.
    """
    for node in graph.order():
        for block in node.blocks:
            round_activations(block)
        if node.op != "MATMUL" or node.attrs.get("accumulate"):
            continue
        group = activation_group(graph.tensors[node.inputs[1]].format)
        if group:
            graph.replace_node(
                node, node.op, node.inputs, {**node.attrs, "activation_group": group}
            )


def activation_group(format: str) -> int:
    """Return how many activations are rounded together beside a weight in a format; 0 for none."""
    family, *parameters = format.split(".")
    if family != "blocks":
        return 0
    levels = LEVELS[int(parameters[0]) if parameters[0].isdigit() else parameters[0]]
    if levels.bits not in _BITS or levels.code or levels.factors is not None:
        return 0
    return gcd(int(parameters[1]), _GROUP)
