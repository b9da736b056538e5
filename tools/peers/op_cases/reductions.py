"""List reductions, scans and norms."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import nn

from tools.peers.op_cases.case import (
    FLAT,
    IMAGES,
    SQUARES,
    STACKS,
    Case,
    drawn,
    of_module,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def reductions() -> Iterator[Case]:
    """Yield reductions, scans and norms."""
    functions: dict[str, Callable[..., Any]] = {
        "SUM": torch.sum,
        "MEAN": torch.mean,
        "PROD": torch.prod,
        "AMAX": torch.amax,
        "AMIN": torch.amin,
        "ARGMAX": torch.argmax,
        "ARGMIN": torch.argmin,
        "VAR": torch.var,
    }
    for op, function in functions.items():
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
            drawn(lambda x, f=functions[op]: f(x, dim=(0, 1)), "float32"),
            SQUARES,
        )
        yield Case(op, "images", drawn(partial(functions[op], dim=(2, 3)), "float32"), IMAGES)
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
