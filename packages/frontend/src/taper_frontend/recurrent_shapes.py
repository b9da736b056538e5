"""Recurrent layers as one op each while torch captures: what shapes they have, not their steps.

Torch derives the shapes of its recurrent ops from a decomposition that takes one step after the
other: a capture then lasts as long as the sequence, and the number of steps is fixed.
"""

from __future__ import annotations

import threading
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch._decomp import decomposition_table
from torch._subclasses.fake_tensor import FakeTensor

from taper_frontend.turns import TORCH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    Kernel = Callable[..., Any]

_ATEN = torch.ops.aten
#: The op to its number of states; the LSTM's arrive as one list.
_STATES = {
    _ATEN.lstm.input: 2,
    _ATEN.gru.input: 1,
    _ATEN.rnn_tanh.input: 1,
    _ATEN.rnn_relu.input: 1,
}
_Key = TypeVar("_Key")


@contextmanager
def recurrent_shapes() -> Iterator[None]:
    """Give torch's recurrent ops rules for the shapes of fake tensors.

    The rules hold in this thread, inside the ``with`` block; other threads that run fake tensors
    meanwhile get torch's own. Captures take turns, since torch itself saves and restores the same
    tables while it decomposes a program.
    """
    with TORCH, ExitStack() as stack:
        for op, states in _STATES.items():
            rule = partial(_shapes_or_kernel, threading.get_ident(), states)
            stack.callback(op._dispatch_cache.clear)
            # what tracing calls, and what fake tensors of symbolic sizes are decomposed by
            for key in list(op.py_kernels):
                stack.enter_context(_wrapped(op.py_kernels, key, rule))
            stack.enter_context(_wrapped(decomposition_table, op, rule))
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
    thread: int, states: int, kernel: Kernel, x: Tensor, hx: Any, *settings: Any
) -> Any:
    if threading.get_ident() != thread or not isinstance(x, FakeTensor):
        return kernel(x, hx, *settings)
    return _shapes(x, hx if states == 2 else [hx], *settings)


def _shapes(
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
