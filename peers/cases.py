"""The models that are timed, in sets."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import classifiers
from models import (
    BLOCK_SIZES,
    LINEAR_SIZES,
    MINILM_SIZES,
    MLP_SIZES,
    block,
    crnn,
    gpt2,
    linear,
    minilm,
    mlp,
    recurrent,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    Case = Callable[[], tuple[torch.nn.Module, tuple[Any, ...]]]

VISION = {
    "ResNet-50": classifiers.resnet50,
    "MobileNetV2": classifiers.mobilenet_v2,
    "MobileNetV3-Large": classifiers.mobilenet_v3_large,
    "EfficientNet-B0": classifiers.efficientnet_b0,
    "ConvNeXt-T": classifiers.convnext_tiny,
    "ViT-S/16": classifiers.vit_small,
    "Swin-T": classifiers.swin_tiny,
}
RECURRENT = {
    "LSTM x3": partial(recurrent, "LSTM", num_layers=3),
    "GRU x3": partial(recurrent, "GRU", num_layers=3),
    "LSTM x2, both ways": partial(recurrent, "LSTM", num_layers=2, bidirectional=True),
}
#: Set -> model -> a function that makes the module and its arguments.
SETS: dict[str, dict[str, Case]] = {
    "gemm": {f"GEMM {m}x{k}x{n}": partial(linear, m, k, n) for m, k, n in LINEAR_SIZES},
    "mlp": {f"MLP {b}x{w}": partial(mlp, b, w) for b, w in MLP_SIZES},
    "block": {f"block {b}x{s}x{w}": partial(block, b, s, w) for b, s, w in BLOCK_SIZES},
    "minilm": {f"MiniLM {b}x{s}": partial(minilm, b, s) for b, s in MINILM_SIZES},
    "gpt2": {"GPT-2 1x64": partial(gpt2, 1, 64)},
    "vision": {f"{name} 1x224": partial(make, 1) for name, make in VISION.items()},
    "vision8": {f"{name} 8x224": partial(make, 8) for name, make in VISION.items()},
    "recurrent": {
        f"{name} {b}x160": partial(make, b) for name, make in RECURRENT.items() for b in (1, 8)
    }
    | {"CRNN 1x256": partial(crnn, 1, 256)},
    "others": {
        f"{name} 1x{side}": partial(classifiers.other, name, 1)
        for name, side in classifiers.OTHERS.items()
    },
}
