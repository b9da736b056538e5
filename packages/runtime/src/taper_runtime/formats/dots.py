"""Store an int8 weight in panels of lines for dot instructions, one matrix per group of outputs.

The format ``dots.GROUPS`` stores an int8 weight ``[*kernel, C/G, O]`` as int8
``[G, ceil(O/G/16), 1 + ceil(K/4), 64]``, where K is the product of all dims but the last. A panel
of 16 columns begins with the sums of its columns as 16 int32; then it has a line for each 4 rows,
``[16 columns, 4 rows]``, with zeros beyond K and O/G. A matrix ``[K, N]`` is stored as ``dots.1``.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from taper_runtime.base.errors import OpError
from taper_runtime.formats.format import Family, Format, Shape
from taper_runtime.formats.panels import PANEL

#: Rows of one line. The kernels call it I8_GROUP.
_ROWS = 4
_LINE = PANEL * _ROWS
_MAX_GROUPS = 2**31 - 1


def _storage(groups: int, dtype: str, shape: Shape) -> tuple[str, Shape]:
    if dtype != "int8" or len(shape) < 2 or shape[-1] % groups:
        raise OpError(
            f"format dots.{groups}: expected an int8 weight of rank 2 or more with outputs in "
            f"{groups} groups, got {dtype} {list(shape)}"
        )
    columns, rows = shape[-1] // groups, math.prod(shape[:-1])
    return dtype, (groups, -(-columns // PANEL), 1 + -(-rows // _ROWS), _LINE)


def _encode(groups: int, array: np.ndarray) -> np.ndarray:
    rows, columns = math.prod(array.shape[:-1]), array.shape[-1] // groups
    _, (_, panels, lines, _) = _storage(groups, "int8", array.shape)
    padded = np.zeros(((lines - 1) * _ROWS, groups, panels * PANEL), np.int8)
    padded[:rows, :, :columns] = array.reshape(rows, groups, columns)
    blocks = padded.reshape(lines - 1, _ROWS, groups, panels, PANEL)
    stored = np.empty((groups, panels, lines, _LINE), np.int8)
    stored[:, :, 0] = blocks.sum((0, 1), np.int32).astype("<i4").view(np.int8)
    weights = blocks.transpose(2, 3, 0, 4, 1)
    stored[:, :, 1:] = weights.reshape(groups, panels, lines - 1, _LINE)
    return stored


def _decode(groups: int, stored: np.ndarray, dtype: str, shape: Shape) -> np.ndarray:
    rows, columns = math.prod(shape[:-1]), shape[-1] // groups
    panels, lines = stored.shape[1:3]
    blocks = stored[:, :, 1:].reshape(groups, panels, lines - 1, PANEL, _ROWS)
    padded = blocks.transpose(2, 4, 0, 1, 3).reshape((lines - 1) * _ROWS, groups, panels * PANEL)
    return padded[:rows, :, :columns].reshape(shape)


def _make(groups: int) -> Format:
    return Format(
        name=f"dots.{groups}",
        storage=partial(_storage, groups),
        encode=partial(_encode, groups),
        decode=partial(_decode, groups),
    )


FAMILY = Family(
    "dots",
    _make,
    (range(1, _MAX_GROUPS + 1),),
    "dots.GROUPS with 1 group or more",
    ("dots.1", "dots.2", "dots.3"),
)
