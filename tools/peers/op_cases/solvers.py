"""List linear algebra."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from tools.peers.op_cases.case import (
    Case,
    draw,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


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
