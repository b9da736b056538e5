"""Store a quantized float32 matrix as its integers, with scales for each block of them.

The format ``blocks.BITS.SIZE.SCALES.SHIFT`` stores a weight ``[K, N]`` that is computed from
integers. In each column a block is SIZE consecutive numbers, and each number is ``(level - zero) *
scale`` or ``level * scale + offset``. A level is a signed integer of BITS bits; the scales have the
dtype SCALES. SHIFT says what else a block has for each column: ``symmetric`` nothing, ``zeros`` a
zero point of BITS bits, ``offsets`` an offset of the scales' dtype.

The storage goes by panels of 16 columns, as in ``panels.1``, and all of a panel lies in the order
in which a product reads it. A block has the 16 scales, the 16 zero points or offsets, and then its
levels in lines of 64 bytes: 4 bytes for each of 16 columns. A line holds 4 k of 8 bits: byte i of a
column is k = i. Or it holds 8 k of 4 bits: byte i has k = i in its low half and k = 4 + i in its
high half. So each instruction that adds 4 products of bytes finds its operands side by side. Levels
and zero points of 4 bits are stored plus 8. The storage is ``[ceil(N/16), K/SIZE, words]``, and a
word has the dtype of the scales.

Encoding takes the integers and scales of the model and keeps their bits: no number is looked at.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES, cast
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats.format import Family, Format, Shape
from taper_runtime.formats.panels import PANEL, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

#: For each width of levels, the zero point of a symmetric block as it is stored.
BITS = {4: 8, 8: 0}

_SCALES = ("float32", "float16", "bfloat16")
_SHIFTS = ("symmetric", "zeros", "offsets")

#: The kernels compute with levels of 8 bits times 2 ** 24 and with scales divided by it, which must
#: not become denormal.
LEAST_SCALE = 2.0**-100

_LINE = 64  # bytes: 4 of each column of a panel
_MOST = 2**31 - 1


class Blocks(NamedTuple):
    """The parameters of a format.

    Attributes
    ----------
    bits, size : int
        The bits of a level, and the levels of a block.
    scales, shift : str
        The dtype of scales, and what stands beside them.
    """

    bits: int
    size: int
    scales: str
    shift: str

    @property
    def name(self) -> str:
        """Return the format's name."""
        return f"blocks.{self.bits}.{self.size}.{self.scales}.{self.shift}"

    @property
    def parts(self) -> tuple[int, int, int]:
        """Return how many bytes of a block are scales, shifts and levels."""
        scales = PANEL * DTYPES[self.scales].size
        shift = {"symmetric": 0, "zeros": PANEL * self.bits // 8, "offsets": scales}[self.shift]
        return scales, shift, self.size * PANEL * self.bits // 8


def _packs(blocks: Blocks, types: Sequence[tuple[str, Shape]]) -> tuple[str, Shape]:
    """Check the types of integers, scales and zero points or offsets."""
    shape = types[0][1]
    _storage(blocks, "float32", shape)
    parameters = (shape[0] // blocks.size, shape[1])
    wanted = [(("int8", "uint8", "int16", "int32", "int64"), shape), ((blocks.scales,), parameters)]
    if blocks.shift != "symmetric":
        dtypes = wanted[0][0] if blocks.shift == "zeros" else (blocks.scales,)
        wanted.append((dtypes, parameters))
    if len(types) != len(wanted) or any(
        dtype not in dtypes or got != size
        for (dtype, got), (dtypes, size) in zip(types, wanted, strict=False)
    ):
        raise OpError(
            f"format {blocks.name}: expected integers [K, N] and "
            f"{'scales' if len(wanted) == 2 else f'scales and {blocks.shift}'} [K/{blocks.size}, N]"
            f", got {', '.join(f'{dtype} {list(got)}' for dtype, got in types)}"
        )
    return "float32", shape


def _storage(blocks: Blocks, dtype: str, shape: Shape) -> tuple[str, Shape]:
    size = blocks.size
    if dtype != "float32" or len(shape) != 2 or shape[0] < 1 or shape[0] % size:
        raise OpError(
            f"format {blocks.name}: expected a float32 matrix [K, N], K a multiple of {size}, "
            f"got {dtype} {list(shape)}"
        )
    words = sum(blocks.parts) // DTYPES[blocks.scales].size
    return blocks.scales, (-(-shape[1] // PANEL), shape[0] // size, words)


def _encode(blocks: Blocks, q: np.ndarray, scales: np.ndarray, *shifts: np.ndarray) -> np.ndarray:
    """Store integers ``[K, N]``, scales ``[K/size, N]`` and zero points or offsets."""
    dtype, shape = _storage(blocks, "float32", q.shape)
    panels, count, _ = shape
    factors = np.abs(cast(scales, "float32"))
    if not np.isfinite(factors).all() or factors[factors != 0].min(initial=1) < LEAST_SCALE:
        raise InputError(f"format {blocks.name}: expected finite scales from 2 ** -100 on")
    parts = [_bytes(pack(scales))]
    for shift in shifts:
        beside = pack(shift)
        if blocks.shift == "zeros":
            beside = _pair(blocks, _stored(blocks, beside))
        parts.append(_bytes(beside))
    lines = blocks.size * blocks.bits // 32
    levels = _stored(blocks, pack(q)).reshape(panels, count, lines, 32 // blocks.bits, PANEL)
    levels = levels.swapaxes(3, 4)  # [panels, blocks, lines, columns, k]
    if blocks.bits == 4:
        levels = levels[..., :4] | levels[..., 4:] << 4
    parts.append(levels.reshape(panels, count, lines * _LINE))
    return np.concatenate(parts, 2).view(DTYPES[dtype].storage).reshape(shape)


def _bytes(array: np.ndarray) -> np.ndarray:
    """View the last axis as bytes."""
    return np.asarray(array, order="C").view(np.uint8)


def _stored(blocks: Blocks, levels: np.ndarray) -> np.ndarray:
    """Return levels or zero points as bytes, which are stored with the zero point of their width.

    Raises
    ------
    InputError
        If they need more bits.
    """
    limit = 2 ** (blocks.bits - 1)
    if levels.size and not (-limit <= levels.min() and levels.max() < limit):
        raise InputError(
            f"format {blocks.name}: expected integers in [{-limit}, {limit}), "
            f"got {levels.min()} to {levels.max()}"
        )
    return (levels.astype(np.int16) + BITS[blocks.bits]).astype(np.uint8)


#: The places of 16 zero points of 4 bits: those of even columns are in the first 4 bytes.
_PLACES = np.array([column % 2 * 8 + column // 2 for column in range(PANEL)])


def _pair(blocks: Blocks, zeros: np.ndarray) -> np.ndarray:
    """Store 16 zero points of 4 bits as 8 bytes."""
    if blocks.bits == 8:
        return zeros
    placed = np.empty_like(zeros)
    placed[..., _PLACES] = zeros
    pairs: np.ndarray = placed[..., ::2] | placed[..., 1::2] << 4
    return pairs


def _unpair(blocks: Blocks, stored: np.ndarray) -> np.ndarray:
    """Undo :func:`_pair`."""
    if blocks.bits == 8:
        return stored
    placed = np.stack([stored & 15, stored >> 4], -1).reshape(*stored.shape[:-1], PANEL)
    return placed[..., _PLACES]


def _levels(blocks: Blocks, stored: np.ndarray) -> np.ndarray:
    """Undo :func:`_stored`: return float64."""
    if blocks.bits == 8:
        return stored.view(np.int8).astype(np.float64)
    return stored.astype(np.float64) - BITS[blocks.bits]


def _decode(blocks: Blocks, stored: np.ndarray, dtype: str, shape: Shape) -> np.ndarray:
    """Compute the numbers as kernels do: the level times the scale plus the shift, rounded once."""
    panels, count, _ = stored.shape
    scales_end, shift_size, _ = blocks.parts
    bytes_ = _bytes(stored)
    head = bytes_[..., :scales_end], bytes_[..., scales_end : scales_end + shift_size]
    lines = bytes_[..., scales_end + shift_size :].reshape(
        panels, count, blocks.size * blocks.bits // 32, PANEL, 4
    )
    if blocks.bits == 4:
        lines = np.concatenate([lines & 15, lines >> 4], 4)
    levels = _levels(blocks, np.asarray(lines.swapaxes(3, 4), order="C"))
    levels = levels.reshape(panels, count, blocks.size, PANEL)
    scales, *offsets = (
        cast(np.asarray(part, order="C").view(DTYPES[blocks.scales].storage), "float32")
        for part in (head if blocks.shift == "offsets" else head[:1])
    )
    shift = offsets[0] if offsets else np.zeros_like(scales)
    with np.errstate(all="ignore"):
        if blocks.shift == "zeros":
            zeros = _levels(blocks, np.asarray(_unpair(blocks, head[1]), order="C"))
            shift = scales * -zeros.astype(np.float32)
        numbers = levels * scales[:, :, None].astype(np.float64) + shift[:, :, None]
    return unpack(numbers.astype(np.float32).reshape(panels, shape[0], PANEL), shape[1])


def _make(bits: int, size: int, scales: str, shift: str) -> Format:
    blocks = Blocks(bits, size, scales, shift)
    return Format(
        name=blocks.name,
        storage=partial(_storage, blocks),
        encode=partial(_encode, blocks),
        decode=partial(_decode, blocks),
        packs=partial(_packs, blocks),
        is_for_kernels=False,
    )


FAMILY = Family(
    "blocks",
    _make,
    (BITS, range(8, _MOST, 8), _SCALES, _SHIFTS),
    f"blocks.BITS.SIZE.SCALES.SHIFT with BITS {' or '.join(map(str, BITS))}, SIZE a multiple of 8, "
    f"SCALES one of {', '.join(_SCALES)}, and SHIFT one of {', '.join(_SHIFTS)}",
    (
        "blocks.4.32.float16.symmetric",
        "blocks.4.64.float32.zeros",
        "blocks.4.32.bfloat16.offsets",
        "blocks.8.64.float32.symmetric",
        "blocks.8.32.float16.zeros",
        "blocks.8.32.bfloat16.offsets",
    ),
)
