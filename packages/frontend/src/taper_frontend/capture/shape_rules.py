"""Let torch capture recurrent layers and ``unfold_backward`` as single ops, by shape rules.

torch derives the shapes of these ops from decompositions with a part for each step, or for each
element of a window. So a capture would take time proportional to these numbers, and the number of
steps would be fixed. ``torch.istft`` uses ``unfold_backward`` to add its frames.

torch's own ``fill_diagonal_`` computes strides in C++, which fixes the sizes of its tensor. A
formula stands in its place.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from unittest import mock

import torch
from torch._C import DispatchKey
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor

from taper_frontend.capture.torch_lock import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    Kernel = Callable[..., Any]

_Key = TypeVar("_Key")


@contextmanager
def shape_rules() -> Iterator[None]:
    """Give torch's ops of many steps rules for the shapes of fake tensors.

    The rules apply in this thread, inside the ``with`` block; other threads that run fake tensors
    use torch's own. Captures take turns, because torch saves and restores the same tables while it
    decomposes a program.
    """
    with TORCH, ExitStack() as stack:
        for op, shapes in _RULES.items():
            rule = partial(_shapes_or_kernel, threading.get_ident(), shapes)
            stack.callback(op._dispatch_cache.clear)
            # the table that tracing uses, and the one for fake tensors of symbolic sizes
            for key in list(op.py_kernels):
                stack.enter_context(_wrapped(op.py_kernels, key, rule))
            stack.enter_context(_wrapped(decomposition_table, op, rule))
            op._dispatch_cache.clear()
        for op, formula in _FORMULAS.items():
            stack.callback(op._dispatch_cache.clear)
            kernels = {DispatchKey.CompositeImplicitAutograd: formula}
            stack.enter_context(mock.patch.dict(op.py_kernels, kernels))
            op._dispatch_cache.clear()
        yield


@contextmanager
def _wrapped(table: dict[_Key, Kernel], key: _Key, rule: Kernel) -> Iterator[None]:
    saved, table[key] = table[key], partial(rule, table[key])
    try:
        yield
    finally:
        table[key] = saved


def _shapes_or_kernel(
    thread: int, shapes: Kernel, kernel: Kernel, x: Tensor, *args: Any, **kwargs: Any
) -> Any:
    fake = threading.get_ident() == thread and isinstance(x, FakeTensor)
    return (shapes if fake else kernel)(x, *args, **kwargs)


def _recurrent(
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...]:
    """Return the sequence [T, B, directions * P] and states like ``hx``, in torch's strides."""
    batch, steps = x.shape[:2] if batch_first else (x.shape[1], x.shape[0])
    directions = 2 if bidirectional else 1
    for state in hx:
        torch._check(state.shape[0] == num_layers * directions)  # type: ignore[no-untyped-call]
        torch._check(state.shape[1] == batch)  # type: ignore[no-untyped-call]
    y = x.new_empty((steps, batch, directions * hx[0].shape[2]))
    return (y.transpose(0, 1) if batch_first else y, *(x.new_empty(s.shape) for s in hx))


def _one_state(x: Tensor, hx: Tensor, *settings: Any) -> tuple[Tensor, ...]:
    return _recurrent(x, [hx], *settings)


def _unfold_backward(x: Tensor, input_sizes: Sequence[int], *places: int, **named: int) -> Tensor:
    return x.new_empty(input_sizes)


def _fill_diagonal(x: Tensor, fill_value: float, wrap: bool = False) -> Tensor:
    """Write to the elements whose indices are equal, of a matrix or of a cube of any rank.

    With ``wrap`` the diagonal of a matrix ``[R, C]`` begins again after each ``C + 1`` rows.
    """
    if x.dim() < 2:
        raise RuntimeError("fill_diagonal_: expected two axes or more")
    if x.dim() > 2 and any(size != x.shape[0] for size in x.shape):
        raise RuntimeError("fill_diagonal_: expected axes of one length")
    first, *others = (
        torch.arange(size)[(..., *[None] * (x.dim() - 1 - axis))]
        for axis, size in enumerate(x.shape)
    )
    if wrap and x.dim() == 2:
        first = first % (x.shape[1] + 1)
    on_diagonal = first == others[0]
    for other in others[1:]:
        on_diagonal = on_diagonal & (first == other)
    return x.masked_fill_(on_diagonal, fill_value)


_ATEN = torch.ops.aten
_RULES: dict[Any, Kernel] = {
    _ATEN.lstm.input: _recurrent,  # this op gets its states as one list
    _ATEN.gru.input: _one_state,
    _ATEN.rnn_tanh.input: _one_state,
    _ATEN.rnn_relu.input: _one_state,
    _ATEN.unfold_backward.default: _unfold_backward,
}

#: Ops that torch composes of others in C++, and the same of ops that take sizes that vary.
_FORMULAS: dict[Any, Kernel] = {_ATEN.fill_diagonal_.default: _fill_diagonal}
