"""Moving RESHAPE towards the inputs, where two of them meet and cancel."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from taper_frontend.compiler.analysis.elementwise import is_elementwise
from taper_frontend.compiler.analysis.product import is_plain_matmul
from taper_frontend.compiler.analysis.views import is_free_reshape
from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.formats import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape


def hoist_reshapes(graph: Graph) -> bool:
    """Let a RESHAPE that regroups leading dimensions happen before the op it follows.

    ::

        x -> RESHAPE [6,4] -> MATMUL(., w) -> RESHAPE [2,3,5]        x: [2,3,4]
        x -> RESHAPE [2,3,4] -> MATMUL(., w)                         (RESHAPE [2,3,4] of [6,4] of x)
        x -> MATMUL(., w)                                            (once remove_noops has run)

    It happens only where another RESHAPE lies further up. What ATen flattens to two dimensions
    (addmm) or three (bmm) gets back the shape it had, and activations, residuals and masks lie
    beside the product, where they fuse. RESHAPEs are free unless they read a strided view; one is
    never moved to where it would. Each step leaves a RESHAPE nearer to the one it is to meet.
    """
    return rewrite(graph, _hoist, at=("RESHAPE",))


def _hoist(graph: Graph, node: Node) -> bool:
    if node.op != "RESHAPE":
        return False
    source = node.inputs[0]
    producer = graph.producer(source)
    if producer is None or graph.sole_consumer(source) is not node:
        return False
    if any(graph.tensors[name].format != PLAIN for name in producer.inputs):
        return False  # the movement stage is over once weights are packed
    rule = _elementwise if is_elementwise(producer) else _RULES.get(producer.op)
    before, after = graph.tensors[source].shape, graph.tensors[node.output].shape
    kept = _common_suffix(before, after)
    regroup = _Regrouping(before[: len(before) - kept], after[: len(after) - kept], kept)
    if rule is None or not kept or math.prod(regroup.lead) != math.prod(regroup.new_lead):
        return False
    shapes = [graph.tensors[name].shape for name in producer.inputs]
    new_shapes = rule(producer, shapes, regroup)
    if new_shapes is None:
        return False
    changes = list(zip(producer.inputs, shapes, new_shapes, strict=True))
    if not all(old == new or is_free_reshape(graph, name, new) for name, old, new in changes):
        return False
    if not any(old != new and _meets_reshape(graph, name, producer) for name, old, new in changes):
        return False
    inputs = [
        name if old == new else _reshaped(graph, name, new, node.source)
        for name, old, new in changes
    ]
    attrs = dict(producer.attrs)
    if producer.op == "SOFTMAX":
        attrs["axis"] += len(after) - len(before)
    graph.replace_node(node, producer.op, inputs, attrs)
    return True


def _reshaped(graph: Graph, tensor: str, shape: Shape, source: str) -> str:
    name = tensor if tensor.endswith(".view") else f"{tensor}.view"
    return graph.add_node("RESHAPE", [tensor], {"shape": shape}, name=name, source=source)


def _meets_reshape(graph: Graph, tensor: str, reader: Node) -> bool:
    """Whether a RESHAPE lies above ``tensor``, with only ops between that one can be moved over."""
    node = graph.producer(tensor)
    if node is None:
        return False
    if node.op == "RESHAPE":
        return True
    return (
        (is_elementwise(node) or node.op in _RULES)
        and graph.sole_consumer(tensor) is reader
        and any(_meets_reshape(graph, name, node) for name in node.inputs)
    )


def _common_suffix(a: Shape, b: Shape) -> int:
    """Return how many last dimensions two shapes share."""
    count = 0
    while count < min(len(a), len(b)) and a[-1 - count] == b[-1 - count]:
        count += 1
    return count


class _Regrouping(NamedTuple):
    """The leading dimensions ``lead`` of a shape become ``new_lead``; the ``kept`` others stay."""

    lead: Shape
    new_lead: Shape
    kept: int

    def broadcast(self, shape: Shape) -> Shape | None:
        """Return ``shape``, which broadcasts to the regrouped one, regrouped likewise."""
        lead = shape[: max(len(shape) - self.kept, 0)]
        rest = shape[len(lead) :]
        if lead == self.lead and len(rest) == self.kept:
            return self.new_lead + rest
        return rest if all(size == 1 for size in lead) else None

    def move(self, shape: Shape) -> Shape:
        """Return ``shape``, which starts with ``lead``, regrouped."""
        return self.new_lead + shape[len(self.lead) :]


# Each rule returns the new shapes of the inputs; None if the leading dimensions mean something to
# the op.


def _elementwise(node: Node, shapes: list[Shape], regroup: _Regrouping) -> list[Shape] | None:
    new_shapes = [new for shape in shapes if (new := regroup.broadcast(shape)) is not None]
    return new_shapes if len(new_shapes) == len(shapes) else None


def _softmax(node: Node, shapes: list[Shape], regroup: _Regrouping) -> list[Shape] | None:
    return [regroup.move(shapes[0])] if node.attrs["axis"] >= len(regroup.lead) else None


def _norm(node: Node, shapes: list[Shape], regroup: _Regrouping) -> list[Shape] | None:
    return [regroup.move(shapes[0]), *shapes[1:]] if node.attrs["dims"] <= regroup.kept else None


def _matmul(node: Node, shapes: list[Shape], regroup: _Regrouping) -> list[Shape] | None:
    """Rows of ``a`` may be grouped at will if ``b`` is a matrix, batches if both have the same."""
    if not is_plain_matmul(node):
        return None
    a, b = shapes
    if len(b) == 2:
        return [regroup.move(a), b]
    if regroup.kept >= 2 and a[:-2] == b[:-2]:
        return [regroup.move(a), regroup.move(b)]
    return None


def _attention(node: Node, shapes: list[Shape], regroup: _Regrouping) -> list[Shape] | None:
    """Batch and heads, which a bmm has joined, become two dimensions again."""
    heads = [shape[:-2] for shape in shapes[:3]]
    if node.attrs.get("transpose_output") or len(regroup.new_lead) != 2:
        return None
    if regroup.kept != 2 or any(lead != regroup.lead for lead in heads):
        return None
    mask = [new for shape in shapes[3:] if (new := regroup.broadcast(shape)) is not None]
    if len(mask) < len(shapes) - 3:
        return None
    return [*(regroup.move(shape) for shape in shapes[:3]), *mask]


_RULES: Mapping[str, Callable[[Node, list[Shape], _Regrouping], list[Shape] | None]] = {
    "SOFTMAX": _softmax,
    "LAYER_NORM": _norm,
    "RMS_NORM": _norm,
    "MATMUL": _matmul,
    "ATTENTION": _attention,
}
