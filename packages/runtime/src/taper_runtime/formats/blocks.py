"""Store a quantized float32 matrix as levels, with a factor and an offset per block.

The format ``blocks.BITS.SIZE`` stores a weight ``[K, N]`` that has been quantized. In each column,
a block is SIZE consecutive numbers, and each number is ``level * factor + offset``, where a level
is an integer of BITS bits. The matrix kernels read the storage as their second operand. As in
``panels.1``, it goes by panels of 16 columns. For each block of a panel it has the 16 factors and
16 offsets in float32, then the levels, a row of 16 for each k. So a product reads all of it in the
order of memory. The storage is ``[ceil(N/16), K/SIZE, 32 + SIZE * BITS / 2]`` words of 32 bits.

Encoding finds the levels from the numbers, however they were computed. It refuses numbers that
need more levels: it never rounds a number to another level.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from taper_runtime.base.errors import InputError, OpError
from taper_runtime.formats.format import Family, Format, Shape
from taper_runtime.formats.panels import PANEL, pack, unpack

#: Supported bit widths, and the smallest integer of each.
_BITS = {4: 0, 8: -128}

#: The most numbers of a weight that 32 bits of a model's integers hold.
MOST_PER_WORD = 32 // min(_BITS)

_SIZES = (32, 64, 128, 256)
_HEAD = 2 * PANEL

#: How far a number may be from its level, as a fraction of the block's largest magnitude: both have
#: been rounded by some float32 operations.
_TOLERANCE = 1e-6


def find_exact(matrix: np.ndarray) -> str | None:
    """Return the smallest of these formats that stores a float32 ``[K, N]`` exactly, or None.

    Fewer bits come first, then larger blocks.
    """
    for bits in sorted(_BITS):
        for size in reversed(_SIZES):
            if len(matrix) and len(matrix) % size == 0:
                try:
                    _encode(bits, size, matrix)
                except InputError:
                    continue
                return f"blocks.{bits}.{size}"
    return None


def _fit(rows: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Find evenly spaced levels, at most ``count``, on which the finite numbers of each row lie.

    Returns
    -------
    tuple of numpy.ndarray or None
        The least level and the step of each row, float64; the step is 0 if all numbers are equal.
    """
    low = rows.min(1).astype(np.float64)
    span = rows.max(1) - low
    limit = _TOLERANCE * np.abs(rows).max(1)
    gaps = np.diff(np.sort(rows, 1), axis=1)
    gap = np.where(gaps <= 2 * limit[:, None], np.inf, gaps).min(1, initial=np.inf)
    step = np.zeros_like(low)
    left = np.flatnonzero(gap != np.inf)
    for steps in range(1, count):  # how many levels the nearest two numbers are apart
        if not left.size:
            break
        last = np.rint(span[left] * steps / gap[left])
        if not (last < count).all():
            return None
        tried = span[left] / last
        on_level = np.rint((rows[left] - low[left, None]) / tried[:, None])
        error = np.abs(rows[left] - (low[left, None] + on_level * tried[:, None])).max(1)
        step[left] = tried
        left = left[error > limit[left]]
    return None if left.size else (low, step)


