"""Store a quantized float32 matrix as its levels, with scales for each block of them.

The format ``blocks.LEVELS.SIZE.SCALES.SHIFT`` stores a weight ``[K, N]`` that is computed from
levels. In each column a block is SIZE consecutive numbers, and each number is ``(level - zero) *
scale`` or ``level * scale + offset``. :data:`LEVELS` says what levels are: signed integers of 2, 4,
5, 6 or 8 bits, unsigned ones (``u4``, ``u5``), or floats of 4 or 8 bits (``e2m1``, ``e4m3``,
``e5m2``). The scales have the dtype SCALES, or are powers of 2 (``e8m0``). SHIFT says what else a
block has for each column: ``symmetric`` nothing, ``zeros`` a zero point of the levels' bits,
``offsets`` an offset of the scales' dtype.

In some formats several blocks have scales and offsets in common, and each block has factors of
them: the scale is scale times factor, rounded once. ``q4k`` and ``q5k`` have factors of 6 bits for
each 256 rows, ``q6k`` int8 factors for each 256 rows, and ``nvfp4`` factors e4m3 for all rows.

The storage goes by panels of 16 columns, as in ``panels.1``, and all of a panel lies in the order
in which a product reads it. A block has the 16 scales, the 16 zero points or offsets, the 16
factors of each, and then its levels in lines of 64 bytes: 4 bytes for each of 16 columns. Byte i of
a column has k = i + 4 j in its bits from B * j on, for levels of B bits. So each instruction that
adds 4 products of bytes finds its operands side by side. Levels of 5 and 6 bits have their lowest 4
bits in such lines, and then one line has the highest bits of as many k as it holds. Levels and zero
points of fewer than 8 bits are stored minus the lowest. The storage is ``[ceil(N/16), K/SIZE,
words]``, or has the rows of a common scale in place of SIZE. A word has the dtype of the scales.

Encoding takes the levels and scales of the model and keeps their bits: no number is looked at.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from taper_runtime.base.dtypes import DTYPES, cast
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.base.records import NamedTuple
from taper_runtime.formats.format import Family, Format, Shape
from taper_runtime.formats.panels import PANEL, pack, unpack

if TYPE_CHECKING:
    from collections.abc import Sequence

#: The kernels compute with levels of 8 bits times 2 ** 24 and with scales divided by it, which must
#: not become denormal.
LEAST_SCALE = 2.0**-100

#: The scale of e8m0 is 2 ** (number - 127).
_EXPONENTS = "e8m0"
_SCALES = ("float32", "float16", "bfloat16", _EXPONENTS)
_SHIFTS = ("symmetric", "zeros", "offsets")
_INTS = ("int8", "uint8", "int16", "int32", "int64")

_LINE = 64  # bytes: 4 of each column of a panel
_MOST = 2**31 - 1


@lru_cache(maxsize=8)
def floats(exponent: int, mantissa: int) -> np.ndarray:
    """Return the numbers of all codes of a float of a sign and so many bits, without infinities.

    The codes that other formats use for infinities and NaNs are what the bits say.
    """
    codes = np.arange(2 ** (1 + exponent + mantissa))
    fraction = codes % 2**mantissa / 2**mantissa
    exponents = codes >> mantissa & (2**exponent - 1)
    bias = 2 ** (exponent - 1) - 1
    numbers = np.where(
        exponents == 0,
        fraction * 2.0 ** (1 - bias),
        (1 + fraction) * 2.0 ** (exponents.astype(np.float64) - bias),
    )
    numbers = np.asarray(np.where(codes >> (exponent + mantissa), -numbers, numbers), np.float32)
    numbers.flags.writeable = False
    return numbers


class Factors(NamedTuple):
    """Factors of common scales, one for each column of a block.

    Attributes
    ----------
    name : str
        ``u6``, ``int8`` or ``e4m3``.
    bits, low, high : int
        Of a factor, or of its code.
    scales, shift : str
        The dtype of common scales, and what stands beside them.
    rows : int
        The rows of common scales; 0 for all.
    """

    name: str
    bits: int
    low: int
    high: int
    scales: str
    shift: str
    rows: int

    def numbers(self, codes: np.ndarray) -> np.ndarray:
        """Return factors as float32."""
        return np.asarray(floats(4, 3)[codes] if self.name == "e4m3" else codes, np.float32)


class Levels(NamedTuple):
    """A kind of level.

    Attributes
    ----------
    bits : int
        Of a level, or of its code.
    low : int
        The lowest level.
    code : tuple of int
        The bits of exponent and mantissa of a float; empty for integers.
    codes : int
        The number of finite codes of each sign.
    shifts : tuple of str
        What may stand beside scales.
    factors : Factors or None
        Of blocks with common scales.
    """

    bits: int
    low: int
    code: tuple[int, ...] = ()
    codes: int = 0
    shifts: tuple[str, ...] = ("symmetric",)
    factors: Factors | None = None

    @property
    def parts(self) -> tuple[int, ...]:
        """Return how many bits of a level lie in one line."""
        return (4, self.bits - 4) if self.bits in (5, 6) else (self.bits,)

    @property
    def rows(self) -> int:
        """Return the least number of rows that are whole lines."""
        return max(8, 32 // min(self.parts))

    def numbers(self, levels: np.ndarray) -> np.ndarray:
        """Return levels as float64."""
        return (floats(*self.code)[levels] if self.code else levels).astype(np.float64)


_U6 = Factors("u6", 6, 0, 63, "float16", "offsets", 256)
_I8 = Factors("int8", 8, -128, 127, "float16", "symmetric", 256)
_E4M3 = Factors("e4m3", 8, 0, 126, "float32", "symmetric", 0)
_OFFSETS = ("offsets",)
LEVELS: dict[int | str, Levels] = {
    2: Levels(2, -2, shifts=_SHIFTS),
    4: Levels(4, -8, shifts=_SHIFTS),
    5: Levels(5, -16),
    8: Levels(8, -128, shifts=_SHIFTS),
    "u4": Levels(4, 0, shifts=_OFFSETS),
    "u5": Levels(5, 0, shifts=_OFFSETS),
    "q4k": Levels(4, 0, shifts=_OFFSETS, factors=_U6),
    "q5k": Levels(5, 0, shifts=_OFFSETS, factors=_U6),
    "q6k": Levels(6, -32, factors=_I8),
    "e2m1": Levels(4, 0, (2, 1), 8),
    "nvfp4": Levels(4, 0, (2, 1), 8, factors=_E4M3),
    "e4m3": Levels(8, 0, (4, 3), 127),
    "e5m2": Levels(8, 0, (5, 2), 124),
}


class Blocks(NamedTuple):
    """The parameters of a format.

    Attributes
    ----------
    levels : int or str
        A key of :data:`LEVELS`.
    size : int
        The levels of a block.
    scales, shift : str
        The dtype of scales, and what stands beside them.
    """

    levels: int | str
    size: int
    scales: str
    shift: str

    @property
    def name(self) -> str:
        """Return the format's name."""
        return f"blocks.{self.levels}.{self.size}.{self.scales}.{self.shift}"

    @property
    def word(self) -> str:
        """Return the dtype of the storage."""
        return "uint8" if self.scales == _EXPONENTS else self.scales

    def rows(self, k: int) -> int:
        """Return the rows of a scale, of a weight of ``k`` rows."""
        factors = LEVELS[self.levels].factors
        return self.size if factors is None else factors.rows or k

    @property
    def head(self) -> tuple[int, int]:
        """Return how many bytes are scales, and how many are zero points or offsets."""
        scales = PANEL * DTYPES[self.word].size
        bits = LEVELS[self.levels].bits
        shift = {"symmetric": 0, "zeros": PANEL * bits // 8, "offsets": scales}[self.shift]
        return scales, shift

    @property
    def block(self) -> tuple[int, int]:
        """Return how many bytes of a block are factors and levels."""
        bits, *_, factors = LEVELS[self.levels]
        of = 0 if factors is None else PANEL * factors.bits // 8
        return of * (2 if self.shift == "offsets" else 1), self.size * PANEL * bits // 8


def _packs(blocks: Blocks, types: Sequence[tuple[str, Shape]]) -> tuple[str, Shape]:
    """Check the types of levels, scales and their parameters, in the order of the storage."""
    shape = types[0][1]
    _storage(blocks, "float32", shape)
    each = (shape[0] // blocks.size, shape[1])
    of = (shape[0] // blocks.rows(shape[0]), shape[1])
    wanted: list[tuple[tuple[str, ...], Shape]] = [(_INTS, shape), ((blocks.word,), of)]
    if blocks.shift != "symmetric":
        wanted.append((_INTS if blocks.shift == "zeros" else (blocks.word,), of))
    if LEVELS[blocks.levels].factors is not None:
        wanted += [(_INTS, each)] * (len(wanted) - 1)
    if len(types) != len(wanted) or any(
        dtype not in dtypes or got != size
        for (dtype, got), (dtypes, size) in zip(types, wanted, strict=False)
    ):
        parts = ", ".join(f"{dtypes[0]} {list(size)}" for dtypes, size in wanted)
        raise OpError(
            f"format {blocks.name}: expected levels, scales and what belongs to them, {parts}; "
            f"got {', '.join(f'{dtype} {list(got)}' for dtype, got in types)}"
        )
    return "float32", shape


def _storage(blocks: Blocks, dtype: str, shape: Shape) -> tuple[str, Shape]:
    rows = blocks.rows(shape[0]) if len(shape) == 2 else 0
    if dtype != "float32" or rows < 1 or shape[0] < 1 or shape[0] % rows or rows % blocks.size:
        raise OpError(
            f"format {blocks.name}: expected a float32 matrix [K, N], K a multiple of "
            f"{blocks.rows(blocks.size)}, got {dtype} {list(shape)}"
        )
    bytes_ = sum(blocks.head) + rows // blocks.size * sum(blocks.block)
    return blocks.word, (-(-shape[1] // PANEL), shape[0] // rows, bytes_ // _size(blocks))


def _size(blocks: Blocks) -> int:
    return DTYPES[blocks.word].size


def _encode(blocks: Blocks, q: np.ndarray, scales: np.ndarray, *rest: np.ndarray) -> np.ndarray:
    """Store levels ``[K, N]``, their scales, zero points or offsets, and factors of these."""
    levels = LEVELS[blocks.levels]
    dtype, shape = _storage(blocks, "float32", q.shape)
    panels, count, _ = shape
    each = blocks.rows(q.shape[0]) // blocks.size
    shifts = rest[: blocks.shift != "symmetric"]
    factors = [_checked(blocks, x) for x in rest[len(shifts) :]]
    numbers = np.abs(_scale(blocks, scales, factors))
    least = numbers[numbers != 0].min(initial=1)
    if not np.isfinite(numbers).all() or least < LEAST_SCALE:
        raise InputError(f"format {blocks.name}: expected finite scales from 2 ** -100 on")
    head = [_bytes(pack(scales))]
    for shift in shifts:
        beside = pack(shift)
        if blocks.shift == "zeros":
            beside = _few(levels.bits, _stored(blocks, beside))
        head.append(_bytes(beside))
    body = [_few(8 if x.dtype == np.int8 else 6, pack(x)) for x in factors]
    if levels.factors is not None and levels.factors.bits == 8:
        body = [_bytes(pack(x)) for x in factors]
    body.append(_lines(blocks, _stored(blocks, pack(q))))
    body = [part.reshape(panels, count, each, part.size // max(1, panels * count * each))
            for part in body]  # fmt: skip
    bytes_ = np.concatenate(body, 3).reshape(panels, count, each * sum(blocks.block) * (panels > 0))
    return np.concatenate([*head, bytes_], 2).view(DTYPES[dtype].storage).reshape(shape)


def _scale(blocks: Blocks, scales: np.ndarray, factors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the scale of each block ``[K/size, N]``, float32."""
    found = _wide(blocks, scales)
    of = LEVELS[blocks.levels].factors
    if of is None:
        return found
    with np.errstate(all="ignore"):
        each = np.repeat(found, len(factors[0]) // len(found), 0)
        return np.asarray(each * of.numbers(factors[0]), np.float32)


def _wide(blocks: Blocks, scales: np.ndarray) -> np.ndarray:
    """Return scales or offsets as float32."""
    if blocks.scales != _EXPONENTS:
        return cast(scales, "float32")
    return np.where(
        scales == 0, np.float32(2.0**-127), (scales.astype(np.uint32) << 23).view(np.float32)
    )


def _checked(blocks: Blocks, codes: np.ndarray) -> np.ndarray:
    """Return factors as bytes.

    Raises
    ------
    InputError
        If there are others.
    """
    factors = LEVELS[blocks.levels].factors
    assert factors is not None
    _, _, low, high, *_ = factors
    if codes.size and not (low <= codes.min() and codes.max() <= high):
        raise InputError(
            f"format {blocks.name}: expected factors in [{low}, {high}], "
            f"got {codes.min()} to {codes.max()}"
        )
    return codes.astype(np.int8 if low < 0 else np.uint8)


def _bytes(array: np.ndarray) -> np.ndarray:
    """View the last axis as bytes."""
    return np.asarray(array, order="C").view(np.uint8)


def _stored(blocks: Blocks, levels: np.ndarray) -> np.ndarray:
    """Return levels or zero points as bytes, with all higher bits cleared.

    Raises
    ------
    InputError
        If they need more bits, or are codes of no finite number.
    """
    bits, low, code, codes, *_ = LEVELS[blocks.levels]
    high = low + 2**bits
    if levels.size and not (low <= levels.min() and levels.max() < high):
        raise InputError(
            f"format {blocks.name}: expected integers in [{low}, {high}), "
            f"got {levels.min()} to {levels.max()}"
        )
    if code and levels.size and (levels.astype(np.uint8) & (2 ** (bits - 1) - 1)).max() >= codes:
        raise InputError(f"format {blocks.name}: expected codes of finite numbers, got others")
    return (levels.astype(np.int16) - (low if bits < 8 else 0)).astype(np.uint8)


def _levels(blocks: Blocks, stored: np.ndarray) -> np.ndarray:
    """Undo :func:`_stored`: return float64."""
    levels = LEVELS[blocks.levels]
    if levels.bits == 8:
        return levels.numbers(stored if levels.code else stored.view(np.int8))
    return levels.numbers(stored.astype(np.int16) + levels.low if levels.low else stored)


def _lines(blocks: Blocks, stored: np.ndarray) -> np.ndarray:
    """Store bytes ``[panels, K, 16]`` of levels in lines ``[panels, groups, bytes]``."""
    levels = LEVELS[blocks.levels]
    panels, k, _ = stored.shape
    lines, place, rows = [], 0, 32 // min(levels.parts)
    for bits in levels.parts:
        part = stored >> place & (2**bits - 1) if bits < 8 else stored
        place += bits
        # [panels, groups, lines, j, i, columns] -> [panels, groups, lines, columns, i]
        part = part.reshape(panels, k // rows, rows * bits // 32, 8 // bits, 4, PANEL)
        places = (np.arange(8 // bits, dtype=np.uint8) * bits)[:, None, None]
        whole = np.bitwise_or.reduce(part << places, 3).swapaxes(3, 4)
        lines.append(whole.reshape(panels, k // rows, rows * PANEL * bits // 8))
    return np.concatenate(lines, 2)


def _unline(blocks: Blocks, lines: np.ndarray) -> np.ndarray:
    """Undo :func:`_lines`, of bytes ``[..., bytes of some groups]``: return ``[..., K, 16]``."""
    levels = LEVELS[blocks.levels]
    rows = 32 // min(levels.parts)
    size = rows * PANEL * levels.bits // 8
    groups = lines.reshape(*lines.shape[:-1], lines.shape[-1] // size, size)
    place, start, found = 0, 0, np.zeros((*groups.shape[:-1], rows, PANEL), np.uint8)
    for bits in levels.parts:
        count = rows * bits // 32
        part = groups[..., start : start + count * _LINE]
        part = part.reshape(*groups.shape[:-1], count, 1, PANEL, 4)
        places = (np.arange(8 // bits, dtype=np.uint8) * bits)[:, None, None]
        numbers = (part >> places & (2**bits - 1)).swapaxes(-1, -2)
        found |= numbers.astype(np.uint8).reshape(found.shape) << place
        place, start = place + bits, start + count * _LINE
    return found.reshape(*lines.shape[:-1], groups.shape[-2] * rows, PANEL)


#: The places of 16 numbers of 4 bits: those of even columns are in the first 4 bytes.
_PLACES = np.array([column % 2 * 8 + column // 2 for column in range(PANEL)])


def _few(bits: int, numbers: np.ndarray) -> np.ndarray:
    """Store 16 numbers of some bits side by side: of 6 bits the lowest 4 and then the others."""
    if bits == 8:
        return numbers
    if bits == 6:
        return np.concatenate([_few(4, numbers & 15), _few(2, numbers >> 4)], -1)
    if bits == 4:
        placed = np.empty_like(numbers)
        placed[..., _PLACES] = numbers
        numbers = placed
    split = numbers.reshape(*numbers.shape[:-1], PANEL * bits // 8, 8 // bits)
    places = np.arange(8 // bits, dtype=np.uint8) * bits
    return np.asarray(np.bitwise_or.reduce(split << places, -1))


def _many(bits: int, stored: np.ndarray) -> np.ndarray:
    """Undo :func:`_few`."""
    if bits == 8:
        return stored
    if bits == 6:
        return np.asarray(_many(4, stored[..., :8]) | _many(2, stored[..., 8:]) << 4)
    places = np.arange(8 // bits, dtype=np.uint8) * bits
    numbers = (stored[..., None] >> places & (2**bits - 1)).reshape(*stored.shape[:-1], PANEL)
    return np.asarray(numbers[..., _PLACES] if bits == 4 else numbers)


def _decode(blocks: Blocks, stored: np.ndarray, dtype: str, shape: Shape) -> np.ndarray:
    """Compute the numbers as kernels do: the level times the scale plus the shift, rounded once."""
    levels = LEVELS[blocks.levels]
    panels, count, _ = stored.shape
    each = blocks.rows(shape[0]) // blocks.size
    scales_size, shift_size = blocks.head
    factors_size, _ = blocks.block
    bytes_ = _bytes(stored)
    body = bytes_[..., scales_size + shift_size :]
    body = body.reshape(panels, count, each, sum(blocks.block))
    numbers = _levels(blocks, _unline(blocks, body[..., factors_size:]))

    def read(start: int, size: int) -> np.ndarray:
        """Return scales or offsets, for each block: ``[panels, count, 1, 16]``."""
        part = np.asarray(bytes_[..., start : start + size], order="C")
        return _wide(blocks, part.view(DTYPES[blocks.word].storage))[:, :, None]

    scales = read(0, scales_size)
    offsets = read(scales_size, shift_size) if blocks.shift == "offsets" else None
    if levels.factors is not None:
        of = PANEL * levels.factors.bits // 8
        codes = [
            np.asarray(_many(levels.factors.bits, body[..., i : i + of]), order="C")
            for i in range(0, factors_size, of)
        ]
        if levels.factors.low < 0:
            codes = [x.view(np.int8) for x in codes]
        scales = scales * levels.factors.numbers(codes[0])
        offsets = None if offsets is None else offsets * levels.factors.numbers(codes[1])
    shift = np.zeros_like(scales) if offsets is None else offsets
    with np.errstate(all="ignore"):
        if blocks.shift == "zeros":
            beside = bytes_[..., scales_size : scales_size + shift_size]
            zeros = _levels(blocks, np.asarray(_many(levels.bits, beside), order="C"))
            shift = scales * -zeros.astype(np.float32)[:, :, None]
        numbers = numbers * scales[..., None, :].astype(np.float64) + shift[..., None, :]
    return unpack(numbers.astype(np.float32).reshape(panels, shape[0], PANEL), shape[1])


def _make(kind: int | str, size: int, scales: str, shift: str) -> Format:
    """Return a format of the family; raises OpError where the parts do not go together."""
    blocks = Blocks(kind, size, scales, shift)
    levels = LEVELS[kind]
    factors = levels.factors
    if (
        size % levels.rows
        or shift not in levels.shifts
        or (scales == _EXPONENTS and shift != "symmetric")
        or (factors is not None and (scales != factors.scales or factors.rows % size))
    ):
        raise OpError(f"expected a format {FAMILY.spelling}, got {blocks.name!r}")
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
    (LEVELS, range(8, _MOST, 8), _SCALES, _SHIFTS),
    f"blocks.LEVELS.SIZE.SCALES.SHIFT with LEVELS one of {', '.join(map(str, LEVELS))}, SIZE a "
    f"multiple of 8, of 16 for 2 and 6 bits and of 32 for 5 bits, SCALES one of "
    f"{', '.join(_SCALES)}, and SHIFT one of {', '.join(_SHIFTS)}, as far as the levels have them",
    (
        "blocks.4.32.float16.symmetric",
        "blocks.4.64.float32.zeros",
        "blocks.4.32.bfloat16.offsets",
        "blocks.8.64.float32.symmetric",
        "blocks.8.32.float16.zeros",
        "blocks.8.32.bfloat16.offsets",
        "blocks.2.64.float16.symmetric",
        "blocks.2.32.bfloat16.zeros",
        "blocks.u4.32.float16.offsets",
        "blocks.5.32.float16.symmetric",
        "blocks.u5.64.float16.offsets",
        "blocks.q4k.32.float16.offsets",
        "blocks.q5k.32.float16.offsets",
        "blocks.q6k.16.float16.symmetric",
        "blocks.e2m1.32.e8m0.symmetric",
        "blocks.nvfp4.16.float32.symmetric",
        "blocks.e4m3.128.float32.symmetric",
        "blocks.e5m2.32.bfloat16.symmetric",
    ),
)
