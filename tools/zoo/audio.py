"""Sound: encoders of waves and of spectrograms, speech to text, codecs."""

from __future__ import annotations

from typing import Any

import torch

from tools.zoo.architecture import Inputs, pretrained
from tools.zoo.encoder_decoder import BART, STACKS
from tools.zoo.text import SMALL, VOCABULARY, tokens

WIDE = {"intermediate_size": 96}
#: The convolutions that take a wave to features.
FEATURES: dict[str, Any] = {
    "conv_dim": [32, 32, 32],
    "conv_kernel": [10, 3, 2],
    "conv_stride": [5, 2, 2],
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
}
WAVE_ENCODER = SMALL | WIDE | FEATURES
MELS = 40


def wave(*shape: int, name: str = "input_values") -> Inputs:
    """A wave of that shape."""
    return lambda module: {name: torch.randn(shape)}


def spectrogram_and_tokens(*shape: int, name: str = "input_features") -> Inputs:
    """Features for the encoder, tokens for the decoder."""
    return lambda module: {
        name: torch.randn(shape),
        "decoder_input_ids": tokens(module, length=7)["input_ids"],
    }


AUDIO = {
    **pretrained(
        wave(2, 4000),
        {
            "Wav2Vec2ForCTC": WAVE_ENCODER,
            "Wav2Vec2ConformerForCTC": WAVE_ENCODER,
            "HubertForCTC": WAVE_ENCODER,
            "WavLMForCTC": WAVE_ENCODER,
            "UniSpeechForCTC": WAVE_ENCODER,
            "UniSpeechSatForCTC": WAVE_ENCODER,
            "Data2VecAudioForCTC": WAVE_ENCODER,
            "SEWForCTC": WAVE_ENCODER,
            "SEWDForCTC": WAVE_ENCODER | {"position_buckets": 8},
        },
    ),
    **pretrained(
        wave(1, 1, 4000),
        {
            "EncodecModel": {"num_filters": 4, "hidden_size": 16, "codebook_size": 32},
            "DacModel": {"encoder_hidden_size": 8, "decoder_hidden_size": 32, "n_codebooks": 2},
            "MimiModel": {
                "num_filters": 4,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "num_key_value_heads": 2,
                "intermediate_size": 64,
                "codebook_size": 32,
                "codebook_dim": 16,
                "vector_quantization_hidden_dimension": 16,
                "num_quantizers": 2,
                "upsample_groups": 32,
            },
        },
    ),
    **pretrained(
        wave(1, 64, MELS),
        {
            "ASTForAudioClassification": {
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "intermediate_size": 64,
                "max_length": 64,
                "num_mel_bins": MELS,
            }
        },
    ),
    **pretrained(
        wave(1, 64, MELS, name="input_features"),
        {
            "Wav2Vec2BertForCTC": SMALL
            | WIDE
            | {"feature_projection_input_dim": MELS, "conv_depthwise_kernel_size": 7}
        },
    ),
    **pretrained(
        spectrogram_and_tokens(2, MELS, 64),
        {
            "WhisperForConditionalGeneration": BART
            | {"num_mel_bins": MELS, "max_source_positions": 32, "max_target_positions": 16}
        },
    ),
    **pretrained(
        spectrogram_and_tokens(2, 64, MELS),
        {
            "Speech2TextForConditionalGeneration": BART
            | {"input_feat_per_channel": MELS, "conv_channels": 32}
        },
    ),
    **pretrained(
        spectrogram_and_tokens(2, 4000, name="input_values"),
        {
            "MoonshineForConditionalGeneration": VOCABULARY
            | {
                "hidden_size": 64,
                "intermediate_size": 96,
                "encoder_num_hidden_layers": 2,
                "decoder_num_hidden_layers": 2,
                "encoder_num_attention_heads": 4,
                "decoder_num_attention_heads": 4,
                "encoder_num_key_value_heads": 4,
                "decoder_num_key_value_heads": 4,
                "decoder_start_token_id": 1,
                "use_cache": False,
            },
            "SpeechT5ForSpeechToText": STACKS | FEATURES | {"hidden_size": 64},
        },
    ),
}
