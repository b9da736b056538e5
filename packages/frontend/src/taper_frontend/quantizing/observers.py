"""Choose the ranges of tensors that calibration has shown."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from taper_frontend.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Callable

_BINS = 2048

#: The share of the numbers that a percentile keeps, from the least and from the largest side.
_KEPT = 0.9999

_LEVELS = 256  # of 8 bits


class Observer:
    """Remembers how the numbers of one tensor are distributed.

    Attributes
    ----------
    name : str
        The layer's name in errors.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.low, self.high = math.inf, -math.inf
        self._counts = torch.zeros(_BINS, dtype=torch.float64)

    def see(self, x: torch.Tensor) -> None:
        """Add the numbers of a tensor.

        Raises
        ------
        ExportError
            If one is not finite.
        """
        x = x.detach().float().reshape(-1)
        if not len(x):
            return
        low, high = (float(bound) for bound in torch.aminmax(x))
        if not math.isfinite(high - low):
            raise ExportError(
                f"calibration: expected finite numbers at layer {self.name!r}, got NaN or infinity"
            )
        self._widen(min(low, 0.0), max(high, 0.0))
        width = self.high - self.low
        if width:
            self._counts += torch.histc(x, _BINS, self.low, self.high).double()

    def _widen(self, low: float, high: float) -> None:
        """Move the counts into bins of a range that includes another one."""
        if low >= self.low and high <= self.high:
            return
        low, high = min(low, self.low), max(high, self.high)
        if self._counts.any():
            at = ((self._centers() - low) / (high - low) * _BINS).long().clamp(0, _BINS - 1)
            self._counts = torch.zeros_like(self._counts).index_add_(0, at, self._counts)
        self.low, self.high = low, high

    def _centers(self) -> torch.Tensor:
        width = (self.high - self.low) / _BINS
        return self.low + width * (torch.arange(_BINS, dtype=torch.float64) + 0.5)

    def range(self, how: str) -> tuple[float, float]:
        """Return the range, which includes 0.

        Parameters
        ----------
        how : str
            One of :data:`.OBSERVERS`.

        Raises
        ------
        ExportError
            If nothing was seen.
        """
        if self.low > self.high:
            raise ExportError(
                f"calibration: expected data that reach each layer, got none at layer "
                f"{self.name!r}; leave it out with layers={{{self.name + '.weight'!r}: 'float32'}}"
            )
        return _RANGES[how](self)

    def _whole(self) -> tuple[float, float]:
        return self.low, self.high

    def _percentile(self) -> tuple[float, float]:
        """Leave out the most extreme numbers of each side."""
        if not self._counts.any():
            return self.low, self.high
        share = self._counts.cumsum(0) / self._counts.sum()
        edges = torch.linspace(self.low, self.high, _BINS + 1, dtype=torch.float64)
        low = float(edges[int((share < 1 - _KEPT).sum())])
        high = float(edges[int((share < _KEPT).sum()) + 1])
        return min(low, 0.0), max(high, 0.0)

    def _least_error(self) -> tuple[float, float]:
        """Shrink the range by the factor with the least squared error, clipping included."""
        if not self._counts.any():
            return self.low, self.high
        best, least = (self.low, self.high), math.inf
        x = self._centers()
        for factor in torch.linspace(1.0, 0.2, 81).tolist():
            low, high = self.low * factor, self.high * factor
            scale = max((high - low) / (_LEVELS - 1), 1e-30)
            near = (x / scale).round() * scale
            # numbers within a range are off by a step's uniform error, even where bins are wider
            lost = torch.where((x < low) | (x > high), near.clamp(low, high) - x, scale / 12**0.5)
            error = float((lost.square() * self._counts).sum())
            if error < least:
                best, least = (low, high), error
        return best


_RANGES: dict[str, Callable[[Observer], tuple[float, float]]] = {
    "minmax": Observer._whole,
    "percentile": Observer._percentile,
    "mse": Observer._least_error,
}
