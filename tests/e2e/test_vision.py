"""Vision models: exported, run natively from end to end, compared with torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from taper_runtime.ops import REGISTRY
from vision_models import MODELS, with_statistics

torch.set_num_threads(1)

#: Ops that only put values elsewhere; joining and picking them is not counted.
MOVES = {"COPY", "EXPAND", "FLIP", "PERMUTE", "RESHAPE", "SLICE", "TRANSPOSE"}

TRANSFORMER = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
PATCHES = {"image_size": 32, "patch_size": 8, "intermediate_size": 64}

#: Model -> config class, its arguments, side of the images, nodes that may do nothing but move.
#: Each has one permutation where the image comes in.
HUGGING_FACE = {
    "ResNetForImageClassification": (
        "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2]},
        64,
        1,
    ),
    "MobileNetV2ForImageClassification": ("MobileNetV2Config", {"depth_multiplier": 0.25}, 64, 1),
    "EfficientNetForImageClassification": (
        "EfficientNetConfig",
        {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320},
        64,
        1,
    ),
    "ConvNextForImageClassification": (
        "ConvNextConfig",
        {"hidden_sizes": [8, 16, 32, 64], "depths": [1, 1, 2, 1]},
        64,
        1,
    ),
    "ViTForImageClassification": ("ViTConfig", TRANSFORMER | PATCHES, 32, 1),
    "DeiTForImageClassification": ("DeiTConfig", TRANSFORMER | PATCHES, 32, 1),
    # windows are cut out and put back in each of 4 layers
    "SwinForImageClassification": (
        "SwinConfig",
        {
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 4],
            "window_size": 4,
            "image_size": 64,
        },
        64,
        9,
    ),
    "SegformerForSemanticSegmentation": (
        "SegformerConfig",
        {
            "hidden_sizes": [8, 16, 24, 32],
            "depths": [1, 1, 1, 1],
            "num_attention_heads": [1, 2, 3, 4],
            "decoder_hidden_size": 16,
        },
        64,
        2,
    ),
    "CLIPVisionModelWithProjection": (
        "CLIPVisionConfig",
        TRANSFORMER | PATCHES | {"projection_dim": 16},
        32,
        1,
    ),
    "Dinov2ForImageClassification": (
        "Dinov2Config",
        TRANSFORMER | {"image_size": 32, "patch_size": 8},
        32,
        1,
    ),
}


def check(module, args, tolerance=1e-4):
    """Export, run natively, compare; return how many nodes do nothing but move values."""
    module = with_statistics(module)
    with torch.no_grad():
        want = module(*args).numpy()
    plan = taper_frontend.export(module, args, verify=False)
    session = taper_runtime.InferenceSession(plan)
    (got,) = session.run(None, dict(plan.samples))
    assert not [node for node in plan.metadata["fallbacks"] if REGISTRY[node["op"]].native]
    assert got.shape == want.shape
    assert np.linalg.norm(got - want) <= tolerance * np.linalg.norm(want)
    assert np.linalg.norm(want) > 0
    return sum(node.op in MOVES and plan.is_executed(node) for node in plan.nodes)


class FirstResult(torch.nn.Module):
    """A model of transformers as a function of images to one tensor."""

    def __init__(self, model, name):
        super().__init__()
        self.model, self.name = model, name

    def forward(self, *args):
        return getattr(self.model(*args), self.name)


@pytest.mark.parametrize("name", MODELS)
def test_plain(name):
    make, shape, moves = MODELS[name]
    torch.manual_seed(0)
    assert check(make(), (torch.randn(shape),)) == moves


@pytest.mark.parametrize("name", HUGGING_FACE)
def test_transformers(name):
    transformers = pytest.importorskip("transformers")
    config, arguments, side, moves = HUGGING_FACE[name]
    torch.manual_seed(0)
    model = getattr(transformers, name)(getattr(transformers, config)(**arguments))
    result = "image_embeds" if "CLIP" in name else "logits"
    assert check(FirstResult(model, result), (torch.randn(1, 3, side, side),)) == moves


def test_clip_text():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.CLIPTextConfig(
        **TRANSFORMER, intermediate_size=64, vocab_size=100, projection_dim=16, eos_token_id=99
    )
    model = FirstResult(transformers.CLIPTextModelWithProjection(config), "text_embeds")
    ids = torch.randint(0, 99, (2, 9))
    ids[:, -1] = 99
    check(model, (ids,))
