"""List the models that are timed, in sets."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves

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
from tools.zoo.newcomers import NEWCOMERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.zoo.architecture import Architecture

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
#: Drawn before any of them was timed; issue 13 asks for 40.
DRAWN = random.Random(13).sample(list(NEWCOMERS), 40)


class Positional(torch.nn.Module):
    """A module called without names, as every engine can: with its inputs in order, for tensors."""

    def __init__(self, module: torch.nn.Module, names: list[str]) -> None:
        super().__init__()
        self.module = module
        self.names = names

    def forward(self, *args: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The results in the order of the tree that the module returns."""
        results = tree_leaves(self.module(**dict(zip(self.names, args, strict=True))))
        return tuple(leaf for leaf in results if isinstance(leaf, torch.Tensor))


def newcomer(architecture: Architecture) -> tuple[torch.nn.Module, tuple[Any, ...]]:
    """An architecture of the zoo with the inputs that its list gives it."""
    module, inputs = architecture.build()
    return Positional(module, list(inputs)).eval(), tuple(inputs.values())


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
    "newcomers": {name: partial(newcomer, NEWCOMERS[name]) for name in DRAWN},
}
