"""Compute which bytes of a root a tensor takes, for all sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.records import NamedTuple
from taper_runtime.base.size_values import assuming_nonempty, unchanged
from taper_runtime.base.sizes import UndecidedError

if TYPE_CHECKING:
    from taper_runtime.ops.opdef import TensorType
    from taper_runtime.plan.plan import Placement


class Extent(NamedTuple):
    """The bytes of a tensor, from its first to its last element, relative to its root."""

    start: int
    stop: int

    def overlaps(self, other: Extent) -> bool:
        """Return whether two extents share bytes, for at least some sizes."""
        try:
            return not (self.stop <= other.start or other.stop <= self.start)
        except UndecidedError:
            return True

    def covers(self, other: Extent) -> bool:
        """Return whether this extent contains the other, for all sizes."""
        try:
            return self.start <= other.start and other.stop <= self.stop
        except UndecidedError:
            return False


def extent_of(storage: TensorType, placement: Placement) -> Extent:
    """Return the bytes of a tensor with this stored type and placement.

    The tensor must have elements.

    Raises
    ------
    OpError
        If the ranges of the sizes leave the sign of a stride undecided.
    """
    dtype, shape, _ = storage
    _, offset, strides = placement
    assume = assuming_nonempty(shape)
    if assume is not unchanged:
        offset = assume(offset)
        shape, strides = tuple(map(assume, shape)), tuple(map(assume, strides))
    if 0 in shape:
        return Extent(offset, offset)
    low, high = 0, 1  # the distance in elements from the first element
    for size, stride in zip(shape, strides, strict=True):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    itemsize = DTYPES[dtype].size
    return Extent(offset + low * itemsize, offset + high * itemsize)
