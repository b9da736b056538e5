"""Results of OpenInfer's ops, element by element, in Python's own integers and floats.

Nothing here shares an expression with the package. Integers are exact and wrapped at the end.
Floats are computed in float64 and rounded explicitly: to float32, in which small floats are
computed too, then to the element type. One operation rounded twice so is rounded right.
"""

import itertools
import math
import struct

import numpy as np

#: Bits of precision, least exponent of a normal number, largest number.
_FORMATS = {
    "f8": (3, -14, 57344.0),
    "bf16": (8, -126, float.fromhex("0x1.fep127")),
    "f16": (11, -14, 65504.0),
    "f32": (24, -126, float.fromhex("0x1.fffffep127")),
}
SMALL = ("f8", "bf16", "f16")
FLOATS = (*SMALL, "f32", "f64")
#: Absolute and relative tolerance of sums and products of many elements.
TOLERANCES = {
    "f16": (0.6, 0.08),
    "bf16": (0.1, 0.02),
    "f8": (0.6, 0.25),
    "f32": (1e-4, 1e-4),
    "f64": (1e-7, 1e-7),
}


# -- element types ---------------------------------------------------------------------------------


def width(dtype):
    return 8 if dtype == "bitset" else int(dtype[1:])


def limits(dtype):
    if dtype == "bool":
        return 0, 1
    bits = width(dtype)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype[0] == "i" else (0, 2**bits - 1)


def wrap(value, dtype):
    low, high = limits(dtype)
    return (value - low) % (high - low + 1) + low


def round_float(value, dtype):
    """A float64 as the nearest number of a type: ties to even, of f8 away from zero."""
    if dtype == "f64" or math.isnan(value) or math.isinf(value) or value == 0:
        return value
    precision, least, high = _FORMATS[dtype]
    exponent = max(math.frexp(value)[1] - 1, least) - (precision - 1)
    units = abs(math.ldexp(value, -exponent))
    units = math.floor(units + 0.5) if dtype == "f8" else round(units)
    magnitude = units * 2.0**exponent
    return math.copysign(math.inf if magnitude > high else magnitude, value)


def as_stored(value, dtype):
    """What is computed, as the type stores it: a float, an int or a bool."""
    if dtype in FLOATS:
        return round_float(value if dtype == "f64" else round_float(value, "f32"), dtype)
    if dtype == "bool":
        return bool(value)
    return wrap(value, dtype)


def to_python(array, dtype):
    """The elements of an array in storage form as Python's numbers."""
    flat = array.reshape(-1).tolist()
    if dtype == "bf16":
        return [struct.unpack("<f", struct.pack("<I", bits << 16))[0] for bits in flat]
    if dtype == "f8":
        return [struct.unpack("<e", struct.pack("<H", bits << 8))[0] for bits in flat]
    return flat


# -- elementwise -----------------------------------------------------------------------------------


def _quotient(a, b, settings, dtype, rounded):
    if b == 0:
        mask = settings.get("div_by_zero_mask")
        if mask is not None:
            return mask
        return math.nan if dtype in FLOATS else 0
    if dtype not in FLOATS:
        return rounded(a, b)
    return a / b


def _trunc_div(a, b):
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def _rem(a, b):
    return 0 if b == 0 else a - b * _trunc_div(a, b)


def _product(a, b):
    return a * b


def _fma(a, b, c, dtype):
    product = a * b if dtype == "f64" else round_float(a * b, "f32")
    return product + c


def _relu(x, settings):
    slope = settings.get("alpha", 0)
    low = (0 if slope == 0 else slope * x) if x < 0 else x
    return _smaller(low, settings.get("clamp_max", math.inf))


def _smaller(a, b):
    return a if a != a or a < b else b


def _larger(a, b):
    return a if a != a or a > b else b


def _extreme(a, b, better):
    return math.nan if a != a or b != b else (a if better(a, b) else b)


def round_half_away(x):
    if math.isnan(x) or math.isinf(x):
        return x
    whole = int(x)
    return float(whole + (1 if x > 0 else -1)) if abs(x - whole) >= 0.5 else float(whole)


def _whole(function):
    return lambda x: x if math.isnan(x) or math.isinf(x) else float(function(x))


ROUND = {
    "floor": _whole(math.floor),
    "ceil": _whole(math.ceil),
    "trunc": _whole(math.trunc),
    "round": round_half_away,
    "nearest": round_half_away,
}


def _significant(x, bits):
    """An integer with so many leading bits, rounded to nearest even."""
    unit = 2 ** max(abs(x).bit_length() - bits, 0)
    whole, rest = divmod(x, unit)
    return (whole + (2 * rest > unit or (2 * rest == unit and whole % 2 == 1))) * unit


