"""Recurrent layers over a whole sequence: what depends on the step before.

The input's share of the gates, for all steps at once, is a MATMUL before; here ``gates`` is
``x @ w_ih.T + biases`` as ``[T, B, gates * H]``, and each step adds ``h @ w_hh.T``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.ops import functions
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Sample, Shape, TensorType
from taper_runtime.ops.rules import FLOATS, check_dtype, check_same_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def _check(op: str, what: str, t: TensorType, shape: Shape) -> None:
    if t.shape != shape:
        fail(op, f"{what} of {list(shape)}", list(t.shape))


def _gates(op: str, inputs: Sequence[TensorType], count: int) -> tuple[int, int, int]:
    """Return steps, batch and hidden size."""
    check_dtype(op, "inputs", check_same_dtype(op, inputs), FLOATS)
    shape = inputs[0].shape
    if len(shape) != 3 or shape[2] % count:
        fail(op, f"gates of [T, B, {count} * H]", list(shape))
    return shape[0], shape[1], shape[2] // count


def _infer_lstm(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    steps, batch, hidden = _gates("LSTM", inputs, 4)
    out = hidden
    if len(inputs) == 5:
        out = inputs[4].shape[0] if inputs[4].shape else 0
        _check("LSTM", "w_hr", inputs[4], (out, hidden))
    for what, t, shape in zip(
        ("h", "c", "w_hh"),
        inputs[1:4],
        ((batch, out), (batch, hidden), (4 * hidden, out)),
        strict=True,
    ):
        _check("LSTM", what, t, shape)
    return TensorType(inputs[0].dtype, (steps, batch, out + hidden))


def _lstm(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    gates, h, c, w_hh = inputs[:4]
    steps, batch, width = gates.shape
    hidden, out = width // 4, h.shape[1]
    result = np.empty((steps, batch, out + hidden), gates.dtype)
    w = np.ascontiguousarray(w_hh.T)
    with np.errstate(all="ignore"):
        for t in range(steps)[:: -1 if attrs["reverse"] else 1]:
            i, f, g, o = np.split(gates[t] + h @ w, 4, axis=1)
            c = functions.sigmoid(f) * c + functions.sigmoid(i) * np.tanh(g)
            h = functions.sigmoid(o) * np.tanh(c)
            if len(inputs) == 5:
                h = h @ inputs[4].T
            result[t, :, :out], result[t, :, out:] = h, c
    return result


def _infer_gru(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    steps, batch, hidden = _gates("GRU", inputs, 3)
    _check("GRU", "h", inputs[1], (batch, hidden))
    _check("GRU", "w_hh", inputs[2], (3 * hidden, hidden))
    _check("GRU", "b_hn", inputs[3], (hidden,))
    return TensorType(inputs[0].dtype, (steps, batch, hidden))


def _gru(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    gates, h, w_hh, b_hn = inputs
    hidden = h.shape[1]
    result = np.empty((*gates.shape[:2], hidden), gates.dtype)
    w = np.ascontiguousarray(w_hh.T)
    with np.errstate(all="ignore"):
        for t in range(len(gates))[:: -1 if attrs["reverse"] else 1]:
            share = h @ w
            both = functions.sigmoid(gates[t, :, : 2 * hidden] + share[:, : 2 * hidden])
            reset, update = both[:, :hidden], both[:, hidden:]
            new = np.tanh(gates[t, :, 2 * hidden :] + reset * (share[:, 2 * hidden :] + b_hn))
            h = (1 - update) * new + update * h
            result[t] = h
    return result


_ACTIVATIONS: dict[str, Callable[[np.ndarray], Any]] = {"tanh": np.tanh, "relu": functions.relu}


def _infer_rnn(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    steps, batch, hidden = _gates("RNN", inputs, 1)
    _check("RNN", "h", inputs[1], (batch, hidden))
    _check("RNN", "w_hh", inputs[2], (hidden, hidden))
    if attrs["activation"] not in _ACTIVATIONS:
        fail("RNN", f"activation one of {', '.join(_ACTIVATIONS)}", repr(attrs["activation"]))
    return TensorType(inputs[0].dtype, (steps, batch, hidden))


def _rnn(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    gates, h, w_hh = inputs
    result = np.empty(gates.shape, gates.dtype)
    w = np.ascontiguousarray(w_hh.T)
    with np.errstate(all="ignore"):
        for t in range(len(gates))[:: -1 if attrs["reverse"] else 1]:
            h = _ACTIVATIONS[attrs["activation"]](gates[t] + h @ w)
            result[t] = h
    return result


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    steps, batch = output.shape[:2]
    weights = sum(t.size for t in inputs[1:] if len(t.shape) == 2)
    return Cost(2 * steps * batch * weights, output.nbytes + sum(t.nbytes for t in inputs))


def _samples(op: str) -> Iterator[Sample]:
    rng = np.random.default_rng(21)

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    for steps, batch, hidden in ((5, 2, 3), (1, 1, 4), (0, 2, 3), (4, 0, 2)):
        for reverse in (False, True):
            attrs = {"reverse": reverse}
            h = floats(batch, hidden)
            if op == "LSTM":
                gates = floats(steps, batch, 4 * hidden)
                c, w = floats(batch, hidden), floats(4 * hidden, hidden)
                yield Sample([gates, h, c, w], attrs, native=False)
                short = [floats(batch, 2), c, floats(4 * hidden, 2), floats(2, hidden)]
                yield Sample([gates, *short], attrs, native=False)
            elif op == "GRU":
                gates, w = floats(steps, batch, 3 * hidden), floats(3 * hidden, hidden)
                yield Sample([gates, h, w, floats(hidden)], attrs, native=False)
            else:
                gates, w = floats(steps, batch, hidden), floats(hidden, hidden)
                for activation in _ACTIVATIONS:
                    yield Sample([gates, h, w], {**attrs, "activation": activation}, native=False)


_REVERSE = {"reverse": Attr("bool", False)}

OPS = (
    OpDef(
        name="LSTM",
        doc="LSTM over [T, B, 4 H] gates (input, forget, cell, output), h [B, P], c [B, H], w_hh "
        "[4 H, P] and, where h is projected, w_hr [P, H]; from the last step on with reverse. Each "
        "step of [T, B, P + H] is h, then c.",
        inputs=(4, 5),
        infer=_infer_lstm,
        evaluate=_lstm,
        samples=lambda: _samples("LSTM"),
        attrs=_REVERSE,
        cost=_cost,
        native=False,
    ),
    OpDef(
        name="GRU",
        doc="GRU over [T, B, 3 H] gates (reset, update, new), h [B, H], w_hh [3 H, H] and the bias "
        "b_hn [H] that the reset gate scales: h after each step.",
        inputs=(4, 4),
        infer=_infer_gru,
        evaluate=_gru,
        samples=lambda: _samples("GRU"),
        attrs=_REVERSE,
        cost=_cost,
        native=False,
    ),
    OpDef(
        name="RNN",
        doc="activation(gates + h @ w_hh.T) over [T, B, H] gates, h [B, H], w_hh [H, H]: h after "
        "each step.",
        inputs=(3, 3),
        infer=_infer_rnn,
        evaluate=_rnn,
        samples=lambda: _samples("RNN"),
        attrs={**_REVERSE, "activation": Attr("string", "tanh")},
        cost=_cost,
        native=False,
    ),
)
