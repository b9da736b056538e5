"""Multiply quantized tensors as integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_frontend.compiler.analysis.product import is_plain_product
from taper_frontend.compiler.analysis.static import static_constants
from taper_frontend.compiler.graph.constants import Derived, derived, reshaped
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.constants import Constant
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape

#: The largest distance of two bytes: an activation less its zero point is not larger.
_MOST = 255 * 128
_BYTES = ("int8", "uint8")
_MOVES = ("TRANSPOSE", "PERMUTE", "RESHAPE")


class _Weight(NamedTuple):
    """A weight as int8, the sums of its columns and its factor for each column or for all."""

    levels: Constant
    sums: Constant
    factors: Constant


class _Activations(NamedTuple):
    """Tensors of the graph: bytes, and their scale and zero point for all or for each row."""

    levels: str
    scale: str
    zero: str | None
    border: int  # what pads


def multiply_quantized(graph: Graph) -> bool:
    """Replace a product of dequantized tensors by a product of their bytes.

    ::

        MATMUL(DEQUANTIZE(a, s, z), DEQUANTIZE(w, t))

        SUB(MATMUL(a, w, accumulate=int32), z * sums of w's columns)
          -> CAST to float32 -> MUL(., s) -> MUL(., t)

    The sums are exact. The scale and zero point of the activations are one for all or one for each
    row, the factor of the weight, which is a constant, is one for all or one for each column; it
    has no zero points. Sums that could overflow int32 stay as they are.
    """
    constants = static_constants(graph)
    changed = False
    for node in graph.order():
        if not _is_candidate(graph, node):
            continue
        weight = _weight(graph, node, constants)
        if weight is None:
            continue
        activations = _activations(graph, node)
        if activations is None:
            continue
        _multiply(graph, node, activations, weight)
        graph.listener.fired("multiply_quantized", node.output)
        changed = True
    return changed


def _is_candidate(graph: Graph, node: Node) -> bool:
    return (
        node.op in ("MATMUL", "CONV")  # no kernel transposes convolutions of bytes
        and is_plain_product(node)
        and not node.attrs.get("accumulate")
        and node.attrs.get("alpha", 1) == 1
        and graph.tensors[node.output].dtype == "float32"
    )


def _weight(graph: Graph, node: Node, constants: Mapping[str, Constant]) -> _Weight | None:
    """Return a product's int8 weight and its scales, one per output; None if it has others."""
    name = node.inputs[1]
    if name not in constants or constants[name].is_open:
        return None
    moves: list[Derived] = []
    constant = constants[name]
    while isinstance(constant, Derived) and constant.op in _MOVES:
        moves.append(constant)
        constant = constant.reads[0]
    if not isinstance(constant, Derived) or constant.op != "DEQUANTIZE":
        return None
    levels, factors, *zero = constant.reads
    rank = len(constant.shape)
    if levels.dtype != "int8" or factors.dtype != "float32" or constant.dtype != "float32":
        return None
    if zero and not _is_zero(zero[0]):
        return None
    if not np.isfinite(factors.value()).all():
        return None  # a product of floats has NaN where the sums are finite
    factors = reshaped(factors, (1,) * (rank - len(factors.shape)) + factors.shape)
    for step in reversed(moves):
        if step.op == "RESHAPE":
            shape = _reshaped_factors(factors.shape, levels.shape, step.shape)
            if shape is None:
                return None
            levels, factors = derived(step.op, [levels], step.attrs), reshaped(factors, shape)
        else:
            levels, factors = (derived(step.op, [x], step.attrs) for x in (levels, factors))
    rank = len(levels.shape)
    if node.op == "MATMUL" and node.attrs.get("transpose_b"):
        last = {"axis0": rank - 2, "axis1": rank - 1}
        levels, factors = (derived("TRANSPOSE", [x], last) for x in (levels, factors))
    columns = levels.shape[-1]
    rows = levels.type.size // max(1, columns)
    if (node.op == "MATMUL" and rank != 2) or rows * _MOST >= 2**31:
        return None
    if factors.shape[:-1] != (1,) * (rank - 1) or factors.shape[-1] not in (1, columns):
        return None
    wide = derived("CAST", [levels], {"dtype": "int32"})
    axes = tuple(range(rank - 1))
    sums = derived("SUM", [wide], {"axes": axes, "keepdim": False})
    return _Weight(levels, sums, reshaped(factors, factors.shape[-1:]))


def _reshaped_factors(factors: Shape, before: Shape, after: Shape) -> Shape | None:
    """Return the shape of factors beside a tensor that axes of size 1 join or leave."""
    kept = [axis for axis, size in enumerate(before) if size != 1]
    places = [axis for axis, size in enumerate(after) if size != 1]
    if [before[axis] for axis in kept] != [after[axis] for axis in places]:
        return (1,) * len(after) if all(size == 1 for size in factors) else None
    shape = [1] * len(after)
    for axis, place in zip(kept, places, strict=True):
        shape[place] = factors[axis]
    return tuple(shape)


def _is_zero(constant: Constant) -> bool:
    return not constant.is_open and not constant.value().any()


def _activations(graph: Graph, node: Node) -> _Activations | None:
    """Return the activations as bytes; nodes that move elements now do so before DEQUANTIZE."""
    moves: list[Node] = []
    producer = graph.producers.get(node.inputs[0])
    while producer is not None and producer.op in _MOVES:
        moves.append(producer)
        producer = graph.producers.get(producer.inputs[0])
    if producer is None or producer.op != "DEQUANTIZE":
        return None
    levels, scale, *zero = producer.inputs
    types = [graph.tensors[name] for name in (levels, scale)]
    rank, shape = len(types[0].shape), types[1].shape
    is_one = all(size == 1 for size in shape)
    is_each_row = node.op == "MATMUL" and not moves and shape[-1:] == (1,)
    if is_each_row and not is_one:
        own = types[0].shape[rank - len(shape) : -1]
        is_each_row = all(size in (1, whole) for size, whole in zip(shape[:-1], own, strict=True))
    if types[0].dtype not in _BYTES or types[1].dtype != "float32" or not (is_one or is_each_row):
        return None
    if graph.tensors[producer.output].dtype != "float32":
        return None
    border = graph.value(zero[0]) if zero else None
    if border is not None and not border.any():
        zero, border = [], None
    pads = 0
    if any(node.attrs.get("padding", ())) and zero:
        if border is None:
            return None
        pads, limits = int(border.reshape(())), np.iinfo(types[0].dtype)
        if not limits.min <= pads <= limits.max:
            return None
    for step in reversed(moves):
        levels = graph.add_node(step.op, [levels], step.attrs, source=step.source)
    if is_one and shape:
        scale, *zero = (graph.add_node("RESHAPE", [x], {"shape": ()}) for x in (scale, *zero))
    return _Activations(levels, scale, zero[0] if zero else None, pads)


def _multiply(graph: Graph, node: Node, a: _Activations, weight: _Weight) -> None:
    """Replace a product by that of the integers, from which it subtracts zero points and scales."""

    def add(op: str, *inputs: str, **attrs: Any) -> str:
        return graph.add_node(op, inputs, attrs, source=node.source)

    name = node.inputs[1]
    levels = graph.add_constant(f"{name}.levels", weight.levels)
    attrs = {key: value for key, value in node.attrs.items() if key not in ("transpose_b", "alpha")}
    if a.border:
        attrs["border"] = a.border
    y = add(node.op, a.levels, levels, **attrs, accumulate="int32")
    if a.zero is not None:
        zero = a.zero
        if graph.tensors[zero].dtype != "int32":
            zero = add("CAST", zero, dtype="int32")
        y = add("SUB", y, add("MUL", zero, graph.add_constant(f"{name}.sums", weight.sums)))
    y = add("CAST", y, dtype="float32")
    factors = graph.add_constant(f"{name}.factors", weight.factors)
    if graph.is_constant(a.scale):
        y = add("MUL", y, add("MUL", a.scale, factors))
    else:
        y = add("MUL", add("MUL", y, a.scale), factors)
    graph.bypass(node, y)