def _cast(x, dtype, settings):
    to = settings["to"]
    if to in FLOATS:
        return float(x) if to == "f64" or dtype in FLOATS else float(_significant(x, 24))
    if dtype not in FLOATS:
        return x
    low, high = limits(to)
    if math.isnan(x):
        return 0
    x = ROUND[settings.get("rounding_mode", "trunc")](x)
    if not settings.get("saturate", True):
        return 0 if math.isinf(x) else int(x)
    return low if x < low else high if x > high else int(x)


def _sign(x):
    return (x > 0) - (x < 0)


def element(op, dtype, settings, *values):
    """One element of an elementwise op, before it is rounded, or wrapped, to the result's type."""
    x = values[0]
    match op:
        case "add":
            return sum(values) if dtype != "bool" else values[0] or values[1]
        case "sub":
            return values[0] - values[1]
        case "mul":
            return _product(*values)
        case "div":
            return _quotient(*values, settings, dtype, _trunc_div)
        case "floor_div":
            return _quotient(*values, settings, dtype, lambda a, b: a // b)
        case "rem":
            return _rem(*values)
        case "fma":
            return _fma(*values, dtype)
        case "recip":
            return _quotient(1.0, x, settings, dtype, None)
        case "neg":
            return -x
        case "abs":
            return abs(x)
        case "relu":
            return _relu(x, settings)
        case "floor" | "ceil" | "trunc" | "round":
            return ROUND[op](x)
        case "clamp":
            low, high = settings.get("min", -math.inf), settings.get("max", math.inf)
            return _smaller(_larger(x, low), high)
        case "min":
            return _extreme(*values, lambda a, b: a < b)
        case "max":
            return _extreme(*values, lambda a, b: a > b)
        case "sign":
            return _sign(x)
        case "and" | "or" | "xor":
            bits = {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}[op]
            return bits(int(values[0]), int(values[1]))
        case "not":
            return not x if dtype == "bool" else -1 - x
        case "shl":
            return x * 2 ** settings["bits"]
        case "shr":
            return x // 2 ** settings["bits"]
        case "popcount":
            return format(x % 2 ** width(dtype), "b").count("1")
        case "eq":
            return values[0] == values[1]
        case "ne":
            return values[0] != values[1]
        case "lt":
            return values[0] < values[1]
        case "le":
            return values[0] <= values[1]
        case "gt":
            return values[0] > values[1]
        case "ge":
            return values[0] >= values[1]
        case "is_nan":
            return x != x
        case "is_inf":
            return x in (math.inf, -math.inf)
        case "is_neg":
            return x < 0
        case "filter":
            return values[0] if values[2] != 0 else values[1]
        case "cast":
            return _cast(x, dtype, settings)
        case "fill":
            return settings["value"]
    raise AssertionError(op)


# -- over axes -------------------------------------------------------------------------------------


def _total(values):
    if any(map(math.isnan, values)) or (math.inf in values and -math.inf in values):
        return math.nan
    infinite = [value for value in values if math.isinf(value)]
    return infinite[0] if infinite else math.fsum(values)


def _first(values, better):
    """Where the extreme is: a NaN if there is one."""
    best = 0
    for index, value in enumerate(values):
        held = values[best]
        if held == held and (value != value or better(value, held)):
            best = index
    return best


def _position(values, settings, better):
    if settings.get("select_first", True):
        return _first(values, better)
    return len(values) - 1 - _first(values[::-1], better)


def reduced(op, dtype, settings, values):
    """What a reduction makes of the elements that it meets, in their order."""
    is_float = dtype in FLOATS
    match op:
        case "sum_axis":
            return _total(values) if is_float else sum(values)
        case "mean_axis":
            if not values:
                return math.nan if is_float else 0
            if is_float:
                return _total(values) / len(values)
            return _trunc_div(sum(values), len(values))
        case "prod_axis":
            return math.prod(values)
        case "max_axis":
            return values[_first(values, lambda a, b: a > b)]
        case "min_axis":
            return values[_first(values, lambda a, b: a < b)]
        case "argmax_axis":
            return _position(values, settings, lambda a, b: a > b)
        case "argmin_axis":
            return _position(values, settings, lambda a, b: a < b)
        case "is_finite":
            return not any(x != x or x in (math.inf, -math.inf) for x in values)
    raise AssertionError(op)


def lines(array, axes):
    """The elements that a reduction over axes meets, for each element of its result in order."""
    kept = [range(1) if axis in axes else range(size) for axis, size in enumerate(array.shape)]
    over = [range(size) if axis in axes else range(1) for axis, size in enumerate(array.shape)]
    for base in itertools.product(*kept):
        yield [
            tuple(np.add(base, step).tolist()) if array.ndim else ()
            for step in itertools.product(*over)
        ]
