"""Let tensors share memory: views, in-place results, and inputs of concatenations.

Tensors that share memory lie in one *allocation*. It starts with the tensor that is computed first;
views and in-place results join it. If a graph output joins, the caller's array becomes the memory,
and the output becomes its root. Tensors that a CAT concatenates are computed as slices of a *concat
buffer*, an allocation with the name of the CAT's output. Where all of them are computed in place
over slices of one tensor, its memory becomes the buffer.

A node may run in place over a state if its op can restore what it overwrites (``OpDef.save``). Then
the state's next value may lie in the state's memory.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from taper_frontend.compiler.analysis.views import can_have_strides, view_of
from taper_frontend.compiler.graph.node import ABSENT
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import Shape, contiguous_strides, is_contiguous
from taper_runtime.plan.extents import Extent, extent_of
from taper_runtime.plan.liveness import NEVER, last_reads
from taper_runtime.plan.plan import Placement

if TYPE_CHECKING:
    from collections.abc import Mapping

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node


@dataclass(slots=True, eq=False)
class Allocation:
    """Memory that tensors share.

    Attributes
    ----------
    root : str
        The tensor that owns the memory.
    nbytes : int
    external : bool
        Whether the caller or the file owns the memory, so that it is not in the arena.
    writable : bool
        False for graph inputs, states and constants.
    state : bool
        Whether it is the memory of a state.
    last_read : int
        The last step that reads one of its tensors.
    successor : str or None
        The output that may be computed in the memory of an input, because it replaces that input.
    names : list of str
        The tensors that have a place in it so far.
    """

    root: str
    nbytes: int
    external: bool
    writable: bool
    state: bool = False
    last_read: int = NEVER
    successor: str | None = None
    names: list[str] = field(default_factory=list)


class SliceLayout(NamedTuple):
    """The place of a tensor in its allocation: byte offset and strides in elements."""

    offset: int
    strides: Shape


class Sharing:
    """The allocations of a graph whose node order is fixed.

    Parameters
    ----------
    graph : Graph
    order : list of Node
    replaced : mapping of str to str, optional
        Outputs that may be computed in the memory of the input that they replace.

    Attributes
    ----------
    allocations : dict of str to Allocation
        The allocation of every tensor.
    slices : dict of str to SliceLayout
        The place of every tensor in its allocation.
    executed : list of Node
        The order without the nodes that became views.
    """

    def __init__(
        self, graph: Graph, order: list[Node], replaced: Mapping[str, str] | None = None
    ) -> None:
        """Go through the nodes in order, and let each output join an allocation or start one."""
        self.graph = graph
        self.allocations: dict[str, Allocation] = {}
        self.slices: dict[str, SliceLayout] = {}
        self.executed: list[Node] = []
        self._last_read = last_reads(order, graph.kept)
        self._steps = {node.output: step for step, node in enumerate(order)}
        self._buffers, self._in_buffers = find_concat_buffers(graph, order)
        self._parts: dict[str, dict[str, int]] = {}
        for name, (buffer, offset) in self._in_buffers.items():
            if name not in self._buffers:
                self._parts.setdefault(buffer, {})[name] = offset
        for name in (*graph.reads, *graph.constants):
            self._start(name, external=True, writable=False)
        for output, name in (replaced or {}).items():
            self.allocations[name].successor = output
        for step, node in enumerate(order):
            if self._join_view(node):
                continue
            in_buffer = self._join_concat_buffer(node)
            if node.output in self._buffers:
                continue  # its inputs were computed at their places in it
            self.executed.append(node)
            shares = in_buffer or self._join_inplace(node, step)
            for name in node.outputs[1:] if shares else node.outputs:
                self._start(name, external=graph.is_output(name), writable=True)

    def placements(self) -> dict[str, Placement]:
        """Return the placement of every tensor."""
        return {
            name: Placement(self.allocations[name].root, *place)
            for name, place in self.slices.items()
        }

    def _start(self, name: str, *, external: bool, writable: bool) -> None:
        spec = self.graph.tensors[name]
        last_read, state = self._last_read.get(name, NEVER), spec.role == "state"
        self.allocations[name] = Allocation(
            name, spec.nbytes, external, writable, state, last_read, names=[name]
        )
        self.slices[name] = SliceLayout(0, contiguous_strides(spec.storage.shape))

    def _join(self, name: str, allocation: Allocation, offset: int, strides: Shape) -> None:
        allocation.last_read = max(allocation.last_read, self._last_read.get(name, NEVER))
        self.allocations[name] = allocation
        allocation.names.append(name)
        self.slices[name] = SliceLayout(offset, strides)
        if self.graph.is_output(name) and allocation.successor != name:
            allocation.root = name
            allocation.external = True

    def _may_join(self, name: str, allocation: Allocation, offset: int) -> bool:
        """Return whether ``name`` is no graph output, or may make the memory the caller's array."""
        if not self.graph.is_output(name):
            return True
        fits = offset == 0 and allocation.nbytes == self.graph.tensors[name].nbytes
        own = allocation.writable and not allocation.external
        return fits and (own or allocation.successor == name)

    def _join_view(self, node: Node) -> bool:
        """Place the output of a view inside its input's allocation; return whether it fits."""
        if node.definition.view is None:
            return False
        source, output = node.inputs[0], node.output
        base, strides = self.slices[source]
        view = view_of(self.graph, node, strides)
        if view is None:
            return False
        offset = base + view.offset * DTYPES[self.graph.tensors[source].dtype].size
        if not self._may_join(output, self.allocations[source], offset):
            return False
        if not is_contiguous(
            self.graph.tensors[output].shape, view.strides
        ) and not can_have_strides(self.graph, output, view.strides, copies=True):
            return False
        self._join(output, self.allocations[source], offset, view.strides)
        return True

    def _join_concat_buffer(self, node: Node) -> bool:
        """Compute a slice of a concat buffer at its place in the buffer."""
        name = node.output
        if name not in self._in_buffers:
            return False
        buffer, offset = self._in_buffers[name]
        if buffer not in self.allocations:
            external = self.graph.is_output(buffer)
            nbytes = self.graph.tensors[buffer].nbytes
            self.allocations[buffer] = self._overwritten_by(buffer) or Allocation(
                buffer, nbytes, external, writable=True
            )
        strides = contiguous_strides(self.graph.tensors[name].shape)
        self._join(name, self.allocations[buffer], offset, strides)
        return True

    def _overwritten_by(self, buffer: str) -> Allocation | None:
        """Return the memory over which all parts of a buffer are computed in place, if it exists.

        Each part lies over a slice of another tensor, at the same place in both. What else reads
        these bytes runs before the part, and all views of the tensor are known.
        """
        parts = self._parts[buffer]
        over = {name: self._source_at(name, offset) for name, offset in parts.items()}
        allocations = {
            None if source is None else self.allocations[source] for source in over.values()
        }
        allocation = allocations.pop()
        if (
            allocations
            or allocation is None
            or self.graph.is_output(buffer)
            or allocation.external
            or not allocation.writable
            or allocation.nbytes != self.graph.tensors[buffer].nbytes
        ):
            return None
        for name in allocation.names:
            views = [each for each in self.graph.consumers(name) if each.definition.view]
            if not all(view.output in self.slices for view in views):
                return None
            begin, end = self._extent(name)
            last = self._last_read.get(name, NEVER)
            for part, offset in parts.items():
                size, step = self.graph.tensors[part].nbytes, self._steps[part]
                free = step + 1 if name == over[part] else step
                if begin < offset + size and offset < end and last >= free:
                    return None
        return allocation

    def _source_at(self, output: str, offset: int) -> str | None:
        """Return the input over which a node may compute, if it lies at this place in memory."""
        node, spec = self.graph.producers[output], self.graph.tensors[output]
        place = SliceLayout(offset, contiguous_strides(spec.shape))
        for index in REGISTRY[node.op].inplace:
            source = node.inputs[index] if index < len(node.inputs) else ABSENT
            if (
                source in self.slices
                and self.slices[source] == place
                and self.graph.tensors[source].type == spec.type
                and self._reads_only(node, source)
            ):
                return source
        return None

    def _extent(self, name: str) -> Extent:
        return extent_of(self.graph.tensors[name].storage, Placement(name, *self.slices[name]))

    def _join_inplace(self, node: Node, step: int) -> bool:
        """Compute over an input that nothing reads afterwards, if the op allows it."""
        output = node.output
        for index in REGISTRY[node.op].inplace:
            source = node.inputs[index] if index < len(node.inputs) else ABSENT
            if source == ABSENT:
                continue
            allocation = self.allocations[source]
            offset, strides = self.slices[source]
            if (
                self._may_overwrite(allocation, node)
                and self.graph.tensors[source].type == self.graph.tensors[output].type
                and is_contiguous(self.graph.tensors[source].shape, strides)
                and allocation.last_read <= step
                and self._reads_only(node, source)
                and self._may_join(output, allocation, offset)
            ):
                strides = contiguous_strides(self.graph.tensors[output].shape)
                self._join(output, allocation, offset, strides)
                return True
        return False

    def _may_overwrite(self, allocation: Allocation, node: Node) -> bool:
        if allocation.state:  # a run that fails must restore the state
            return node.definition.save is not None
        return allocation.writable or allocation.successor == node.output

    def _reads_only(self, node: Node, source: str) -> bool:
        """Return whether the node reads the overwritten memory only through ``source``.

        Another view of the same memory may be read at positions that were just overwritten, and so
        may ``source`` itself as another operand.
        """
        allocation = self.allocations[source]
        places = (index for index, name in enumerate(node.inputs) if name == source)
        return all(index in REGISTRY[node.op].inplace for index in places) and all(
            name == source or self.allocations.get(name) is not allocation for name in node.reads
        )


