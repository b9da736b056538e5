"""Store weights that the model computes from integers as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.product import is_product, packing
from taper_frontend.compiler.analysis.quantized import (
    is_quantized,
    packed,
    read_quantized,
    rows_of_table,
)
from taper_frontend.compiler.analysis.static import static_constants
from taper_runtime.formats import PLAIN
from taper_runtime.ops.convert import FLOATS_16_BIT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def keep_quantized(graph: Graph) -> bool:
    """Store a product's weight as the integers and the scales that the model has.

    ::

        q -> CAST -> SUB(., zeros) -> MUL(., scales) -> RESHAPE -> MATMUL(x, .)
        DEQUANTIZE(q, scales, zeros) -> MATMUL(x, .)

        MATMUL(x, PACK(q, scales, zeros))

        EMBEDDING(DEQUANTIZE(q, scales), i)
        DEQUANTIZE(EMBEDDING(q, i), EMBEDDING(scales, i))

    The weight of another product becomes a constant, which a file has as its integers and a session
    decodes when it is opened (:mod:`taper_frontend.compiler.planning.make_recipes`).

    The steps of the constant say what the integers and the scales are; no number is searched for.
    Weights that a session may replace are not known, and stay as they are computed. So do those
    whose numbers the model rounds to 16 bits, unless it computes with 16 bits anyway.
    """
    constants = static_constants(graph)
    rounds = any(
        graph.tensors[name].dtype in FLOATS_16_BIT
        for node in graph.order()
        for name in node.outputs
        if name not in constants
    )
    stored: dict[tuple[str, bool], str | None] = {}
    changed = False
    for node in graph.order():
        weight = _weight(graph, node)
        if weight not in constants:
            changed |= _look_up(graph, node, constants) or _decode_at_open(graph, node, constants)
            continue
        is_transposed = bool(node.attrs.get("transpose_b"))
        key = weight, is_transposed
        if key not in stored:
            stored[key] = _store(graph, weight, constants[weight], is_transposed, rounds)
        if (name := stored[key]) is None:
            changed |= _decode_at_open(graph, node, constants)
            continue
        inputs = list(node.inputs)
        inputs[node.definition.weights[0]] = name
        attrs = {key: value for key, value in node.attrs.items() if key != "transpose_b"}
        graph.replace_node(node, node.op, inputs, attrs)
        graph.listener.fired("keep_quantized", node.output)
        changed = True
    return changed


def _look_up(graph: Graph, node: Node, constants: Mapping[str, Constant]) -> bool:
    """Decode the rows that a run looks up, instead of the whole table."""
    constant = constants.get(node.inputs[0]) if node.op == "EMBEDDING" else None
    if constant is None or constant.is_open or not is_quantized(constant):
        return False
    found = read_quantized(constant)
    if found is None or found.rounded:
        return False
    parts = rows_of_table(found)
    if parts is None:
        return False
    name = node.inputs[0]
    inputs = [
        graph.add_node(
            "EMBEDDING",
            [graph.add_constant(f"{name}.{what}", part), node.inputs[1]],
            source=node.source,
        )
        for what, part in zip(("levels", "scales", "zeros"), parts, strict=False)
    ]
    graph.bypass(node, graph.add_node("DEQUANTIZE", inputs, source=node.source))
    graph.listener.fired("keep_quantized", node.output)
    return True


def _decode_at_open(graph: Graph, node: Node, constants: Mapping[str, Constant]) -> bool:
    """Make a constant of a product's weight that is computed from integers."""
    weight = node.inputs[node.definition.weights[0]] if is_product(node) else ""
    producer = graph.producers.get(weight)
    constant = constants.get(weight)
    if producer is None or constant is None or constant.is_open or not is_quantized(constant):
        return False
    graph.replace_by_constant(producer, *(constants[name] for name in producer.outputs))
    graph.listener.fired("keep_quantized", node.output)
    return True


def _weight(graph: Graph, node: Node) -> str | None:
    """Return the weight that a product would read in panels, if it is a float32 matrix."""
    if not is_product(node):
        return None
    weight = node.inputs[node.definition.weights[0]]
    type_ = graph.tensors[weight].type
    if (type_.dtype, type_.format) != ("float32", PLAIN):
        return None
    if packing(node, type_, {**node.complete_attrs(), "transpose_b": False}) != "panels.1":
        return None
    return weight


def _store(
    graph: Graph, weight: str, constant: Constant, is_transposed: bool, rounds: bool
) -> str | None:
    """Add the weight as a constant of integers; None if it is no such."""
    found = None if constant.is_open else read_quantized(constant)
    if found is None or (found.rounded and not rounds):
        return None
    recipe = packed(found, is_transposed)
    return None if recipe is None else graph.add_constant(f"{weight}.blocks", recipe)
