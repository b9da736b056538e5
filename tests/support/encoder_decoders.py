"""Small encoder-decoders of transformers with weights that make their texts vary."""

from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import transformers

import taper_frontend

if TYPE_CHECKING:
    from taper_runtime import Plan

WORDS, CONTEXT, SOURCE = 60, 80, 32

_T5 = {"d_model": 16, "d_kv": 4, "d_ff": 24, "num_layers": 1, "num_heads": 4}

_BART = {
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 128,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
}

#: Models by name: the class, its config's sizes. The suite tests bart.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", "T5Config", _T5 | {"decoder_start_token_id": 0}),
    "bart": ("BartForConditionalGeneration", "BartConfig", _BART),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", _BART),
    "marian": ("MarianMTModel", "MarianConfig", _BART),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", _BART),
    "blenderbot": ("BlenderbotForConditionalGeneration", "BlenderbotConfig", _BART),
    "blenderbot_small": (
        "BlenderbotSmallForConditionalGeneration",
        "BlenderbotSmallConfig",
        _BART,
    ),
    "plbart": ("PLBartForConditionalGeneration", "PLBartConfig", _BART),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", _T5 | {"decoder_start_token_id": 0}),
    "umt5": ("UMT5ForConditionalGeneration", "UMT5Config", _T5 | {"decoder_start_token_id": 0}),
}


def model(name: str, **changes: Any) -> Any:
    """Return a model with seeded weights, in evaluation mode, which no token ends."""
    kind, config, sizes = MODELS[name]
    torch.manual_seed(1)
    given = {"vocab_size": WORDS, "pad_token_id": 1, **sizes, **changes}
    made = getattr(transformers, kind)(getattr(transformers, config)(**given)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(9)
    config = made.generation_config
    config.eos_token_id = config.forced_eos_token_id = config.bad_words_ids = None
    config.num_beams = 1
    return made


def greedy(of: Any, source: list[int], count: int) -> list[int]:
    """Return the tokens that transformers writes for a source, without the one it begins with."""
    ids = of.generate(torch.tensor([source]), max_new_tokens=count, do_sample=False)
    return ids[0, 1:].tolist()


@cache
def plan(name: str) -> "Plan":
    """Return the plan of a model, which tests of one process share."""
    return taper_frontend.export_decoder(
        model(name), max_context=CONTEXT, max_source=SOURCE, verify=False
    )
