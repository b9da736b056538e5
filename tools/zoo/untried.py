"""A third 100 architectures, all of transformers, with fixed sizes and with one dim that varies.

The list was committed before the first of them was exported, and no other list here has them: parts
of models of several inputs, models of images and of sound, and language models of 2026. Where a
configuration has one of the common fields, it gets the small size below.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tools.zoo.architecture import Architecture
from tools.zoo.newcomers import floats
from tools.zoo.text import VOCABULARY, tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tools.zoo.architecture import Inputs

_WIDTHS = ("hidden_size", "embed_dim", "d_model", "dim", "n_embd", "encoder_hidden_size")
_DEPTHS = ("num_hidden_layers", "num_layers", "n_layer", "encoder_layers", "decoder_layers")
_HEADS = ("num_attention_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
_INNER = ("intermediate_size", "ffn_dim", "encoder_ffn_dim", "decoder_ffn_dim")

#: Field of a configuration -> its value, wherever a configuration has it.
SIZES: dict[str, Any] = {
    **dict.fromkeys((*_WIDTHS, "decoder_hidden_size", "projection_dim"), 64),
    **dict.fromkeys((*_DEPTHS, "num_encoder_layers", "num_decoder_layers", "depth"), 2),
    **dict.fromkeys((*_HEADS, "n_head", "index_n_heads", "linear_num_value_heads"), 4),
    **dict.fromkeys((*_INNER, "n_inner", "max_position_embeddings"), 128),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("kv_lora_rank", "linear_key_head_dim", "linear_value_head_dim"), 16),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), 32),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "q_lora_rank", "index_head_dim"), 32),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok", "linear_num_key_heads"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace"), 1),
    **dict.fromkeys(("image_size", "index_topk"), 64),
    **VOCABULARY,
    "decoder_start_token_id": 1,
    "patch_size": 16,
    "use_cache": False,
}


def _make(name: str, sizes: Mapping[str, Any]) -> torch.nn.Module:
    import transformers

    model = getattr(transformers, name)
    config = model.config_class
    known = config.__dataclass_fields__.keys() | config.attribute_map.keys()
    return model(config(**{key: size for key, size in SIZES.items() if key in known} | sizes))


def _small(name: str, inputs: Inputs, *varying: str, axis: int = 0, **sizes: Any) -> Architecture:
    return Architecture(partial(_make, name, sizes), inputs, dict.fromkeys(varying, axis))


_PLAIN: dict[str, Any] = {}
_LATENT = {"num_key_value_heads": 4}
_SECTIONS = {"hidden_size": 256, "num_attention_heads": 2}

#: The length of the texts varies.
TEXTS = {
    name: _small(name, tokens, "input_ids", axis=1, **sizes)
    for name, sizes in {
        "AXK1ForCausalLM": _LATENT,
        "AXK2ForCausalLM": _LATENT,
        "Apertus1p5TextForCausalLM": _PLAIN,
        "BailingHybridForCausalLM": _PLAIN,
        "CpmAntForCausalLM": _PLAIN,
        "DeepseekV32ForCausalLM": _LATENT,
        "DeepseekV4ForCausalLM": _PLAIN,
        "Dots3NoteForCausalLM": _LATENT,
        "EmbeddingGemma2TextModel": _PLAIN,
        "Emu3ForCausalLM": _PLAIN,
        "EsmcForMaskedLM": _LATENT,
        "Gemma4ForCausalLM": {"vocab_size_per_layer_input": 300},
        "Gemma4UnifiedForCausalLM": _PLAIN,
        "Glm4MoeForCausalLM": _PLAIN,
        "Glm4MoeLiteForCausalLM": _LATENT,
        "Glm4vMoeTextModel": {"head_dim": 128},
        "GlmImageTextModel": {"head_dim": 64},
        "GlmMoeDsaForCausalLM": _LATENT,
        "GlmOcrTextModel": {"head_dim": 64},
        "GraniteDoclingTextModel": _PLAIN,
        "GraniteMoeSWAForCausalLM": _PLAIN,
        "HYV4ForCausalLM": _PLAIN,
        "Inkling2ForCausalLM": _PLAIN,
        "Inkling2LoopForCausalLM": _PLAIN,
        "InklingForCausalLM": _PLAIN,
        "JetMoeForCausalLM": _PLAIN,
        "KimiLinearForCausalLM": _PLAIN,
        "LaraMiniForCausalLM": _PLAIN,
        "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"]},
        "Llama4TextModel": _PLAIN,
        "LongcatFlashForCausalLM": _LATENT,
        "MiniCPM3ForCausalLM": _LATENT,
        "MiniMaxM3VLForCausalLM": _PLAIN,
        "MistralLarge4TextModel": _LATENT,
        "Molmo2TextModel": _PLAIN,
        "MoshiForCausalLM": _PLAIN,
        "MuseGlimmerTextModel": _PLAIN,
        "MuseSparkTextModel": _PLAIN,
        "NemotronHForCausalLM": _PLAIN,
        "Qwen2VLTextModel": _SECTIONS,
        "Qwen2_5_VLTextModel": _SECTIONS,
        "Qwen3VLMoeTextModel": _PLAIN,
        "Qwen3VLTextModel": _PLAIN,
        "Qwen3_5ForCausalLM": _PLAIN,
        "Qwen3_5MoeForCausalLM": _PLAIN,
        "Qwen4ExpForCausalLM": _PLAIN,
        "TapasForMaskedLM": _PLAIN,
        "Tipsv2TextModel": _PLAIN,
        "VisualBertModel": _PLAIN,
        "YoutuForCausalLM": _LATENT,
        "ZayaForCausalLM": {"num_experts_per_tok": 1},
    }.items()
}

#: The batch of the images varies.
IMAGES = {
    name: _small(name, floats(pixel_values=shape), "pixel_values", **sizes)
    for name, shape, sizes in (
        ("Aimv2VisionModel", (2, 3, 64, 64), _PLAIN),
        ("ChineseCLIPVisionModel", (2, 3, 64, 64), _PLAIN),
        ("DFineModel", (2, 3, 128, 128), {"num_queries": 20}),
        ("Deimv2Model", (2, 3, 128, 128), {"num_queries": 20}),
        ("InternVLVisionModel", (2, 3, 64, 64), _PLAIN),
        ("MLCDVisionModel", (2, 3, 64, 64), _PLAIN),
        ("PPDocLayoutV3Model", (2, 3, 128, 128), {"num_queries": 20}),
        ("PPOCRV5ServerRecModel", (2, 3, 48, 160), _PLAIN),
        ("PPOCRV6SmallRecModel", (2, 3, 48, 160), _PLAIN),
        ("PPOCRV6TinyRecModel", (2, 3, 48, 160), _PLAIN),
        ("PixioModel", (2, 3, 64, 64), _PLAIN),
        ("PixtralVisionModel", (2, 3, 64, 64), _PLAIN),
        ("RTDetrModel", (2, 3, 128, 128), {"num_queries": 20}),
        ("RTDetrV2Model", (2, 3, 128, 128), {"num_queries": 20}),
        ("RadioModel", (2, 3, 64, 64), _PLAIN),
        ("Sam2HieraDetModel", (2, 3, 64, 64), {"hidden_size": 96, "num_attention_heads": 1}),
        ("Sam2VisionModel", (2, 3, 64, 64), _PLAIN),
        ("Sam3ViTModel", (2, 3, 64, 64), _PLAIN),
        ("SamHQVisionModel", (2, 3, 64, 64), _PLAIN),
        ("Tipsv2VisionModel", (2, 3, 64, 64), _PLAIN),
        ("ViTMAEModel", (2, 3, 64, 64), {"mask_ratio": 0.0}),
        ("Idefics3VisionTransformer", (2, 3, 64, 64), _PLAIN),
        ("SmolVLMVisionTransformer", (2, 3, 64, 64), _PLAIN),
        ("BlipVisionModel", (2, 3, 64, 64), _PLAIN),
        ("Blip2VisionModel", (2, 3, 64, 64), _PLAIN),
        ("CLIPSegVisionModel", (2, 3, 64, 64), _PLAIN),
        ("GitVisionModel", (2, 3, 64, 64), _PLAIN),
        ("OwlViTVisionModel", (2, 3, 64, 64), _PLAIN),
        ("XCLIPVisionModel", (8, 3, 64, 64), {"num_frames": 2, "mit_hidden_size": 64}),
        ("FlavaImageModel", (2, 3, 64, 64), _PLAIN),
        ("YolosModel", (2, 3, 64, 64), {"image_size": [64, 64], "num_detection_tokens": 8}),
    )
}

OTHERS = {
    "CLIPSegTextModel": _small("CLIPSegTextModel", tokens, "input_ids", axis=1),
    "FlavaTextModel": _small("FlavaTextModel", tokens, "input_ids", axis=1),
    "BlipTextModel": _small("BlipTextModel", tokens, "input_ids", axis=1),
    "FSMTModel": _small("FSMTModel", tokens, "input_ids", axis=1),
    "UnivNetModel": _small(
        "UnivNetModel",
        floats(input_features=(2, 40, 100), noise_sequence=(2, 40, 64)),
        "input_features",
        "noise_sequence",
    ),
    "NemotronAsrStreamingEncoder": _small(
        "NemotronAsrStreamingEncoder", floats(input_features=(2, 100, 80)), "input_features"
    ),
    "ParakeetEncoder": _small(
        "ParakeetEncoder", floats(input_features=(2, 100, 80)), "input_features"
    ),
    "LasrEncoder": _small("LasrEncoder", floats(input_features=(2, 100, 128)), "input_features"),
    "GlmAsrEncoder": _small(
        "GlmAsrEncoder", floats(input_features=(2, 128, 100)), "input_features"
    ),
    "GraniteSpeech5Encoder": _small(
        "GraniteSpeech5Encoder", floats(input_features=(2, 100, 320)), "input_features", **_LATENT
    ),
    "Gemma4AudioModel": _small(
        "Gemma4AudioModel", floats(input_features=(2, 100, 128)), "input_features"
    ),
    "VJEPA2Model": _small(
        "VJEPA2Model",
        floats(pixel_values_videos=(2, 4, 3, 64, 64)),
        "pixel_values_videos",
        crop_size=64,
        frames_per_clip=4,
        pred_hidden_size=32,
        pred_num_hidden_layers=1,
        pred_num_attention_heads=2,
    ),
    "VideoPrismVisionModel": _small(
        "VideoPrismVisionModel",
        floats(pixel_values_videos=(2, 4, 3, 64, 64)),
        "pixel_values_videos",
        num_frames=4,
    ),
    "MimiEncoderModel": _small(
        "MimiEncoderModel", floats(input_values=(2, 1, 4000)), "input_values"
    ),
    "DecisionTransformerModel": _small(
        "DecisionTransformerModel",
        lambda module: {
            "states": torch.randn(2, 6, 17),
            "actions": torch.randn(2, 6, 4),
            "rewards": torch.randn(2, 6, 1),
            "returns_to_go": torch.randn(2, 6, 1),
            "timesteps": torch.arange(6).expand(2, 6).clone(),
            "attention_mask": torch.ones(2, 6),
        },
        "states",
        "actions",
        "rewards",
        "returns_to_go",
        "timesteps",
        "attention_mask",
    ),
    "Blip2QFormerModel": _small(
        "Blip2QFormerModel",
        floats(query_embeds=(2, 8, 64), encoder_hidden_states=(2, 16, 64)),
        "query_embeds",
        "encoder_hidden_states",
    ),
    "LxmertModel": _small(
        "LxmertModel",
        lambda module: {
            "input_ids": torch.randint(3, 300, (2, 12)),
            "visual_feats": torch.randn(2, 5, 2048),
            "visual_pos": torch.rand(2, 5, 4),
        },
        "input_ids",
        "visual_feats",
        "visual_pos",
        l_layers=1,
        x_layers=1,
        r_layers=1,
    ),
    "ViltModel": _small(
        "ViltModel",
        lambda module: {
            "input_ids": torch.randint(3, 300, (2, 12)),
            "pixel_values": torch.randn(2, 3, 64, 64),
        },
        "input_ids",
        "pixel_values",
    ),
}

#: With one dim that varies.
VARYING = {**TEXTS, **IMAGES, **OTHERS}
#: The same with fixed sizes.
FIXED = {name: made._replace(varying={}) for name, made in VARYING.items()}
