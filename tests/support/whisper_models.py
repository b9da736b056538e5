"""A small Whisper of transformers with seeded weights, its tokenizer and its plan."""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import (
    PreTrainedTokenizerFast,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
)

import taper_frontend

if TYPE_CHECKING:
    from taper_runtime import Plan

#: Tokens: 20 words, then those with a meaning, then the times of 0 to 2 seconds in steps of 20 ms.
WORDS, END, START, ENGLISH, GERMAN = 20, 20, 21, 22, 23
TRANSLATE, TRANSCRIBE, NO_TIMES = 24, 25, 26
VOCABULARY = NO_TIMES + 1 + 101

#: Positions of encoder and decoder: 2 seconds.
SECONDS, POSITIONS, CONTEXT = 2, 100, 40


@cache
def whisper() -> Any:
    """Return a model whose windows have different tokens and times."""
    torch.manual_seed(3)
    config = WhisperConfig(
        vocab_size=VOCABULARY,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=24,
        num_mel_bins=80,
        max_source_positions=POSITIONS,
        max_target_positions=CONTEXT,
        pad_token_id=END,
        bos_token_id=END,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    model = WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(25 if "encoder_attn" in name else 12)
    given = {
        "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN},
        "task_to_id": {"translate": TRANSLATE, "transcribe": TRANSCRIBE},
        "no_timestamps_token_id": NO_TIMES,
        "forced_decoder_ids": [[1, None], [2, TRANSCRIBE]],
        "is_multilingual": True,
        "suppress_tokens": [3, START, VOCABULARY],
        "begin_suppress_tokens": [4, END],
        "max_initial_timestamp_index": 20,
        "max_length": CONTEXT,
    }
    for name, value in given.items():
        setattr(model.generation_config, name, value)
    return model


def extractor() -> Any:
    """Return transformers' own computation of spectrograms."""
    return WhisperFeatureExtractor(feature_size=80, chunk_length=SECONDS)


def tokenizer() -> Any:
    """Return a tokenizer with a word for each token."""
    words = {f" w{number}": number for number in range(WORDS)}
    made = Tokenizer(models.WordLevel(words, unk_token=" w0"))
    made.decoder = decoders.Fuse()
    named = {
        END: "<|end|>",
        START: "<|start|>",
        ENGLISH: "<|en|>",
        GERMAN: "<|de|>",
        TRANSLATE: "<|translate|>",
        TRANSCRIBE: "<|transcribe|>",
        NO_TIMES: "<|notimestamps|>",
    }
    made.add_special_tokens([AddedToken(text, special=True) for text in named.values()])
    return PreTrainedTokenizerFast(tokenizer_object=made)


@cache
def whisper_plan() -> "Plan":
    """Return the plan of the model, which tests of one process share."""
    return taper_frontend.export_decoder(
        whisper(), max_context=CONTEXT, tokenizer=tokenizer(), verify=False
    )
