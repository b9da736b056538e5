"""Find how a node computes with its axes permuted, or its leading axes regrouped.

The op's region says what a node does to its axes, and the attrs' roles say which attrs name axes.
So permutations and RESHAPEs can be moved across any op, including users' ops, without special
cases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.ops.region import (
    BROADCAST,
    WHOLE,
    Region,
    Relation,
    Same,
    Window,
    output_axes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from taper_frontend.compiler.graph.graph import Graph
    from taper_frontend.compiler.graph.node import Node
    from taper_runtime.ops.opdef import Attrs, OpDef, Shape, TensorType

#: A permutation: axis ``i`` of the result is axis ``axes[i]`` of the permuted tensor.
Axes = tuple[int, ...]


def inverse(axes: Axes) -> Axes:
    """Return the inverse permutation of ``axes``."""
    return tuple(axes.index(axis) for axis in range(len(axes)))


def permuted(values: Sequence[int], axes: Axes) -> Axes:
    """Return ``values``, one for each axis, in the order of ``axes``."""
    return tuple(values[axis] for axis in axes)


def keeps_order(shape: Shape, axes: Axes) -> bool:
    """Return whether a permutation does not move the elements of a tensor of this shape."""
    counting = [axis for axis in axes if shape[axis] != 1]
    return counting == sorted(counting)


def padded(shape: Shape, rank: int) -> Shape:
    """Return ``shape`` with dims of size 1 in front, so that its rank is at least ``rank``."""
    return (1,) * (rank - len(shape)) + shape


class Reordered(NamedTuple):
    """A node that computes its output, permuted, from permuted inputs.

    Attributes
    ----------
    follows : tuple of bool
        For each input, whether it is permuted, too; the others are read as they are.
    attrs : dict
        The attrs of the node with permuted axes.
    axes : tuple of int
        Axis ``i`` of the node's output is axis ``axes[i]`` of the computed tensor.
    """

    follows: tuple[bool, ...]
    attrs: dict[str, Any]
    axes: Axes


class _Call(NamedTuple):
    """An op with the types and complete attrs of one node."""

    op: OpDef
    inputs: Sequence[TensorType | None]
    output: TensorType
    attrs: Attrs

    @property
    def regions(self) -> Sequence[Region]:
        return self.op.needs(self.inputs, self.output, self.attrs)


def reorder(graph: Graph, node: Node, index: int, axes: Axes) -> Reordered | None:
    """Return how ``node`` computes from the tensor before a permutation of one input.

    Axes with the relation :class:`Same` may move anywhere. Any other axis may move if an attr names
    it; otherwise it must stay at its position. The node with permuted axes must have the same
    regions, permuted.

    Parameters
    ----------
    graph : Graph
    node : Node
    index : int
        The index of the permuted input.
    axes : tuple of int
        Axis ``i`` of the input is axis ``axes[i]`` of the tensor that is read instead.

    Returns
    -------
    Reordered or None
        None if the op cannot compute that, or sizes leave it undecided.
    """
    definition = node.definition
    if any(attr.role == "shape" for attr in definition.attrs.values()):
        return None
    tensors = graph.tensors
    types = graph.input_types(node)
    call = _Call(definition, types, tensors[node.output].type, node.complete_attrs())
    regions = call.regions
    named = _named(definition, call.attrs)
    for axis, relation in enumerate(regions[index]):
        if axes[axis] != axis and not _may_move(relation, axis in named):
            return None
    followers = tuple(
        k == index or _follows(region, len(axes), axes, named) for k, region in enumerate(regions)
    )
    alone = tuple(k == index for k in range(len(types)))
    for follows in dict.fromkeys((followers, alone)):
        found = _reordered(call, regions, follows, axes, index)
        if found is not None:
            return found._replace(attrs=dict(node.attrs) | found.attrs)
    return None


def _named(op: OpDef, attrs: Attrs) -> set[int]:
    """Return the axes that attrs name."""
    found: set[int] = set()
    for name, attr in op.attrs.items():
        if attr.role == "axis":
            found.update(_axes(attrs[name]))
    return found


def _may_move(relation: Relation, is_named: bool) -> bool:
    return is_named or relation is BROADCAST or isinstance(relation, Same)


def _follows(region: Region, rank: int, axes: Axes, named: set[int]) -> bool:
    """Return whether an input has axes that move, each at the same position as in the output.

    An input may have fewer axes than the permuted one; these are the last ones.
    """
    missing = rank - len(region)
    moving = [axis for axis in range(max(missing, 0), rank) if axes[axis] != axis]
    if missing < 0 or not moving:
        return False
    for axis in moving:
        relation = region[axis - missing]
        in_place = isinstance(relation, Same | Window) and relation.axis == axis
        if not (in_place or relation is BROADCAST or (relation is WHOLE and axis in named)):
            return False
    return True


def _reordered(
    call: _Call, regions: Sequence[Region], follows: tuple[bool, ...], axes: Axes, index: int
) -> Reordered | None:
    """Permute the inputs that follow, and check that all regions stay the same."""
    back = inverse(axes)
    renamed = _renamed(call.op, call.attrs, axes) if follows[0] else {}
    if renamed is None:
        return None
    attrs = {**call.attrs, **renamed}
    types = [
        t._replace(shape=permuted(padded(t.shape, len(axes)), back)) if t and moves else t
        for t, moves in zip(call.inputs, follows, strict=True)
    ]
    try:
        output = call.op.infer_type(types, attrs)
    except OpError:
        return None
    moved = _Call(call.op, types, output, attrs).regions
    # The new position of each axis of the output.
    places: dict[int, int] = {}
    for region, other, moves in zip(regions, moved, follows, strict=True):
        added = len(other) - len(region)
        for axis, relation in enumerate(region):
            then = other[axes[axis + added] if moves else axis]
            if not _is_alike(relation, then, places):
                return None
    rank = len(output.shape)
    if not _place_others(places, rank, axes if rank == len(axes) else None):
        return None
    result = tuple(places[axis] for axis in range(rank))
    if permuted(output.shape, result) != call.output.shape or output.dtype != call.output.dtype:
        return None
    return Reordered(follows, renamed, result)


def _renamed(op: OpDef, attrs: Attrs, axes: Axes) -> dict[str, Any] | None:
    """Return the attrs with the axes of the tensor that is read instead.

    Axes in a list rise. None if they would change places and other attrs hold a value for each.
    """
    renamed: dict[str, Any] = {}
    ordered = any(attr.role == "each axis" for attr in op.attrs.values())
    for name, attr in op.attrs.items():
        if attr.role != "axis":
            continue
        value = attrs[name]
        if isinstance(value, int):
            renamed[name] = axes[value]
            continue
        moved = permuted(axes, value)
        renamed[name] = tuple(sorted(moved))
        if ordered and renamed[name] != tuple(moved):
            return None
    return renamed


def _is_alike(relation: Relation, other: Relation, places: dict[int, int]) -> bool:
    """Return whether two relations differ only in the output axis; record the two axes."""
    if not isinstance(relation, Same | Window):
        return relation is other
    if not isinstance(other, Same | Window) or relation._replace(axis=other.axis) != other:
        return False
    return places.setdefault(relation.axis, other.axis) == other.axis


def _place_others(places: dict[int, int], rank: int, axes: Axes | None) -> bool:
    """Find the new positions of output axes that no input axis is related to.

    They move like the input's axes. If the op adds them, there may be only one.
    """
    lost = [axis for axis in range(rank) if axis not in places]
    free = [axis for axis in range(rank) if axis not in places.values()]
    if axes is not None:
        places.update({axis: axes[axis] for axis in lost})
    elif len(lost) <= 1:
        places.update(zip(lost, free, strict=True))
    return sorted(places.values()) == list(range(rank))


# -- leading axes in other groups ------------------------------------------------------------------


class Regrouped(NamedTuple):
    """A node that computes its output with leading axes regrouped.

    Attributes
    ----------
    shapes : list of tuple of int
        The new shapes of the inputs.
    attrs : dict
    """

    shapes: list[Shape]
    attrs: dict[str, Any]


def regroup(graph: Graph, node: Node, count: int, lead: Shape) -> Regrouped | None:
    """Return how ``node`` computes with axes ``lead`` in place of the first ``count`` axes.

    These axes must have the relation :class:`Same` to leading axes of some inputs. The other inputs
    must broadcast along them or be independent of them.

    Parameters
    ----------
    graph : Graph
    node : Node
    count : int
        The number of leading axes of the output that are regrouped.
    lead : tuple of int
        Sizes with the same number of elements.

    Returns
    -------
    Regrouped or None
        None if the op cannot compute that, or sizes leave it undecided.
    """
    tensors, op = graph.tensors, node.definition
    types = graph.input_types(node)
    output, attrs = tensors[node.output].type, node.complete_attrs()
    regions = op.needs(types, output, attrs)
    carriers = [region[:count] == tuple(map(Same, range(count))) for region in regions]
    added = len(lead) - count
    shifted = _shifted(op, attrs, count, added) if any(carriers) else None
    if shifted is None or (shifted and not carriers[0]):
        return None
    rank = len(output.shape)
    shapes: list[Shape] = []  # () for an absent input
    for t, region, carries in zip(types, regions, carriers, strict=True):
        if t is None:
            shapes.append(())
            continue
        front = count if carries else max(0, len(region) - (rank - count))
        if any(axis < count for relation in region[front:] for axis in output_axes(relation)):
            return None
        if carries:
            shapes.append((*lead, *t.shape[count:]))
        elif all(relation is BROADCAST for relation in region[:front]):
            shapes.append(t.shape[front:])
        elif any(axis < count for relation in region[:front] for axis in output_axes(relation)):
            return None
        else:
            shapes.append(t.shape)
    new_types = [t and t._replace(shape=shape) for t, shape in zip(types, shapes, strict=True)]
    new_attrs = attrs | shifted
    wanted = output._replace(shape=(*lead, *output.shape[count:]))
    try:
        if op.infer_type(new_types, new_attrs) != wanted:
            return None
    except OpError:
        return None
    new_regions = op.needs(new_types, wanted, new_attrs)
    apart = tuple(map(Same, range(len(lead))))
    for region, new, carries in zip(regions, new_regions, carriers, strict=True):
        left = len(region) - len(new) if not carries else 0
        behind = region[count:] if carries else region[left:]
        if carries and new[: len(lead)] != apart:
            return None
        expected = tuple(_behind(relation, added) for relation in behind)
        if new[len(lead) if carries else 0 :] != expected:
            return None
    return Regrouped(shapes, {**node.attrs, **shifted})


def _shifted(op: OpDef, attrs: Attrs, count: int, added: int) -> dict[str, Any] | None:
    """Return the attrs that name axes, which must all come after the regrouped ones."""
    shifted: dict[str, Any] = {}
    for name, attr in op.attrs.items():
        if attr.role == "shape":
            return None
        if attr.role == "axis":
            value = attrs[name]
            if min(_axes(value), default=count) < count:
                return None
            one = isinstance(value, int)
            shifted[name] = value + added if one else tuple(axis + added for axis in value)
    return shifted


def _behind(relation: Relation, added: int) -> Relation:
    if isinstance(relation, Same | Window):
        return relation._replace(axis=relation.axis + added)
    return relation


def _axes(value: int | Sequence[int]) -> Sequence[int]:
    return (value,) if isinstance(value, int) else value
