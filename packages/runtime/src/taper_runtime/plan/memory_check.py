"""Check the placements of a plan's tensors, and that no live bytes are overwritten.

A root owns its bytes from the first node that writes one of its tensors to the last that reads one.
An executor gives disjoint memory to roots that are live at the same node. So the only question is
whether a node overwrites bytes of a root that are read later.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from taper_runtime.base.checks import (
    fail,
    is_integer,
    is_size,
    tensor_field,
)
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import OpError, PlanFormatError
from taper_runtime.base.loading import watched
from taper_runtime.base.size_values import assuming_nonempty, unchanged
from taper_runtime.base.sizes import Size
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import contiguous_strides, is_contiguous
from taper_runtime.plan.extents import Extent, extent_of
from taper_runtime.plan.liveness import NEVER
from taper_runtime.plan.occupancy import Occupancy
from taper_runtime.plan.specialize import substitute
from taper_runtime.plan.tensor_kinds import form_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from taper_runtime.base.file_limits import Budget
    from taper_runtime.ops.opdef import OpDef, Shape
    from taper_runtime.plan.plan import Plan, PlanNode
    from taper_runtime.plan.tensor_kinds import Kind

_NOTHING: Mapping[str, str] = MappingProxyType({})
_INTEGERS = frozenset({int, Size})


class _Place:
    """Properties of all tensors of one kind that lie at the same place of equal roots.

    Attributes
    ----------
    extent : Extent
        Its bytes in its root.
    is_contiguous : bool
        Whether its elements lie in row-major order without gaps.
    """

    __slots__ = ("extent", "is_contiguous")

    def __init__(self, extent: Extent, *, is_contiguous: bool) -> None:
        self.extent, self.is_contiguous = extent, is_contiguous


def check_memory(
    plan: Plan,
    kinds: Mapping[str, Kind],
    last_read: Mapping[str, int],
    comparisons: Budget,
    replaced: Mapping[str, str] = _NOTHING,
) -> None:
    """Check all placements of a plan whose tensors and nodes are valid otherwise.

    Parameters
    ----------
    plan : Plan
    kinds : mapping of str to Kind
        Those of its tensors.
    last_read : mapping of str to int
        The last step that reads each tensor, from :func:`.last_reads`.
    comparisons : Budget
        The quota of comparisons of tensors in one root whose places vary with the sizes.
    replaced : mapping of str to str
        For each output that may lie in the memory of an input, that input: the output replaces it.

    Raises
    ------
    PlanFormatError
    """
    places = _check_placements(plan, kinds, replaced)
    # ops and attrs of views, and the places that they have been checked for
    views: set[object] = set()
    writable = {plan.placements[name].root for name in replaced}
    # by root, for roots with more than one tensor
    written = {place.root: Occupancy(comparisons) for n, place in watched(plan.placements.items())
               if place.root != n}  # fmt: skip

    def add(name: str) -> None:
        root = plan.placements[name].root
        if root in written:
            written[root].add(name, places[name].extent, last_read.get(name, NEVER))

    for root in watched({*writable, *plan.states}):
        add(root)
    for step, node in enumerate(watched(plan.nodes)):
        if plan.is_executed(node):
            _check_inputs(plan, places, node, step)
            # the extents that the node has written so far, by root
            beside: dict[str, Occupancy] = {}
            for index, output in enumerate(node.outputs):
                root = plan.placements[output].root
                if root != output:
                    _check_output(plan, kinds, output, writable)
                    _check_write_to_state(plan, kinds, node, output, places)
                in_root = written.get(root)
                extent = places[output].extent
                for name in in_root.overlapping(extent, step) if in_root else ():
                    if not (
                        index == 0
                        and last_read[name] == step
                        and _is_in_place(plan, kinds, node, name, places)
                    ):
                        _fail_overwrite(plan, node, output, name, last_read[name])
                if len(node.outputs) > 1:
                    others = beside.setdefault(root, Occupancy(comparisons))
                    for name in others.overlapping(extent, step):
                        _fail_overwrite(plan, node, output, name, last_read.get(name, NEVER))
                    others.add(output, extent, step)
        elif REGISTRY[node.op].view is None:
            _check_parts(plan, kinds, node, REGISTRY[node.op])
        else:
            alike = (form_of(node), places[node.reads[0]], places[node.output])
            if alike not in views:
                _check_view(plan, node)
                views.add(alike)
        for output in node.outputs:
            add(output)


def _check_placements(
    plan: Plan, kinds: Mapping[str, Kind], replaced: Mapping[str, str]
) -> dict[str, _Place]:
    """Check that every tensor lies inside permitted memory; return its place.

    Two tensors have the same place only if their kinds, offsets, strides and kinds of roots are
    equal, and both are roots or none is.
    """
    for name in plan.tensors.keys() ^ plan.placements.keys():
        raise PlanFormatError(
            tensor_field(name), "expected both a tensor and a placement of this name"
        )
    known: dict[object, _Place] = {}
    places = {}
    for name, kind in watched(kinds.items()):
        root, offset, strides = plan.placements[name]
        if type(root) is not str or root not in kinds:
            fail(f"{tensor_field(name)}.root", "expected a tensor's name", root)
        if type(offset) is not Size and not is_size(offset):
            fail(f"{tensor_field(name)}.offset", "expected bytes >= 0", offset)
        if type(strides) is not tuple or not _INTEGERS.issuperset(map(type, strides)):
            fail(f"{tensor_field(name)}.strides", "expected an array of integers", strides)
        if root == name:
            key: object = (kind, offset, strides)
        else:
            key = (kind, offset, strides, kinds[root])
            _check_root(plan, name, replaced.get(name), kind)
        place = known.get(key)
        if place is None:
            place = known[key] = _check_place(plan, name, kinds)
        places[name] = place
    return places


def _check_root(plan: Plan, name: str, replaced: str | None, kind: Kind) -> None:
    """Check that a tensor may be a slice of its root, by the names and the roles of both."""
    (root, _, strides), role = plan.placements[name], plan.tensors[name].role
    if plan.placements[root].root != root:
        fail(f"{tensor_field(name)}.root", "expected a tensor that is its own root", root)
    if role == "intermediate":
        return
    if root != replaced:
        expected = f"expected the tensor itself, because its role is {role}"
        fail(f"{tensor_field(name)}.root", expected, root)
    _check_row_major(name, strides, kind)


def _check_place(plan: Plan, name: str, kinds: Mapping[str, Kind]) -> _Place:
    """Check the numbers of a tensor's placement, which depend on its kind and that of its root."""
    kind = kinds[name]
    root, offset, strides = plan.placements[name]
    rank = len(kind.strides)
    if len(strides) != rank:
        fail(f"{tensor_field(name)}.strides", f"expected {rank} strides, one per dim", len(strides))
    if root == name:
        _check_row_major(name, strides, kind)
        if type(offset) is Size or offset != 0:
            fail(
                f"{tensor_field(name)}.offset",
                "expected 0 for a tensor that is its own root",
                offset,
            )
        return _Place(Extent(0, kind.nbytes), is_contiguous=True)
    if not all(type(stride) is Size or is_integer(stride) for stride in strides):
        fail(f"{tensor_field(name)}.strides", "expected integers of 64 bits", strides)
    try:
        extent = _check_slice(plan, name, kinds)
    except OpError as error:
        raise PlanFormatError(f"{tensor_field(name)}.offset", str(error)) from error
    return _Place(extent, is_contiguous=is_contiguous(kind.storage.shape, strides))


