"""Small decoders of transformers with weights that make their texts vary."""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import transformers

import taper_frontend

if TYPE_CHECKING:
    from taper_runtime import Plan

WORDS, CONTEXT = 60, 80

#: The sliding window of gemma3, and how many positions its plan keeps beside it.
WINDOW, ROOM = 4, 20

_SIZES = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 128,
    "num_hidden_layers": 1,
    "pad_token_id": 0,
}

#: Configs by name: with grouped heads and a sliding window in one of two layers, with learned
#: positions; and two that do not work.
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemma3": (
        "Gemma3TextConfig",
        _SIZES
        | {
            "num_hidden_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": WINDOW,
            "head_dim": 8,
        },
    ),
    "gpt2": (
        "GPT2Config",
        {
            "vocab_size": WORDS,
            "n_embd": 16,
            "n_layer": 1,
            "n_head": 4,
            "n_positions": 128,
            "bos_token_id": 0,
            "eos_token_id": 0,
        },
    ),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            "vocab_size": WORDS,
            "hidden_size": 16,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "max_position_embeddings": 128,
            "window_size": 16,
        },
    ),
    "rwkv": ("RwkvConfig", {"vocab_size": WORDS, "hidden_size": 16, "num_hidden_layers": 2}),
}


def decoder(name: str, **changes: Any) -> Any:
    """Return a model with seeded weights, in evaluation mode, which no token ends."""
    config, sizes = CONFIGS[name]
    made = getattr(transformers, config)(**sizes, **changes)
    torch.manual_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(made).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(6)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """Return the tokens that transformers writes after a prompt."""
    ids = model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)
    return ids[0, len(prompt) :].tolist()


@cache
def plan(name: str) -> "Plan":
    """Return the plan of a decoder, which tests of one process share; it has no quantized weights.

    That of gpt2 has all checks, and options of an export.
    """
    if name != "gpt2":
        return taper_frontend.export_decoder(
            decoder(name), max_context=CONTEXT, window_room=ROOM, verify=False
        )
    return taper_frontend.export_decoder(
        decoder(name),
        max_context=CONTEXT,
        quantize=taper_frontend.QuantizationConfig(weights="float32"),
        metadata={"licence": "none"},
    )
