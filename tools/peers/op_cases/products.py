"""List products, convolutions and attention."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from tools.peers.op_cases.case import (
    DTYPES,
    Case,
    draw,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tools.peers.op_cases.case import Call


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
