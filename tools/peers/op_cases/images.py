"""List pools and resizing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from tools.peers.op_cases.case import (
    IMAGES,
    Case,
    draw,
    drawn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def images() -> Iterator[Case]:
    """Yield pools and resizing."""
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
