"""Hold calls of torch for every op of Taper, which :mod:`tools.peers.ops` times.

A case is a function of torch, or a module, at three sizes. Its plan has the op for which it is
listed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Size = tuple[int, ...]
    Call = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]


class Case(NamedTuple):
    """A call at three sizes.

    Attributes
    ----------
    op : str
        The op of Taper that its plan has; empty for a call of several ops.
    call : str
        What it computes, for the page.
    make : callable
        Of a size: the function and its inputs.
    sizes : tuple of tuple of int
    """

    op: str
    call: str
    make: Callable[..., Call]
    sizes: tuple[Size, ...]


DTYPES = {
    "float32": torch.float32,
    "float64": torch.float64,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
}

FLAT = ((50_000,), (250_000,), (1_000_000,))
SQUARES = ((128, 128), (384, 384), (1024, 1024))
STACKS = ((8, 32, 32), (16, 128, 64), (32, 197, 384))
IMAGES = ((1, 16, 28, 28), (1, 64, 56, 56), (4, 64, 112, 112))


def draw(size: Size, dtype: str = "float32") -> torch.Tensor:
    """Random numbers: normal floats, integers from -100 (unsigned: 0) to 99, bools."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return torch.rand(size) > 0.5
    if kind.is_floating_point:
        return torch.randn(size, dtype=kind)
    return torch.randint(0 if dtype == "uint8" else -100, 100, size, dtype=kind)


def positive(size: Size, dtype: str = "float32") -> torch.Tensor:
    """Numbers from 0.1 to 0.9, or integers from 1 to 9."""
    kind = DTYPES[dtype]
    if kind.is_floating_point:
        return torch.rand(size, dtype=kind) * 0.8 + 0.1
    return torch.randint(1, 10, size, dtype=kind)


def drawn(function: Callable[..., Any], *dtypes: str, by: Any = draw) -> Callable[..., Call]:
    """Return a maker: the function of an operand of each dtype, all of the case's size."""
    return lambda *size: (function, tuple(by(size, dtype) for dtype in dtypes))


def of_module(module: Callable[..., nn.Module], *rest: Any) -> Callable[..., Call]:
    """Return a maker: a module that is made for the size, on floats of that size."""
    return lambda *size: (module(*size).eval(), (draw(size),))


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


