"""Configs of small decoders of transformers with recurrent states and short convolutions."""

from typing import Any

_SIZES = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 2, "pad_token_id": 0}

_ATTENTION = _SIZES | {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
}

_MAMBA2 = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4}

#: By name: the class, and its sizes.
RECURRENT: dict[str, tuple[str, dict[str, Any]]] = {
    "mamba": ("MambaConfig", _SIZES | {"state_size": 4}),
    "mamba2": (
        "Mamba2Config",
        _SIZES | {"state_size": 4, "num_heads": 4, "head_dim": 8, "n_groups": 2},
    ),
    "falcon_mamba": ("FalconMambaConfig", _SIZES | {"state_size": 4}),
    "jamba": (
        "JambaConfig",
        _ATTENTION
        | {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "num_experts": 2,
            "mamba_d_state": 4,
            "use_mamba_kernels": False,
        },
    ),
    "bamba": (
        "BambaConfig",
        _ATTENTION | _MAMBA2 | {"attn_layer_indices": [1], "mamba_n_groups": 2},
    ),
    "granite_moe_hybrid": (
        "GraniteMoeHybridConfig",
        _ATTENTION
        | _MAMBA2
        | {
            "layer_types": ["mamba", "attention"],
            "mamba_n_groups": 1,
            "num_local_experts": 0,
            "shared_intermediate_size": 24,
        },
    ),
    "falcon_h1": (
        "FalconH1Config",
        _ATTENTION
        | {
            "mamba_d_ssm": 16,
            "mamba_n_heads": 4,
            "mamba_d_head": 4,
            "mamba_d_state": 4,
            "mamba_n_groups": 1,
        },
    ),
    "lfm2": ("Lfm2Config", _ATTENTION | {"layer_types": ["conv", "full_attention"]}),
    "qwen3_next": (
        "Qwen3NextConfig",
        _ATTENTION
        | {
            "head_dim": 8,
            "linear_num_value_heads": 4,
            "linear_num_key_heads": 2,
            "linear_key_head_dim": 4,
            "linear_value_head_dim": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "num_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8,
        },
    ),
}
