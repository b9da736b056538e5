"""Add nodes that compute a part of a tensor from parts of others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_frontend.compiler.analysis.regions import part_of
from taper_frontend.compiler.graph.node import ABSENT
from taper_runtime.base.errors import InternalError
from taper_runtime.formats import winograd
from taper_runtime.ops.region import Part
from taper_runtime.ops.type_rules import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.region import Range


class Tiles:
    """Parts of tensors; each is computed or sliced only once.

    Slices are views, and so is the CAT of parts that are computed one after the other: splitting
    adds nodes, but copies nothing.

    Parameters
    ----------
    graph : Graph
    suffix : str
        The suffix of the names of new nodes.
    """

    def __init__(self, graph: Graph, suffix: str) -> None:
        self._graph = graph
        self._suffix = suffix
        self._made: dict[tuple[str, tuple[Range, ...]], str] = {}

    def compute(self, node: Node, cuts: Mapping[int, Range]) -> str:
        """Add a node for ranges of the axes of ``node``'s output; return its output.

        Without ranges it computes the whole output.
        """
        part = part_of(self._graph, node, cuts) if cuts else _whole(self._graph, node)
        if part is None:
            raise InternalError(
                f"{node.op} {node.output!r}: expected a rule to compute ranges {dict(cuts)}"
            )
        inputs = [
            self.take(name, ranges) for name, ranges in zip(node.inputs, part.inputs, strict=True)
        ]
        made = self._graph.add_node(
            node.op, inputs, part.attrs, name=f"{node.output}{self._suffix}", source=node.source
        )
        shape = self._graph.tensors[node.output].shape
        ranges = tuple(cuts.get(axis, (0, size)) for axis, size in enumerate(shape))
        self._made[node.output, ranges] = made
        return made

    def has(self, tensor: str, ranges: Sequence[Range], part: str) -> None:
        """Note that ``part`` is ranges of the axes of ``tensor``."""
        self._made[tensor, tuple(ranges)] = part

    def take(self, tensor: str, ranges: Sequence[Range]) -> str:
        """Return ranges of the axes of ``tensor``: itself, an existing part, or a slice."""
        if tensor == ABSENT:
            return ABSENT
        key = tensor, tuple(ranges)
        if key not in self._made:
            part = next((each for each in self._made if _contains(each, key)), None)
            if part is None or self._made[part] == tensor:
                self._made[key] = self._slice(tensor, ranges)
            else:  # of a larger part that was computed
                starts = [start for start, _ in part[1]]
                inner = [(a - at, b - at) for (a, b), at in zip(ranges, starts, strict=True)]
                self._made[key] = self._slice(self._made[part], inner)
        return self._made[key]

    def _slice(self, tensor: str, ranges: Sequence[Range]) -> str:
        """Add the SLICEs that cut ranges out of a tensor; return the result."""
        graph = self._graph
        for axis, (start, stop) in enumerate(ranges):
            shape = graph.tensors[tensor].shape
            if (start, stop) == (0, shape[axis]):
                continue
            op, inputs = "SLICE", [tensor]
            attrs: dict[str, Any] = {"axis": axis, "start": start, "stop": stop}
            producer = graph.producers.get(tensor)
            if producer is not None and _repeats(graph, producer, axis):
                # A smaller EXPAND is equal for all parts: a kernel that needs a copy makes one.
                op, inputs = producer.op, producer.inputs
                attrs = {"shape": replace(shape, axis, stop - start)}
            tensor = graph.add_node(op, inputs, attrs, name=f"{tensor}{self._suffix}")
        return tensor


def _contains(part: tuple[str, tuple[Range, ...]], key: tuple[str, tuple[Range, ...]]) -> bool:
    """Return whether a part contains all of another part of the same tensor."""
    return part[0] == key[0] and all(
        start <= a and b <= stop for (start, stop), (a, b) in zip(part[1], key[1], strict=True)
    )


def rows_together(graph: Graph, node: Node) -> int:
    """Return how many rows a node computes together: those of a tile of Winograd's algorithm."""
    weights = [node.inputs[k] for k in node.definition.weights if k < len(node.inputs)]
    formats = [graph.tensors[name].format for name in weights if name in graph.tensors]
    return max((winograd.tile_of(name) or 1 for name in formats), default=1)


def _whole(graph: Graph, node: Node) -> Part:
    """Return the part of a node that is all of it."""
    shapes = [() if name == ABSENT else graph.tensors[name].shape for name in node.inputs]
    ranges = [tuple([(0, size) for size in shape]) for shape in shapes]
    return Part(tuple(ranges), node.attrs)


def _repeats(graph: Graph, node: Node, axis: int) -> bool:
    """Return whether the output of ``node`` is constant along an axis."""
    if node.op != "EXPAND":
        return False
    shape = graph.tensors[node.inputs[0]].shape
    inner = axis - len(graph.tensors[node.output].shape) + len(shape)
    return inner < 0 or shape[inner] == 1
