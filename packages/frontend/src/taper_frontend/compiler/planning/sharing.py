"""Which tensors share memory: views, outputs computed over their inputs, and parts of a whole.

Tensors that share are a *group* under one memory root. A group starts with the tensor that is
computed first; views and in-place results join it. If a graph output joins, the caller's array is
the group's memory, and the output becomes its root. Tensors that a CAT will put side by side are
computed side by side, in a group that starts under the name of its output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.views import can_have_strides, view_of
from taper_runtime.dtypes import DTYPES
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import Shape, contiguous_strides, is_contiguous
from taper_runtime.plan.liveness import last_reads
from taper_runtime.plan.plan import Placement

if TYPE_CHECKING:
    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


@dataclass(slots=True, eq=False)
class Group:
    """Tensors under one root.

    Attributes
    ----------
    root : str
    nbytes : int
        Extent of the memory.
    bound : bool
        Whether the caller or the file owns the memory: it is not in the arena.
    writable : bool
        False for graph inputs and constants.
    members : list of str
    """

    root: str
    nbytes: int
    bound: bool
    writable: bool
    members: list[str] = field(default_factory=list)


class Sharing:
    """Memory groups of a graph whose node order is fixed.

    Attributes
    ----------
    group : dict of str to Group
        For every tensor.
    inside : dict of str to tuple
        Byte offset inside the group and strides (elements), for every tensor.
    executed : list of Node
        The order without the nodes that became views.
    """

    def __init__(self, graph: Graph, order: list[Node]) -> None:
        self.graph = graph
        self.group: dict[str, Group] = {}
        self.inside: dict[str, tuple[int, Shape]] = {}
        self.executed: list[Node] = []
        self._last_read = last_reads(order, graph.outputs)
        self._places: dict[str, tuple[str, int]] = {}
        wholes = set() if graph.sizes else _place_parts(graph, order, self._places)
        for name in (*graph.inputs, *graph.constants):
            self._start(name, bound=True, writable=False)
        for step, node in enumerate(order):
            if self._join_view(node):
                continue
            placed = self._join_place(node)
            if node.output in wholes:
                continue
            self.executed.append(node)
            if not placed and not self._join_inplace(node, step):
                self._start(node.output, bound=graph.is_output(node.output), writable=True)

    def placement(self, name: str, arena: dict[str, int]) -> Placement:
        """The tensor's placement, given arena offsets by root."""
        offset, strides = self.inside[name]
        root = self.group[name].root
        return Placement(root, offset + (arena.get(name, 0) if root == name else 0), strides)

    def _start(self, name: str, *, bound: bool, writable: bool) -> None:
        spec = self.graph.tensors[name]
        self.group[name] = Group(name, spec.nbytes, bound, writable, [name])
        self.inside[name] = (0, contiguous_strides(spec.storage.shape))

    def _join(self, name: str, group: Group, offset: int, strides: Shape) -> None:
        group.members.append(name)
        self.group[name] = group
        self.inside[name] = (offset, strides)
        if self.graph.is_output(name):
            group.root = name
            group.bound = True

    def _may_join(self, name: str, group: Group, offset: int) -> bool:
        """A graph output joins only memory that can become the caller's array as a whole."""
        if not self.graph.is_output(name):
            return True
        fits = offset == 0 and group.nbytes == self.graph.tensors[name].nbytes
        return fits and group.writable and not group.bound

    def _join_view(self, node: Node) -> bool:
        if node.definition.view is None:
            return False
        source, output = node.inputs[0], node.output
        base, strides = self.inside[source]
        spec = self.graph.tensors[output]
        view = view_of(self.graph, node, strides)
        if view is None:
            return False
        offset = base + view.offset * DTYPES[self.graph.tensors[source].dtype].size
        if not self._may_join(output, self.group[source], offset):
            return False
        if not is_contiguous(spec.shape, view.strides) and not can_have_strides(
            self.graph, output, view.strides, copies=True
        ):
            return False
        self._join(output, self.group[source], offset, view.strides)
        return True

    def _join_place(self, node: Node) -> bool:
        """Compute what is a part of another tensor where that will lie."""
        name = node.output
        if name not in self._places:
            return False
        whole, offset = self._places[name]
        if whole not in self.group:
            bound = self.graph.is_output(whole)
            nbytes = self.graph.tensors[whole].nbytes
            self.group[whole] = Group(whole, nbytes, bound, writable=True)
        strides = contiguous_strides(self.graph.tensors[name].shape)
        self._join(name, self.group[whole], offset, strides)
        return True

    def _join_inplace(self, node: Node, step: int) -> bool:
        """Compute over an input that nothing reads afterwards, if the op allows it."""
        output = node.output
        for index in REGISTRY[node.op].inplace:
            if index >= len(node.inputs):
                continue
            source = node.inputs[index]
            group = self.group[source]
            offset, strides = self.inside[source]
            if (
                group.writable
                and self.graph.tensors[source].type == self.graph.tensors[output].type
                and is_contiguous(self.graph.tensors[source].shape, strides)
                and all(self._last_read[member] <= step for member in group.members)
                and self._reads_only(node, source)
                and self._may_join(output, group, offset)
            ):
                self._join(
                    output, group, offset, contiguous_strides(self.graph.tensors[output].shape)
                )
                return True
        return False

    def _reads_only(self, node: Node, source: str) -> bool:
        """Whether the node reads the memory to be overwritten through ``source`` alone.

        Another view of the same memory may be read at other positions than the one just written.
        """
        group = self.group[source]
        return all(name == source or self.group[name] is not group for name in node.inputs)


def _place_parts(graph: Graph, order: list[Node], places: dict[str, tuple[str, int]]) -> set[str]:
    """Find the tensors whose parts can all be computed where they lie in them; return those.

    ``places`` gains them and their parts: in what whole, at which byte. A whole may be a part of a
    larger one, which is its parts' whole too.
    """
    wholes = set()
    for node in reversed(order):
        op = REGISTRY[node.op]
        if op.parts is None:
            continue
        parts = [_computed(graph, name) for name in node.inputs]
        shapes = [graph.tensors[name].shape for name in node.inputs]
        offsets = op.parts(shapes, op.complete(node.attrs))
        taken = any(name is None or name in places for name in parts)
        if offsets is None or taken or len(set(parts)) < len(parts):
            continue
        wholes.add(node.output)
        whole, base = places.setdefault(node.output, (node.output, 0))
        size = DTYPES[graph.tensors[node.output].dtype].size
        for name, offset in zip(parts, offsets, strict=True):
            if name:
                places[name] = (whole, base + offset * size)
    return wholes


def _computed(graph: Graph, name: str) -> str | None:
    """Return the tensor that ``name`` shows whole, if a node computes it and may do so anywhere."""
    while True:
        node = graph.producer(name)
        if node is None or graph.is_output(name) or not graph.tensors[name].nbytes:
            return None
        if node.op != "RESHAPE":
            return None if node.definition.view is not None else name
        name = node.inputs[0]
