"""Describe integer tensors that count, such as positions and what is computed from them.

If sizes vary, such a tensor is not constant, but it is fully known: each element is a start plus,
for each axis, a step times the index. This decides the results of masks and lookups.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import UndecidedError

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Shape

_INTEGERS = ("int64", "int32")
_MAX_CONSTANT = 1 << 16  # elements; larger constants are not inspected
_MAX_FOLLOWED = 100  # tensors that one search visits; an unrolled loop has thousands

_ORDERS = {
    "LT": operator.lt,
    "LE": operator.le,
    "GT": operator.gt,
    "GE": operator.ge,
    "EQ": operator.eq,
    "NE": operator.ne,
}


class Affine(NamedTuple):
    """Elements ``start + sum(step * index)`` over the axes; the step of an axis of size 1 is 0."""

    start: int
    steps: tuple[int, ...]

    def limits(self, shape: Shape) -> tuple[int, int]:
        """Return the smallest and the largest element; UndecidedError if sizes decide which."""
        low = high = self.start
        for step, size in zip(self.steps, shape, strict=True):
            if step >= 0:
                high += step * (size - 1)
            else:
                low += step * (size - 1)
        return low, high

    @property
    def is_uniform(self) -> bool:
        """Return whether all elements are equal."""
        return all(step == 0 for step in self.steps)


def affine(graph: Graph, tensor: str) -> Affine | None:
    """Return the description of an integer tensor that counts; None for any other tensor."""
    return _Search(graph).affine(tensor)


def truth(graph: Graph, tensor: str) -> bool | None:
    """Return the value that all elements of a bool tensor have for all inputs; None if unknown."""
    return _Search(graph).truth(tensor)


def comparison(graph: Graph, tensor: str) -> tuple[str, Affine] | None:
    """Return how ``tensor`` compares a counting tensor with 0, if it compares tensors that count.

    Returns
    -------
    tuple of str and Affine, or None
        An order such as ``"LT"``, and the first operand minus the second.
    """
    return _comparison(_Search(graph), tensor)


class _Search:
    """A search over the nodes that a tensor depends on; each is visited once."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._affine: dict[str, Affine | None] = {}
        self._truth: dict[str, bool | None] = {}

    def affine(self, tensor: str) -> Affine | None:
        if tensor not in self._affine and self._has_room():
            self._affine[tensor] = None  # the number of nodes visited so far
            self._affine[tensor] = _affine(self, tensor)
        return self._affine.get(tensor)

    def truth(self, tensor: str) -> bool | None:
        if tensor not in self._truth and self._has_room():
            self._truth[tensor] = None
            self._truth[tensor] = _truth(self, tensor)
        return self._truth.get(tensor)

    def _has_room(self) -> bool:
        return len(self._affine) + len(self._truth) < _MAX_FOLLOWED


def _affine(search: _Search, tensor: str) -> Affine | None:
    """Describe a tensor by the node that makes it; None if it does not count."""
    graph = search.graph
    spec = graph.tensors[tensor]
    if spec.dtype not in _INTEGERS:
        return None
    if graph.is_constant(tensor):
        return _constant(graph, tensor)
    node = graph.producers.get(tensor)
    if node is None:
        return None
    if node.definition.view is not None:
        found = search.affine(node.inputs[0])
        return None if found is None else _viewed(graph, node, found)
    found = _COMPUTED[node.op](search, node) if node.op in _COMPUTED else None
    return None if found is None else _plain(found, spec.shape)


def _truth(search: _Search, tensor: str) -> bool | None:
    """Return the value of all elements of a bool tensor, by the node that makes it."""
    graph = search.graph
    if graph.tensors[tensor].dtype != "bool":
        return None
    if graph.is_constant(tensor):
        array = graph.value(tensor)
        if array is None or not array.size or (array != array.flat[0]).any():
            return None
        return bool(array.flat[0])
    node = graph.producers.get(tensor)
    if node is None:
        return None
    if node.definition.view is not None:
        return search.truth(node.inputs[0])
    if node.op in _ORDERS:
        return _compare(search, node)
    known = [search.truth(name) for name in node.inputs]
    match node.op:
        case "LOGICAL_NOT" | "BITWISE_NOT" if known[0] is not None:
            return not known[0]
        case "LOGICAL_AND" | "BITWISE_AND" if len(known) == 2:
            return False if False in known else True if known == [True, True] else None
        case "LOGICAL_OR" | "BITWISE_OR" if len(known) == 2:
            return True if True in known else False if known == [False, False] else None
    return None


def _comparison(search: _Search, tensor: str) -> tuple[str, Affine] | None:
    """Find the comparison of counting tensors that makes a tensor, also through views."""
    graph = search.graph
    node = graph.producers.get(tensor)
    if node is None:
        return None
    if node.definition.view is not None:
        found = _comparison(search, node.inputs[0])
        seen = None if found is None else _viewed(graph, node, found[1])
        return None if found is None or seen is None else (found[0], seen)
    if node.op not in _ORDERS:
        return None
    a, b = _operands(search, node)
    if a is None or b is None:
        return None
    return node.op, _plain(_add(a, b, -1), graph.tensors[tensor].shape)


def _compare(search: _Search, node: Node) -> bool | None:
    """Decide a comparison of counting operands, if the result is the same for all elements."""
    found = _comparison(search, node.output)
    if found is None:
        return None
    _, apart = found
    order = _ORDERS[node.op]
    try:
        low, high = apart.limits(search.graph.tensors[node.output].shape)
        if low <= 0 <= high and node.op in ("EQ", "NE"):
            return order(low, 0) if low == high else None
        answers = {order(low, 0), order(high, 0)}
    except UndecidedError:
        return None
    return answers.pop() if len(answers) == 1 else None


