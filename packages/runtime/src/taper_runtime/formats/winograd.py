"""Store the weight of a 3x3 convolution for Winograd's algorithm F(TILE x TILE, 3x3).

With ``n = tile + 2``, a tile of ``tile x tile`` output pixels is ``At [(G w Gt) * (Bt d B)] A``,
where ``d`` are the ``n x n`` input pixels of the tile: ``n**2`` products instead of
``9 tile**2``. The format ``winograd.TILE`` stores a weight ``[3, 3, C, O]`` as ``G w Gt`` in
panels: ``[n**2, ceil(O/16), C, 16]``.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from taper_runtime.base.errors import OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats.format import Family, Format, Shape
from taper_runtime.formats.panels import PANEL, pack, unpack

#: Points of each tile size, beside infinity. They are pairs around 1 whose powers are exact in
#: float32: the usual 1 and 2 of F(4x4) make twice the rounding error. The kernels have the same
#: points; tests/runtime/test_shared_constants.py checks that.
POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, 0.625, -0.625, 1.375, -1.375)}

KERNEL = 3


class Transforms(NamedTuple):
    """Matrices of Cook and Toom, float64."""

    x: np.ndarray  # Bt: [n, n]
    weight: np.ndarray  # G: [n, 3]
    output: np.ndarray  # At: [tile, n]


def transforms(tile: int) -> Transforms:
    """Return the matrices of a tile size, one of :data:`POINTS`.

    Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2015, for the form;
    Barabasz et al., "Error analysis and improving the accuracy of Winograd convolution for DNNs",
    2020, for what the choice of points is worth.
    """
    points = np.array(POINTS[tile])
    n = tile + 2
    x, weight, output = np.zeros((n, n)), np.zeros((n, KERNEL)), np.zeros((tile, n))
    for i, point in enumerate(points):
        others = np.delete(points, i)
        x[i, : n - 1] = np.poly(others)[::-1]
        weight[i] = point ** np.arange(KERNEL) / np.prod(point - others)
        output[:, i] = point ** np.arange(tile)
    x[-1] = np.poly(points)[::-1]
    weight[-1, -1] = output[-1, -1] = 1
    return Transforms(x, weight, output)


def tiles(sizes: Shape, tile: int) -> int:
    """Return how many tiles cover an image of these sizes."""
    return (sizes[0] + tile - 1) // tile * ((sizes[1] + tile - 1) // tile)


def tile_of(format: str) -> int | None:
    """Return the tile size in a format's name, or None if the name is of another family."""
    family, _, tile = format.partition(".")
    return int(tile) if family == FAMILY.name else None


def _storage(tile: int, dtype: str, shape: Shape) -> tuple[str, Shape]:
    if dtype != "float32" or len(shape) != 4 or shape[:2] != (KERNEL, KERNEL):
        raise OpError(
            f"format winograd.{tile}: expected float32 [3, 3, C, O], got {dtype} {list(shape)}"
        )
    return dtype, ((tile + 2) ** 2, -(-shape[3] // PANEL), shape[2], PANEL)


def _encode(tile: int, array: np.ndarray) -> np.ndarray:
    g = transforms(tile).weight
    factors = np.einsum("ip,jq->ijpq", g, g).reshape(-1, KERNEL**2)
    taps = array.astype(np.float64).reshape(KERNEL**2, *array.shape[2:])
    points = []
    # one after the other, so that each sum of a few numbers is always added in the same order
    for row in factors:
        point = np.zeros(taps.shape[1:])
        for factor, tap in zip(row, taps, strict=True):
            point += factor * tap
        points.append(pack(point.astype(np.float32)))
    return np.stack(points)


def _decode(tile: int, stored: np.ndarray, dtype: str, shape: Shape) -> np.ndarray:
    """Compute w from ``G w Gt`` by least squares, in float64."""
    g, n = np.linalg.pinv(transforms(tile).weight), tile + 2
    points = np.stack([unpack(matrix, shape[3]) for matrix in stored]).astype(np.float64)
    with np.errstate(all="ignore"):
        weight: np.ndarray = np.einsum("pi,qj,ijco->pqco", g, g, points.reshape(n, n, *shape[2:]))
    return np.asarray(weight, np.float32)


def _make(tile: int) -> Format:
    return Format(
        name=f"winograd.{tile}",
        storage=partial(_storage, tile),
        encode=partial(_encode, tile),
        decode=partial(_decode, tile),
        tolerance=1e-6,
    )


FAMILY = Family(
    "winograd", _make, (POINTS,), "winograd.2 or winograd.4", ("winograd.2", "winograd.4")
)
