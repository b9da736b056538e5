"""Define a timed call, and what many of them share: sizes and drawn operands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    Size = tuple[int, ...]
    Call = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


class Case(NamedTuple):
    """A call at three sizes.

    Attributes
    ----------
    op : str
        The op of Taper that its plan has; empty for a call of several ops.
    call : str
        What it computes, for the page.
    make : callable
        Of a size: the function and its inputs.
    sizes : tuple of tuple of int
    """

    op: str
    call: str
    make: Callable[..., Call]
    sizes: tuple[Size, ...]


DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}

FLAT = ((50_000,), (250_000,), (1_000_000,))
SQUARES = ((128, 128), (384, 384), (1024, 1024))
STACKS = ((8, 32, 32), (16, 128, 64), (32, 197, 384))
IMAGES = ((1, 16, 28, 28), (1, 64, 56, 56), (4, 64, 112, 112))


def draw(size: Size, dtype: str = "float32") -> torch.Tensor:
    """Random numbers: normal floats, integers from -100 (unsigned: 0) to 99, bools."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return torch.rand(size) > 0.5
    if kind.is_floating_point:
        return torch.randn(size, dtype=kind)
    return torch.randint(0 if dtype == "uint8" else -100, 100, size, dtype=kind)


def positive(size: Size, dtype: str = "float32") -> torch.Tensor:
    """Numbers from 0.1 to 0.9, or integers from 1 to 9."""
    kind = DTYPES[dtype]
    if kind.is_floating_point:
        return torch.rand(size, dtype=kind) * 0.8 + 0.1
    return torch.randint(1, 10, size, dtype=kind)


def drawn(function: Callable[..., Any], *dtypes: str, by: Any = draw) -> Callable[..., Call]:
    """Return a maker: the function of an operand of each dtype, all of the case's size."""
    return lambda *size: (function, tuple(by(size, dtype) for dtype in dtypes))


def of_module(module: Callable[..., nn.Module], *rest: Any) -> Callable[..., Call]:
    """Return a maker: a module that is made for the size, on floats of that size."""
    return lambda *size: (module(*size).eval(), (draw(size),))