def _plain(found: Affine, shape: Shape) -> Affine:
    """Return ``found`` in normal form: an axis of size 1 has no step."""
    steps = zip(found.steps, shape, strict=True)
    return Affine(found.start, tuple(0 if size == 1 else step for step, size in steps))


def _viewed(graph: Graph, node: Node, found: Affine) -> Affine | None:
    """Return the description of a view of elements that count.

    Steps behave like strides: a counting tensor views the integers as a strided tensor views
    memory.
    """
    view = node.definition.view
    assert view is not None
    shape = graph.tensors[node.inputs[0]].shape
    seen = view(shape, found.steps, node.complete_attrs())
    if seen is None:
        return None
    moved = Affine(found.start + seen.offset, seen.strides)
    return _plain(moved, graph.tensors[node.output].shape)


def _constant(graph: Graph, tensor: str) -> Affine | None:
    """Describe a small constant that counts; None for any other."""
    array = graph.value(tensor) if 0 < graph.tensors[tensor].type.size <= _MAX_CONSTANT else None
    if array is None:
        return None
    start = int(array.flat[0])
    steps = [
        int(array[tuple(1 if i == axis else 0 for i in range(array.ndim))]) - start
        if size > 1
        else 0
        for axis, size in enumerate(array.shape)
    ]
    expected = np.full(array.shape, start, np.int64)
    places: tuple[np.ndarray, ...] = np.indices(array.shape, sparse=True)
    for step, index in zip(steps, places, strict=True):
        expected = expected + step * index
    return Affine(start, tuple(steps)) if np.array_equal(array, expected) else None


def _operands(search: _Search, node: Node) -> list[Affine | None]:
    """Return the operands of an elementwise node, with axes aligned to its output's."""
    rank = len(search.graph.tensors[node.output].shape)
    aligned: list[Affine | None] = []
    for operand in node.operands():
        if isinstance(operand, str):
            found = search.affine(operand)
        else:
            found = Affine(operand, ()) if type(operand) is int else None
        if found is not None:
            found = Affine(found.start, (0,) * (rank - len(found.steps)) + found.steps)
        aligned.append(found)
    return aligned


def _add(a: Affine, b: Affine, sign: int) -> Affine:
    steps = zip(a.steps, b.steps, strict=True)
    return Affine(a.start + sign * b.start, tuple(x + sign * y for x, y in steps))


def _cast(search: _Search, node: Node) -> Affine | None:
    known = search.truth(node.inputs[0])
    if known is None:
        return search.affine(node.inputs[0])
    return Affine(int(known), (0,) * len(search.graph.tensors[node.output].shape))


def _cat(search: _Search, node: Node) -> Affine | None:
    """Describe a concatenation in which each part continues the one before it."""
    axis = node.attrs["axis"]
    parts = [search.affine(name) for name in node.inputs]
    sizes = [search.graph.tensors[name].shape[axis] for name in node.inputs]
    first = parts[0]
    if first is None or len(parts) < 2 or parts[1] is None:
        return None
    step = parts[1].start - first.start if sizes[0] == 1 else first.steps[axis]
    start = first.start
    for part, size in zip(parts, sizes, strict=True):
        if part is None or part.start != start:
            return None
        steps = list(part.steps)
        if size == 1:
            steps[axis] = step
        if steps != [*first.steps[:axis], step, *first.steps[axis + 1 :]]:
            return None
        start += step * size
    return Affine(first.start, (*first.steps[:axis], step, *first.steps[axis + 1 :]))


def _cumsum(search: _Search, node: Node) -> Affine | None:
    """Describe the running sums of equal elements."""
    found, axis = search.affine(node.inputs[0]), node.attrs["axis"]
    if found is None or not found.is_uniform:
        return None
    steps = [found.start if i == axis else 0 for i in range(len(found.steps))]
    return Affine(found.start, tuple(steps))


def _arange(search: _Search, node: Node) -> Affine:
    attrs = node.complete_attrs()
    return Affine(attrs["start"], (attrs["step"],))


def _same(search: _Search, node: Node) -> Affine | None:
    return search.affine(node.inputs[0])


def _sum(search: _Search, node: Node) -> Affine | None:
    a, b = _operands(search, node)
    return None if a is None or b is None else _add(a, b, -1 if node.op == "SUB" else 1)


def _product(search: _Search, node: Node) -> Affine | None:
    a, b = _operands(search, node)
    if a is None or b is None or not (a.is_uniform or b.is_uniform):
        return None
    if not b.is_uniform:
        a, b = b, a
    return Affine(a.start * b.start, tuple(step * b.start for step in a.steps))


def _gather(search: _Search, node: Node) -> Affine | None:
    """Describe a gather: elements taken from equal elements are equal."""
    found = search.affine(node.inputs[0])
    if found is None or not found.is_uniform:
        return None
    return Affine(found.start, (0,) * len(search.graph.tensors[node.output].shape))


_COMPUTED = {
    "ARANGE": _arange,
    "COPY": _same,
    "CAST": _cast,
    "CAT": _cat,
    "CUMSUM": _cumsum,
    "ADD": _sum,
    "SUB": _sum,
    "MUL": _product,
    "GATHER": _gather,
}
