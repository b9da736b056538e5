"""Store the weight of a convolution in panels, one matrix per group of outputs.

The format ``grouped_panels.GROUPS`` stores a weight ``[*kernel, C/G, O]`` as
``[G, ceil(O/G/16), K, 16]``, where K is the product of all dims but the last. Each group is the
second operand of a matrix product, stored as by ``panels.1``.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from taper_runtime.base.errors import OpError
from taper_runtime.formats.format import Family, Format, Shape
from taper_runtime.formats.panels import PANEL, pack, unpack

_MAX_GROUPS = 2**31 - 1


def _storage(groups: int, dtype: str, shape: Shape) -> tuple[str, Shape]:
    if len(shape) < 2 or shape[-1] % groups:
        raise OpError(
            f"format grouped_panels.{groups}: expected a weight of rank 2 or more with outputs "
            f"in {groups} groups, got {list(shape)}"
        )
    columns = shape[-1] // groups
    return dtype, (groups, -(-columns // PANEL), math.prod(shape[:-1]), PANEL)


def _encode(groups: int, array: np.ndarray) -> np.ndarray:
    outputs = array.shape[-1]
    matrix = array.reshape(math.prod(array.shape[:-1]), groups, outputs // groups)
    return np.stack([pack(matrix[:, g]) for g in range(groups)])


def _decode(groups: int, stored: np.ndarray, dtype: str, shape: Shape) -> np.ndarray:
    columns = shape[-1] // groups
    return np.stack([unpack(group, columns) for group in stored], 1).reshape(shape)


def _make(groups: int) -> Format:
    return Format(
        name=f"grouped_panels.{groups}",
        storage=partial(_storage, groups),
        encode=partial(_encode, groups),
        decode=partial(_decode, groups),
    )


FAMILY = Family(
    "grouped_panels",
    _make,
    (range(1, _MAX_GROUPS + 1),),
    "grouped_panels.GROUPS with 1 group or more",
    ("grouped_panels.1", "grouped_panels.2", "grouped_panels.3"),
)
