"""Define region rules: the part of each input that a part of an op's output needs.

A *region* has, for each axis of one input, its relation to the axes of the output: :class:`Same`,
:class:`Window`, :class:`Grouped`, :data:`BROADCAST` or :data:`WHOLE`. An op's rule
(:attr:`OpDef.region`) returns one region per input. A rule knows only types and attrs, and their
sizes may be expressions. :data:`WHOLE` is correct for every axis of every op. The other relations
claim that less is needed; :func:`taper_runtime.ops.region_check.check_region` finds false claims.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.sizes import UndecidedError
from taper_runtime.formats import PLAIN

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import OpDef, TensorType

Shape = tuple[int, ...]
Attrs = Mapping[str, Any]

#: A range of an axis: its first position, and one past its last.
Range = tuple[int, int]


class Same(NamedTuple):
    """Element ``i`` of the output axis needs element ``i`` of the input axis, of the same size.

    Given only a range of the input axis, the op computes that range of the output.
    """

    axis: int


class Window(NamedTuple):
    """Element ``i`` of the output axis needs a run of elements of the input axis.

    The run has ``length`` elements from ``first + i * stride`` on; elements outside the input are
    padding. Where that is no rule, ``runs`` lists the runs.

    Attributes
    ----------
    axis : int
        The output axis.
    first, stride, length : int
        The stride may be negative.
    padding : tuple of (str, int), optional
        The attr with the padding of this axis, and the indices in it of the amounts before and
        after. With these changed, the op computes a range of its output from the elements that the
        range needs. None if it cannot, because the result depends on positions in the whole axis.
    runs : tuple of Range, optional
        The run of each element of the output axis, inside the input. The op then has an attr of the
        role "part", with which it computes a range.
    shifts : str
        The integer attr to which the position of an element is added: with one that is larger by
        the first position, the op computes a range.
    """

    axis: int
    first: int = 0
    stride: int = 1
    length: int = 1
    padding: tuple[str, int] | None = None
    runs: tuple[Range, ...] = ()
    shifts: str = ""

    def needs(self, part: Range) -> Range:
        """Return the range that elements ``part`` of the output need; it may exceed the input."""
        if self.runs:
            starts, stops = zip(*self.runs[slice(*part)], strict=True)
            return min(starts), max(stops)
        ends = [self.first + index * self.stride for index in (part[0], part[1] - 1)]
        return min(ends), max(ends) + self.length


class Grouped(NamedTuple):
    """Some axes of the input and some of the output hold the same elements in row-major order.

    Axes of size 1 are in no group. Each axis in ``inputs`` has this relation.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


class Simple(NamedTuple):
    """A relation to no particular output axis."""

    name: str

    def __repr__(self) -> str:
        return self.name


#: The input has one element along the axis, which every element of the output needs.
BROADCAST = Simple("BROADCAST")
#: All elements along the axis are needed, or no rule describes which ones are.
WHOLE = Simple("WHOLE")

Relation = Same | Window | Grouped | Simple

#: One input's relations, one per axis.
Region = tuple[Relation, ...]

#: A function of the inputs' types (None for absent ones), the output's type and the complete attrs.
RegionRule = Callable[[Sequence[Any], "TensorType", Attrs], Sequence[Region]]


def output_axes(relation: Relation) -> tuple[int, ...]:
    """Return the output axes that an input axis is related to."""
    match relation:
        case Same() | Window():
            return (relation.axis,)
        case Grouped():
            return relation.outputs
    return ()


# -- rules of families -----------------------------------------------------------------------------


def whole(inputs: Sequence[TensorType | None], output: TensorType, attrs: Attrs) -> list[Region]:
    """Return the regions if each part of the output needs every input whole."""
    return [() if t is None else all_of(t.shape) for t in inputs]


