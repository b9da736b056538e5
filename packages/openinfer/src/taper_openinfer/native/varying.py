"""Find the pattern that two sets of shapes have in common, with variables for what varies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from taper_runtime.base.records import NamedTuple
from taper_runtime.base.size_values import size_at
from taper_runtime.base.sizes import UNBOUNDED, Size, variable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Shape = tuple[int, ...]


class ShapePattern(NamedTuple):
    """Shapes with size variables, each at least 1, for the dims that vary.

    Attributes
    ----------
    shapes : tuple of tuple of size
    sizes : dict of str to (int, int)
        The variables and their ranges.
    """

    shapes: tuple[Shape, ...]
    sizes: dict[str, tuple[int, int]]

    def match(self, shapes: Sequence[Shape]) -> dict[str, int] | None:
        """Return the variables' values that give ``shapes``, or None if none do."""
        values: dict[str, int] = {}
        for mine, theirs in zip(self.shapes, shapes, strict=True):
            if len(mine) != len(theirs):
                return None
            for size, number in zip(mine, theirs, strict=True):
                known = values.setdefault(str(size), number) if type(size) is Size else size
                if known != number or number < 1:
                    return None
        return values


def find_pattern(first: Sequence[Shape], second: Sequence[Shape]) -> ShapePattern | None:
    """Return the pattern that two different sets of shapes have in common, or None.

    Dims that are equal in both are fixed. Dims that have the same pair of values share a variable.
    There is no pattern if the ranks differ or a dim is 0.
    """
    names: dict[tuple[int, int], str] = {}
    shapes = []
    for one, other in zip(first, second, strict=True):
        if len(one) != len(other) or 0 in (*one, *other):
            return None
        dims = []
        for pair in zip(one, other, strict=True):
            if pair[0] == pair[1]:
                dims.append(pair[0])
            else:
                dims.append(variable(names.setdefault(pair, f"n{len(names)}"), 1, UNBOUNDED))
        shapes.append(tuple(dims))
    return ShapePattern(tuple(shapes), dict.fromkeys(names.values(), (1, UNBOUNDED)))


def shape_at(shape: Shape, values: Mapping[str, int]) -> Shape:
    """Return a shape with these values of the size variables."""
    return tuple([size_at(size, values) for size in shape])
