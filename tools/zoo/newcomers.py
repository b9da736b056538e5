"""100 architectures of other packages, as they come, that nobody has tuned Taper for.

The list was committed before the first of them was exported. It says how often a newcomer's model
is right at the first try. The packages are installed by `nox -s models`; none is imported before
one of its architectures is made.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch

from tools.zoo.architecture import Architecture, Inputs, pretrained
from tools.zoo.text import DECODER, ENCODER, SMALL, WIDE
from tools.zoo.torchvision_ops import declare_torchvision_ops

declare_torchvision_ops()


def make(path: str, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """Call what stands at ``package.module:name``."""
    package, _, name = path.partition(":")
    module: torch.nn.Module = getattr(import_module(package), name)(*args, **kwargs)
    return module


def floats(**shapes: tuple[int, ...]) -> Inputs:
    """Normally distributed inputs of these names and shapes."""
    return lambda module: {name: torch.randn(shape) for name, shape in shapes.items()}


def ids(name: str, length: int = 24, size: int = 256) -> Inputs:
    """Two sequences of token ids."""
    return lambda module: {name: torch.randint(0, size, (2, length))}


def timm(name: str, side: int = 224, batch: int = 1) -> Architecture:
    """A model of timm and images for it."""
    return Architecture(partial(make, "timm:create_model", name), floats(x=(batch, 3, side, side)))


def _pytorchcv(name: str, *shape: int) -> Architecture:
    model = partial(make, "pytorchcv.model_provider:get_model", name)
    return Architecture(model, floats(x=shape or (1, 3, 224, 224)))


def _vit(path: str, side: int = 64, name: str = "img", **sizes: Any) -> Architecture:
    model = partial(make, f"vit_pytorch.{path}", **sizes)
    return Architecture(model, floats(**{name: (1, 3, side, side)}))


_PATCHES: dict[str, Any] = {"image_size": 64, "patch_size": 8, "num_classes": 10}
_WIDTHS: dict[str, Any] = {"dim": 64, "depth": 2, "heads": 4, "mlp_dim": 128}

TIMM = {
    name: timm(name, side)
    for name, side in {
        "beit_base_patch16_224": 224,
        "eca_halonext26ts": 256,
        "gcresnext26ts": 224,
        "coat_lite_mini": 224,
        "convit_tiny": 224,
        "convmixer_768_32": 128,
        "crossvit_9_240": 240,
        "cs3sedarknet_l": 128,
        "cspnext_s": 224,
        "davit_tiny": 224,
        "dla60_res2net": 128,
        "dpn68b": 128,
        "edgenext_x_small": 256,
        "efficientformer_l1": 224,
        "efficientformerv2_s0": 224,
        "efficientnet_cc_b0_4e": 128,
        "efficientvim_m1": 224,
        "efficientvit_b1": 224,
        "efficientvit_m2": 224,
        "eva02_tiny_patch14_224": 224,
        "focalnet_tiny_srf": 224,
        "gcvit_xxtiny": 224,
        "ghostnetv3_050": 224,
        "hiera_tiny_224": 224,
        "iformer_t": 224,
        "inception_next_atto": 224,
        "levit_128s": 224,
        "lowformer_b0": 224,
        "mambaout_femto": 224,
        "coatnet_nano_rw_224": 224,
        "maxvit_pico_rw_256": 256,
        "gmlp_ti16_224": 224,
        "mobilenetv4_hybrid_medium": 224,
        "naflexvit_base_patch16_gap": 224,
        "nest_tiny": 224,
        "nf_ecaresnet26": 128,
        "pit_ti_224": 224,
        "rdnet_tiny": 128,
        "regnetz_005": 224,
        "resnest14d": 128,
        "sequencer2d_s": 224,
        "skresnet18": 224,
        "swiftformer_xs": 224,
        "swin_s3_tiny_224": 224,
        "tnt_s_patch16_224": 224,
        "tresnet_m": 128,
        "visformer_tiny": 224,
        "vit_relpos_small_patch16_224": 224,
        "volo_d1_224": 224,
        "xcit_nano_12_p16_224": 224,
    }.items()
}

PYTORCHCV = {
    **{
        name: _pytorchcv(name)
        for name in (
            "airnet50_1x64d_r16",
            "bagnet9",
            "bninception",
            "cbam_resnet18",
            "condensenet74_c4_g4",
            "diaresnet10",
            "espnetv2_wd2",
            "fishnet99",
            "igcv3_wd4",
            "isqrtcovresnet18",
            "mixnet_s",
            "msdnet22",
            "octresnet10_ad2",
            "resattnet56",
            "shufflenetv2b_wd2",
        )
    },
    "fractalnet_cifar10": _pytorchcv("fractalnet_cifar10", 1, 3, 32, 32),
    "lednet_cityscapes": _pytorchcv("lednet_cityscapes", 1, 3, 256, 256),
    "danet_resnetd50b_cityscapes": _pytorchcv("danet_resnetd50b_cityscapes", 1, 3, 128, 128),
    "lwopenpose2d_mobilenet_cmupan_coco": _pytorchcv(
        "lwopenpose2d_mobilenet_cmupan_coco", 1, 3, 192, 192
    ),
    "sinet_cityscapes": _pytorchcv("sinet_cityscapes", 1, 3, 256, 256),
}

VIT_PYTORCH = {
    "CaiT": _vit("cait:CaiT", **_PATCHES, **_WIDTHS, cls_depth=1),
    "CCT": _vit("cct:cct_7", name="x", img_size=64, num_classes=10),
    "CrossFormer": _vit(
        "crossformer:CrossFormer", side=224, name="x", dim=(64, 64, 128, 256), depth=(1, 1, 2, 1)
    ),
    "CvT": _vit("cvt:CvT", name="x", num_classes=10),
    "DeepViT": _vit("deepvit:DeepViT", **_PATCHES, **_WIDTHS),
    "LearnableMemoryViT": _vit("learnable_memory_vit:ViT", **_PATCHES, **_WIDTHS),
    "NormalizedViT": _vit("normalized_vit:nViT", name="images", **_PATCHES, **_WIDTHS),
    "RegionViT": _vit(
        "regionvit:RegionViT",
        side=224,
        name="x",
        dim=(16, 32, 64, 128),
        depth=(1, 1, 2, 1),
        num_classes=10,
    ),
    "ScalableViT": _vit(
        "scalable_vit:ScalableViT",
        side=256,
        num_classes=10,
        dim=16,
        heads=(2, 4, 4, 4),
        depth=(1, 1, 2, 1),
        ssa_dim_key=(8, 8, 8, 8),
        reduction_factor=(8, 4, 2, 1),
        window_size=(64, 32, None, None),
    ),
    "SepViT": _vit(
        "sep_vit:SepViT",
        side=224,
        name="x",
        num_classes=10,
        dim=16,
        dim_head=8,
        depth=(1, 1, 1, 1),
        heads=(1, 2, 4, 8),
        window_size=7,
    ),
}


def _transformer(name: str, inputs: Inputs, **sizes: Any) -> Architecture:
    return pretrained(inputs, {name: sizes})[name]


TRANSFORMERS = {
    "BertGenerationEncoder": _transformer("BertGenerationEncoder", ids("input_ids"), **ENCODER),
    "CanineModel": _transformer(
        "CanineModel",
        ids("input_ids"),
        **WIDE,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
    ),
    "CwmForCausalLM": _transformer("CwmForCausalLM", ids("input_ids"), **DECODER),
    "DPRQuestionEncoder": _transformer("DPRQuestionEncoder", ids("input_ids"), **ENCODER),
    "GteModel": _transformer("GteModel", ids("input_ids"), **ENCODER),
    "GPTNeoXJapaneseForCausalLM": _transformer(
        "GPTNeoXJapaneseForCausalLM",
        ids("input_ids"),
        **SMALL,
        use_cache=False,
    ),
    "Jais2ForCausalLM": _transformer("Jais2ForCausalLM", ids("input_ids"), **DECODER),
    "LukeModel": _transformer(
        "LukeModel", ids("input_ids"), **ENCODER, entity_vocab_size=50, entity_emb_size=16
    ),
    "MetaClip2TextModel": _transformer("MetaClip2TextModel", ids("input_ids"), **ENCODER),
    "Ministral3ForCausalLM": _transformer("Ministral3ForCausalLM", ids("input_ids"), **DECODER),
    "MraModel": _transformer("MraModel", ids("input_ids", 64), **ENCODER),
    "NanoChatForCausalLM": _transformer("NanoChatForCausalLM", ids("input_ids"), **DECODER),
    "PatchTSTModel": _transformer(
        "PatchTSTModel",
        floats(past_values=(2, 64, 3)),
        num_input_channels=3,
        context_length=64,
        d_model=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        ffn_dim=64,
    ),
    "PatchTSMixerModel": _transformer(
        "PatchTSMixerModel",
        floats(past_values=(2, 64, 3)),
        num_input_channels=3,
        context_length=64,
        patch_length=8,
        patch_stride=8,
        d_model=16,
        num_layers=2,
    ),
    "RoCBertModel": _transformer("RoCBertModel", ids("input_ids"), **ENCODER),
    "Sapiens2Model": _transformer(
        "Sapiens2Model",
        floats(pixel_values=(1, 3, 64, 48)),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        image_size=(64, 48),
        patch_size=8,
    ),
    "VaultGemmaForCausalLM": _transformer(
        "VaultGemmaForCausalLM", ids("input_ids"), **DECODER, head_dim=16
    ),
    "BrosModel": _transformer(
        "BrosModel",
        lambda module: {
            "input_ids": torch.randint(0, 256, (2, 12)),
            "bbox": torch.rand(2, 12, 8),
        },
        **ENCODER,
    ),
}

OTHERS = {
    "diffusers.AutoencoderTiny": Architecture(
        partial(make, "diffusers:AutoencoderTiny"), floats(sample=(1, 3, 64, 64))
    ),
    "monai.SegResNet": Architecture(
        partial(make, "monai.networks.nets:SegResNet", init_filters=8),
        floats(x=(1, 1, 32, 32, 32)),
    ),
}

NEWCOMERS = {**TIMM, **PYTORCHCV, **VIT_PYTORCH, **TRANSFORMERS, **OTHERS}
