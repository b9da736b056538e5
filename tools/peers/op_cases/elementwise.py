"""List calls of one element at a time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F

from tools.peers.op_cases.case import (
    DTYPES,
    FLAT,
    SQUARES,
    Case,
    draw,
    drawn,
    positive,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


UNARY: dict[str, Callable[..., Any]] = {
    "NEG": torch.neg,
    "ABS": torch.abs,
    "SIGN": torch.sign,
    "CEIL": torch.ceil,
    "FLOOR": torch.floor,
    "ROUND": torch.round,
    "TRUNC": torch.trunc,
    "SQRT": torch.sqrt,
    "RSQRT": torch.rsqrt,
    "RECIPROCAL": torch.reciprocal,
    "EXP": torch.exp,
    "EXPM1": torch.expm1,
    "LOG": torch.log,
    "LOG2": torch.log2,
    "LOG10": torch.log10,
    "LOG1P": torch.log1p,
    "SIN": torch.sin,
    "COS": torch.cos,
    "TAN": torch.tan,
    "ASIN": torch.asin,
    "ACOS": torch.acos,
    "ATAN": torch.atan,
    "SINH": torch.sinh,
    "COSH": torch.cosh,
    "TANH": torch.tanh,
    "ASINH": torch.asinh,
    "ACOSH": lambda x: torch.acosh(x + 1),
    "ATANH": torch.atanh,
    "ERF": torch.erf,
    "ERFC": torch.erfc,
    "ERFCX": torch.special.erfcx,
    "SIGMOID": torch.sigmoid,
    "RELU": torch.relu,
    "GELU": F.gelu,
    "GELU_TANH": partial(F.gelu, approximate="tanh"),
    "SILU": F.silu,
    "HARDSWISH": F.hardswish,
    "HARDSIGMOID": F.hardsigmoid,
    "MISH": F.mish,
    "SOFTPLUS": F.softplus,
    "ISNAN": torch.isnan,
    "ISINF": torch.isinf,
    "SQUARE": torch.square,
    "ERFINV": torch.erfinv,
    "LGAMMA": torch.lgamma,
    "DIGAMMA": torch.digamma,
    "I0": torch.special.i0,
    "LEAKY_RELU": F.leaky_relu,
    "ELU": F.elu,
}
IN_FLOAT64 = ("NEG", "EXP", "LOG", "SQRT", "TANH", "SIN")
IN_INTEGERS = ("NEG", "ABS", "SIGN", "SQUARE", "RELU")

BINARY: dict[str, Callable[..., Any]] = {
    "ADD": torch.add,
    "SUB": torch.sub,
    "MUL": torch.mul,
    "DIV": torch.div,
    "FLOOR_DIV": torch.floor_divide,
    "TRUNC_DIV": partial(torch.div, rounding_mode="trunc"),
    "REMAINDER": torch.remainder,
    "FMOD": torch.fmod,
    "POW": torch.pow,
    "MAXIMUM": torch.maximum,
    "MINIMUM": torch.minimum,
    "ATAN2": torch.atan2,
    "HYPOT": torch.hypot,
    "NEXTAFTER": torch.nextafter,
    "EQ": torch.eq,
    "NE": torch.ne,
    "LT": torch.lt,
    "LE": torch.le,
    "GT": torch.gt,
    "GE": torch.ge,
    "LOGICAL_AND": torch.logical_and,
    "LOGICAL_OR": torch.logical_or,
    "LOGICAL_XOR": torch.logical_xor,
    "BITWISE_AND": torch.bitwise_and,
    "BITWISE_OR": torch.bitwise_or,
    "BITWISE_XOR": torch.bitwise_xor,
    "LEFT_SHIFT": torch.bitwise_left_shift,
    "RIGHT_SHIFT": torch.bitwise_right_shift,
    "GCD": torch.gcd,
}
OF_FLOATS_ONLY = ("DIV", "ATAN2", "HYPOT", "NEXTAFTER")
OF_INTEGERS_ONLY = ("BITWISE_AND", "BITWISE_OR", "BITWISE_XOR", "LEFT_SHIFT", "RIGHT_SHIFT", "GCD")
INTEGERS = ("int64", "int32", "int8", "uint8")
#: Binary ops that are timed for all integers; others for int64 alone.
FOR_EACH_INTEGER = (
    "ADD",
    "SUB",
    "MUL",
    "MAXIMUM",
    "MINIMUM",
    "FLOOR_DIV",
    "REMAINDER",
    "LT",
    "EQ",
    "BITWISE_AND",
    "LEFT_SHIFT",
    "RIGHT_SHIFT",
)


def elementwise() -> Iterator[Case]:
    """Yield a case for each op and dtype."""
    for op, function in UNARY.items():
        signed = ("NEG", "ABS", "SIGN", "RELU", "SQUARE")
        by = draw if op in (*signed, "ELU", "LEAKY_RELU") else positive
        dtypes = ["float32"] + ["float64"] * (op in IN_FLOAT64)
        dtypes += list(INTEGERS) * (op in IN_INTEGERS)
        for dtype in dtypes:
            yield Case(op, dtype, drawn(function, dtype, by=by), FLAT)
    for dtype in ("int64", "uint8", "bool"):
        if dtype != "bool":
            yield Case("BITWISE_NOT", dtype, drawn(torch.bitwise_not, dtype), FLAT)
        yield Case("LOGICAL_NOT", dtype, drawn(torch.logical_not, dtype), FLAT)
    for op, function in BINARY.items():
        dtypes = [] if op in OF_INTEGERS_ONLY else ["float32"]
        if op not in OF_FLOATS_ONLY:
            dtypes += INTEGERS if op in FOR_EACH_INTEGER else ["int64"]
        if op in ("ADD", "MUL", "DIV", "MAXIMUM", "LT"):
            dtypes.append("float64")
        for dtype in dtypes:
            yield Case(op, dtype, drawn(function, dtype, dtype, by=positive), FLAT)
    for op in ("LOGICAL_AND", "LOGICAL_OR", "EQ", "BITWISE_AND"):
        yield Case(op, "bool", drawn(BINARY[op], "bool", "bool"), FLAT)
    for dtype in ("float32", "int64", "uint8", "bool"):
        yield Case("WHERE", dtype, drawn(torch.where, "bool", dtype, dtype), FLAT)
    for dtype in ("float32", "int64", "int8", "uint8"):
        yield Case(
            "ADD",
            f"{dtype}, a row to each",
            lambda *s, d=dtype: (torch.add, (draw(s, d), draw(s[1:], d))),
            SQUARES,
        )
        yield Case("MUL", f"{dtype} by a number", drawn(lambda x: x * 3, dtype), FLAT)
        yield Case("GT", f"{dtype}, a number", drawn(lambda x: x > 3, dtype), FLAT)
    yield Case(
        "MAP",
        "(a * b + c).relu(), float32",
        drawn(lambda a, b, c: (a * b + c).relu(), *("float32",) * 3),
        FLAT,
    )
    yield Case(
        "MAP", "(a + b) * c, uint8", drawn(lambda a, b, c: (a + b) * c, *("uint8",) * 3), FLAT
    )
    yield Case("MAP", "clamp(0, 50), int8", drawn(lambda x: x.clamp(0, 50), "int8"), FLAT)
    wide = ("float64", "int64", "int32", "int8", "uint8", "bool")
    pairs = [pair for other in wide for pair in (("float32", other), (other, "float32"))]
    for source, to in (*pairs, ("int64", "int32"), ("int32", "int64"), ("bool", "int64")):
        if source != to:
            yield Case(
                "CAST",
                f"{source} to {to}",
                drawn(
                    lambda x, to=to: x.to(DTYPES[to]),
                    source,
                    by=positive if source != "bool" else draw,
                ),
                FLAT,
            )
    for source in ("float16", "bfloat16"):
        kind = getattr(torch, source)
        yield Case(
            "CAST",
            f"{source} to float32",
            lambda *s, k=kind: (lambda x: x.float(), (draw(s).to(k),)),
            FLAT,
        )
        yield Case(
            "CAST", f"float32 to {source}", lambda *s, k=kind: (lambda x: x.to(k), (draw(s),)), FLAT
        )
