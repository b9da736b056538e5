"""Split a stretch of calls whose shapes are known into parts.

A part is a plan of calls that Taper's ops compute, or one call that numpy computes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from taper_openinfer.dtypes import taper_name
from taper_openinfer.ops import native_node, output_type
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType, contiguous_strides, is_contiguous
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from taper_runtime.ops.opdef import OpDef

    Shape = tuple[int, ...]
    #: Element type in OpenInfer's spelling, and shape.
    Typed = tuple[str, Shape]


class OpCall(Protocol):
    """The interface of one op of a stretch."""

    @property
    def op(self) -> str:
        """Return the op's name."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """Return the numbers of the values that the op reads."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """Return the settings: numbers, strings and lists of them, and no names of variables."""

    @property
    def output_dtype(self) -> str:
        """Return the element type that the program declares for the result."""


class NumberedCall(NamedTuple):
    """A call whose inputs and result are values with numbers; each value is written once.

    Attributes
    ----------
    op : str
    reads : tuple of int
    settings : mapping
    value : int
        The number of the result.
    declared : str
        The element type that the program declares for the result.
    """

    op: str
    reads: tuple[int, ...]
    settings: Mapping[str, Any]
    value: int
    declared: str


class StretchPart(NamedTuple):
    """Consecutive calls that are computed together.

    Attributes
    ----------
    calls : list of NumberedCall
    nodes : list of (str, mapping) or None
        For each call, the Taper op that computes it, and its attrs. None if numpy computes the only
        call.
    """

    calls: list[NumberedCall]
    nodes: list[tuple[str, Mapping[str, Any]]] | None

    def pairs(self) -> Iterator[tuple[NumberedCall, tuple[str, Mapping[str, Any]]]]:
        """Yield each call of a plan with its node."""
        return zip(self.calls, self.nodes or (), strict=True)


class Packed(NamedTuple):
    """The value that a constant of a plan holds, and its format."""

    value: int
    format: str

    @property
    def name(self) -> str:
        """Return the constant's name in the plan."""
        return f"c{self.value}_{self.format.replace('.', '_')}"


def needed(calls: Sequence[NumberedCall], results: Iterable[int]) -> list[NumberedCall]:
    """Return the calls whose results are needed, for ``results`` or by another needed call."""
    read, kept = set(results), []
    for call in reversed(calls):
        if call.value in read:
            read.update(call.reads)
            kept.append(call)
    return kept[::-1]


def infer(calls: Iterable[NumberedCall], given: Sequence[Typed]) -> dict[int, Typed]:
    """Return the types of all values; ``given`` has those of the inputs, which come first.

    Raises
    ------
    OpError, OpenInferError
        If a call does not accept its inputs.
    """
    types = dict(enumerate(given))
    for op, reads, settings, value, declared in calls:
        types[value] = output_type(op, [types[read] for read in reads], settings, declared)
    return types


def cut(calls: Iterable[NumberedCall], types: Mapping[int, Typed]) -> list[StretchPart]:
    """Split calls into parts, in order."""
    parts: list[StretchPart] = []
    for call in calls:
        node = _node(call, types)
        if node is None:
            parts.append(StretchPart([call], None))
        elif parts and parts[-1].nodes is not None:
            parts[-1].calls.append(call)
            parts[-1].nodes.append(node)
        else:
            parts.append(StretchPart([call], [node]))
    return parts


def written(parts: Sequence[StretchPart], results: Sequence[int]) -> list[list[int]]:
    """Return, for each part, the values it must output: those that results or other parts need."""
    order = {value: i for i, value in enumerate(results)}
    read, found = set(results), []
    for part in reversed(parts):
        mine = [call.value for call in part.calls if call.value in read]
        found.append(sorted(mine, key=lambda value: order.get(value, len(order))))
        read.update(value for call in part.calls for value in call.reads)
    return found[::-1]


def _node(call: NumberedCall, types: Mapping[int, Typed]) -> tuple[str, Mapping[str, Any]] | None:
    """Return the Taper op that computes a call, and its attrs; None if there is none."""
    ends = [types[value] for value in (*call.reads, call.value)]
    if any(taper_name(dtype) is None for dtype, _ in ends):
        return None
    dtypes, shapes = zip(*ends[:-1], strict=True)
    node = native_node(call.op, dtypes, shapes, call.settings, ends[-1])
    if node is None:
        return None
    op, attrs = node
    *given, result = [tensor_type(each) for each in ends]
    try:
        inferred = REGISTRY[op].infer_types(given, attrs)
    except OpError:  # Taper's op refuses these sizes, such as the maximum of no elements
        return None
    return (op, attrs) if inferred == (result,) else None


def tensor_type(typed: Typed) -> TensorType:
    """Convert an OpenInfer type to Taper's; the element type must exist there."""
    dtype, shape = typed
    return TensorType(taper_name(dtype) or dtype, shape)