def _regress(rows: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the factor and offset per row that map levels to numbers by least squares."""
    mean = levels.mean(1)
    apart = levels - mean[:, None]
    squares = (apart**2).sum(1)
    factor = (apart * rows).sum(1) / np.where(squares == 0, 1, squares)
    return factor, rows.mean(1, dtype=np.float64) - factor * mean


def _encode_panel(bits: int, size: int, panel: np.ndarray) -> np.ndarray:
    """Store ``[K, 16]`` as ``[K/size, words of a block]``."""
    rows = panel.reshape(-1, size, PANEL).swapaxes(1, 2).reshape(-1, size)
    fitted = _fit(rows, 2**bits) if np.isfinite(rows).all() else None
    if fitted is None:
        raise InputError(
            f"format blocks.{bits}.{size}: expected at most {2**bits} evenly spaced values in each "
            "block, got other values"
        )
    low, step = fitted
    levels = np.rint((rows - low[:, None]) / np.where(step == 0, 1, step)[:, None]) + _BITS[bits]
    head = np.stack(_regress(rows, levels)).astype(np.float32)
    blocks = len(panel) // size
    return np.concatenate(
        [
            head.reshape(2, blocks, PANEL).swapaxes(0, 1).reshape(blocks, _HEAD).view(np.int32),
            _store_levels(bits, levels.reshape(blocks, PANEL, size).swapaxes(1, 2)),
        ],
        axis=1,
    )


def _places(bits: int) -> np.ndarray:
    """Return the bit at which a line of less than 8 bits has each column, ``[columns, words]``.

    Columns go around the words: those of 4 bits are in the first and the second by turns.
    """
    places = np.arange(0, 32, bits, dtype=np.uint32)
    return np.repeat(places[:, None], PANEL // len(places), axis=1)


def _store_levels(bits: int, levels: np.ndarray) -> np.ndarray:
    """Store levels ``[blocks, size, 16]`` as words ``[blocks, size * bits / 2]``."""
    if bits == 8:
        return levels.astype(np.int8).reshape(len(levels), -1).view(np.int32)
    places = _places(bits)
    shifted = levels.astype(np.uint32).reshape(*levels.shape[:2], *places.shape) << places
    words: np.ndarray = np.bitwise_or.reduce(shifted, 2)
    return words.reshape(len(levels), -1).view(np.int32)


def _load_levels(bits: int, words: np.ndarray, size: int) -> np.ndarray:
    """Undo :func:`_store_levels`, for words ``[..., size * bits / 2]``."""
    if bits == 8:
        return words.view(np.int8).reshape(*words.shape[:-1], size, PANEL)
    places = _places(bits)
    lines = words.view(np.uint32).reshape(*words.shape[:-1], size, 1, places.shape[1])
    levels: np.ndarray = lines >> places & 2**bits - 1
    return levels.reshape(*words.shape[:-1], size, PANEL)


def _storage(bits: int, size: int, dtype: str, shape: Shape) -> tuple[str, Shape]:
    if dtype != "float32" or len(shape) != 2 or shape[0] < 1 or shape[0] % size:
        raise OpError(
            f"format blocks.{bits}.{size}: expected a float32 matrix [K, N], K a multiple of "
            f"{size}, got {dtype} {list(shape)}"
        )
    return "int32", (-(-shape[1] // PANEL), shape[0] // size, _HEAD + size * bits // 2)


def _encode(bits: int, size: int, array: np.ndarray) -> np.ndarray:
    _, shape = _storage(bits, size, "float32", array.shape)
    stored = np.empty(shape, np.int32)
    for to, panel in zip(stored, pack(array), strict=True):
        to[:] = _encode_panel(bits, size, panel)
    return stored


def _decode(bits: int, size: int, stored: np.ndarray, dtype: str, shape: Shape) -> np.ndarray:
    stored = np.asarray(stored, order="C")
    head = stored[..., :_HEAD].copy().view(np.float32).astype(np.float64)
    factor, offset = head[..., None, :PANEL], head[..., None, PANEL:]
    levels = _load_levels(bits, stored[..., _HEAD:].copy(), size)
    with np.errstate(all="ignore"):
        panels = (levels * factor + offset).astype(np.float32)
    return unpack(panels.reshape(len(stored), shape[0], PANEL), shape[1])


def _make(bits: int, size: int) -> Format:
    return Format(
        name=f"blocks.{bits}.{size}",
        storage=partial(_storage, bits, size),
        encode=partial(_encode, bits, size),
        decode=partial(_decode, bits, size),
        tolerance=_TOLERANCE,
        is_for_kernels=False,
    )


FAMILY = Family(
    "blocks",
    _make,
    (_BITS, _SIZES),
    f"blocks.BITS.SIZE with BITS {' or '.join(map(str, _BITS))} and SIZE 32, 64, 128 or 256",
    tuple(f"blocks.{bits}.32" for bits in _BITS),
)
