"""Predict which layers become faster with bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from taper_runtime.base.records import NamedTuple
from taper_runtime.plan.byte_products import ProductTimes, product_times

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: The attribute of a module that has the predictions of its layers.
PREDICTIONS = "taper_predictions"


class Calls(NamedTuple):
    """The shapes of a layer's largest call, as torch has them."""

    x: tuple[int, ...] = ()
    y: tuple[int, ...] = ()

    @property
    def are_known(self) -> bool:
        """Return whether the layer was called."""
        return bool(self.y)


class Prediction(NamedTuple):
    """The predicted times of a layer, on one thread of this machine's ISA level.

    Attributes
    ----------
    name : str
    computes : str
        ``"int8"`` or ``"float32"``: how the quantized module computes it.
    int8_us, float32_us : float
        Microseconds with bytes, and with floats between layers that have bytes.
    """

    name: str
    computes: str
    int8_us: float
    float32_us: float


def see_calls(keep: Callable[[Calls], None]) -> Callable[..., None]:
    """Return a forward hook that calls ``keep`` with the shapes of the largest call so far."""
    largest = 0

    def see(module: nn.Module, args: tuple[Any, ...], y: torch.Tensor) -> None:
        nonlocal largest
        if y.numel() > largest:
            largest = y.numel()
            keep(Calls(tuple(args[0].shape), tuple(y.shape)))

    return see


def predict(
    module: nn.Module, rows: int, calls: Calls, *, by_rows: bool, seven_bits: bool
) -> ProductTimes:
    """Predict the times of a layer.

    Parameters
    ----------
    module : torch.nn.Module
        A linear layer or a convolution.
    rows : int
        The products in a sum.
    calls : Calls
    by_rows : bool
        Whether each row of the input has its own range.
    seven_bits : bool
        Whether the bytes of the input are from 0 to 127.
    """
    columns = calls.y[-1]
    if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        outputs = torch.Size(calls.y[:-1]).numel()
        shapes = (outputs, rows), (rows, columns), (outputs, columns)
        return product_times("MATMUL", *shapes, {}, by_rows=by_rows, seven_bits=seven_bits)
    dims = len(module.kernel_size)
    x, y = (_channels_last(shape, dims) for shape in calls)
    weight = (*module.kernel_size, x[-1] // module.groups, y[-1])
    return product_times(
        "CONV", x, weight, y, _attrs(module), by_rows=by_rows, seven_bits=seven_bits
    )


def _channels_last(shape: tuple[int, ...], dims: int) -> tuple[int, ...]:
    *batch, channels = shape[:-dims]
    return (*(batch or (1,)), *shape[-dims:], channels)


def _attrs(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> Mapping[str, Any]:
    return {
        "kernel": tuple(module.kernel_size),
        "stride": tuple(module.stride),
        "dilation": tuple(module.dilation),
        "padding": (0, 0) * len(module.kernel_size),  # the shapes have it
        "groups": module.groups,
    }
