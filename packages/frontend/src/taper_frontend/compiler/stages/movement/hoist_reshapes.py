"""Move RESHAPEs towards the inputs, where pairs of them cancel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import is_plain_matmul
from taper_frontend.compiler.analysis.views import is_free_reshape
from taper_frontend.compiler.graph.node import ABSENT, SourceLine
from taper_frontend.compiler.rules.engine import rewrite
from taper_frontend.compiler.stages.movement.crossing import regroup
from taper_runtime.formats import PLAIN

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_frontend.compiler.stages.movement.crossing import Regrouped
    from taper_runtime.ops.opdef import Shape


def hoist_reshapes(graph: Graph) -> bool:
    """Move a RESHAPE that regroups leading dimensions before the op that it follows.

    ::

        x -> RESHAPE [6,4] -> MATMUL(., w) -> RESHAPE [2,3,5]        x: [2,3,4]
        x -> RESHAPE [2,3,4] -> MATMUL(., w)                         (RESHAPE [2,3,4] of [6,4] of x)
        x -> MATMUL(., w)                                            (once remove_noops has run)

    This is done only if another RESHAPE is further up. Tensors that ATen flattens to two dimensions
    (addmm) or three (bmm) get back their shapes, and activations, residuals and masks become
    adjacent to the product, where they fuse. RESHAPEs are free unless they read a strided view, and
    they are never moved after one. Each step moves a RESHAPE closer to the one that it cancels
    with.
    """
    return rewrite(graph, _hoist, at=("RESHAPE",))


def _hoist(graph: Graph, node: Node) -> bool:
    """Move a RESHAPE, and those that this adds above, as far up as possible.

    Otherwise each round of passes would move them by only one op.
    """
    changed = False
    known: dict[tuple[str, Shape], bool] = {}
    waiting = [node]
    while waiting:
        node = waiting.pop()
        inputs = _hoisted(graph, node, known)
        changed |= bool(inputs)
        makers = map(graph.producers.get, inputs)
        waiting += [maker for maker in makers if maker is not None and maker.op == "RESHAPE"]
    return changed


def _hoisted(graph: Graph, node: Node, known: dict[tuple[str, Shape], bool]) -> list[str]:
    """Move a RESHAPE up by one op; return the new inputs of that op, or nothing if it stays."""
    source = node.inputs[0]
    producer = graph.producers.get(source)
    if producer is None or graph.sole_consumer(source) is not node:
        return []
    found = _regrouped(graph, producer, graph.tensors[node.output].shape)
    if found is None:
        return []
    shapes = [() if name == ABSENT else graph.tensors[name].shape for name in producer.inputs]
    changes = list(zip(producer.inputs, shapes, found.shapes, strict=True))
    if not all(old == new or is_free_reshape(graph, name, new) for name, old, new in changes):
        return []
    if not _any_meets(graph, producer, found, known):
        return []
    inputs = [
        name if old == new else _reshaped(graph, name, new, node.source)
        for name, old, new in changes
    ]
    graph.replace_node(node, producer.op, inputs, found.attrs)
    return inputs


def _regrouped(graph: Graph, node: Node, shape: Shape) -> Regrouped | None:
    """Return how ``node`` computes its output in another shape with the same last axes.

    Nothing is gained if the node computes nothing, or is a product that already has its epilogue.
    """
    if node.definition.view is not None or (node.op == "MATMUL" and not is_plain_matmul(node)):
        return None
    if any(graph.tensors[name].format != PLAIN for name in node.reads):
        return None  # once weights are packed the movement stage is over
    before = graph.tensors[node.output].shape
    kept = min(_common_suffix(before, shape), len(before) - 1, len(shape) - 1)
    lead, new_lead = before[: len(before) - kept], shape[: len(shape) - kept]
    if kept < 1 or math.prod(lead) != math.prod(new_lead):
        return None
    return regroup(graph, node, len(lead), new_lead)


def _reshaped(graph: Graph, tensor: str, shape: Shape, source: SourceLine) -> str:
    name = tensor if tensor.endswith(".view") else f"{tensor}.view"
    expand = graph.producers.get(tensor)
    if expand is not None and expand.op == "EXPAND" and _expands_to(graph, expand, shape):
        tensor = expand.inputs[0]
        return graph.add_node("EXPAND", [tensor], {"shape": shape}, name=name, source=source)
    return graph.add_node("RESHAPE", [tensor], {"shape": shape}, name=name, source=source)


def _expands_to(graph: Graph, expand: Node, shape: Shape) -> bool:
    """Return whether the input of an EXPAND repeats along the axes that a RESHAPE regroups."""
    small, full = (graph.tensors[name].shape for name in (expand.inputs[0], expand.output))
    lead = small[: max(0, len(small) - _common_suffix(full, shape))]
    return len(small) <= len(shape) and all(size == 1 for size in lead)


def _any_meets(
    graph: Graph, node: Node, found: Regrouped, known: dict[tuple[str, Shape], bool]
) -> bool:
    """Return whether a RESHAPE of some input meets another one further up.

    ``known`` has earlier answers.

    Earlier answers stay true while the RESHAPE moves up, because nothing changes above it.
    """
    return any(
        name != ABSENT
        and graph.tensors[name].shape != shape
        and _meets(graph, name, shape, node, known)
        for name, shape in zip(node.inputs, found.shapes, strict=True)
    )


def _meets(
    graph: Graph, tensor: str, shape: Shape, reader: Node, known: dict[tuple[str, Shape], bool]
) -> bool:
    """Return whether a RESHAPE of ``tensor`` to ``shape`` can be hoisted up to another one."""
    if (tensor, shape) not in known:
        node = graph.producers.get(tensor)
        if node is None or node.op == "RESHAPE":
            meets = node is not None
        elif graph.sole_consumer(tensor) is not reader:
            meets = False
        else:
            found = _regrouped(graph, node, shape)
            meets = found is not None and _any_meets(graph, node, found, known)
        known[tensor, shape] = meets
    return known[tensor, shape]


def _common_suffix(a: Shape, b: Shape) -> int:
    """Return the number of equal last dimensions of two shapes."""
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return count
