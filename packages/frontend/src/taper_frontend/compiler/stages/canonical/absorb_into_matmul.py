"""Let a MATMUL read a transposed operand and scale its product."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.permutation import permutation, swaps
from taper_frontend.compiler.analysis.product import is_plain_matmul
from taper_frontend.compiler.rules.engine import rewrite

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node

_ROOTS = ("MATMUL", "MUL", "DIV")


def absorb_into_matmul(graph: Graph) -> bool:
    """Absorb a transposed second operand and scalar factors into MATMUL's attrs.

    ::

        b -> TRANSPOSE of the last two     MATMUL(a, b, transpose_b=True)
          -> MATMUL(a, .)
        MUL(MATMUL(a, b), 0.5)             MATMUL(a, b, alpha=0.5)
        MATMUL(MUL(a, 0.5), b)             MATMUL(a, b, alpha=0.5)

    A weight ``[in, out]`` is not transposed, because packing reads either layout. A transpose is
    absorbed even if it has other readers, because the product then reads the tensor in memory. A
    factor is absorbed only if nothing else reads the multiplied value.
    """
    steps = (_absorb_transpose, _absorb_output_factor, _absorb_input_factor)
    return rewrite(graph, *steps, at=_ROOTS)


def _absorb_transpose(graph: Graph, node: Node) -> bool:
    """Absorb a transpose of the second operand of a plain MATMUL."""
    if not is_plain_matmul(node):
        return False
    producer = graph.producers.get(node.inputs[1])
    if producer is None or len(graph.tensors[producer.output].shape) < 2:
        return False
    axes = permutation(graph, producer)
    if axes is None:
        return False
    attrs = dict(node.attrs)
    if swaps(axes, -2, -1):
        attrs["transpose_b"] = not attrs.get("transpose_b", False)
        graph.replace_node(node, "MATMUL", [node.inputs[0], producer.inputs[0]], attrs)
        return True
    return False


def _scaled(node: Node, factor: float) -> dict[str, object] | None:
    """Return the attrs of MATMUL ``node`` with alpha times ``factor``; None if not finite."""
    alpha = node.attrs.get("alpha", 1.0) * factor
    return node.attrs | {"alpha": alpha} if math.isfinite(alpha) else None


def _factor(graph: Graph, node: Node) -> float | None:
    """Return the number by which ``node`` multiplies its only input; None if it does not."""
    if node.attrs.get("scalar_index", -1) < 0 or graph.tensors[node.output].dtype != "float32":
        return None
    if node.op == "MUL":
        return float(node.attrs["scalar"])
    if node.op == "DIV" and node.attrs["scalar_index"] == 1 and node.attrs["scalar"] != 0:
        return 1.0 / float(node.attrs["scalar"])
    return None


def _absorb_output_factor(graph: Graph, node: Node) -> bool:
    factor = _factor(graph, node)
    if factor is None:
        return False
    product = graph.producers.get(node.inputs[0])
    if not is_plain_matmul(product) or graph.sole_consumer(node.inputs[0]) is not node:
        return False
    attrs = _scaled(product, factor)
    if attrs is None:
        return False
    graph.replace_node(node, "MATMUL", product.inputs, attrs)
    return True


def _absorb_input_factor(graph: Graph, node: Node) -> bool:
    """Absorb a factor through views, which only change where values lie."""
    if not is_plain_matmul(node):
        return False
    for name in dict.fromkeys(node.inputs):
        reader, producer = node, graph.producers.get(name)
        views: list[Node] = []
        while (
            producer is not None
            and graph.sole_consumer(producer.output) is reader
            and reader.inputs.count(producer.output) == 1
        ):
            factor = _factor(graph, producer)
            if factor is not None:
                attrs = _scaled(node, factor)
                if attrs is None:
                    break
                source = producer.inputs[0]
                for view in reversed(views):  # tensors with other values need other names
                    source = graph.add_node(
                        view.op, [source], view.attrs, name=view.output, source=view.source
                    )
                inputs = [source if each == name else each for each in node.inputs]
                graph.replace_node(node, "MATMUL", inputs, attrs)
                return True
            if producer.definition.view is None:
                break
            views.append(producer)
            reader, producer = producer, graph.producers.get(producer.inputs[0])
    return False
