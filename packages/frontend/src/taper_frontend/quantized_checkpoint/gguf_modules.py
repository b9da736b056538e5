"""Replace transformers' modules whose weights are blocks of GGUF by ones that decode them.

transformers' modules call kernels that are fetched for some devices and that torch does not export.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from taper_frontend.checkpoint import Place
from taper_frontend.errors import ExportError
from taper_frontend.quantized_checkpoint.gguf import TYPES, GgufTensor
from taper_frontend.quantized_checkpoint.load import place_weight

if TYPE_CHECKING:
    from collections.abc import Iterator

_HOME = "transformers.integrations.gguf"


def with_decoded_blocks(module: nn.Module) -> nn.Module:
    """Return a module whose weights in blocks of GGUF are decoded by parametrizations.

    The module itself if it has none. Its plain weights are shared, and the blocks are read once
    for all layers that share them.

    Raises
    ------
    ExportError
        If there are experts in blocks, or blocks of a type that is not read; it names the layer.
    """
    if not any(_is_gguf(each) for each in module.modules()):
        return module
    memo = {id(x): x for x in (*module.parameters(), *module.buffers())}
    module = copy.deepcopy(module, memo)
    places: dict[int, list[Place]] = {}
    blocks: dict[int, Any] = {}
    for parent, key, layer, name in [*_layers(module)]:
        made = _replacement(layer, name)
        blocks[id(layer.weight)] = layer
        place = Place(f"{name}.weight", made, "weight", made.weight, True)
        places.setdefault(id(layer.weight), []).append(place)
        if parent is None:
            module = made
        else:
            setattr(parent, key, made)
    for weight, alike in places.items():
        layer = blocks[weight]
        data = layer.weight.detach().cpu().numpy().reshape(-1)
        tensor = GgufTensor(TYPES[layer.ggml_type], tuple(alike[0].tensor.shape), data)
        value = tensor.weight()
        found = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        place_weight(alike, found, False)
    return module


def _is_gguf(module: nn.Module) -> bool:
    return type(module).__module__.startswith(_HOME)


def _layers(module: nn.Module) -> Iterator[tuple[nn.Module | None, str, Any, str]]:
    """Yield each layer with blocks, with its parent module and its name."""
    if _is_gguf(module):
        yield None, "", module, "the module"
    for path, parent in module.named_modules():
        for key, child in parent.named_children():
            if _is_gguf(child):
                yield parent, key, child, f"{path}.{key}" if path else key


def _replacement(layer: Any, name: str) -> nn.Linear | nn.Embedding:
    """Return a layer in place of one with blocks, whose weight has no values yet."""
    kind = type(layer).__name__
    if kind not in ("GgufLinear", "GgufEmbedding"):
        raise ExportError(
            f"layer {name!r}: expected GgufLinear or GgufEmbedding, got {kind}; load the model "
            "with GgufConfig(dequantize=True)"
        )
    known = TYPES.get(layer.ggml_type)
    if known is None or known.read is None:
        names = ", ".join(each.name for each in TYPES.values() if each.read is not None)
        raise ExportError(f"layer {name!r}: expected blocks of {names}, got type {layer.ggml_type}")
    if kind == "GgufEmbedding":
        sizes = layer.num_embeddings, layer.embedding_dim
        return nn.Embedding(*sizes, device="meta", dtype=layer.compute_dtype)
    return _Linear(layer)


class _Linear(nn.Linear):
    """A linear layer, which may read its inputs in another order."""

    order: torch.Tensor | None

    def __init__(self, layer: Any) -> None:
        super().__init__(layer.in_features, layer.out_features, bias=False, device="meta")
        self.bias = layer.bias
        self.register_buffer("order", layer.input_permutation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x if self.order is None else x.index_select(-1, self.order))
