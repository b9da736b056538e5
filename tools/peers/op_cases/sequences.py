"""List recurrent layers, transforms and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import nn

from tools.peers.op_cases.case import (
    FLAT,
    SQUARES,
    Case,
    draw,
    drawn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator


def sequences() -> Iterator[Case]:
    """Yield recurrent layers, transforms and random numbers."""
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
