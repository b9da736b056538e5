"""Layers of torch.nn that are whole models to many."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from tools.zoo.architecture import Architecture, Inputs

WIDTH = 32


def _sequences(*names: str, **widths: int) -> Inputs:
    """Inputs of these names, each two sequences of vectors; some of them of another width."""
    every = {**dict.fromkeys(names, WIDTH), **widths}
    return lambda module: {name: torch.randn(2, 12, width) for name, width in every.items()}


def _encoder(**options: bool | str) -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True, **options)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def _decoder() -> nn.Module:
    layer = nn.TransformerDecoderLayer(WIDTH, 4, 2 * WIDTH, batch_first=True)
    return nn.TransformerDecoder(layer, 2)


def _recurrent(kind: type[nn.RNNBase], **options: bool | int) -> Architecture:
    make = partial(kind, WIDTH, 24, batch_first=True, **options)
    return Architecture(make, _sequences("input"))


LAYERS = {
    "nn.RNN": _recurrent(nn.RNN),
    "nn.LSTM": _recurrent(nn.LSTM),
    "nn.LSTM, two layers, both directions": _recurrent(nn.LSTM, num_layers=2, bidirectional=True),
    "nn.LSTM, projected": _recurrent(nn.LSTM, proj_size=8),
    "nn.GRU": _recurrent(nn.GRU),
    "nn.GRU, two layers, both directions": _recurrent(nn.GRU, num_layers=2, bidirectional=True),
    "nn.MultiheadAttention": Architecture(
        partial(nn.MultiheadAttention, WIDTH, 4, batch_first=True),
        _sequences("query", "key", "value"),
    ),
    "nn.MultiheadAttention, of three widths": Architecture(
        partial(nn.MultiheadAttention, WIDTH, 4, kdim=24, vdim=16, batch_first=True),
        _sequences("query", key=24, value=16),
    ),
    "nn.TransformerEncoder": Architecture(_encoder, _sequences("src")),
    "nn.TransformerEncoder, norms first, GELU": Architecture(
        partial(_encoder, norm_first=True, activation="gelu"), _sequences("src")
    ),
    "nn.TransformerDecoder": Architecture(_decoder, _sequences("tgt", "memory")),
    "nn.Transformer": Architecture(
        partial(nn.Transformer, WIDTH, 4, 2, 2, 2 * WIDTH, batch_first=True),
        _sequences("src", "tgt"),
    ),
}