def products() -> Iterator[Case]:
    """Yield products of matrices, convolutions, attention."""
    cubes = ((64, 64, 64), (256, 256, 256), (512, 512, 512))
    rows = ((1, 64, 64), (1, 512, 512), (1, 1024, 1024))
    some = ((8, 64, 64), (8, 512, 512), (8, 1024, 1024))

    def matmul(m: int, k: int, n: int, dtype: str) -> Call:
        return torch.matmul, (draw((m, k), dtype), draw((k, n), dtype))

    for dtype in ("float32", "float64", "int64", "int32"):
        yield Case("MATMUL", dtype, partial(matmul, dtype=dtype), cubes)
        yield Case("MATMUL", f"{dtype}, one row", partial(matmul, dtype=dtype), rows)
    for dtype in ("int64", "int32"):
        yield Case("MATMUL", f"{dtype}, 8 rows", partial(matmul, dtype=dtype), some)
    yield Case(
        "MATMUL", "linear, float32", lambda m, k, n: (nn.Linear(k, n), (draw((m, k)),)), cubes
    )
    yield Case(
        "MATMUL", "linear, one row", lambda m, k, n: (nn.Linear(k, n), (draw((m, k)),)), rows
    )
    yield Case(
        "MATMUL",
        "batches of float32",
        lambda b, m, k: (torch.matmul, (draw((b, m, k)), draw((b, k, m)))),
        ((8, 32, 32), (12, 128, 64), (12, 512, 64)),
    )

    def conv(c: int, o: int, n: int, k: int = 3, dtype: str = "float32", **options: Any) -> Call:
        module = nn.Conv2d(c, o, k, padding=k // 2, **options).to(DTYPES[dtype])
        return module.eval(), (draw((1, c, n, n), dtype),)

    sizes = ((16, 16, 28), (64, 64, 56), (128, 128, 56))
    yield Case("CONV", "3x3, float32", conv, sizes)
    yield Case("", "convolution 1x1", partial(conv, k=1), sizes)
    yield Case(
        "CONV",
        "7x7, stride 2",
        partial(conv, k=7, stride=2),
        ((3, 16, 64), (3, 64, 224), (3, 64, 448)),
    )
    yield Case(
        "CONV",
        "depthwise 3x3",
        lambda c, o, n: conv(c, o, n, groups=c),
        ((16, 16, 28), (64, 64, 56), (128, 128, 112)),
    )
    yield Case("CONV", "3x3 in 4 groups", partial(conv, groups=4), sizes)
    yield Case("CONV", "3x3, float64", partial(conv, dtype="float64"), sizes)
    yield Case("", "convolution 1x1, float64", partial(conv, k=1, dtype="float64"), sizes)
    yield Case(
        "CONV",
        "depthwise 3x3, float64",
        lambda c, o, n: conv(c, o, n, groups=c, dtype="float64"),
        sizes,
    )
    yield Case(
        "CONV",
        "1 dim, 5 taps",
        lambda c, n: (nn.Conv1d(c, c, 5, padding=2), (draw((1, c, n)),)),
        ((16, 100), (64, 1000), (128, 4000)),
    )
    yield Case(
        "CONV",
        "3 dims, 3x3x3",
        lambda c, n: (nn.Conv3d(c, c, 3, padding=1), (draw((1, c, n, n, n)),)),
        ((4, 8), (16, 16), (32, 24)),
    )

    def conv_transpose(c: int, o: int, n: int, dtype: str = "float32") -> Call:
        return nn.ConvTranspose2d(c, o, 2, 2).to(DTYPES[dtype]).eval(), (draw((1, c, n, n), dtype),)

    yield Case(
        "CONV_TRANSPOSE",
        "2x2, stride 2",
        conv_transpose,
        ((16, 16, 14), (64, 32, 28), (128, 64, 56)),
    )
    yield Case(
        "CONV_TRANSPOSE",
        "2x2, float64",
        partial(conv_transpose, dtype="float64"),
        ((16, 16, 14), (64, 32, 28), (128, 64, 56)),
    )

    def attention(h: int, s: int, d: int, **options: Any) -> Call:
        return partial(F.scaled_dot_product_attention, **options), (
            draw((1, h, s, d)),
            draw((1, h, s, d)),
            draw((1, h, s, d)),
        )

    yield Case("ATTENTION", "all to all", attention, ((4, 32, 32), (12, 128, 64), (12, 512, 64)))
    yield Case(
        "ATTENTION",
        "causal",
        partial(attention, is_causal=True),
        ((4, 32, 32), (12, 128, 64), (12, 512, 64)),
    )
    yield Case(
        "ATTENTION",
        "one query",
        lambda h, s, d: (
            F.scaled_dot_product_attention,
            (draw((1, h, 1, d)), draw((1, h, s, d)), draw((1, h, s, d))),
        ),
        ((4, 64, 32), (12, 256, 64), (32, 1024, 64)),
    )


def moves() -> Iterator[Case]:
    """Yield copies, gathers and scatters."""
    cubes = ((16, 16, 16), (64, 64, 64), (128, 128, 64))
    for dtype in ("float32", "int64", "uint8"):
        yield Case(
            "TRANSPOSE",
            f"{dtype}, contiguous",
            drawn(lambda x: x.t().contiguous() + 0, dtype),
            SQUARES,
        )
        yield Case(
            "PERMUTE",
            f"{dtype}, (1, 2, 0)",
            drawn(lambda x: x.permute(1, 2, 0).contiguous(), dtype),
            cubes,
        )
        yield Case(
            "TRANSPOSE",
            f"{dtype}, (1, 0, 2)",
            drawn(lambda x: x.permute(1, 0, 2).contiguous(), dtype),
            cubes,
        )
        yield Case("CAT", f"{dtype}, dim 0", drawn(lambda *x: torch.cat(x), dtype, dtype), SQUARES)
        yield Case(
            "CAT", f"{dtype}, dim 1", drawn(lambda *x: torch.cat(x, 1), dtype, dtype), SQUARES
        )
        yield Case("FLIP", f"{dtype}, last dim", drawn(lambda x: x.flip(1), dtype), SQUARES)
        yield Case("FLIP", f"{dtype}, first dim", drawn(lambda x: x.flip(0), dtype), SQUARES)
        yield Case(
            "", f"roll both dims, {dtype}", drawn(lambda x: x.roll((3, 5), (0, 1)), dtype), SQUARES
        )
        yield Case("", f"roll flat, {dtype}", drawn(lambda x: x.roll(7), dtype), SQUARES)
        yield Case(
            "",
            f"roll a window, {dtype}",
            drawn(lambda x: x.roll((-3, -3), (0, 1)), dtype),
            ((14, 14, 96), (28, 28, 192), (56, 56, 96)),
        )
    yield Case(
        "SLICE", "every second column", drawn(lambda x: x[:, ::2].contiguous(), "float32"), SQUARES
    )
    yield Case(
        "SLICE", "a middle block", drawn(lambda x: x[4:-4, 4:-4].contiguous(), "float32"), SQUARES
    )
    yield Case(
        "EXPAND",
        "rows",
        lambda n, m: (lambda x: x.expand(n, m).contiguous(), (draw((1, m)),)),
        SQUARES,
    )
    yield Case(
        "EXPAND",
        "columns",
        lambda n, m: (lambda x: x.expand(n, m).contiguous(), (draw((n, 1)),)),
        SQUARES,
    )
    yield Case(
        "",
        "repeat_interleave(2, 1)",
        drawn(lambda x: x.repeat_interleave(2, 1), "float32"),
        SQUARES,
    )
    yield Case("", "repeat(2, 2)", drawn(lambda x: x.repeat(2, 2), "float32"), SQUARES)
    yield Case("", "tril", drawn(torch.tril, "float32"), SQUARES)
    yield Case(
        "",
        "unfold 3x3",
        lambda *s: (partial(F.unfold, kernel_size=3, padding=1), (draw(s),)),
        IMAGES,
    )
    yield Case(
        "",
        "fold 3x3",
        lambda b, c, h, w: (
            partial(F.fold, output_size=(h, w), kernel_size=3, padding=1),
            (draw((b, c * 9, h * w)),),
        ),
        IMAGES,
    )
    yield Case(
        "", "pixel_shuffle(2)", drawn(partial(F.pixel_shuffle, upscale_factor=2), "float32"), IMAGES
    )
    for mode in ("constant", "reflect", "replicate", "circular"):
        yield Case(
            "CAT" if mode == "constant" else "PAD",
            f"pad, {mode}",
            drawn(partial(F.pad, pad=(1, 1, 1, 1), mode=mode), "float32"),
            IMAGES,
        )
    yield Case(
        "PAD",
        "pad, reflect, 1 dim",
        drawn(partial(F.pad, pad=(200, 200), mode="reflect"), "float32"),
        ((1, 1, 4000), (1, 1, 16000), (1, 1, 160000)),
    )
    yield Case(
        "PAD",
        "pad, reflect, uint8",
        drawn(partial(F.pad, pad=(1, 1, 1, 1), mode="reflect"), "uint8"),
        IMAGES,
    )

    def index(n: int, count: int, dtype: str = "int64") -> torch.Tensor:
        return torch.randint(0, n, (count,), dtype=DTYPES[dtype])

    for dtype in ("float32", "int64", "uint8"):
        yield Case(
            "EMBEDDING",
            f"rows of {dtype}" if dtype != "float32" else "float32",
            lambda n, m, d=dtype: (F.embedding, (index(n, n), draw((n, m), d))),
            SQUARES,
        )
        yield Case(
            "INDEX_SELECT",
            f"{dtype}, dim 1",
            lambda n, m, d=dtype: (
                lambda x, i: x.index_select(1, i),
                (draw((n, m), d), index(m, m)),
            ),
            SQUARES,
        )
        yield Case(
            "INDEX_SELECT",
            f"{dtype}, middle of 3",
            lambda a, b, c, d=dtype: (
                lambda x, i: x.index_select(1, i),
                (draw((a, b, c), d), index(b, b)),
            ),
            STACKS,
        )
        for dim in (0, 1):
            yield Case(
                "GATHER",
                f"{dtype}, dim {dim}",
                lambda n, m, d=dtype, dim=dim: (
                    lambda x, i: x.gather(dim, i),
                    (draw((n, m), d), index(min(n, m), n * m).reshape(n, m)),
                ),
                SQUARES,
            )
        yield Case(
            "GATHER",
            f"{dtype}, middle of 3",
            lambda a, b, c, d=dtype: (
                lambda x, i: x.gather(1, i),
                (draw((a, b, c), d), index(b, a * b * c).reshape(a, b, c)),
            ),
            STACKS,
        )
        for dim in (0, 1):
            yield Case(
                "SCATTER",
                f"{dtype}, dim {dim}",
                lambda n, m, d=dtype, dim=dim: (
                    lambda x, i, v: x.scatter(dim, i, v),
                    (draw((n, m), d), index(min(n, m), n * m).reshape(n, m), draw((n, m), d)),
                ),
                SQUARES,
            )
            yield Case(
                "SCATTER",
                f"{dtype}, add, dim {dim}",
                lambda n, m, d=dtype, dim=dim: (
                    lambda x, i, v: x.scatter_add(dim, i, v),
                    (draw((n, m), d), index(min(n, m), n * m).reshape(n, m), draw((n, m), d)),
                ),
                SQUARES,
            )
    for cols in (1, 4, 64):
        yield Case(
            "SCATTER",
            f"index_add, {cols} columns",
            lambda n, r, c=cols: (
                lambda x, i, v: x.index_add(0, i, v),
                (draw((n, c)), index(n, r), draw((r, c))),
            ),
            ((100, 1000), (1000, 10_000), (10_000, 100_000)),
        )
        yield Case(
            "SCATTER",
            f"scatter_reduce amax, {cols} columns",
            lambda n, r, c=cols: (
                lambda x, i, v: x.scatter_reduce(0, i, v, "amax"),
                (draw((n, c)), index(n, r)[:, None].expand(r, c).contiguous(), draw((r, c))),
            ),
            ((100, 1000), (1000, 10_000), (10_000, 100_000)),
        )
    yield Case(
        "WRITE",
        "x[i] = v, 64 columns",
        lambda n, r: (
            lambda x, i, v: x.index_put((i,), v),
            (draw((n, 64)), torch.randperm(n)[:r], draw((r, 64))),
        ),
        ((100, 50), (1000, 500), (10_000, 5000)),
    )
    yield Case(
        "",
        "masked_fill",
        lambda *s: (lambda x, m: x.masked_fill(m, -1.0), (draw(s), draw(s, "bool"))),
        SQUARES,
    )
    yield Case(
        "EMBEDDING_BAG",
        "sum of 10",
        lambda n, b: (
            partial(F.embedding_bag, mode="sum"),
            (index(n, b * 10).reshape(b, 10), draw((n, 64))),
        ),
        ((1000, 16), (10_000, 128), (100_000, 1024)),
    )
    yield Case(
        "",
        "one_hot",
        lambda n, c: (partial(F.one_hot, num_classes=c), (index(c, n),)),
        ((64, 10), (256, 100), (1024, 1000)),
    )
    yield Case(
        "",
        "bincount",
        lambda n, c: (partial(torch.bincount, minlength=c), (index(c, n),)),
        ((1000, 10), (10_000, 100), (262_144, 1000)),
    )
    yield Case(
        "",
        "histc",
        lambda n: (partial(torch.histc, bins=100, min=-3, max=3), (draw((n,)),)),
        ((1000,), (10_000,), (262_144,)),
    )
    yield Case("NONZERO", "bool", drawn(torch.nonzero, "bool"), SQUARES)
    yield Case(
        "NONZERO", "x[mask]", lambda *s: (lambda x, m: x[m], (draw(s), draw(s, "bool"))), SQUARES
    )
    yield Case(
        "SEARCHSORTED",
        "float32",
        lambda n, m: (torch.searchsorted, (draw((n,)).sort().values, draw((m,)))),
        ((64, 1000), (1000, 10_000), (1000, 262_144)),
    )
    yield Case(
        "",
        "bucketize",
        lambda n, m: (lambda x, b: torch.bucketize(x, b), (draw((m,)), draw((n,)).sort().values)),
        ((64, 1000), (1000, 10_000), (1000, 262_144)),
    )
    for dtype in ("float32", "int64", "uint8"):
        yield Case("ARGSORT", f"sort, {dtype}", drawn(lambda x: x.sort(-1), dtype), SQUARES)
        yield Case("ARGSORT", f"sort dim 0, {dtype}", drawn(lambda x: x.sort(0), dtype), SQUARES)
    yield Case("ARGSORT", "argsort, one row", drawn(lambda x: x.argsort(-1), "float32"), FLAT)
    yield Case("ARGSORT", "topk(10)", drawn(lambda x: x.topk(10), "float32"), SQUARES)
    yield Case(
        "ARGSORT",
        "topk(50) of one row",
        drawn(lambda x: x.topk(50), "float32"),
        ((1, 1000), (1, 50_000), (1, 250_000)),
    )
    yield Case("ARGSORT", "median", drawn(lambda x: x.median(-1), "float32"), SQUARES)
    yield Case("ARGSORT", "kthvalue(3)", drawn(lambda x: x.kthvalue(3), "float32"), SQUARES)
    yield Case(
        "",
        "x + arange(n)",
        lambda n: (lambda x: torch.arange(x.shape[0]) + x, (draw((n,), "int64"),)),
        FLAT,
    )


def folds() -> Iterator[Case]:
    """Yield reductions, scans, norms, pools, recurrent layers, transforms."""
    reductions: dict[str, Callable[..., Any]] = {
        "SUM": torch.sum,
        "MEAN": torch.mean,
        "PROD": torch.prod,
        "AMAX": torch.amax,
        "AMIN": torch.amin,
        "ARGMAX": torch.argmax,
        "ARGMIN": torch.argmin,
        "VAR": torch.var,
    }
    for op, function in reductions.items():
        dtypes = ["float32"] if op in ("MEAN", "VAR") else ["float32", "int64", "uint8"]
        for dtype in dtypes:
            for dim in (1, 0):
                yield Case(
                    op, f"{dtype}, dim {dim}", drawn(partial(function, dim=dim), dtype), SQUARES
                )
        yield Case(op, "float32, middle of 3", drawn(partial(function, dim=1), "float32"), STACKS)
    for op in ("SUM", "MEAN", "AMAX"):
        yield Case(
            op,
            "float32, all",
            drawn(lambda x, f=reductions[op]: f(x, dim=(0, 1)), "float32"),
            SQUARES,
        )
        yield Case(op, "images", drawn(partial(reductions[op], dim=(2, 3)), "float32"), IMAGES)
    for op, function in (("ANY", torch.any), ("ALL", torch.all)):
        for dim in (1, 0):
            yield Case(op, f"bool, dim {dim}", drawn(partial(function, dim=dim), "bool"), SQUARES)
    yield Case("", "max with places", drawn(lambda x: x.max(1), "float32"), SQUARES)
    yield Case("", "norm", drawn(lambda x: torch.linalg.vector_norm(x, dim=1), "float32"), SQUARES)
    yield Case("", "logsumexp", drawn(lambda x: x.logsumexp(1), "float32"), SQUARES)
    for op, function in (
        ("CUMSUM", torch.cumsum),
        ("CUMPROD", torch.cumprod),
        ("LOGCUMSUMEXP", torch.logcumsumexp),
        ("CUMMAX", torch.cummax),
        ("CUMMIN", torch.cummin),
    ):
        dtypes = ["float32"] if op == "LOGCUMSUMEXP" else ["float32", "int64"]
        for dtype in dtypes:
            for dim in (1, 0):
                yield Case(
                    op, f"{dtype}, dim {dim}", drawn(partial(function, dim=dim), dtype), SQUARES
                )
    yield Case("CUMSUM", "one row", drawn(partial(torch.cumsum, dim=0), "float32"), FLAT)
    yield Case("CUMSUM", "bool to int64", drawn(partial(torch.cumsum, dim=1), "bool"), SQUARES)
    for dim in (-1, 0):
        yield Case("SOFTMAX", f"dim {dim}", drawn(partial(F.softmax, dim=dim), "float32"), SQUARES)
    yield Case("", "log_softmax", drawn(partial(F.log_softmax, dim=-1), "float32"), SQUARES)
    yield Case("LAYER_NORM", "float32", of_module(lambda n, m: nn.LayerNorm(m)), SQUARES)
    yield Case("RMS_NORM", "float32", of_module(lambda n, m: nn.RMSNorm(m)), SQUARES)
    yield Case("", "group_norm(4)", of_module(lambda b, c, h, w: nn.GroupNorm(4, c)), IMAGES)
    yield Case("", "instance_norm", of_module(lambda b, c, h, w: nn.InstanceNorm2d(c)), IMAGES)
    yield Case("", "batch_norm", of_module(lambda b, c, h, w: nn.BatchNorm2d(c)), IMAGES)
    yield Case("", "normalize", drawn(F.normalize, "float32"), SQUARES)
    yield Case(
        "MAX_POOL",
        "3x3, stride 2",
        drawn(partial(F.max_pool2d, kernel_size=3, stride=2, padding=1), "float32"),
        IMAGES,
    )
    yield Case("MAX_POOL", "2x2", drawn(partial(F.max_pool2d, kernel_size=2), "float32"), IMAGES)
    yield Case(
        "MAX_POOL", "2x2, float64", drawn(partial(F.max_pool2d, kernel_size=2), "float64"), IMAGES
    )
    yield Case(
        "ARGMAX_POOL",
        "2x2 with places",
        drawn(partial(F.max_pool2d, kernel_size=2, return_indices=True), "float32"),
        IMAGES,
    )
    yield Case(
        "ARGMAX_POOL",
        "3x3, stride 2, with places",
        drawn(
            partial(F.max_pool2d, kernel_size=3, stride=2, padding=1, return_indices=True),
            "float32",
        ),
        IMAGES,
    )
    yield Case(
        "ARGMAX_POOL",
        "max_pool1d with places",
        drawn(partial(F.max_pool1d, kernel_size=2, return_indices=True), "float32"),
        ((1, 16, 784), (1, 64, 3136), (4, 64, 12544)),
    )
    yield Case(
        "",
        "adaptive max 7x7 with places",
        drawn(partial(F.adaptive_max_pool2d, output_size=7, return_indices=True), "float32"),
        IMAGES,
    )
    yield Case(
        "AVG_POOL",
        "3x3, stride 2",
        drawn(partial(F.avg_pool2d, kernel_size=3, stride=2, padding=1), "float32"),
        IMAGES,
    )
    yield Case("AVG_POOL", "2x2", drawn(partial(F.avg_pool2d, kernel_size=2), "float32"), IMAGES)
    yield Case(
        "ADAPTIVE_AVG_POOL",
        "5x5",
        drawn(partial(F.adaptive_avg_pool2d, output_size=5), "float32"),
        IMAGES,
    )
    yield Case(
        "ADAPTIVE_MAX_POOL",
        "5x5",
        drawn(partial(F.adaptive_max_pool2d, output_size=5), "float32"),
        IMAGES,
    )
    for name in ("nearest", "bilinear", "bicubic"):
        yield Case(
            "RESAMPLE",
            f"{name}, x2",
            drawn(partial(F.interpolate, scale_factor=2, mode=name), "float32"),
            IMAGES,
        )
    yield Case(
        "GRID_SAMPLE",
        "grid_sample",
        lambda b, c, h, w: (
            partial(F.grid_sample, align_corners=False),
            (draw((b, c, h, w)), torch.rand(b, h, w, 2) * 2 - 1),
        ),
        IMAGES,
    )
    for kind in ("LSTM", "GRU", "RNN"):
        layer = getattr(nn, kind)
        yield Case(
            kind,
            "a batch of 8",
            lambda b, s, n, layer=layer: (layer(n, n, batch_first=True), (draw((b, s, n)),)),
            ((8, 10, 32), (8, 50, 128), (8, 50, 256)),
        )
        yield Case(
            kind,
            "one sequence",
            lambda s, n, layer=layer: (layer(n, n), (draw((s, 1, n)),)),
            ((50, 64), (100, 150), (100, 512)),
        )
        yield Case(
            kind,
            "one step",
            lambda s, n, layer=layer: (layer(n, n), (draw((s, 1, n)),)),
            ((1, 64), (1, 150), (1, 512)),
        )
    yield Case(
        "LSTM",
        "2 layers of 150, one sequence",
        lambda s: (nn.LSTM(150, 150, 2, batch_first=True), (draw((1, s, 150)),)),
        ((1,), (50,), (500,)),
    )
    yield Case(
        "FFT",
        "complex",
        lambda n, m: (
            lambda x: torch.view_as_real(torch.fft.fft(torch.view_as_complex(x))),
            (draw((n, m, 2)),),
        ),
        SQUARES,
    )
    yield Case(
        "RFFT",
        "float32",
        drawn(lambda x: torch.view_as_real(torch.fft.rfft(x)), "float32"),
        SQUARES,
    )
    yield Case(
        "IRFFT",
        "float32",
        lambda n, m: (
            lambda x: torch.fft.irfft(torch.view_as_complex(x)),
            (draw((n, m // 2 + 1, 2)),),
        ),
        SQUARES,
    )
    yield Case(
        "",
        "stft",
        lambda n: (
            lambda x: torch.view_as_real(
                torch.stft(x, 400, 160, window=torch.hann_window(400), return_complex=True)
            ),
            (draw((n,)),),
        ),
        ((4000,), (16_000,), (160_000,)),
    )
    yield Case(
        "",
        "view_as_complex product",
        lambda *s: (
            lambda a, b: torch.view_as_real(torch.view_as_complex(a) * torch.view_as_complex(b)),
            (draw((*s, 2)), draw((*s, 2))),
        ),
        SQUARES,
    )
    yield Case("RANDOM", "rand", lambda *s: (lambda x: torch.rand_like(x), (draw(s),)), FLAT)
    yield Case("RANDOM", "randn", lambda *s: (lambda x: torch.randn_like(x), (draw(s),)), FLAT)


def solvers() -> Iterator[Case]:
    """Yield linear algebra, which LAPACK computes on both sides."""

    def well(*size: int) -> torch.Tensor:
        n = size[-1]
        x = torch.randn(size)
        return x @ x.mT / n + torch.eye(n)

    batches = ((1, 16, 16), (64, 8, 8), (1, 256, 256))
    small = ((1, 4, 4), (256, 3, 3), (1024, 4, 4))
    for sizes, words in ((batches, ""), (small, ", small ones")):
        yield Case("INVERSE", f"inv{words}", lambda *s: (torch.linalg.inv, (well(*s),)), sizes)
        yield Case(
            "SOLVE", f"solve{words}", lambda *s: (torch.linalg.solve, (well(*s), draw(s))), sizes
        )
        yield Case(
            "SOLVE",
            f"solve, one column{words}",
            lambda *s: (torch.linalg.solve, (well(*s), draw((*s[:-1], 1)))),
            sizes,
        )
        yield Case(
            "CHOLESKY", f"cholesky{words}", lambda *s: (torch.linalg.cholesky, (well(*s),)), sizes
        )
        yield Case(
            "SOLVE_TRIANGULAR",
            f"solve_triangular{words}",
            lambda *s: (
                partial(torch.linalg.solve_triangular, upper=False),
                (torch.linalg.cholesky(well(*s)), draw(s)),
            ),
            sizes,
        )
        yield Case("DET", f"det{words}", lambda *s: (torch.linalg.det, (well(*s),)), sizes)
        yield Case(
            "SLOGDET", f"slogdet{words}", lambda *s: (torch.linalg.slogdet, (well(*s),)), sizes
        )
        yield Case("QR", f"qr{words}", lambda *s: (torch.linalg.qr, (draw(s),)), sizes)
        yield Case("SVD", f"svd{words}", lambda *s: (torch.linalg.svdvals, (draw(s),)), sizes)
        yield Case("EIGH", f"eigh{words}", lambda *s: (torch.linalg.eigvalsh, (well(*s),)), sizes)
        yield Case(
            "LU",
            f"lu{words}",
            lambda *s: (lambda x: torch.linalg.lu_factor(x)[0], (well(*s),)),
            sizes,
        )
        yield Case(
            "MATRIX_EXP",
            f"matrix_exp{words}",
            lambda *s: (torch.linalg.matrix_exp, (well(*s),)),
            sizes,
        )


def cases() -> tuple[Case, ...]:
    """Return all cases, in the order of the page."""
    return (*elementwise(), *products(), *moves(), *folds(), *solvers())


#: Ops without a case, and why.
NOT_TIMED = {
    "RESHAPE": "moves nothing",
    "COPY": "is a part of others",
    "PACK": "runs when a model is exported or opened",
    "UNPACK": "runs when weights are read",
    "ARANGE": "takes no input, so an export computes it; beside an addition above",
    "RANDOM_NEXT": "is a part of RANDOM",
    "NMS": "is torchvision's",
    **dict.fromkeys(("QUANTIZE", "DEQUANTIZE"), "a part of products, or elementwise ops"),
    "GROUPED_MATMUL": "torch has it in bfloat16 alone",
    "COMPLEX_MUL": "above as a product of complex numbers",
    "CHOLESKY_INFO": "as CHOLESKY",
    **dict.fromkeys(("CUMARGMAX", "CUMARGMIN"), "with CUMMAX and CUMMIN above"),
    **dict.fromkeys(("IF", "WHILE", "SCAN"), "runs blocks, whose ops are above"),
    **dict.fromkeys(("CALL", "CALL_DELEGATE"), "runs other people's code"),
    **dict.fromkeys(
        (
            *("COMPLEX_INVERSE", "COMPLEX_SOLVE", "COMPLEX_SOLVE_TRIANGULAR", "COMPLEX_CHOLESKY"),
            *("COMPLEX_CHOLESKY_INFO", "COMPLEX_DET", "COMPLEX_SLOGDET", "COMPLEX_QR"),
            *("COMPLEX_SVD", "COMPLEX_EIGH", "COMPLEX_LU", "COMPLEX_MATRIX_EXP", "EIG"),
            *("COMPLEX_EIG", "COMPLEX_PROD", "COMPLEX_CUMPROD", "COMPLEX_LOGCUMSUMEXP"),
        ),
        "computed by numpy; no model of the zoo has it",
    ),
}

_DOUBLES = "in doubles, exact to the last place: half as many in a vector"
_LIBM = "through the C library, one element at a time; no model of the zoo has it"
_NUMPY = "computed by numpy; no model of the zoo has it"
_LAPACK = "LAPACK of numpy: a call takes tens of microseconds, and its OpenBLAS is not torch's MKL"

_BLAS = "BLAS of numpy, and windows that numpy copies; no model of the zoo has it"

#: Regular expressions of op and call, and why such a case may be slower than torch.
REASONS = {
    r"^(TAN|ASIN|ACOS|ATAN|SINH|COSH|ASINH|ACOSH|ATANH|ATAN2|POW) ": _DOUBLES,
    r"^(ERFC|ERFCX) ": _LIBM,
    r"^(ERFINV|LGAMMA|DIGAMMA|I0|HYPOT|NEXTAFTER|ARG\w+ uint8) ?": _NUMPY,
    r"^AM(AX|IN) uint8": "loads and stores each result for every four rows",
    r"^(PROD|SUM|VAR) uint8": _NUMPY,
    r"^(INVERSE|SOLVE|CHOLESKY|SOLVE_TRIANGULAR|DET|SLOGDET|QR|SVD|EIGH|MATRIX_EXP) ": _LAPACK,
    r"^LU ": "numpy has no LU: a loop over columns in numpy; no model of the zoo has it",
    r"^(MATMUL|CONV|CONV_TRANSPOSE| convolution.*) .*float64": _BLAS,
    r"^FMOD|^REMAINDER|^FLOOR_DIV": "exact, by quotients of doubles: half as many in a vector",
    r"^CAST .*float16|^CAST .*bfloat16": "plain loops, without the CPU's own conversion",
    r"^CAST ": "plain loops; NaN and numbers out of range have one result on all CPUs",
    r"^CAT pad,": "a copy for each padded dim, where torch makes one",
    r"^CUM(MAX|MIN) ": "two passes: values and places are ops of their own",
    r"^ bincount": "its result's size depends on data, so its plan has two segments",
    r"^MAP clamp|^MAP .*uint8": "tiles of 512 elements, which are small of bytes",
    r"^(INDEX_SELECT|SCATTER|WRITE|EMBEDDING)": "each position is checked before it is used",
}
