"""Inline branches with known conditions, and loops of at most one step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.block_operands import operands, splice
from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.base.dtypes import DTYPES

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def inline_blocks(graph: Graph) -> bool:
    """Replace a control-flow node that runs a block once, or never, by the block's nodes.

    ::

        IF(true, x) {RELU(x)} {EXP(x)}     RELU(x)
        SCAN(c, x: [1, n]) {ADD(c, x)}     ADD(c, RESHAPE(x))
    """
    return rewrite(graph, _inline_branch, at=("IF",)) | rewrite(graph, _inline_steps, at=("SCAN",))


def _inline_branch(graph: Graph, node: Node) -> bool:
    predicate = graph.value(node.inputs[0])
    if predicate is None:
        return False
    block = node.blocks[0 if predicate else 1]
    return graph.bypass(node, *splice(graph, block, node.inputs[1:]))


def _inline_steps(graph: Graph, node: Node) -> bool:
    """Inline a SCAN of one step; one without steps returns its carries and empty tensors."""
    first = operands(node)
    n, m = first.carries, first.others
    steps = graph.tensors[node.inputs[n]].shape[0]
    if type(steps) is not int or steps > 1:
        return False
    if steps == 0:
        results = list(node.inputs[:n])
        for name in node.outputs[n:]:
            dtype, shape, _ = graph.tensors[name].type
            empty = np.zeros(shape, DTYPES[dtype].storage)
            results.append(graph.add_constant(f"{name}.empty", empty, dtype))
        return graph.bypass(node, *results)
    items = [_reshaped(graph, node, x, graph.tensors[x].shape[1:]) for x in node.inputs[n:m]]
    given = splice(graph, node.blocks[0], [*node.inputs[:n], *items, *node.inputs[m:]])
    ys = [
        _reshaped(graph, node, y, graph.tensors[name].shape)
        for y, name in zip(given[n:], node.outputs[n:], strict=True)
    ]
    return graph.bypass(node, *given[:n], *ys)


def _reshaped(graph: Graph, node: Node, tensor: str, shape: tuple[int, ...]) -> str:
    return graph.add_node("RESHAPE", [tensor], {"shape": shape}, source=node.source)
