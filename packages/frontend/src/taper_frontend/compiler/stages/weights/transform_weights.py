"""Convert weights of 3x3 convolutions of stride 1 to Winograd's format if that is faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import constant_weight
from taper_runtime.base.decisions import Decision
from taper_runtime.base.size_values import size_at
from taper_runtime.formats.winograd import POINTS
from taper_runtime.machine.cost import weight_cost

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import TensorType

#: Winograd's algorithm must take at most this fraction of the direct sums' time, because it has
#: larger rounding errors and weights.
_WORTH = 0.9


def transform_weights(graph: Graph) -> bool:
    """Transform the constant weight of each convolution that becomes faster.

    ::

        CONV(x, w)                                 CONV(x, PACK(w, winograd.4))

    F(4x4) needs a quarter of the products, and F(2x2) 4/9 of them, with about twice or 0.8 times
    the rounding error of direct sums. An infinity in x makes all pixels of a tile NaN. The weight
    takes 4 times, or 16/9 of, the bytes. A pipeline without this pass uses only direct sums.
    """
    transformed: dict[tuple[str, int], str] = {}
    changed = False
    for node in graph.order():
        if not _is_eligible(graph, node):
            continue
        x, weight, *extras = node.inputs
        tile, decision = _fastest(graph, node)
        if tile == 0:
            graph.listener.considered(decision)
            continue
        if (weight, tile) not in transformed:
            transformed[weight, tile] = graph.add_node(
                "PACK", [weight], {"format": f"winograd.{tile}"}, name=f"{weight}.tiles{tile}"
            )
        graph.replace_node(node, "CONV", [x, transformed[weight, tile], *extras], node.attrs)
        graph.listener.considered(decision._replace(name=transformed[weight, tile]))
        graph.listener.fired("transform_weights", node.output)
        changed = True
    return changed


def _is_eligible(graph: Graph, node: Node) -> bool:
    if node.op != "CONV" or node.attrs.get("groups", 1) != 1 or node.attrs.get("accumulate"):
        return False
    weight = constant_weight(graph, node)
    return (
        tuple(node.attrs["kernel"]) == (3, 3)
        and tuple(node.attrs["stride"]) == tuple(node.attrs["dilation"]) == (1, 1)
        and weight is not None
        and graph.tensors[weight].type.size > 0
    )


def _fastest(graph: Graph, node: Node) -> tuple[int, Decision]:
    """Return the tile size with the least estimated time, 0 for direct sums, and the decision."""
    x, weight, *extras = (_example(graph, name) for name in node.inputs)
    output = _example(graph, node.output)
    attrs = node.complete_attrs()
    op = node.definition
    times = {0: weight_cost(op, [x, weight, *extras], [output], attrs)}
    for tile in POINTS:
        inputs = [x, weight._replace(format=f"winograd.{tile}"), *extras]
        times[tile] = weight_cost(op, inputs, [output], attrs)
    best = min(times, key=lambda tile: times[tile] if tile else _WORTH * times[tile])
    names = {tile: f"F({tile}x{tile})" if tile else "direct sums" for tile in times}
    return best, Decision(
        "form",
        node.inputs[1],
        names[best],
        {names[tile]: round(ns) for tile, ns in times.items()},
        f"least estimated time; direct sums unless another takes at most {_WORTH} of theirs",
    )


def _example(graph: Graph, name: str) -> TensorType:
    """Return the type of a tensor for the example's sizes."""
    tensor = graph.tensors[name]
    sizes = tuple(size_at(size, graph.examples) for size in tensor.shape)
    return tensor.type._replace(shape=sizes)
