"""Another 100 architectures, each exported with fixed sizes and with sizes of one dim that vary.

The list was committed before the first of them was exported, and no other list here has them. It
says how often a model that nobody has tried is right at once. The packages are installed by
`nox -s models`; none is imported before one of its architectures is made.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tools.zoo.architecture import Architecture, Inputs, pretrained
from tools.zoo.newcomers import floats, ids, make, timm
from tools.zoo.text import DECODER, ENCODER, VOCABULARY, tokens


def _made(
    path: str, inputs: Inputs, *varying: str, args: tuple[Any, ...] = (), **sizes: Any
) -> Architecture:
    """What ``package.module:name`` makes; the batch, the first dim of these inputs, varies."""
    return Architecture(partial(make, path, *args, **sizes), inputs, dict.fromkeys(varying, 0))


TIMM = {
    name: timm(name, side, batch=2)._replace(varying={"x": 0})
    for name, side in {
        "cait_xxs24_224": 224,
        "cpubone_nano": 224,
        "csatv2": 256,
        "deit3_small_patch16_224": 224,
        "densenet121": 224,
        "fasternet_t0": 224,
        "fastvit_t8": 256,
        "hardcorenas_a": 224,
        "hgnetv2_b0": 224,
        "hieradet_small": 256,
        "hrnet_w18_small": 224,
        "inception_v3": 299,
        "inception_v4": 299,
        "lcnetv2_small": 224,
        "caformer_s18": 224,
        "mobilevit_xxs": 256,
        "mobilevitv2_050": 256,
        "mvitv2_tiny": 224,
        "nextvit_small": 224,
        "pvt_v2_b0": 224,
        "repghostnet_050": 224,
        "repvit_m0_9": 224,
        "res2net50_14w_8s": 224,
        "resnetv2_18": 224,
        "rexnet_100": 224,
        "selecsls42": 224,
        "legacy_seresnet18": 224,
        "shvit_s1": 224,
        "starnet_s1": 224,
        "swinv2_tiny_window8_256": 256,
        "swinv2_cr_tiny_ns_224": 224,
        "tiny_vit_5m_224": 224,
        "twins_svt_small": 224,
        "vit_small_r26_s32_224": 224,
        "vitamin_small_224": 224,
        "xception41": 299,
    }.items()
}

_HEADS: dict[str, Any] = DECODER | {"head_dim": 16}
_ROUTED: dict[str, Any] = _HEADS | {"num_experts_per_tok": 2}
_EXPERTS: dict[str, Any] = _ROUTED | {"moe_intermediate_size": 32}
_WITHOUT_WIDTH = {name: size for name, size in _EXPERTS.items() if name != "intermediate_size"}
_GROUPS: dict[str, Any] = _EXPERTS | {"n_group": 1, "topk_group": 1}

TRANSFORMERS = pretrained(
    tokens,
    {
        "AfmoeForCausalLM": _EXPERTS | {"num_experts": 4},
        "AriaTextForCausalLM": _HEADS | {"moe_num_experts": 4},
        "BeamForCausalLM": _GROUPS | {"num_experts": 4},
        "Cohere2MoeForCausalLM": _ROUTED | {"num_experts": 4},
        "DogeForCausalLM": DECODER | {"num_experts": 4, "num_experts_per_tok": 2},
        "DoryForCausalLM": _HEADS,
        "Ernie4_5_MoeForCausalLM": DECODER
        | {"moe_intermediate_size": 32, "moe_k": 2, "moe_num_experts": 4},
        "ExaoneMoeForCausalLM": DECODER
        | {
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 32,
            "n_group": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "topk_group": 1,
        },
        "FalconH1ForCausalLM": DECODER,
        "FlexOlmoForCausalLM": DECODER | {"num_experts": 4, "num_experts_per_tok": 2},
        "FlintForCausalLM": _EXPERTS | {"num_experts": 4},
        "GraniteSWAForCausalLM": DECODER,
        "GraniteMoeSharedForCausalLM": DECODER | {"num_experts_per_tok": 2, "num_local_experts": 4},
        "HrmTextForCausalLM": ENCODER | {"head_dim": 16, "use_cache": False},
        "HunYuanMoEV1ForCausalLM": _ROUTED | {"num_experts": 4},
        "HYV3ForCausalLM": _EXPERTS | {"num_experts": 4},
        "HyperCLOVAXForCausalLM": _HEADS,
        "JinaEmbeddingsV3ForMaskedLM": ENCODER,
        "Kolibri1ForCausalLM": _WITHOUT_WIDTH | {"num_experts": 4},
        "LagunaForCausalLM": _EXPERTS | {"num_experts": 4},
        "Lfm3ForCausalLM": _HEADS,
        "Llama4ForCausalLM": _ROUTED | {"num_local_experts": 4},
        "MarkupLMModel": ENCODER,
        "MellumForCausalLM": _EXPERTS | {"num_experts": 4},
        "MiMoV2FlashForCausalLM": _GROUPS | {"n_routed_experts": 4, "v_head_dim": 16},
        "MiniMaxM2ForCausalLM": _ROUTED | {"num_local_experts": 4},
        "MinistralForCausalLM": _HEADS,
        "NeoMMEForMaskedLM": ENCODER | {"head_dim": 16, "num_key_value_heads": 2},
        "OlmoHybridForCausalLM": DECODER,
        "OpenAIPrivacyFilterForTokenClassification": _ROUTED | {"num_local_experts": 4},
        "SolarOpenForCausalLM": _WITHOUT_WIDTH
        | {"n_group": 1, "topk_group": 1, "n_routed_experts": 4},
        "UltrabertForMaskedLM": _HEADS,
        "xLSTMForCausalLM": {"hidden_size": 64, "num_hidden_layers": 2, "use_cache": False},
    },
    **VOCABULARY,
)
TRANSFORMERS = {
    name: made._replace(varying={"input_ids": 1}) for name, made in TRANSFORMERS.items()
}


def _text(path: str, name: str, **sizes: Any) -> Architecture:
    """A model of sequences of 64 tokens."""
    return _made(path, ids(name, 64), name, num_tokens=256, **sizes)


def _diffusion(path: str, inputs: Inputs, *varying: str, **sizes: Any) -> Architecture:
    return _made(f"diffusers:{path}", inputs, *varying, norm_num_groups=4, **sizes)


def _segmentation(name: str) -> Architecture:
    return _made(
        f"segmentation_models_pytorch:{name}",
        floats(x=(2, 3, 64, 64)),
        "x",
        encoder_name="resnet18",
        encoder_weights=None,
        classes=2,
    )


_LAYERS: dict[str, Any] = {"dim": 64, "depth": 2, "heads": 4}
_LATENTS: dict[str, Any] = {
    "depth": 2,
    "num_latents": 16,
    "latent_dim": 32,
    "cross_heads": 1,
    "latent_heads": 4,
    "cross_dim_head": 16,
    "latent_dim_head": 16,
}

OTHERS = {
    "conformer": _made(
        "conformer:Conformer", floats(x=(2, 40, 64)), "x", dim=64, depth=2, dim_head=16, heads=4
    ),
    "PerformerLM": _text("performer_pytorch:PerformerLM", "x", max_seq_len=64, **_LAYERS),
    "LinformerLM": _text("linformer:LinformerLM", "x", seq_len=64, k=16, **_LAYERS),
    "Perceiver": _made(
        "perceiver_pytorch:Perceiver",
        floats(data=(2, 32, 32, 3)),
        "data",
        input_channels=3,
        input_axis=2,
        num_freq_bands=6,
        max_freq=10.0,
        num_classes=10,
        **_LATENTS,
    ),
    "PerceiverLM": _text("perceiver_pytorch:PerceiverLM", "x", dim=32, max_seq_len=64, **_LATENTS),
    "EGNN": _made(
        "egnn_pytorch:EGNN", floats(feats=(2, 12, 32), coors=(2, 12, 3)), "feats", "coors", dim=32
    ),
    "BottleStack": _made(
        "bottleneck_transformer_pytorch:BottleStack",
        floats(x=(2, 32, 16, 16)),
        "x",
        dim=32,
        fmap_size=16,
        dim_out=64,
        proj_factor=4,
        downsample=True,
        heads=4,
        dim_head=16,
    ),
    "AxialAttention": _made(
        "axial_attention:AxialAttention",
        floats(x=(2, 32, 16, 16)),
        "x",
        dim=32,
        dim_index=1,
        heads=4,
        num_dimensions=2,
    ),
    "GBST": _text("charformer_pytorch:GBST", "x", dim=32, max_block_size=4, downsample_factor=4),
    "LinearAttentionTransformerLM": _text(
        "linear_attention_transformer:LinearAttentionTransformerLM", "x", max_seq_len=64, **_LAYERS
    ),
    "Nystromformer": _made(
        "nystrom_attention:Nystromformer",
        floats(x=(2, 64, 64)),
        "x",
        dim_head=16,
        num_landmarks=16,
        **_LAYERS,
    ),
    "LTC": _made("ncps.torch:LTC", floats(input=(2, 6, 8)), "input", args=(8, 16)),
    "CfC": _made("ncps.torch:CfC", floats(input=(2, 6, 8)), "input", args=(8, 16)),
    **{
        f"segmentation {name}": _segmentation(name)
        for name in (
            "Unet",
            "UnetPlusPlus",
            "FPN",
            "Linknet",
            "PSPNet",
            "DeepLabV3Plus",
            "MAnet",
            "UPerNet",
        )
    },
    "HardNet": _made(
        "kornia.feature:HardNet", floats(input=(4, 1, 32, 32)), "input", pretrained=False
    ),
    "TFeat": _made("kornia.feature:TFeat", floats(input=(4, 1, 32, 32)), "input", pretrained=False),
    "UNETR": _made(
        "monai.networks.nets:UNETR",
        floats(x_in=(2, 1, 32, 32, 32)),
        "x_in",
        in_channels=1,
        out_channels=2,
        img_size=(32, 32, 32),
        feature_size=8,
        hidden_size=32,
        mlp_dim=64,
        num_heads=4,
    ),
    "DynUNet": _made(
        "monai.networks.nets:DynUNet",
        floats(x=(2, 1, 32, 32, 32)),
        "x",
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
        kernel_size=[3, 3, 3],
        strides=[1, 2, 2],
        upsample_kernel_size=[2, 2],
        filters=[8, 16, 32],
    ),
    "AttentionUnet": _made(
        "monai.networks.nets:AttentionUnet",
        floats(x=(2, 1, 64, 64)),
        "x",
        spatial_dims=2,
        in_channels=1,
        out_channels=2,
        channels=(8, 16, 32),
        strides=(2, 2),
    ),
    "HighResNet": _made(
        "monai.networks.nets:HighResNet",
        floats(x=(2, 1, 16, 16, 16)),
        "x",
        spatial_dims=3,
        in_channels=1,
        out_channels=2,
    ),
    "BasicUNetPlusPlus": _made(
        "monai.networks.nets:BasicUNetPlusPlus",
        floats(x=(2, 1, 64, 64)),
        "x",
        spatial_dims=2,
        features=(8, 8, 16, 16, 32, 8),
    ),
    "RegUNet": _made(
        "monai.networks.nets:RegUNet",
        floats(x=(2, 1, 32, 32)),
        "x",
        spatial_dims=2,
        in_channels=1,
        num_channel_initial=8,
        depth=2,
    ),
    "UNet2DModel": _diffusion(
        "UNet2DModel",
        lambda module: {"sample": torch.randn(2, 3, 32, 32), "timestep": torch.tensor([3, 5])},
        "sample",
        "timestep",
        sample_size=32,
        block_out_channels=(32, 64),
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    ),
    "VQModel": _diffusion(
        "VQModel", floats(sample=(2, 3, 32, 32)), "sample", block_out_channels=(16,)
    ),
}

#: With one dim that varies: the batch of images and the like, the length of texts.
VARYING = {**TIMM, **TRANSFORMERS, **OTHERS}
#: The same with fixed sizes.
FIXED = {name: made._replace(varying={}) for name, made in VARYING.items()}
