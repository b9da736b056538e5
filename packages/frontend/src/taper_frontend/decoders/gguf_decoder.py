"""Describe the decoder in a GGUF file: its config, the names of its tensors and its tokenizer.

The keys of the metadata and the names of tensors are those of
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and of llama.cpp's converter.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import transformers

from taper_frontend.errors import ExportError
from taper_frontend.quantized_checkpoint.gguf import read_gguf
from taper_runtime.base.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

#: transformers' types of models by the architectures of GGUF.
_TYPES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}

#: Settings of configs, by their keys behind the name of the architecture.
_SETTINGS = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "context_length": "max_position_embeddings",
}

_SPECIAL = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}

#: Names of tensors by those of the modules; and of those in a layer.
_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_config(path: Path) -> Any:
    """Return the config of a decoder in a GGUF file.

    Raises
    ------
    ExportError
        If the file cannot be read, lacks a setting, or has another architecture, tensors that the
        architecture does not have, or positions scaled in a way that is not supported.
    """
    try:
        tensors, metadata = read_gguf(np.memmap(path, np.uint8, "r"))
    except (InputError, OSError, ValueError) as error:
        raise ExportError(f"{path}: {error}") from error
    architecture = metadata.get("general.architecture")
    if architecture not in _TYPES:
        raise ExportError(
            f"{path}: general.architecture: expected one of {', '.join(_TYPES)}, got "
            f"{architecture!r}"
        )

    def setting(key: str) -> Any:
        value = metadata.get(f"{architecture}.{key}")
        if type(value) not in (int, float):
            raise ExportError(f"{path}: {architecture}.{key}: expected a number, got {value!r}")
        return value

    scaling = metadata.get(f"{architecture}.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in tensors:
        got = scaling if scaling != "none" else "rope_freqs.weight"
        raise ExportError(f"{path}: expected positions that are not scaled, got {got!r}")
    settings = {name: setting(key) for key, name in _SETTINGS.items()}
    known = {f"{name}.weight" for name in _NAMES.values()}
    for layer in range(settings["num_hidden_layers"]):
        known |= {f"blk.{layer}.{name}.{x}" for name in _LAYER.values() for x in ("weight", "bias")}
    if other := sorted({*tensors} - known):
        raise ExportError(
            f"{path}: expected the tensors of {architecture}, got {', '.join(other[:5])}"
        )
    if "token_embd.weight" not in tensors:
        raise ExportError(f"{path}: expected a tensor token_embd.weight, got none")
    width = settings["hidden_size"] // max(settings["num_attention_heads"], 1)
    settings |= {
        "head_dim": metadata.get(f"{architecture}.attention.key_length", width),
        "vocab_size": tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in tensors,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": metadata.get(f"{architecture}.rope.freq_base", 10000.0),
        },
        **{name: metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL.items()},
    }
    if architecture == "llama":
        settings["attention_bias"] = "blk.0.attn_q.bias" in tensors
    return transformers.AutoConfig.for_model(_TYPES[architecture], **settings)


def gguf_names(config: Any) -> Callable[[str], str]:
    """Return the function from the names of a model's tensors to those of its GGUF file."""
    names: Mapping[str, str] = _NAMES | {
        f"model.layers.{layer}.{inner}": f"blk.{layer}.{name}"
        for layer in range(config.num_hidden_layers)
        for inner, name in _LAYER.items()
    }

    def name(own: str) -> str:
        module, _, kind = own.rpartition(".")
        return f"{names[module]}.{kind}" if module in names else own

    return name


def gguf_tokenizer(path: Path) -> Any:
    """Return the tokenizer of a GGUF file, as transformers converts it; None if it has none.

    Raises
    ------
    ExportError
        If transformers cannot convert it.
    """
    _, metadata = read_gguf(np.memmap(path, np.uint8, "r"))
    if "tokenizer.ggml.model" not in metadata:
        return None
    try:
        return transformers.PreTrainedTokenizerFast.from_pretrained(
            path.parent, gguf_file=path.name, local_files_only=True
        )
    except Exception as error:  # of many types: transformers and tokenizers read a stranger's file
        kind = re.sub(r"\s+", " ", str(error))
        raise ExportError(
            f"{path}: expected a tokenizer that transformers converts, got "
            f"{metadata['tokenizer.ggml.model']!r}: {type(error).__name__}: {kind}; export a model "
            "without it by taper_frontend.load_quantized"
        ) from error
