"""List copies: transposes, concatenations, padding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from tools.peers.op_cases.case import (
    IMAGES,
    SQUARES,
    Case,
    draw,
    drawn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def copies() -> Iterator[Case]:
    """Yield copies."""
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
