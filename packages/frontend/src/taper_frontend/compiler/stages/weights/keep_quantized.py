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
from taper_frontend.compiler.graph.constants import literal
from taper_runtime.formats import PLAIN
from taper_runtime.ops.convert import FLOATS_16_BIT

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Mapping

    import numpy as np

    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


def keep_quantized(graph: Graph) -> bool:
    """Store a product's weight as the integers and the scales that the model has.

    ::

        q -> CAST -> SUB(., zeros) -> MUL(., scales) -> RESHAPE -> MATMUL(x, .)
        DEQUANTIZE(q, scales, zeros) -> MATMUL(x, .)

        MATMUL(x, PACK(q, scales, zeros))

        q -> MUL(., scales) -> INDEX_SELECT(., order) -> MATMUL(x, .)
        MATMUL(INDEX_SELECT(x, places), PACK(q, scales))

        EMBEDDING(DEQUANTIZE(q, scales), i)
        DEQUANTIZE(EMBEDDING(q, i), EMBEDDING(scales, i))
        PERMUTE(INDEX_SELECT(PACK(q, scales), i))

    The second form of a lookup is for tables that products read, too, and for levels of fewer than
    8 bits and codes of floats. The weight of another product becomes a constant, which a file has
    as its integers and a session decodes when it is opened
    (:mod:`taper_frontend.compiler.planning.make_recipes`).

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
    stored: dict[tuple[str, bool], tuple[str, np.ndarray | None] | None] = {}

    def store(weight: str, is_transposed: bool) -> tuple[str, np.ndarray | None] | None:
        key = weight, is_transposed
        if key not in stored:
            stored[key] = _store(graph, weight, constants[weight], is_transposed, rounds)
        return stored[key]

    order = graph.order()
    heads = {_weight(graph, node) for node in order if node.attrs.get("transpose_b")}
    changed = False
    for node in order:
        weight = _weight(graph, node)
        if weight not in constants:
            changed |= (
                _look_up_blocks(graph, node, constants, heads, store)
                or _look_up(graph, node, constants)
                or _decode_at_open(graph, node, constants)
            )
            continue
        found = store(weight, bool(node.attrs.get("transpose_b")))
        if found is None:
            changed |= _decode_at_open(graph, node, constants)
            continue
        name, places = found
        inputs = list(node.inputs)
        inputs[node.definition.weights[0]] = name
        if places is not None:
            inputs[0] = _in_order(graph, inputs[0], places, node)
        attrs = {key: value for key, value in node.attrs.items() if key != "transpose_b"}
        graph.replace_node(node, node.op, inputs, attrs)
        graph.listener.fired("keep_quantized", node.output)
        changed = True
    return changed


def _look_up_blocks(
    graph: Graph,
    node: Node,
    constants: Mapping[str, Constant],
    heads: Container[str | None],
    store: Callable[[str, bool], tuple[str, np.ndarray | None] | None],
) -> bool:
    """Look up columns of blocks, if a product reads these too, or if they take fewer bytes."""
    table = node.inputs[0] if node.op == "EMBEDDING" else ""
    constant = constants.get(table)
    if constant is None or len(constant.shape) != 2 or constant.dtype != "float32":
        return False
    name, places = store(table, True) or ("", None)
    if not name or places is not None:
        return False
    if (
        table not in heads
        and graph.constants[name].type.storage.nbytes >= constant.type.size
        and (found := read_quantized(constant)) is not None
        and found.table is None
    ):
        return False  # bytes whose rows lie one behind the other are read faster
    attrs = {"axis": 1, "wrap": False}
    columns = graph.add_node("INDEX_SELECT", [name, node.inputs[1]], attrs, source=node.source)
    rank = len(graph.tensors[columns].shape)
    axes = {"axes": (*range(1, rank), 0)}
    graph.bypass(node, graph.add_node("PERMUTE", [columns], axes, source=node.source))
    graph.listener.fired("keep_quantized", node.output)
    return True


def _in_order(graph: Graph, x: str, places: np.ndarray, node: Node) -> str:
    """Bring the last axis of a product's activations into the order of the weight's rows."""
    index = graph.add_constant(f"{x}.places", literal(places))
    axis = {"axis": len(graph.tensors[x].shape) - 1, "wrap": False}
    return graph.add_node("INDEX_SELECT", [x, index], axis, source=node.source)


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
) -> tuple[str, np.ndarray | None] | None:
    """Add the weight as a constant of integers; return its name and the order of its rows."""
    found = None if constant.is_open else read_quantized(constant)
    if found is None or (found.rounded and not rounds):
        return None
    blocks = packed(found, is_transposed)
    if blocks is None:
        return None
    return graph.add_constant(f"{weight}.blocks", blocks.recipe), blocks.order
