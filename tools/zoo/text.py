"""Text: encoders over a padded batch, decoders over whole sequences."""

from __future__ import annotations

from typing import Any

import torch

from tools.zoo.architecture import pretrained

VOCABULARY: dict[str, Any] = {
    "vocab_size": 300,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
#: Most configs have these names for their sizes, or map them to their own.
SMALL: dict[str, Any] = {
    **VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
WIDE = {"intermediate_size": 96}
NO_CACHE = {"use_cache": False}
GROUPED = {"num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}
ENCODER = SMALL | WIDE
DECODER = ENCODER | GROUPED | NO_CACHE

#: Smallest that is not a special token.
_FIRST = 5


def tokens(module: torch.nn.Module, length: int = 16) -> dict[str, torch.Tensor]:
    """Two sequences of token ids."""
    return {"input_ids": torch.randint(_FIRST, VOCABULARY["vocab_size"], (2, length))}


def padded_tokens(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Two sequences of token ids, the second of them padded."""
    ids = tokens(module)["input_ids"]
    mask = torch.ones_like(ids)
    mask[1, 11:] = 0
    ids[1, 11:] = VOCABULARY["pad_token_id"]
    return {"input_ids": ids, "attention_mask": mask}


ENCODERS = pretrained(
    padded_tokens,
    {
        "BertModel": WIDE,
        "RobertaModel": WIDE,
        "DistilBertModel": {"hidden_dim": 96},
        "AlbertModel": WIDE | {"embedding_size": 32},
        "DebertaModel": WIDE | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        "DebertaV2Model": WIDE | {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        "XLMRobertaModel": WIDE,
        "XLMRobertaXLModel": WIDE,
        "RobertaPreLayerNormModel": WIDE,
        "XmodModel": WIDE | {"default_language": "en_XX"},
        "CamembertModel": WIDE,
        "ElectraModel": WIDE | {"embedding_size": 32},
        "MPNetModel": WIDE,
        "SqueezeBertModel": WIDE | {"embedding_size": 64},
        "MobileBertModel": WIDE | {"embedding_size": 32, "intra_bottleneck_size": 32},
        "ConvBertModel": WIDE | {"embedding_size": 64},
        "NystromformerModel": WIDE,
        "BigBirdModel": WIDE,
        "LongformerModel": WIDE | {"attention_window": 8},
        "YosoModel": WIDE | {"use_expectation": True},
        "XLNetModel": {"d_head": 16, "d_inner": 96},
        "XLMModel": {},
        "FlaubertModel": {},
        "RoFormerModel": WIDE,
        "ErnieModel": WIDE,
        "MegatronBertModel": WIDE,
        "RemBertModel": WIDE | {"input_embedding_size": 32, "output_embedding_size": 32},
        "SplinterModel": WIDE,
        "Data2VecTextModel": WIDE,
        "IBertModel": WIDE,
        "LayoutLMModel": WIDE,
        "LiltModel": WIDE | {"hidden_size": 96},
        "ModernBertModel": WIDE | {"layer_types": ["full_attention", "sliding_attention"]},
        "EuroBertModel": WIDE | GROUPED,
        "NomicBertModel": WIDE,
        "EsmModel": WIDE | {"position_embedding_type": "rotary"},
        "T5EncoderModel": {"d_ff": 96, "d_kv": 16},
        "MT5EncoderModel": {"d_ff": 96, "d_kv": 16},
        "CLIPTextModelWithProjection": WIDE | {"projection_dim": 16},
        "SiglipTextModel": WIDE | {"projection_size": 16},
    },
    **SMALL,
)
# without attention, thus without a number of heads
FOURIER = pretrained(
    tokens,
    {"FNetModel": WIDE | VOCABULARY | {"hidden_size": 64, "num_hidden_layers": 2}},
)
# layers in blocks, pooled in between
FUNNEL = pretrained(
    padded_tokens,
    {
        "FunnelModel": {
            "block_sizes": [1, 2],
            "num_decoder_layers": 1,
            "d_model": 64,
            "n_head": 4,
            "d_head": 16,
            "d_inner": 96,
        }
    },
    **VOCABULARY,
)

DECODERS = pretrained(
    tokens,
    {
        "GPT2LMHeadModel": {},
        "GPTBigCodeForCausalLM": {},
        "GPTNeoForCausalLM": {
            "intermediate_size": 96,
            "window_size": 8,
            "attention_types": [[["global", "local"], 1]],
        },
        "GPTJForCausalLM": {"rotary_dim": 8},
        "GPTNeoXForCausalLM": WIDE,
        "CodeGenForCausalLM": {"rotary_dim": 8},
        "OPTForCausalLM": {"ffn_dim": 96, "word_embed_proj_dim": 64},
        "BloomForCausalLM": {},
        "FalconForCausalLM": {"alibi": False},
        "CTRLLMHeadModel": {"dff": 96},
        "BioGptForCausalLM": WIDE,
        "XGLMForCausalLM": {"ffn_dim": 96},
        "LlamaForCausalLM": WIDE | GROUPED,
        "MistralForCausalLM": WIDE | GROUPED | {"sliding_window": 8},
        "Qwen2ForCausalLM": WIDE | GROUPED,
        "Qwen3ForCausalLM": WIDE | GROUPED | {"head_dim": 16},
        "GemmaForCausalLM": WIDE | GROUPED | {"head_dim": 16},
        "Gemma2ForCausalLM": WIDE | GROUPED | {"head_dim": 16, "sliding_window": 8},
        "Gemma3ForCausalLM": WIDE | GROUPED | {"head_dim": 16, "sliding_window": 8},
        "PhiForCausalLM": WIDE,
        "Phi3ForCausalLM": WIDE | GROUPED,
        "StableLmForCausalLM": WIDE | GROUPED,
        "Starcoder2ForCausalLM": WIDE | GROUPED,
        "OlmoForCausalLM": WIDE,
        "Olmo2ForCausalLM": WIDE,
        "Olmo3ForCausalLM": WIDE,
        "CohereForCausalLM": WIDE | GROUPED,
        "Cohere2ForCausalLM": WIDE | GROUPED | {"sliding_window": 8},
        "GraniteForCausalLM": WIDE | GROUPED,
        "PersimmonForCausalLM": WIDE,
        "HeliumForCausalLM": WIDE | GROUPED | {"head_dim": 16},
        "GlmForCausalLM": WIDE | GROUPED | {"head_dim": 16},
        "Glm4ForCausalLM": WIDE | GROUPED | {"head_dim": 16},
        "SmolLM3ForCausalLM": WIDE | GROUPED,
        "NemotronForCausalLM": WIDE | GROUPED,
        "DiffLlamaForCausalLM": WIDE | GROUPED,
        "Exaone4ForCausalLM": WIDE | GROUPED,
        "ArceeForCausalLM": WIDE | GROUPED,
        "Ernie4_5ForCausalLM": WIDE | GROUPED,
        "HunYuanDenseV1ForCausalLM": WIDE | GROUPED | {"head_dim": 16},
        "BitNetForCausalLM": WIDE | GROUPED,
        "ApertusForCausalLM": WIDE | GROUPED,
        "SeedOssForCausalLM": WIDE | GROUPED | {"head_dim": 16},
        "Lfm2ForCausalLM": WIDE | GROUPED | {"layer_types": ["conv", "full_attention"]},
        "ModernBertDecoderForCausalLM": WIDE,
    },
    **SMALL,
    **NO_CACHE,
)
# two of those above whose configs do not know a cache
CACHELESS = pretrained(tokens, {"OpenAIGPTLMHeadModel": {}, "MptForCausalLM": {}}, **SMALL)

MIXTURES = pretrained(
    tokens,
    {
        "MixtralForCausalLM": WIDE | GROUPED | EXPERTS,
        "Qwen2MoeForCausalLM": WIDE
        | GROUPED
        | EXPERTS
        | {"moe_intermediate_size": 48, "shared_expert_intermediate_size": 48},
        "Qwen3MoeForCausalLM": WIDE | GROUPED | EXPERTS | {"moe_intermediate_size": 48},
        "OlmoeForCausalLM": WIDE | EXPERTS,
        "PhimoeForCausalLM": WIDE | GROUPED | {"num_local_experts": 4},
        "GraniteMoeForCausalLM": WIDE | GROUPED | {"num_local_experts": 4},
        "GptOssForCausalLM": WIDE | GROUPED | EXPERTS | {"head_dim": 16, "sliding_window": 8},
        "DbrxForCausalLM": {
            "d_model": 64,  # which the others of its names are made from
            "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 1e4},
            "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
        },
        "DeepseekV2ForCausalLM": WIDE
        | {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "head_dim": 8,
            "v_head_dim": 16,
        },
        "DeepseekV3ForCausalLM": WIDE
        | {
            "n_routed_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "first_k_dense_replace": 1,
            "n_group": 2,
            "topk_group": 1,
            "q_lora_rank": 32,
            "kv_lora_rank": 32,
            "qk_nope_head_dim": 16,
            "qk_rope_head_dim": 8,
            "v_head_dim": 16,
            "num_key_value_heads": 4,
        },
        "Dots1ForCausalLM": WIDE
        | {
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 48,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "num_key_value_heads": 4,
        },
        "MiniMaxForCausalLM": WIDE
        | GROUPED
        | {
            "num_local_experts": 4,
            "block_size": 8,
            "head_dim": 16,
            "layer_types": ["linear_attention", "full_attention"],
        },
    },
    **SMALL,
    **NO_CACHE,
)

STATE_SPACES = pretrained(
    tokens,
    {
        "MambaForCausalLM": {"state_size": 8},
        "FalconMambaForCausalLM": {"state_size": 8},
        "Mamba2ForCausalLM": {
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 16,
            "n_groups": 2,
            "chunk_size": 8,
        },
        "RwkvForCausalLM": {"attention_hidden_size": 64, "intermediate_size": 96},
        "RecurrentGemmaForCausalLM": {
            "intermediate_size": 96,
            "num_attention_heads": 4,
            "attention_window_size": 8,
            "block_types": ["recurrent", "attention"],
        },
        "JambaForCausalLM": WIDE
        | GROUPED
        | {
            "num_attention_heads": 4,
            "num_experts": 4,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "mamba_d_state": 8,
            "use_mamba_kernels": False,
        },
        "BambaForCausalLM": WIDE
        | GROUPED
        | {
            "num_attention_heads": 4,
            "mamba_n_heads": 8,
            "mamba_d_head": 16,
            "mamba_d_state": 8,
            "mamba_chunk_size": 8,
            "attn_layer_indices": [1],
        },
        "Zamba2ForCausalLM": WIDE
        | {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "layers_block_type": ["mamba", "hybrid"],
            "mamba_d_state": 8,
            "n_mamba_heads": 8,
            "chunk_size": 8,
            "adapter_rank": 8,
            "use_mamba_kernels": False,
        },
    },
    **VOCABULARY,
    **NO_CACHE,
    hidden_size=64,
    num_hidden_layers=2,
)

TEXT = {
    **ENCODERS,
    **FOURIER,
    **FUNNEL,
    **DECODERS,
    **CACHELESS,
    **MIXTURES,
    **STATE_SPACES,
}
