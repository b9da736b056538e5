"""Images: classifiers, segmentation, depth, detection, video."""

from __future__ import annotations

from typing import Any

import torch

from tools.zoo.architecture import Inputs, pretrained
from tools.zoo.text import VOCABULARY, tokens

LAYERS: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
WIDE = {"intermediate_size": 64}
PATCHES: dict[str, Any] = {"image_size": 32, "patch_size": 8}
#: Of a hierarchy of stages, the widths grow from one to the next.
STAGES: dict[str, Any] = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
PYRAMID = STAGES | {"num_attention_heads": [1, 2, 3, 4]}
WINDOWS: dict[str, Any] = {
    "embed_dim": 16,
    "depths": [2, 2],
    "num_heads": [2, 4],
    "window_size": 4,
    "image_size": 64,
}
RESIDUAL: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 2]}


def image(side: int, across: int | None = None) -> Inputs:
    """One image, ``side`` pixels high."""
    return lambda module: {"pixel_values": torch.randn(1, 3, side, across or side)}


def video(frames: int, side: int) -> Inputs:
    """One clip of square images."""
    return lambda module: {"pixel_values": torch.randn(1, frames, 3, side, side)}


def image_and_text(side: int) -> Inputs:
    """One image and two texts."""
    return lambda module: {**image(side)(module), **tokens(module, length=9)}


CONVOLUTIONAL = pretrained(
    image(64),
    {
        "ResNetForImageClassification": RESIDUAL,
        "RegNetForImageClassification": RESIDUAL | {"groups_width": 8},
        "MobileNetV1ForImageClassification": {"depth_multiplier": 0.25},
        "MobileNetV2ForImageClassification": {"depth_multiplier": 0.25},
        "EfficientNetForImageClassification": {
            "width_coefficient": 0.25,
            "depth_coefficient": 0.3,
            "hidden_dim": 320,
        },
        "ConvNextForImageClassification": STAGES,
        "ConvNextV2ForImageClassification": STAGES,
        "DINOv3ConvNextModel": STAGES,
        "BitForImageClassification": RESIDUAL | {"num_groups": 4},
        "HGNetV2ForImageClassification": {},
        "TextNetForImageClassification": {
            "stem_out_channels": 8,
            "hidden_sizes": [8, 8, 16, 24, 32],
        },
        "PoolFormerForImageClassification": STAGES,
        "FocalNetForImageClassification": {
            "embed_dim": 8,
            "hidden_sizes": [16, 32],
            "depths": [1, 2],
            "focal_levels": [2, 2],
            "focal_windows": [3, 3],
            "image_size": 64,
        },
    },
)
HIERARCHICAL = pretrained(
    image(64),
    {
        "SwinForImageClassification": WINDOWS,
        "Swinv2ForImageClassification": WINDOWS | {"pretrained_window_sizes": [0, 0]},
        "SegformerForSemanticSegmentation": PYRAMID | {"decoder_hidden_size": 16},
        "GLPNForDepthEstimation": PYRAMID | {"decoder_hidden_size": 16},
        "PvtForImageClassification": PYRAMID | {"image_size": 64},
        "PvtV2ForImageClassification": PYRAMID | {"image_size": 64},
        "CvtForImageClassification": {
            "embed_dim": [16, 24, 32],
            "num_heads": [1, 2, 4],
            "depth": [1, 2, 3],
        },
        "MobileViTForImageClassification": {"hidden_sizes": [16, 24, 32], "image_size": 64},
        "MobileViTV2ForImageClassification": {"width_multiplier": 0.25, "image_size": 64},
        "LevitForImageClassification": {
            "hidden_sizes": [32, 48, 64],
            "num_attention_heads": [2, 3, 4],
            "depths": [1, 1, 1],
            "image_size": 64,
        },
        "SwiftFormerForImageClassification": {
            "embed_dims": [8, 16, 24, 32],
            "depths": [1, 1, 2, 1],
            "image_size": 64,
        },
        "HieraForImageClassification": {
            "embed_dim": 16,
            "depths": [1, 1, 2, 1],
            "image_size": [64, 64],
            "masked_unit_size": [8, 8],
        },
        "Swin2SRForImageSuperResolution": {
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "image_size": 64,
            "window_size": 8,
        },
    },
)
PLAIN = pretrained(
    image(32),
    {
        "ViTForImageClassification": WIDE,
        "DeiTForImageClassification": WIDE,
        "ViTMSNForImageClassification": WIDE,
        "BeitForImageClassification": WIDE | {"use_relative_position_bias": True},
        "Data2VecVisionForImageClassification": WIDE | {"use_relative_position_bias": True},
        "Dinov2ForImageClassification": {},
        "Dinov2WithRegistersForImageClassification": {},
        "DINOv3ViTModel": WIDE | {"num_register_tokens": 4},
        "IJepaForImageClassification": WIDE,
        "CLIPVisionModelWithProjection": WIDE | {"projection_dim": 16},
        "SiglipVisionModel": WIDE,
        "VitDetModel": {"window_size": 2, "window_block_indices": [0]},
        "YolosForObjectDetection": WIDE | {"image_size": [32, 32], "num_detection_tokens": 5},
        "DPTForDepthEstimation": WIDE
        | {
            "num_hidden_layers": 4,
            "backbone_out_indices": [0, 1, 2, 3],
            "neck_hidden_sizes": [8, 16, 24, 32],
            "fusion_hidden_size": 16,
        },
    },
    **{**LAYERS, **PATCHES},
)
OTHERS = {
    **pretrained(
        image(32, 128),
        {
            "MgpstrForSceneTextRecognition": LAYERS
            | {"num_bpe_labels": 100, "num_wordpiece_labels": 90}
        },
    ),
    **pretrained(
        image_and_text(32),
        {
            "CLIPModel": {
                "text_config": LAYERS | WIDE | VOCABULARY,
                "vision_config": LAYERS | WIDE | PATCHES,
                "projection_dim": 16,
            },
            "SiglipModel": {
                "text_config": LAYERS | WIDE | VOCABULARY | {"projection_size": 32},
                "vision_config": LAYERS | WIDE | PATCHES,
            },
        },
    ),
    **pretrained(
        video(4, 32),
        {
            "VideoMAEForVideoClassification": LAYERS | WIDE | PATCHES | {"num_frames": 4},
            "TimesformerForVideoClassification": LAYERS | WIDE | PATCHES | {"num_frames": 4},
            "VivitForVideoClassification": LAYERS
            | WIDE
            | {"image_size": 32, "num_frames": 4, "tubelet_size": [2, 8, 8]},
        },
    ),
    **pretrained(
        lambda module: {"input_ids": torch.randint(0, 64, (1, 64))},
        {
            "ImageGPTForImageClassification": {
                "n_embd": 32,
                "n_layer": 2,
                "n_head": 2,
                "vocab_size": 65,
                "n_positions": 64,
                "use_cache": False,
            }
        },
    ),
}

VISION = {**CONVOLUTIONAL, **HIERARCHICAL, **PLAIN, **OTHERS}
