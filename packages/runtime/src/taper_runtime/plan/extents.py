"""Tell which bytes of a root a tensor takes, whatever the sizes are."""

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
    """Bytes from the first to the last element of a tensor, counted in its root."""

    start: int
    stop: int

    def overlaps(self, other: Extent) -> bool:
        """Whether they share bytes, for some sizes at least."""
        try:
            return not (self.stop <= other.start or other.stop <= self.start)
        except UndecidedError:
            return True

    def covers(self, other: Extent) -> bool:
        """Whether it has all bytes of the other, for all sizes."""
        try:
            return self.start <= other.start and other.stop <= self.stop
        except UndecidedError:
            return False


def extent_of(storage: TensorType, placement: Placement) -> Extent:
    """Return the bytes of a tensor that is stored and placed so.

    Only one with elements lies anywhere.

    Raises
    ------
    OpError
        If the ranges of the sizes do not tell the sign of a stride.
    """
    dtype, shape, _ = storage
    _, offset, strides = placement
    assume = assuming_nonempty(shape)
    if assume is not unchanged:
        offset = assume(offset)
        shape, strides = tuple(map(assume, shape)), tuple(map(assume, strides))
    if 0 in shape:
        return Extent(offset, offset)
    low, high = 0, 1  # elements from the first one on
    for size, stride in zip(shape, strides, strict=True):
        if stride < 0:
            low += (size - 1) * stride
        else:
            high += (size - 1) * stride
    itemsize = DTYPES[dtype].size
    return Extent(offset + low * itemsize, offset + high * itemsize)
