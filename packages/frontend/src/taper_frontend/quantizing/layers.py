"""Define modules that replace layers and compute with integers, in torch and in exports.

Their graphs have the ops of PT2E (``quantized_decomposed``) or plain arithmetic, so that every
export reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.ao.quantization.fx import _decomposed  # noqa: F401  (defines quantized_decomposed)

if TYPE_CHECKING:
    from collections.abc import Callable

    from taper_frontend.compiler.quantization.rounding import Rounded
    from taper_frontend.compiler.quantization.schemes import Scheme

_OPS = torch.ops.quantized_decomposed

#: The least and the largest byte of activations.
_LOW, _HIGH = -128, 127


class IntegerWeight(nn.Module):
    """The weight of a layer as integers, or as 16-bit floats.

    Parameters
    ----------
    rounded : Rounded
        Integers ``[K, N]``; they become ``[N, K]`` here.
    scheme : Scheme
    shape : torch.Size
        The shape of the weight, whose outputs are first.
    """

    q: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    offsets: torch.Tensor | None
    factors: torch.Tensor
    offset_factors: torch.Tensor

    def __init__(self, rounded: Rounded, scheme: Scheme, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.group = shape, scheme.group
        for name, array in rounded._asdict().items():
            if name != "error":
                self.register_buffer(name, None if array is None else torch.tensor(array.T))
        if scheme.scales == "bfloat16":
            self.scales = self.scales.view(torch.bfloat16)

    def forward(self) -> torch.Tensor:
        """Return the weight as float32."""
        if self.group == 0 and self.zeros is None:
            scales = self.scales[:, 0].float()
            q = self.q.view(self.shape)
            zeros = torch.zeros_like(scales, dtype=torch.int64)
            decoded: torch.Tensor = _OPS.dequantize_per_channel(
                q, scales, zeros, 0, -128, 127, torch.int8
            )
            return decoded
        if self.offsets is not None:
            steps = _multiplied(self.scales, self.factors)
            lowest = _multiplied(self.offsets, self.offset_factors)
            q = self.q.float().view(*steps.shape, -1)
            return (q * steps[..., None] + lowest[..., None]).view(self.shape)
        q = self.q.float().view(*self.scales.shape, -1)
        if self.zeros is not None:
            q = q - self.zeros[..., None].float()
        return (q * self.scales[..., None].float()).view(self.shape)


def _multiplied(common: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """Return the product of numbers ``[N, A]`` and factors ``[N, B]``, B a multiple of A."""
    each = factors.float().view(*common.shape, -1) * common.float()[..., None]
    return each.view(factors.shape)


class HalfWeight(nn.Module):
    """The weight of a layer as 16-bit floats."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.numbers: torch.Tensor
        self.register_buffer("numbers", weight)

    def forward(self) -> torch.Tensor:
        """Return the weight as float32."""
        return self.numbers.float()


class QuantizedLayer(nn.Module):
    """A layer whose weight is quantized, and perhaps its input.

    Parameters
    ----------
    layer : torch.nn.Module
        The float layer.
    held : torch.nn.Module
        Makes the weight.
    function : callable
        ``(x, weight, bias) -> y``.
    quantize : torch.nn.Module, optional
        Quantizes the input and decodes it again.
    """

    def __init__(
        self,
        layer: nn.Module,
        held: nn.Module,
        function: Callable[..., torch.Tensor],
        quantize: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.held = held
        self.bias: Any = layer.bias
        self.quantize = quantize
        self._function = function
        for name, value in vars(layer).items():  # models read the stride, for example
            if not name.startswith("_") and name not in vars(self):
                setattr(self, name, value)

    @property
    def weight(self) -> torch.Tensor:
        """Return the weight as float32, for modules that read it themselves."""
        decoded: torch.Tensor = self.held()
        return decoded

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the layer."""
        if self.quantize is not None:
            x = self.quantize(x)
        return self._function(x, self.held(), self.bias)


class RowQuantizer(nn.Module):
    """Quantizes each row, a run of the last axis, by its own range."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize and decode."""
        scale, zero = _OPS.choose_qparams_per_token_asymmetric(x, torch.int8)
        scale = scale.float()
        q = _OPS.quantize_per_token(x, scale, zero, _LOW, _HIGH, torch.int8)
        decoded: torch.Tensor = _OPS.dequantize_per_token(
            q, scale, zero, _LOW, _HIGH, torch.int8, torch.float32
        )
        return decoded


class TensorQuantizer(nn.Module):
    """Quantizes a tensor by a scale and a zero point that are known.

    Parameters
    ----------
    scale : float
    zero : int
    low, high : int
        The range of the integers.
    dtype : torch.dtype
    """

    def __init__(
        self,
        scale: float,
        zero: int,
        low: int = _LOW,
        high: int = _HIGH,
        dtype: torch.dtype = torch.int8,
    ) -> None:
        super().__init__()
        self._parameters_of = scale, zero, low, high, dtype

    @classmethod
    def of_range(cls, low: float, high: float, *, reduce_range: bool = False) -> TensorQuantizer:
        """Return what quantizes a range around 0, to uint8: bytes bounded at 0 are made fastest.

        The zero point of a range from 0 on is 0, and so takes no time.
        """
        most = 127 if reduce_range else 255
        scale = max((high - low) / most, float(torch.finfo(torch.float32).eps))
        zero = min(most, max(0, round(-low / scale)))
        return cls(scale, zero, 0, most, torch.uint8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize and decode."""
        q = _OPS.quantize_per_tensor(x, *self._parameters_of)
        decoded: torch.Tensor = _OPS.dequantize_per_tensor(q, *self._parameters_of)
        return decoded


class DynamicQuantizer(nn.Module):
    """Quantizes a tensor by its own range to uint8, as torch's dynamic layers do.

    Parameters
    ----------
    most : int
        The largest integer: 127 where torch leaves a bit free, so that sums of two fit 16 bits.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Quantize and decode."""
        eps = float(torch.finfo(torch.float32).eps)
        scale, zero = _OPS.choose_qparams.tensor(x, 0, self.most, eps, torch.uint8)
        parameters = scale, zero, 0, self.most, torch.uint8
        q = _OPS.quantize_per_tensor.tensor(x, *parameters)
        decoded: torch.Tensor = _OPS.dequantize_per_tensor.tensor(q, *parameters)
        return decoded
