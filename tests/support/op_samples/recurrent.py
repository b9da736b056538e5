"""Samples of the ops in ``ops/recurrent.py``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from op_samples.sample import Sample
from taper_runtime.formats.panels import PANEL
from taper_runtime.ops.recurrent import _ACTIVATIONS

if TYPE_CHECKING:
    from collections.abc import Iterator


def pack(w: np.ndarray, gates: int) -> np.ndarray:
    """Pack a ``[gates * H, K]`` as ``[ceil(H/16), gates, K, 16]``."""
    rows, k = w.shape
    hidden = rows // gates
    blocks = -(-hidden // PANEL)
    padded = np.zeros((gates, blocks * PANEL, k), w.dtype)
    padded[:, :hidden] = w.reshape(gates, hidden, k)
    return padded.reshape(gates, blocks, PANEL, k).transpose(1, 0, 3, 2).copy()


def _samples(op: str) -> Iterator[Sample]:
    rng = np.random.default_rng(21)

    def floats(*shape: int) -> np.ndarray:
        return np.asarray(rng.standard_normal(shape), np.float32)

    def weight(rows: int, columns: int, gates: int) -> np.ndarray:
        scale = np.float32(1 / max(columns, 1) ** 0.5)  # a step's error does not grow in the next
        return pack(floats(gates * rows, columns) * scale, gates)

    for steps, batch, hidden in ((5, 2, 3), (1, 1, 4), (7, 9, 37), (0, 2, 3), (4, 0, 2), (3, 2, 0)):
        for reverse in (False, True):
            attrs = {"reverse": reverse}
            h = floats(batch, hidden)
            if op == "LSTM":
                gates, c = floats(steps, batch, 4 * hidden), floats(batch, hidden)
                yield Sample([gates, h, c, weight(hidden, hidden, 4)], attrs)
                weights = [weight(hidden, 2, 4), weight(2, hidden, 1)]
                yield Sample([gates, floats(batch, 2), c, *weights], attrs)
            elif op == "GRU":
                gates, w = floats(steps, batch, 3 * hidden), weight(hidden, hidden, 3)
                yield Sample([gates, h, w, floats(hidden)], attrs)
            else:
                gates, w = floats(steps, batch, hidden), weight(hidden, hidden, 1)
                for activation in _ACTIVATIONS:
                    yield Sample([gates, h, w], {**attrs, "activation": activation})
    # doubles have no kernel
    count = {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    h = np.ones((1, 3))
    inputs = [np.ones((2, 1, 3 * count)), h, pack(np.ones((3 * count, 3)) / 8, count)]
    if op != "RNN":
        inputs.insert(*((2, h) if op == "LSTM" else (3, np.ones(3))))
    yield Sample(inputs, native=False)


SAMPLES = {
    "LSTM": partial(_samples, "LSTM"),
    "GRU": partial(_samples, "GRU"),
    "RNN": partial(_samples, "RNN"),
}
