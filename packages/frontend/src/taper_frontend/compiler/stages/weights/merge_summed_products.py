"""Merge summed branches that are linear in one tensor into one product."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_frontend.compiler.analysis.product import has_own_weight, is_plain_product
from taper_frontend.compiler.graph.constants import (
    Constant,
    derived,
    filled,
    literal,
    reshaped,
    transposed,
    visible,
)
from taper_frontend.compiler.rules.engine import rewrite
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.type_rules import replace

if TYPE_CHECKING:
    from collections.abc import Collection

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape


def merge_summed_products(graph: Graph) -> bool:
    """Add weights instead of products of one tensor, as for RepVGG and MobileOne.

    ::

        CONV(x, w, kernel=3) + b + CONV(x, v, kernel=1) + c + x * s
        CONV(x, w + [0 v 0] + [0 diag(s) 0], kernel=3) + (b + c)

    Taps must coincide with taps of the largest kernel. A MATMUL counts as a convolution with one
    tap.
    """
    return rewrite(graph, _merge, at=("ADD", "SUB"))


class _Filter(NamedTuple):
    """A convolution of x: its weight [*kernel, C / groups, O], and attrs without the padding."""

    x: str
    weight: Constant
    low: tuple[int, ...]  # the padding before each dim
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int


class _Sum(NamedTuple):
    """The terms of a tree of additions and subtractions: tensors with factors, and a number."""

    times: dict[str, int]
    number: float


def _merge(graph: Graph, node: Node) -> bool:
    """Merge terms of the sum that ends at ``node`` into the largest filter that takes several."""
    reader = graph.sole_consumer(node.output)
    if not _is_sum(graph, node) or (reader is not None and _is_sum(graph, reader)):
        return False  # only the last node of a tree is rewritten
    total = _summed(graph, node)
    filters = {name: found for name in total.times if (found := _filter(graph, name)) is not None}
    for name, into in sorted(filters.items(), key=lambda item: -item[1].weight.type.size):
        alike = {
            other: (found, first)
            for other in total.times
            if graph.tensors[other].type == graph.tensors[name].type
            and (found := filters.get(other) or _scaling(graph, other, into)) is not None
            and (first := _first_tap(found, into)) is not None
        }
        if len(alike) > 1:
            weight = filled(0, into.weight.shape)
            for other, (found, first) in alike.items():
                part = _placed(_times(total.times[other], found.weight), first, weight.shape)
                weight = derived("ADD", [weight, part])
            _replace(graph, node, total, name, alike.keys(), weight)
            return True
    return False


def _is_sum(graph: Graph, node: Node) -> bool:
    return node.op in ("ADD", "SUB") and graph.tensors[node.output].dtype == "float32"


def _summed(graph: Graph, node: Node) -> _Sum:
    """Return the sum whose last step is ``node``."""
    times: dict[str, int] = {}
    number = 0.0
    pending = [(node, 1)]
    while pending:
        step, sign = pending.pop()
        for operand, own in zip(step.operands(), (1, 1 if step.op == "ADD" else -1), strict=True):
            if not isinstance(operand, str):
                number += sign * own * operand
                continue
            before = graph.producers.get(operand)
            if (
                before is not None
                and _is_sum(graph, before)
                and graph.sole_consumer(operand) is step
                and step.inputs.count(operand) == 1
            ):
                pending.append((before, sign * own))
            else:
                times[operand] = times.get(operand, 0) + sign * own
    return _Sum(times, number)


def _filter(graph: Graph, leaf: str) -> _Filter | None:
    """Return the convolution that makes ``leaf``, if nothing else needs it or its weight."""
    node = graph.producers.get(leaf)
    if not is_plain_product(node) or node.op == "CONV_TRANSPOSE" or node.attrs.get("alpha", 1) != 1:
        return None
    if any(map(node.attrs.get, ("activation_group", "activation_dtype"))):
        return None
    if graph.sole_consumer(leaf) is None or not has_own_weight(graph, node):
        return None
    x, name = node.inputs
    weight = graph.constants[name]
    if node.op == "CONV":
        attrs = node.complete_attrs()
        low = attrs["padding"][::2]
        return _Filter(x, weight, low, attrs["stride"], attrs["dilation"], attrs["groups"])
    dims = len(graph.tensors[x].shape) - 2
    if dims < 0:
        return None
    matrix = transposed(weight) if node.attrs.get("transpose_b") else weight
    return _one_tap(x, matrix, dims, 1)


def _one_tap(x: str, matrix: Constant, dims: int, groups: int) -> _Filter:
    """Return the product of x by a matrix [C / groups, O] as a convolution with one tap."""
    ones = (1,) * dims
    return _Filter(x, reshaped(matrix, ones + matrix.shape), (0,) * dims, ones, ones, groups)


def _first_tap(filter_: _Filter, into: _Filter) -> tuple[int, ...] | None:
    """Return the tap of ``into`` at the first tap of ``filter_``; None if not all coincide."""
    if (filter_.x, filter_.stride, filter_.groups) != (into.x, into.stride, into.groups):
        return None
    if filter_.weight.shape[-2:] != into.weight.shape[-2:]:
        return None
    place = []
    for d, (taps, room) in enumerate(
        zip(filter_.weight.shape[:-2], into.weight.shape, strict=False)
    ):
        first, rest = divmod(into.low[d] - filter_.low[d], into.dilation[d])
        if rest or first < 0 or first + taps > room:
            return None
        if taps > 1 and filter_.dilation[d] != into.dilation[d]:
            return None
        place.append(first)
    return tuple(place)


def _times(count: int, constant: Constant) -> Constant:
    attrs = {"scalar": float(count), "scalar_index": 0}
    return constant if count == 1 else derived("MUL", [constant], attrs)


def _placed(weight: Constant, first: tuple[int, ...], shape: Shape) -> Constant:
    """Return ``weight`` padded with zero taps to ``shape``."""
    for axis, before in enumerate(first):
        after = shape[axis] - before - weight.shape[axis]
        border = [filled(0, replace(weight.shape, axis, size)) for size in (before, after)]
        parts = [part for part in (border[0], weight, border[1]) if part.shape[axis]]
        weight = parts[0] if len(parts) == 1 else derived("CAT", parts, {"axis": axis})
    return weight


def _scaling(graph: Graph, leaf: str, into: _Filter) -> _Filter | None:
    """Return ``leaf`` as a convolution with one tap, if it is x times a factor per channel."""
    channels, outputs = into.weight.shape[-2] * into.groups, into.weight.shape[-1]
    factors = filled(1, (channels,))
    node = graph.producers.get(leaf)
    if leaf != into.x:
        if node is None or node.op != "MUL" or len(node.inputs) != 2:
            return None
        if graph.sole_consumer(leaf) is None:
            return None
        constant = next((name for name in node.inputs if graph.is_constant(name)), None)
        if constant is None or into.x not in node.inputs:
            return None
        values = graph.constants[constant]
        size = values.type.size
        if size not in (1, values.shape[-1] if values.shape else 1):
            return None
        factors = reshaped(values, (size,))
    if channels != outputs or factors.shape not in ((1,), (channels,)):
        return None
    return _one_tap(
        into.x, _diagonal(factors, into.weight.shape[-2], outputs), len(into.low), into.groups
    )


def _diagonal(factors: Constant, rows: int, columns: int) -> Constant:
    """Return a matrix whose column o has its factor in row ``o % rows``, and 0 elsewhere."""
    row = reshaped(derived("ARANGE", [], {"stop": rows}), (rows, 1))
    attrs = {"scalar": rows, "scalar_index": 1}
    own = derived("REMAINDER", [derived("ARANGE", [], {"stop": columns})], attrs)
    mine = derived("EQ", [row, own])
    return derived("WHERE", [mine, factors], {"scalar": 0.0, "scalar_index": 2})


def _replace(
    graph: Graph,
    node: Node,
    total: _Sum,
    name: str,
    alike: Collection[str],
    weight: Constant,
) -> None:
    """Compute the sum with one product by ``weight`` in place of all products in ``alike``."""
    product = graph.nodes[name]
    attrs = {key: value for key, value in product.attrs.items() if key != "transpose_b"}
    if product.op == "MATMUL":
        weight = reshaped(weight, weight.shape[-2:])
    x, old = product.inputs
    inputs = [x, graph.add_constant(f"{old}.summed", weight)]
    rest = {other: times for other, times in total.times.items() if other not in alike}
    biases = [other for other in rest if graph.is_constant(other)]
    bias: Constant = literal(np.array(total.number, np.float32))
    for other in biases:
        bias = derived("ADD", [bias, _times(rest.pop(other), graph.constants[other])])
    last = graph.add_node(product.op, inputs, attrs, source=product.source)
    known = visible(bias)
    if known is None or known.any():
        constant = graph.add_constant(f"{old}.bias", bias)
        last = graph.add_node("ADD", [last, constant], source=node.source)
    for other, times in rest.items():
        for _ in range(abs(times)):
            op = "ADD" if times > 0 else "SUB"
            last = graph.add_node(op, [last, other], source=node.source)
    made = graph.nodes[last]
    graph.replace_node(node, made.op, made.inputs, made.attrs)
    graph.prune([last])
