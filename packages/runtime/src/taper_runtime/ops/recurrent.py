"""Define recurrent layers over a whole sequence: the part that depends on the step before.

A MATMUL before computes the input's part of the gates for all steps: ``gates`` is
``x @ w_ih.T + biases`` as ``[T, B, gates * H]``. Each step adds ``h @ w_hh.T``.

Weights have the layout that the kernels read: ``[gates * H, K]`` becomes ``[ceil(H/16), gates, K,
16]``, with 16 columns of all gates side by side, and zeros beyond H.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from taper_runtime.formats.panels import PANEL
from taper_runtime.ops import functions
from taper_runtime.ops.opdef import Attr, Attrs, Cost, OpDef, Shape, TensorType
from taper_runtime.ops.region import WHOLE, Region, Same, all_of
from taper_runtime.ops.type_rules import FLOATS, check_dtype, check_same_dtype, fail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


def _unpacked(packed: np.ndarray, hidden: int) -> np.ndarray:
    """Return the transposed weight ``[K, gates * H]``, which :func:`pack` has packed."""
    blocks, gates, k, width = packed.shape
    columns = packed.transpose(2, 1, 0, 3).reshape(k, gates, blocks * width)[:, :, :hidden]
    return np.ascontiguousarray(columns).reshape(k, gates * hidden)


def _packed_shape(rows: int, columns: int, gates: int) -> Shape:
    return ((rows + PANEL - 1) // PANEL, gates, columns, PANEL)


def _check(op: str, what: str, t: TensorType, shape: Shape) -> None:
    if t.shape != shape:
        fail(op, f"{what} of {list(shape)}", list(t.shape))


def _gates(op: str, inputs: Sequence[TensorType], count: int) -> tuple[int, int, int]:
    """Check the inputs; return the numbers of steps, of batch items, and of hidden units."""
    check_dtype(op, "inputs", check_same_dtype(op, inputs), FLOATS)
    shape = inputs[0].shape
    if len(shape) != 3 or shape[2] % count:
        fail(op, f"gates of [T, B, {count} * H]", list(shape))
    return shape[0], shape[1], shape[2] // count


def _infer_lstm(inputs: Sequence[TensorType], attrs: Attrs) -> tuple[TensorType, TensorType]:
    """Return the types of all hidden states, and of the last cell state."""
    steps, batch, hidden = _gates("LSTM", inputs, 4)
    out = hidden
    if len(inputs) == 5:
        out = inputs[1].shape[-1] if inputs[1].shape else 0
        _check("LSTM", "w_hr", inputs[4], _packed_shape(out, hidden, 1))
    for what, t, shape in zip(
        ("h", "c", "w_hh"),
        inputs[1:4],
        ((batch, out), (batch, hidden), _packed_shape(hidden, out, 4)),
        strict=True,
    ):
        _check("LSTM", what, t, shape)
    dtype = inputs[0].dtype
    return TensorType(dtype, (steps, batch, out)), TensorType(dtype, (batch, hidden))


def _lstm(inputs: Sequence[np.ndarray], attrs: Attrs) -> tuple[np.ndarray, np.ndarray]:
    """Run the steps in float64, with gates in the order input, forget, cell, output."""
    gates, h, c, w_hh = inputs[:4]
    steps, batch, width = gates.shape
    hidden, out = width // 4, h.shape[1]
    result = np.empty((steps, batch, out), gates.dtype)
    if batch * (out + hidden) == 0 or steps == 0:
        return result, np.array(c, order="C")
    w = _unpacked(w_hh, hidden)
    w_hr = _unpacked(inputs[4], out) if len(inputs) == 5 else None
    with np.errstate(all="ignore"):
        for t in range(steps)[:: -1 if attrs["reverse"] else 1]:
            i, f, g, o = np.split(gates[t] + h @ w, 4, axis=1)
            c = functions.sigmoid(f) * c + functions.sigmoid(i) * np.tanh(g)
            h = functions.sigmoid(o) * np.tanh(c)
            if w_hr is not None:
                h = h @ w_hr
            result[t] = h
    return result, np.ascontiguousarray(c)


def _infer_gru(inputs: Sequence[TensorType], attrs: Attrs) -> TensorType:
    steps, batch, hidden = _gates("GRU", inputs, 3)
    _check("GRU", "h", inputs[1], (batch, hidden))
    _check("GRU", "w_hh", inputs[2], _packed_shape(hidden, hidden, 3))
    _check("GRU", "b_hn", inputs[3], (hidden,))
    return TensorType(inputs[0].dtype, (steps, batch, hidden))


def _gru(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    """Run the steps in float64, with gates in the order reset, update, new."""
    gates, h, w_hh, b_hn = inputs
    hidden = h.shape[1]
    result = np.empty((*gates.shape[:2], hidden), gates.dtype)
    if result.size == 0:
        return result
    w = _unpacked(w_hh, hidden)
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
    _check("RNN", "w_hh", inputs[2], _packed_shape(hidden, hidden, 1))
    if attrs["activation"] not in _ACTIVATIONS:
        fail("RNN", f"an activation of {', '.join(_ACTIVATIONS)}", repr(attrs["activation"]))
    return TensorType(inputs[0].dtype, (steps, batch, hidden))


def _rnn(inputs: Sequence[np.ndarray], attrs: Attrs) -> np.ndarray:
    gates, h, w_hh = inputs
    result = np.empty(gates.shape, gates.dtype)
    if result.size == 0:
        return result
    w = _unpacked(w_hh, gates.shape[2])
    with np.errstate(all="ignore"):
        for t in range(len(gates))[:: -1 if attrs["reverse"] else 1]:
            h = _ACTIVATIONS[attrs["activation"]](gates[t] + h @ w)
            result[t] = h
    return result


def _region(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> list[Region]:
    """Batch items are independent: axis 1 of the gates, axis 0 of the initial states."""
    states = [t for t in inputs[1:] if len(t.shape) == 2]
    parameters = inputs[1 + len(states) :]
    rows: list[Region] = [(Same(1), WHOLE) for _ in states]
    return [(WHOLE, Same(1), WHOLE), *rows, *(all_of(t.shape) for t in parameters)]


def _cost(inputs: Sequence[TensorType], output: TensorType, attrs: Attrs) -> Cost:
    steps, batch = output.shape[:2]
    weights = sum(t.size for t in inputs[1:] if len(t.shape) == 4)
    return Cost(2 * steps * batch * weights, output.nbytes + sum(t.nbytes for t in inputs))


_REVERSE = {"reverse": Attr("bool", False)}

OPS = (
    OpDef(
        name="LSTM",
        doc="LSTM over [T, B, 4 H] gates (input, forget, cell, output), h [B, P], c [B, H], w_hh "
        "[4 H, P] and, where h is projected, w_hr [P, H]; with `reverse` from the last step to "
        "the first. Gives h after each step, [T, B, P], and the last c. Weights are packed: "
        "w_hh as [ceil(H/16), 4, P, 16], w_hr as [ceil(P/16), 1, H, 16].",
        inputs=(4, 5),
        infer=_infer_lstm,
        evaluate=_lstm,
        weights=(3, 4),
        attrs=_REVERSE,
        cost=_cost,
    ),
    OpDef(
        name="GRU",
        doc="GRU over [T, B, 3 H] gates (reset, update, new), h [B, H], w_hh [3 H, H], packed as "
        "[ceil(H/16), 3, H, 16], and the bias b_hn [H] that the reset gate scales. Gives h "
        "after each step.",
        inputs=(4, 4),
        infer=_infer_gru,
        evaluate=_gru,
        region=_region,
        weights=(2, 3),
        attrs=_REVERSE,
        cost=_cost,
    ),
    OpDef(
        name="RNN",
        doc="activation(gates + h @ w_hh.T) over [T, B, H] gates, h [B, H], w_hh [H, H], packed as "
        "[ceil(H/16), 1, H, 16]. Gives h after each step.",
        inputs=(3, 3),
        infer=_infer_rnn,
        evaluate=_rnn,
        region=_region,
        weights=(2,),
        attrs={**_REVERSE, "activation": Attr("string", "tanh")},
        cost=_cost,
    ),
)