def elementwise(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    """Return the regions if inputs broadcast to the output and one element of each is needed."""
    return [broadcast_region(t.shape, output.shape) for t in inputs]


def along(name: str) -> RegionRule:
    """Return the rule of ops that keep each axis, and need the axes that an attr names whole.

    Parameters
    ----------
    name : str
        The name of the attr, which holds an axis or several.
    """

    def rule(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
        axes = _named(attrs[name])
        rank = len(inputs[0].shape)
        return [tuple(WHOLE if axis in axes else Same(axis) for axis in range(rank))]

    return rule


def reducing(name: str) -> RegionRule:
    """Return the rule of reductions over the axes in an attr; they have an attr ``keepdim``."""

    def rule(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
        axes, region, kept = _named(attrs[name]), [], 0
        for axis in range(len(inputs[0].shape)):
            region.append(WHOLE if axis in axes else Same(kept))
            kept += attrs["keepdim"] or axis not in axes
        return [tuple(region)]

    return rule


def trailing(inputs: Sequence[Any], output: TensorType, attrs: Attrs) -> list[Region]:
    """Return the regions if the last ``dims`` axes and all parameters are needed whole."""
    x, *parameters = inputs
    lead = len(x.shape) - attrs["dims"]
    region = tuple(Same(axis) if axis < lead else WHOLE for axis in range(len(x.shape)))
    return [region, *(() if t is None else all_of(t.shape) for t in parameters)]


def matrices(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    """Return the regions if whole matrices are needed, in batches that broadcast."""
    rank = max(len(t.shape) for t in inputs) - 2
    batch = output.shape[:rank]
    return [(*broadcast_region(t.shape[:-2], batch), WHOLE, WHOLE) for t in inputs]


def _named(value: int | Sequence[int]) -> Sequence[int]:
    return (value,) if isinstance(value, int) else value


# -- pieces of rules -------------------------------------------------------------------------------


def all_of(shape: Shape) -> Region:
    """Return the region of an input that is needed whole."""
    return (WHOLE,) * len(shape)


def axis_region(size: int, axis: int, output_size: int) -> Relation:
    """Return the relation of an axis that broadcasts to an axis of the output."""
    return BROADCAST if size == 1 and output_size != 1 else Same(axis)


def broadcast_region(shape: Shape, output: Shape) -> Region:
    """Return the region of a tensor that broadcasts to ``output``, aligned at the last axes."""
    missing = len(output) - len(shape)
    return tuple(axis_region(size, axis, output[axis]) for axis, size in enumerate(shape, missing))


def reshape_region(old: Shape, new: Shape) -> Region:
    """Pair the axes of two shapes of one tensor in row-major order, in the smallest groups.

    An axis of size 1 is paired with one in the same position. If size expressions leave undecided
    which axes belong together, equal trailing axes are paired, and the others form one group.
    """
    if 0 in old:
        return all_of(old)
    region: list[Relation] = [BROADCAST if size == 1 else WHOLE for size in old]
    i = j = 0
    while i < len(old) and j < len(new):
        if old[i] == 1 or new[j] == 1:
            if old[i] == new[j]:
                region[i] = Same(j)
            i, j = i + (old[i] == 1), j + (new[j] == 1)
            continue
        try:
            mine, theirs = _least_block(old, i, new, j)
        except UndecidedError:
            mine, theirs = _rest(old, i, new, j, region)
            _relate(region, mine, theirs)
            break
        _relate(region, mine, theirs)
        i, j = mine[-1] + 1, theirs[-1] + 1
    return tuple(region)


def _least_block(old: Shape, i: int, new: Shape, j: int) -> tuple[list[int], list[int]]:
    """Return the smallest groups of axes, from i and from j on, with equally many elements."""
    mine, theirs = [i], [j]
    have, want = old[i], new[j]
    while have != want:
        shape, axes = (old, mine) if have < want else (new, theirs)
        axis = next((axis for axis in range(axes[-1] + 1, len(shape)) if shape[axis] != 1), None)
        if axis is None:
            raise UndecidedError("no groups of axes have equal sizes")
        axes.append(axis)
        if axes is mine:
            have *= old[axis]
        else:
            want *= new[axis]
    return mine, theirs


def _rest(
    old: Shape, i: int, new: Shape, j: int, region: list[Relation]
) -> tuple[list[int], list[int]]:
    """Pair equal trailing axes; return the remaining axes of both shapes."""
    mine = [axis for axis in range(i, len(old)) if old[axis] != 1]
    theirs = [axis for axis in range(j, len(new)) if new[axis] != 1]
    while mine and theirs and old[mine[-1]] == new[theirs[-1]]:
        region[mine.pop()] = Same(theirs.pop())
    return mine, theirs


def _relate(region: list[Relation], mine: list[int], theirs: list[int]) -> None:
    single = len(mine) == len(theirs) == 1
    for axis in mine:
        region[axis] = Same(theirs[0]) if single else Grouped(tuple(mine), tuple(theirs))


# -- a part of an op's output ----------------------------------------------------------------------


class Part(NamedTuple):
    """A computation of a part of an op's output.

    Attributes
    ----------
    inputs : tuple of tuple of Range
        For each input and each of its axes, the range that is read.
    attrs : dict
        The op's attrs for the part.
    """

    inputs: tuple[tuple[Range, ...], ...]
    attrs: dict[str, Any]


def part_of(
    op: OpDef,
    inputs: Sequence[TensorType | None],
    output: TensorType,
    attrs: Attrs,
    cuts: Mapping[int, Range],
) -> Part | None:
    """Return how ``op`` computes a part of its output from parts of its inputs.

    Parameters
    ----------
    op : OpDef
    inputs, output, attrs
        Types and attrs of the node.
    cuts : mapping of int to Range
        The wanted ranges of output axes, none of them empty. All other axes are wanted whole.

    Returns
    -------
    Part or None
        None if the op cannot, because it needs a whole axis, or positions in it.
    """
    try:
        return _part(op, inputs, output, attrs, cuts)
    except UndecidedError:
        return None


def _part(
    op: OpDef,
    inputs: Sequence[TensorType | None],
    output: TensorType,
    attrs: Attrs,
    cuts: Mapping[int, Range],
) -> Part | None:
    """Compute what :func:`part_of` returns, for ranges that are not whole axes.

    For each input axis that is related to a wanted output axis: find the range that it needs, clip
    it to the input, and turn what was clipped into padding. At last adapt attrs that hold the
    output's shape. Return None if an axis needs more than a range, if a packed input would be cut,
    or if no input is related to a wanted axis: then its size comes from elsewhere.
    """
    wanted = {axis: cut for axis, cut in cuts.items() if cut != (0, output.shape[axis])}
    changed = dict(attrs)
    parts: list[tuple[Range, ...]] = []
    related: set[int] = set()
    for t, region in zip(inputs, op.needs(inputs, output, attrs), strict=True):
        if t is None:
            parts.append(())
            continue
        ranges: list[Range] = [(0, size) for size in t.shape]
        for axis, relation in enumerate(region):
            axes = output_axes(relation)
            if wanted.keys().isdisjoint(axes):
                continue
            found = _needed(relation, axis, t.shape, output.shape, wanted)
            if found is None:
                return None
            ranges[axis] = max(0, found[0]), min(t.shape[axis], found[1])
            if isinstance(relation, Window) and relation.shifts:
                name = relation.shifts
                before = attrs.get(name, op.attrs[name].default)
                changed[name] = before + wanted[relation.axis][0]
            elif (
                isinstance(relation, Window)
                and not relation.runs
                and not _pad(relation, found, ranges[axis], changed)
            ):
                return None
            related.update(axes)
        if t.format != PLAIN and any(r != (0, n) for r, n in zip(ranges, t.shape, strict=True)):
            return None  # packed tensors cannot be cut
        parts.append(tuple(ranges))
    if not wanted.keys() <= related:  # no input decides the size of such an axis
        return None
    for name, attr in op.attrs.items():
        if attr.role == "shape":
            sizes = {axis: stop - start for axis, (start, stop) in wanted.items()}
            changed[name] = tuple(sizes.get(axis, n) for axis, n in enumerate(changed[name]))
        elif attr.role == "part":
            axes = next(attrs[of] for of, other in op.attrs.items() if other.role == "axis")
            x = inputs[0]
            if x is not None and not wanted.keys().isdisjoint(axes):
                changed[name] = tuple(
                    n
                    for axis in axes
                    for n in (x.shape[axis], *wanted.get(axis, (0, output.shape[axis])))
                )
    return Part(tuple(parts), changed)


def _needed(
    relation: Relation, axis: int, shape: Shape, output: Shape, wanted: Mapping[int, Range]
) -> Range | None:
    """Return the range that the wanted part needs along an axis; None if it is not a range.

    The range may exceed the input.
    """
    match relation:
        case Same():
            return wanted[relation.axis]
        case Window():
            return relation.needs(wanted[relation.axis])
        case Grouped(inputs, outputs):
            first, *others = outputs
            if not wanted.keys().isdisjoint(others):
                return None
            if axis != inputs[0]:
                return 0, shape[axis]
            # The range must consist of whole rows of the group's first input axis.
            step = math.prod(output[other] for other in others)
            row = math.prod(shape[other] for other in inputs[1:])
            (start, rest), (stop, more) = (divmod(end * step, row) for end in wanted[first])
            return None if rest or more else (start, stop)
    return None


def _pad(window: Window, needed: Range, read: Range, attrs: dict[str, Any]) -> bool:
    """Set the padding for a range of the output; return False if the op cannot pad."""
    if window.padding is None or read[0] >= read[1]:
        return False
    name, at = window.padding
    around = read[0] - needed[0], needed[1] - read[1]
    attrs[name] = (*attrs[name][:at], *around, *attrs[name][at + 2 :])
    return True
