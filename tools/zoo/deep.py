"""One architecture of each kind as deep as it is used, and narrow.

Small configurations have two layers, and depth is a dimension of its own: what an export does for
each node must not grow with the number of nodes.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from tools.zoo.architecture import Architecture, Inputs, pretrained
from tools.zoo.audio import spectrogram_and_tokens
from tools.zoo.encoder_decoder import BART, T5, pairs
from tools.zoo.text import GROUPED, NO_CACHE, SMALL, VOCABULARY, WIDE, padded_tokens, tokens
from tools.zoo.vision import LAYERS, image

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NARROW: dict[str, Any] = SMALL | WIDE | {"hidden_size": 32}
DECODER = NARROW | GROUPED | NO_CACHE
MELS = 20


class UNet(nn.Module):
    """A diffusion model's: residual blocks at three sizes of the image, joined across.

    Parameters
    ----------
    blocks : int
        Residual blocks in each half.
    """

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 3, 3, padding=1)
        self.down = nn.ModuleList(ResidualBlock(8, 8) for _ in range(blocks))
        self.up = nn.ModuleList(ResidualBlock(16, 8) for _ in range(blocks))
        self.halve = {blocks // 3, 2 * blocks // 3} if blocks >= 3 else set()

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        """Return an image of the same size, [B, 3, H, W]."""
        x, passed = self.first(pixel_values), []
        for at, block in enumerate(self.down):
            x = block(F.avg_pool2d(x, 2) if at in self.halve else x)
            passed.append(x)
        for block in self.up:
            across = passed.pop()
            if across.shape[-1] != x.shape[-1]:
                x = F.interpolate(x, scale_factor=2.0)
            x = block(torch.cat([x, across], 1))
        result: torch.Tensor = self.last(x)
        return result


class ResidualBlock(nn.Module):
    """Norm, activation and convolution, twice, beside a 1x1 convolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(4, inputs), nn.GroupNorm(4, outputs)])
        self.convs = nn.ModuleList(
            nn.Conv2d(channels, outputs, 3, padding=1) for channels in (inputs, outputs)
        )
        self.beside = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return [B, outputs, H, W]."""
        y = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = conv(F.silu(norm(y)))
        result: torch.Tensor = self.beside(x) + y
        return result


class Kind(NamedTuple):
    """A kind of architecture at any depth.

    Attributes
    ----------
    depth : int
        How many layers one has that people use.
    of_depth : callable
        Returns the architecture with about so many layers.
    """

    depth: int
    of_depth: Callable[[int], Architecture]


def _kind(
    depth: int, name: str, inputs: Inputs, sizes: Callable[[int], Mapping[str, Any]], **common: Any
) -> Kind:
    """A class of transformers, whose config says in ``sizes`` how deep it is."""
    return Kind(depth, lambda n: pretrained(inputs, {name: sizes(n)}, **common)[name])


def _layers(depth: int) -> dict[str, Any]:
    return {"num_hidden_layers": depth}


def _stages(depth: int) -> list[int]:
    """Most layers in the third of four stages, as in ResNet-101 and ConvNeXt."""
    few = max(1, depth // 12)
    return [few, few, max(1, depth - 3 * few), few]


KINDS: dict[str, Kind] = {
    "SAM's encoder": _kind(
        12,
        "SamVisionModel",
        image(32),
        lambda n: {"num_hidden_layers": n, "global_attn_indexes": list(range(2, n, 3))},
        hidden_size=32,
        num_attention_heads=2,
        mlp_dim=64,
        output_channels=16,
        image_size=32,
        patch_size=8,
        window_size=2,
    ),
    "BERT": _kind(24, "BertModel", padded_tokens, lambda n: NARROW | _layers(n)),
    "ViT": _kind(
        32,
        "ViTForImageClassification",
        image(32),
        lambda n: (
            LAYERS | {"intermediate_size": 64, "image_size": 32, "patch_size": 8} | _layers(n)
        ),
    ),
    "GPT-2": _kind(
        48, "GPT2LMHeadModel", tokens, lambda n: SMALL | NO_CACHE | {"hidden_size": 32} | _layers(n)
    ),
    "LLaMA": _kind(32, "LlamaForCausalLM", tokens, lambda n: DECODER | _layers(n)),
    "Swin": _kind(
        24,
        "SwinForImageClassification",
        image(64),
        lambda n: {"depths": [2, max(2, n - 2)]},
        embed_dim=16,
        num_heads=[2, 4],
        window_size=4,
        image_size=64,
    ),
    "ConvNeXt": _kind(
        36,
        "ConvNextForImageClassification",
        image(64),
        lambda n: {"depths": _stages(n)},
        hidden_sizes=[8, 16, 24, 32],
    ),
    "ResNet": _kind(
        50,
        "ResNetForImageClassification",
        image(64),
        lambda n: {"depths": _stages(n)},
        embedding_size=8,
        hidden_sizes=[16, 16, 32, 32],
    ),
    "T5": _kind(
        24,
        "T5ForConditionalGeneration",
        pairs,
        lambda n: T5 | {"num_layers": (n + 1) // 2, "num_decoder_layers": (n + 1) // 2},
    ),
    "Whisper": _kind(
        32,
        "WhisperForConditionalGeneration",
        spectrogram_and_tokens(2, MELS, 64),
        lambda n: (
            BART
            | {"encoder_layers": (n + 1) // 2, "decoder_layers": (n + 1) // 2, "d_model": 32}
            | {"num_mel_bins": MELS, "max_source_positions": 32, "max_target_positions": 16}
        ),
    ),
    "Mixtral": _kind(
        32,
        "MixtralForCausalLM",
        tokens,
        lambda n: DECODER | {"num_experts": 4, "num_experts_per_tok": 2} | _layers(n),
    ),
    "Mamba": _kind(
        24,
        "MambaForCausalLM",
        partial(tokens, length=4),
        lambda n: VOCABULARY | NO_CACHE | {"hidden_size": 32, "state_size": 4} | _layers(n),
    ),
    "U-Net": Kind(24, lambda n: Architecture(partial(UNet, max(1, n // 2)), image(32))),
}

#: The same as deep as they are used.
DEEP = {f"{name}, {kind.depth} layers": kind.of_depth(kind.depth) for name, kind in KINDS.items()}