def find_concat_buffers(
    graph: Graph, order: list[Node]
) -> tuple[set[str], dict[str, tuple[str, int]]]:
    """Find the concatenations that need no copy; none if sizes vary.

    Returns
    -------
    concatenated : set of str
        The outputs whose inputs can all be computed at their places in them.
    slices : dict of str to tuple of str and int
        For each of these outputs and of their inputs, the concat buffer and the byte offset. An
        output that is a slice of a larger one shares the larger buffer, with its inputs.
    """
    concatenated: set[str] = set()
    slices: dict[str, tuple[str, int]] = {}
    for node in () if graph.sizes else reversed(order):
        op = REGISTRY[node.op]
        if op.parts is None:
            continue
        parts = [_computed(graph, name) for name in node.inputs]
        shapes = [graph.tensors[name].shape for name in node.inputs]
        offsets = op.parts(shapes, op.complete(node.attrs))
        taken = any(name is None or name in slices for name in parts)
        if offsets is None or taken or len(set(parts)) < len(parts):
            continue
        concatenated.add(node.output)
        buffer, base = slices.setdefault(node.output, (node.output, 0))
        size = DTYPES[graph.tensors[node.output].dtype].size
        for name, offset in zip(parts, offsets, strict=True):
            if name:
                slices[name] = (buffer, base + offset * size)
    return concatenated, slices


def _computed(graph: Graph, name: str) -> str | None:
    """Return the tensor that ``name`` views whole, if a node computes it and may do so anywhere."""
    while True:
        node = graph.producers.get(name)
        if node is None or graph.is_output(name) or not graph.tensors[name].nbytes:
            return None
        if node.op != "RESHAPE":
            return None if node.definition.view is not None else name
        name = node.inputs[0]