def _check_slice(plan: Plan, name: str, kinds: Mapping[str, Kind]) -> Extent:
    """Check a tensor that is a slice of another one's memory; return its extent.

    Only a tensor with elements lies anywhere.
    """
    root, offset, _ = placement = plan.placements[name]
    storage, whole = kinds[name].storage, kinds[root]
    itemsize = DTYPES[storage.dtype].size
    if offset % itemsize != 0:
        expected = f"expected a multiple of the itemsize {itemsize}"
        fail(f"{tensor_field(name)}.offset", expected, offset)
    if itemsize > DTYPES[whole.storage.dtype].size:
        # The caller's array is aligned for its own dtype only.
        expected = f"expected a root whose items have {itemsize} bytes"
        fail(f"{tensor_field(name)}.root", expected, plan.tensors[root].dtype)
    start, stop = extent = extent_of(storage, placement)
    size = whole.nbytes
    if type(size) is Size:
        size = assuming_nonempty(storage.shape)(size)
    if not (start >= 0 and stop <= size):
        raise PlanFormatError(
            f"{tensor_field(name)}.offset",
            f"expected a tensor within the {whole.nbytes} bytes of {root!r}, got bytes {start} to "
            f"{stop}",
        )
    return extent


def _check_row_major(name: str, strides: Shape, kind: Kind) -> None:
    if strides != kind.strides:
        raise PlanFormatError(
            f"{tensor_field(name)}.strides",
            f"expected row-major {list(kind.strides)}, got {list(strides)}",
        )


def _check_inputs(plan: Plan, places: Mapping[str, _Place], node: PlanNode, step: int) -> None:
    """Check that the inputs of the ``step``-th executed node lie as its op accepts them."""
    op = REGISTRY[node.op]
    for index, name in enumerate(node.inputs):
        if name is None:
            continue
        if not (places[name].is_contiguous or op.takes_strided(index)):
            raise PlanFormatError(
                f"plan.nodes[{step}].inputs[{index}]",
                f"expected a contiguous tensor for {node.op}, got {name!r}, which is not",
            )


