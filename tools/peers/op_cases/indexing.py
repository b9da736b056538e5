"""List gathers, scatters, searches and sorts."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from tools.peers.op_cases.case import (
    DTYPES,
    FLAT,
    SQUARES,
    STACKS,
    Case,
    draw,
    drawn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def indexing() -> Iterator[Case]:
    """Yield gathers, scatters, searches and sorts."""

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
