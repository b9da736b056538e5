"""A small language model whose tokens are bytes, with a chat template, and a way to make it say."""

from functools import cache

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import taper_frontend

END = "<|end|>"
SOURCE = (
    "{% for t in tools or [] %}{{ t.function.name }} {% endfor %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def byte_tokenizer():
    """A token for each byte, and one that ends texts."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=made, eos_token=END)
    found.chat_template = SOURCE
    return found


def byte_model():
    """A model with seeded weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=257, n_embd=16, n_layer=1, n_head=2, n_positions=256,
        bos_token_id=None, eos_token_id=256,
    )  # fmt: skip
    return GPT2LMHeadModel(config).eval()


@cache
def byte_plan():
    """The plan of the model, of 128 tokens of context."""
    return taper_frontend.export_decoder(
        byte_model(), max_context=128, tokenizer=byte_tokenizer(), verify="outputs"
    )


def saying(writer, text, end=True):
    """Options with which a model writes this text."""
    ids = writer.tokenizer.encode(text).ids + [256] * end
    state = iter(ids)

    def choose(tokens, logits):
        logits[:] = -np.inf
        logits[next(state)] = 0
        return logits

    return {"logits_processors": [choose], "max_new_tokens": len(ids)}
