"""Encoders and decoders together: a padded batch in, the decoder's sequences beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.zoo.architecture import pretrained
from tools.zoo.text import VOCABULARY, padded_tokens, tokens

if TYPE_CHECKING:
    import torch


def pairs(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Padded sequences for the encoder, shorter ones for the decoder."""
    return {
        **padded_tokens(module),
        "decoder_input_ids": tokens(module, length=7)["input_ids"],
    }


#: Of an encoder and a decoder.
STACKS: dict[str, Any] = {
    **VOCABULARY,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "use_cache": False,
}
BART: dict[str, Any] = {
    **STACKS,
    "d_model": 64,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}
T5: dict[str, Any] = {
    **VOCABULARY,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 96,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "use_cache": False,
}

ENCODER_DECODER = pretrained(
    pairs,
    {
        "T5ForConditionalGeneration": T5,
        "MT5ForConditionalGeneration": T5,
        "UMT5ForConditionalGeneration": T5,
        "LongT5ForConditionalGeneration": T5 | {"local_radius": 7},
        "SwitchTransformersForConditionalGeneration": T5
        | {
            "num_decoder_layers": 2,
            "num_sparse_encoder_layers": 1,
            "num_sparse_decoder_layers": 1,
            "num_experts": 4,
        },
        "BartForConditionalGeneration": BART,
        "MBartForConditionalGeneration": BART,
        "MvpForConditionalGeneration": BART,
        "PLBartForConditionalGeneration": BART,
        "PegasusForConditionalGeneration": BART,
        "PegasusXForConditionalGeneration": BART | {"block_size": 8, "num_global_tokens": 4},
        "BigBirdPegasusForConditionalGeneration": BART | {"block_size": 4},
        "MarianMTModel": BART | {"decoder_vocab_size": 300},
        "BlenderbotForConditionalGeneration": BART,
        "BlenderbotSmallForConditionalGeneration": BART,
        "M2M100ForConditionalGeneration": BART,
        "NllbMoeForConditionalGeneration": BART
        | {"num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
        "LEDForConditionalGeneration": BART | {"attention_window": 8},
        "ProphetNetForConditionalGeneration": VOCABULARY
        | {
            "hidden_size": 64,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "encoder_ffn_dim": 96,
            "decoder_ffn_dim": 96,
            "use_cache": False,
        },
    },
)
