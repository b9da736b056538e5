"""Draw what the formats of blocks store, and compute the numbers that they stand for.

The numbers are computed in float64, not by the runtime's tables.
"""

from __future__ import annotations

import numpy as np

from taper_runtime.base.dtypes import cast
from taper_runtime.formats import find


def small_floats(exponent, mantissa):
    """The numbers of all codes of a float with so many bits of exponent and mantissa."""
    bias, found = 2 ** (exponent - 1) - 1, []
    for code in range(2 ** (exponent + mantissa)):
        power, fraction = divmod(code, 2**mantissa)
        whole = fraction + (2**mantissa if power else 0)
        found.append(whole * 2.0 ** (max(power, 1) - bias - mantissa))
    return np.array([*found, *(-x for x in found)])


E2M1, E4M3, E5M2 = small_floats(2, 1), small_floats(4, 3), small_floats(5, 2)
#: For each kind of levels: bits, lowest level, and the numbers of levels that are floats.
KINDS = {
    "2": (2, -2, None),
    "4": (4, -8, None),
    "5": (5, -16, None),
    "8": (8, -128, None),
    "u4": (4, 0, None),
    "u5": (5, 0, None),
    "q4k": (4, 0, None),
    "q5k": (5, 0, None),
    "q6k": (6, -32, None),
    "e2m1": (4, 0, E2M1),
    "nvfp4": (4, 0, E2M1),
    "e4m3": (8, 0, E4M3),
    "e5m2": (8, 0, E5M2),
}
#: The codes of finite floats, from which on others are infinite or NaN.
FINITE = {"e4m3": 127, "e5m2": 124}
#: The range of factors, and the rows of a common scale.
FACTORS = {"q4k": (0, 64, 256), "q5k": (0, 64, 256), "q6k": (-128, 128, 256), "nvfp4": (0, 127, 0)}


def numbers(codes, kind):
    """Levels as float64."""
    table = KINDS[kind][2]
    return (codes if table is None else table[codes]).astype(np.float64)


def wide(scales, dtype):
    """Scales as float64."""
    if dtype == "e8m0":
        return 2.0 ** (scales.astype(np.float64) - 127)
    return cast(scales, "float32").astype(np.float64)


def draw(name, rng, k=512, n=20):
    """Draw levels, scales, zero points or offsets, and factors: what PACK takes."""
    _, kind, size, scales, shift = name.split(".")
    bits, low, _ = KINDS[kind]
    levels = rng.integers(low, low + 2**bits, (k, n))
    levels[levels % 128 >= FINITE.get(kind, 128)] = 0
    least, most, rows = FACTORS.get(kind, (0, 0, int(size)))
    shape = k // (rows or k), n

    def scale():
        if scales == "e8m0":
            return rng.integers(100, 130, shape).astype(np.uint8)
        return cast(rng.uniform(0.1, 2, shape).astype(np.float32), scales)

    drawn = [levels.astype(np.uint8 if low == 0 else np.int8), scale()]
    if shift == "zeros":
        drawn.append(rng.integers(low, low + 2**bits, shape).astype(np.int8))
    elif shift == "offsets":
        drawn.append(scale())
    if kind in FACTORS:
        each = k // int(size), n
        drawn += [
            rng.integers(least, most, each).astype(np.int8 if least < 0 else np.uint8)
            for _ in drawn[1:]
        ]
    return drawn


def exact(name, levels, *parts):
    """Return the numbers in float64, apart from scales, which are rounded to float32."""
    _, kind, _, scales, shift = name.split(".")
    k = len(levels)

    def each(x):
        return np.repeat(x, k // len(x), 0)

    values = numbers(levels, kind)
    found = [wide(x, scales) for x in parts[: 1 + (shift == "offsets")]]
    if kind in FACTORS:
        factors = parts[len(parts) // 2 :]
        if kind == "nvfp4":
            factors = [E4M3[x] for x in factors]
        found = [
            np.repeat(x, len(f) // len(x), 0) * f.astype(np.float64)
            for x, f in zip(found, factors, strict=True)
        ]
        found = [x.astype(np.float32).astype(np.float64) for x in found]
    if shift == "zeros":
        values = values - each(parts[1].astype(np.float64))
    return values * each(found[0]) + (each(found[1]) if shift == "offsets" else 0)


def stored(array, name):
    """Store multiples of 1/8 from -2/8 to 1/8, exactly."""
    _, kind, size, scales, shift = name.split(".")
    low, table = KINDS[kind][1:]
    *_, rows = FACTORS.get(kind, (0, 0, int(size)))
    k, n = array.shape
    shape = k // (rows or k), n
    eighth = 0.0625 if kind in FACTORS else 0.125

    def full(value):
        if scales == "e8m0":
            return np.full(shape, 127 + round(np.log2(value)), np.uint8)
        return cast(np.full(shape, value, np.float32), scales)

    levels, parts = np.rint(array * 8), [full(eighth)]
    if shift == "zeros":
        parts.append(np.full(shape, kind != "2", np.int8))
        levels += kind != "2"
    elif shift == "offsets":
        sign = -1 if low == 0 else 1
        parts.append(full(2 * sign * eighth))
        levels -= 2 * sign
    if kind in FACTORS:
        two = 0x40 if kind == "nvfp4" else 2
        parts += [np.full((k // int(size), n), two, np.uint8) for _ in parts]
    if table is not None:
        levels = np.array([[np.flatnonzero(table == x)[0] for x in row] for row in levels])
    return find(name).encode(levels.reshape(k, n).astype(np.int16), *parts)