def _check_output(
    plan: Plan, kinds: Mapping[str, Kind], name: str, writable: Collection[str]
) -> None:
    """Check that an output that is not a root lies row-major in memory that a node may write."""
    root = plan.tensors[plan.placements[name].root]
    _check_row_major(name, plan.placements[name].strides, kinds[name])
    if root.role in ("input", "constant") and root.name not in writable:
        field = f"{tensor_field(name)}.root"
        fail(field, "expected memory that a node may write", f"{root.role} {root.name}")


def _check_write_to_state(
    plan: Plan,
    kinds: Mapping[str, Kind],
    node: PlanNode,
    output: str,
    places: Mapping[str, _Place],
) -> None:
    """Check that a node that writes to a state does so in place, so that it can be undone."""
    root = plan.tensors[plan.placements[output].root]
    if root.role != "state":
        return
    if plan.states.get(root.name) == root.name:
        field = f"plan.states[{root.name!r}]"
        fail(field, "expected another tensor than the state, which a node writes", output)
    undone = REGISTRY[node.op].save is not None and output == node.output
    if not (undone and _is_in_place(plan, kinds, node, node.reads[0], places)):
        fail(
            f"{tensor_field(output)}.root",
            "expected memory that a node may write",
            f"state {root.name}",
        )


def _is_in_place(
    plan: Plan,
    kinds: Mapping[str, Kind],
    node: PlanNode,
    name: str,
    places: Mapping[str, _Place],
) -> bool:
    """Return whether the op allows its output over input ``name``, and both coincide."""
    inplace = REGISTRY[node.op].inplace
    positions = [index for index, read in enumerate(node.inputs) if read == name]
    return (
        all(index in inplace for index in positions)
        and kinds[name] is kinds[node.output]
        and plan.placements[name].root == plan.placements[node.output].root
        and places[name].is_contiguous
        and places[name].extent == places[node.output].extent
    )


def _fail_overwrite(plan: Plan, node: PlanNode, output: str, name: str, last_read: int) -> None:
    reader = f"node {last_read} reads it" if last_read < len(plan.nodes) else "it is an output"
    if name in node.outputs:
        reader = "it is another output of the node"
    raise PlanFormatError(
        f"{tensor_field(output)}.root", f"{node.op} overwrites {name!r}, but {reader}"
    )


def _check_view(plan: Plan, node: PlanNode) -> None:
    """Check that a node that is not executed lies where its op's view rule says."""
    op = REGISTRY[node.op]
    assert op.view is not None  # otherwise it has parts
    source, name = node.reads[0], node.output
    shape, (_, got, strides) = plan.tensors[name].shape, plan.placements[name]
    if 0 in shape and strides == contiguous_strides(shape):
        return  # a view without elements may lie anywhere
    dtype, whole = plan.tensors[source].dtype, plan.tensors[source].shape
    _, start, steps = plan.placements[source]
    attrs, assume = op.fill(node.attrs), assuming_nonempty(shape)
    if assume is not unchanged:
        whole, steps = substitute(whole, assume), substitute(steps, assume)
        attrs = {key: substitute(value, assume) for key, value in attrs.items()}
    view = op.view(whole, steps, attrs)
    if view is None:
        expected = f"expected the tensor itself, because no strides make this view of {source!r}"
        fail(f"{tensor_field(name)}.root", expected, source)
    offset = assume(start) + view.offset * DTYPES[dtype].size
    if got != offset and assume(got) != offset:
        fail(f"{tensor_field(name)}.offset", f"expected {offset} for this view of {source!r}", got)
    if strides != view.strides and substitute(strides, assume) != tuple(view.strides):
        raise PlanFormatError(
            f"{tensor_field(name)}.strides", f"expected {list(view.strides)}, got {list(strides)}"
        )


def _check_parts(plan: Plan, kinds: Mapping[str, Kind], node: PlanNode, op: OpDef) -> None:
    """Check that the inputs of a node that is not executed make up its output."""
    assert op.parts is not None  # otherwise it would be executed
    spec, (root, _, strides) = plan.tensors[node.output], plan.placements[node.output]
    _check_row_major(node.output, strides, kinds[node.output])
    shapes = [plan.tensors[name].shape for name in node.reads]
    offsets = op.parts(shapes, op.fill(node.attrs))
    if offsets is None:
        fail(
            f"{tensor_field(node.output)}.root",
            f"expected another root than that of {node.reads[0]!r}, because the inputs are not "
            "contiguous parts of the output",
            root,
        )
    for name, shape, offset in zip(node.reads, shapes, offsets, strict=True):
        field, placement = tensor_field(name), plan.placements[name]
        expected = plan.placements[node.output].offset + offset * DTYPES[spec.dtype].size
        if placement.root != root:
            fail(f"{field}.root", f"expected {root!r}, the root of {node.output!r}", placement.root)
        if placement.offset != expected:
            fail(f"{field}.offset", f"expected {expected} in {root!r}", placement.offset)
        if not placement.is_contiguous(shape):
            fail(f"{field}.strides", "expected row-major strides", placement.strides)