def infer_part(part: StretchPart, given: Mapping[int, TensorType]) -> dict[int, TensorType]:
    """Return Taper's types of the values that a plan's calls read and compute.

    Sizes may be expressions.

    Raises
    ------
    OpError
        If an op does not accept its inputs for all sizes.
    """
    types = dict(given)
    for call, (op, attrs) in part.pairs():
        inputs = [types[read] for read in call.reads]
        types[call.value] = REGISTRY[op].infer_type(inputs, attrs)
    return types


class _PlanBuilder:
    """Builds the plan of a part."""

    def __init__(
        self,
        types: Mapping[int, TensorType],
        constants: Container[int],
        row_major: Container[int],
    ) -> None:
        self._types, self._is_constant, self._row_major = types, constants, row_major
        self.tensors: dict[str, TensorSpec] = {}
        self.placements: dict[str, Placement] = {}
        self.nodes: list[PlanNode] = []
        self.packed: dict[str, Packed] = {}  # by the names of constants
        self.reads: list[int] = []  # values that are inputs

    def add(
        self, call: NumberedCall, op: OpDef, attrs: Mapping[str, Any], written: Sequence[int]
    ) -> None:
        """Add a call as a node."""
        full = op.complete(attrs)
        inputs = [self._input(read, i, op, full) for i, read in enumerate(call.reads)]
        name = f"v{call.value}"
        role = "output" if call.value in written else "intermediate"
        self._add(name, self._types[call.value], role)
        view = self._view(inputs[0], call.value, op, full) if role == "intermediate" else None
        if view is not None:
            self.placements[name] = view
        self.nodes.append(PlanNode(op.name, tuple(inputs), (name,), attrs))

    def _input(self, value: int, index: int, op: OpDef, attrs: Mapping[str, Any]) -> str:
        """Return the tensor that is input ``index`` of a call: a constant, an input or a result."""
        name = f"v{value}"
        type_ = self._types[value]
        if value in self._is_constant:
            format_ = None
            if op.packing is not None and op.weights[:1] == (index,):
                format_ = op.packing(type_, attrs)
            packed = Packed(value, format_ or PLAIN)
            self.packed[packed.name] = packed
            self._add(packed.name, type_._replace(format=packed.format), "constant")
            return packed.name
        if name not in self.tensors:
            self._add(name, type_, "input")
            self.reads.append(value)
        return name

    def _add(self, name: str, type_: TensorType, role: str) -> None:
        spec = TensorSpec(name, type_.dtype, type_.shape, role, type_.format)
        self.tensors[name] = spec
        self.placements[name] = Placement(name, 0, contiguous_strides(spec.storage.shape))

    def _view(
        self, source: str, value: int, op: OpDef, attrs: Mapping[str, Any]
    ) -> Placement | None:
        """Return the placement of a result inside its first input's memory, or None."""
        if op.view is None:
            return None
        spec, root = self.tensors[source], self.placements[source]
        view = op.view(spec.shape, root.strides, attrs)
        if view is None:
            return None
        shape = self._types[value].shape
        if value in self._row_major and not is_contiguous(shape, view.strides):
            return None
        offset = view.offset * DTYPES[spec.dtype].size
        return Placement(root.root, root.offset + offset, view.strides)


def make_plan(
    part: StretchPart,
    types: Mapping[int, TensorType],
    constants: Container[int],
    writes: Sequence[int],
    sizes: Mapping[str, tuple[int, int]],
) -> tuple[Plan, dict[str, Packed], list[int]]:
    """Build the plan of a part that kernels compute.

    Parameters
    ----------
    part : StretchPart
    types : mapping of int to TensorType
        The types of the values that the part reads and computes.
    constants : container of int
        The values that are constant.
    writes : sequence of int
        The values that the plan outputs, in order.
    sizes : mapping of str to (int, int)
        The size variables of the types, with their ranges.

    Returns
    -------
    plan : Plan
        The plan, without the arrays of its constants.
    packed : dict of str to Packed
        The values of its constants.
    reads : list of int
        The values of its inputs, in order.
    """
    nodes = [(call, REGISTRY[op], attrs) for call, (op, attrs) in part.pairs()]
    row_major = {
        read
        for call, op, _ in nodes
        for index, read in enumerate(call.reads)
        if not op.takes_strided(index)
    }
    builder = _PlanBuilder(types, constants, row_major)
    for call, op, attrs in nodes:
        builder.add(call, op, attrs, writes)
    reads = sorted(builder.reads)
    plan = Plan(
        nodes=tuple(builder.nodes),
        tensors=builder.tensors,
        placements=builder.placements,
        inputs=tuple([f"v{value}" for value in reads]),
        outputs=tuple([f"v{value}" for value in writes]),
        constants={},
        sizes=sizes,
    )
    return plan, builder.packed, reads
