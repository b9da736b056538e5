"""Represent a quantized weight: levels, and scales and offsets for each block of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import cast
from taper_runtime.base.records import NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Scale(NamedTuple):
    """A number for each block along the last axis of a weight.

    Attributes
    ----------
    common : numpy.ndarray or None
        Floats ``[..., N, K/rows]``; bfloat16 as uint16.
    factors : numpy.ndarray or None
        Integers ``[..., N, K/size]``. The numbers are common times factor, rounded to float32.
    table : numpy.ndarray or None
        What factors are positions in, if they are not the numbers themselves.
    """

    common: np.ndarray | None
    factors: np.ndarray | None = None
    table: np.ndarray | None = None

    @property
    def numbers(self) -> np.ndarray:
        """Return the numbers ``[..., N, K/size]``, float32."""
        if self.factors is None:
            assert self.common is not None
            return cast(self.common, "float32")
        factors = self.factors if self.table is None else self.table[self.factors]
        factors = factors.astype(np.float32)
        if self.common is None:
            return factors
        each = factors.shape[-1] // max(1, self.common.shape[-1])
        with np.errstate(all="ignore"):
            return np.asarray(np.repeat(cast(self.common, "float32"), each, -1) * factors)


class QuantizedWeight(NamedTuple):
    """A weight whose elements are ``(level - zero) * scale + offset`` in float32.

    Attributes
    ----------
    levels : numpy.ndarray
        int8 or uint8 ``[..., N, K]``.
    scale : Scale
    zero : numpy.ndarray or None
        Integers or floats, one for each scale.
    offset : Scale or None
    table : numpy.ndarray or None
        What levels are positions in, if they are not the numbers themselves.
    group : numpy.ndarray or None
        For each k the position of its scale and zero; None where blocks are equally long.
    """

    levels: np.ndarray
    scale: Scale
    zero: np.ndarray | None = None
    offset: Scale | None = None
    table: np.ndarray | None = None
    group: np.ndarray | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the weight."""
        return self.levels.shape

    def decode(self) -> np.ndarray:
        """Compute the elements, float32."""
        levels = self.levels if self.table is None else self.table[self.levels]

        def each(x: np.ndarray) -> np.ndarray:
            if self.group is not None:
                return x[..., self.group]
            return np.repeat(x, self.shape[-1] // max(1, x.shape[-1]), -1)

        with np.errstate(all="ignore"):
            numbers = levels.astype(np.float32)
            if self.zero is not None:
                numbers = numbers - each(cast(self.zero, "float32"))
            if self.offset is None:
                return np.asarray(numbers * each(self.scale.numbers))
            # one rounding: the product of a level and a scale of a format with offsets is exact in
            # float64
            product = numbers.astype(np.float64) * each(self.scale.numbers)
            return np.asarray(product + each(self.offset.numbers), np.float32)


def combined(
    weights: Sequence[QuantizedWeight], combine: Callable[[Sequence[np.ndarray]], np.ndarray]
) -> QuantizedWeight | None:
    """Return weights as one, such as the experts of a layer; None if they are of several kinds.

    ``combine`` gets the weights' arrays of each kind. Weights whose groups have other k get a scale
    for each k.
    """
    first = weights[0]

    def of(parts: Sequence[np.ndarray | None]) -> np.ndarray | None:
        present = [part for part in parts if part is not None]
        return combine(present) if present else None

    def scale(parts: Sequence[Scale | None]) -> Scale | None:
        present = [part for part in parts if part is not None]
        if not present:
            return None
        return Scale(
            of([x.common for x in present]), of([x.factors for x in present]), present[0].table
        )

    def kind(weight: QuantizedWeight) -> tuple[object, ...]:
        parts = [weight.levels, weight.zero]
        tables = [weight.table]
        for x in (weight.scale, weight.offset):
            parts += [None, None] if x is None else [x.common, x.factors]
            tables += [None if x is None else x.table]
        return (
            [None if x is None else (x.dtype, x.shape[-1]) for x in parts],
            [None if x is None else x.tobytes() for x in tables],
        )

    if any(kind(weight) != kind(first) for weight in weights):
        return None
    if len({None if x.group is None else x.group.tobytes() for x in weights}) > 1:
        weights = [_without_groups(x) for x in weights]
    levels, whole = of([x.levels for x in weights]), scale([x.scale for x in weights])
    assert levels is not None
    assert whole is not None
    return QuantizedWeight(
        levels,
        whole,
        of([x.zero for x in weights]),
        scale([x.offset for x in weights]),
        first.table,
        weights[0].group,
    )


def _without_groups(weight: QuantizedWeight) -> QuantizedWeight:
    """Return the same weight with a scale for each k in place of groups."""
    group = weight.group
    if group is None:
        group = np.arange(weight.shape[-1]) * weight.scale.numbers.shape[-1] // weight.shape[-1]
    assert weight.scale.common is not None
    assert weight.scale.factors is None
    zero = None if weight.zero is None else weight.zero[..., group]
    scale = Scale(weight.scale.common[..., group])
    return weight._replace(scale=scale, zero=zero, group=None)
