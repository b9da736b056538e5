"""Take apart the layers of torch's eager quantization, whose parameters torch has packed.

``torch.ao.quantization.quantize_dynamic`` and ``convert`` make such layers. torch does not export
them. What replaces them here computes the same with explicit quantization: quantized tensors
between static layers become floats that are rounded to the same steps.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.ao.nn import quantized as static
from torch.ao.nn.intrinsic import quantized as static_relu
from torch.ao.nn.intrinsic.quantized import dynamic as dynamic_relu
from torch.ao.nn.quantized import dynamic
from torch.nn import functional

from taper_frontend.compiler.quantization.rounding import Rounded
from taper_frontend.compiler.quantization.schemes import parse_scheme
from taper_frontend.errors import ExportError
from taper_frontend.quantizing.layers import (
    DynamicQuantizer,
    HalfWeight,
    IntegerWeight,
    TensorQuantizer,
)

if TYPE_CHECKING:
    from collections.abc import Callable

_SCHEME = parse_scheme("int8")

#: The largest activation of dynamic layers, which leave a bit free.
_DYNAMIC_MOST = 127

_CONVOLUTIONS = {
    static.Conv1d: functional.conv1d,
    static.Conv2d: functional.conv2d,
    static.Conv3d: functional.conv3d,
    static_relu.ConvReLU1d: functional.conv1d,
    static_relu.ConvReLU2d: functional.conv2d,
    static_relu.ConvReLU3d: functional.conv3d,
}
_WITH_RELU = (
    static_relu.ConvReLU1d,
    static_relu.ConvReLU2d,
    static_relu.ConvReLU3d,
    static_relu.LinearReLU,
    dynamic_relu.LinearReLU,
)


def unpacked(module: nn.Module) -> nn.Module:
    """Return a module without packed parameters; the module itself if it has none.

    Raises
    ------
    ExportError
        If a weight has zero points; the message names the layer.
    """
    if not any(type(each) in _MAKERS for each in module.modules()):
        return module
    if type(module) in _MAKERS:
        return _MAKERS[type(module)](module, "")
    module = copy.deepcopy(module)
    for path, parent in [*module.named_modules()]:
        for key, child in [*parent.named_children()]:
            if type(child) in _MAKERS:
                name = f"{path}.{key}" if path else key
                setattr(parent, key, _MAKERS[type(child)](child, name))
    return module


class _UnpackedProduct(nn.Module):
    """A product by a held weight, with quantization before or after it."""

    def __init__(
        self,
        held: nn.Module,
        bias: torch.Tensor | None,
        function: Callable[..., torch.Tensor],
        *,
        has_relu: bool,
        before: nn.Module | None = None,
        after: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.held, self.before, self.after = held, before, after
        self.bias: torch.Tensor | None
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self._function, self._has_relu = function, has_relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before is not None:
            x = self.before(x)
        y = self._function(x, self.held(), self.bias)
        if self._has_relu:
            y = functional.relu(y)
        if self.after is not None:
            y = self.after(y)
        return y


def _held(layer: Any, name: str) -> nn.Module:
    """Return what makes a layer's weight."""
    weight: torch.Tensor = layer.weight()
    if not weight.is_quantized:
        return HalfWeight(weight.detach().half())
    levels = weight.int_repr()
    if weight.qscheme() in (torch.per_channel_affine, torch.per_channel_symmetric):
        scales = weight.q_per_channel_scales().clone()
        zeros = weight.q_per_channel_zero_points().clone()
    else:
        scales = torch.full((len(levels),), weight.q_scale())
        zeros = torch.tensor([weight.q_zero_point()])
    if zeros.any():
        raise ExportError(
            f"layer {name!r}: expected a weight without zero points, got {zeros.tolist()[:4]}"
        )
    matrix = levels.reshape(len(levels), -1).numpy().T
    rounded = Rounded(matrix, scales.float()[None].numpy(), None, 0.0)
    return IntegerWeight(rounded, _SCHEME, levels.shape)


def _dynamic_linear(layer: Any, name: str) -> nn.Module:
    held = _held(layer, name)
    is_half = isinstance(held, HalfWeight)
    return _UnpackedProduct(
        held,
        layer.bias(),
        functional.linear,
        has_relu=type(layer) in _WITH_RELU,
        before=None if is_half else DynamicQuantizer(_DYNAMIC_MOST),
    )


def _after(layer: Any) -> TensorQuantizer:
    return TensorQuantizer(float(layer.scale), int(layer.zero_point), 0, 255, torch.uint8)


def _static_linear(layer: Any, name: str) -> nn.Module:
    return _UnpackedProduct(
        _held(layer, name),
        layer.bias(),
        functional.linear,
        has_relu=type(layer) in _WITH_RELU,
        after=_after(layer),
    )


def _static_convolution(layer: Any, name: str) -> nn.Module:
    """Return a module in place of a statically quantized convolution."""
    function: Callable[..., torch.Tensor] = _CONVOLUTIONS[type(layer)]
    steps = layer.stride, layer.padding, layer.dilation, layer.groups
    if layer.padding_mode != "zeros":
        raise ExportError(f"layer {name!r}: expected zeros as padding, got {layer.padding_mode}")

    def convolve(x: torch.Tensor, weight: torch.Tensor, bias: Any) -> torch.Tensor:
        return function(x, weight, bias, *steps)

    return _UnpackedProduct(
        _held(layer, name),
        layer.bias(),
        convolve,
        has_relu=type(layer) in _WITH_RELU,
        after=_after(layer),
    )


def _quantize(layer: Any, name: str) -> nn.Module:
    low, high = (0, 255) if layer.dtype == torch.quint8 else (-128, 127)
    dtype = torch.uint8 if layer.dtype == torch.quint8 else torch.int8
    return TensorQuantizer(float(layer.scale), int(layer.zero_point), low, high, dtype)


class _Functional(nn.Module):
    """Sums, products and concatenations of quantized tensors."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.after = after

    def add(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.after(x + y)

    def add_relu(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.after(functional.relu(x + y))

    def mul(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        return self.after(x * y)

    def cat(self, x: list[torch.Tensor], dim: int = 0) -> Any:
        return self.after(torch.cat(x, dim))


class _Table(nn.Module):
    """Rows of a table of bytes, with a scale and a zero point of floats each."""

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.q: torch.Tensor
        self.scales: torch.Tensor
        self.zeros: torch.Tensor
        # copies, for torch's tensors of parameters lie in memory of the packed weight
        self.register_buffer("q", weight.int_repr().clone())
        self.register_buffer("scales", weight.q_per_channel_scales().float().clone()[:, None])
        self.register_buffer("zeros", weight.q_per_channel_zero_points().float().clone()[:, None])

    def forward(self, i: torch.Tensor) -> torch.Tensor:
        rows, scales, zeros = (x[i] for x in (self.q, self.scales, self.zeros))
        return (rows.float() - zeros) * scales


_MAKERS: dict[type, Callable[[Any, str], nn.Module]] = {
    dynamic.Linear: _dynamic_linear,
    dynamic_relu.LinearReLU: _dynamic_linear,
    static.Linear: _static_linear,
    static_relu.LinearReLU: _static_linear,
    **dict.fromkeys(_CONVOLUTIONS, _static_convolution),
    static.Quantize: _quantize,
    static.DeQuantize: lambda layer, name: nn.Identity(),
    static.QFunctional: lambda layer, name: _Functional(_after(layer)),
    static.Embedding: lambda layer, name: _Table(layer.weight()),
}
