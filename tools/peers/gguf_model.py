"""Write a LLaMA of seeded weights as a GGUF file, so that several engines read the same weights.

Keys and names are those of https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

from itertools import chain, islice, product
from string import ascii_letters
from typing import TYPE_CHECKING, NamedTuple

import gguf
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Sizes(NamedTuple):
    """Sizes of a LLaMA."""

    hidden: int
    inner: int
    layers: int
    heads: int
    kept: int
    words: int

    @property
    def read(self) -> int:
        """The weights that a token reads: those of products, of the layers and of the head."""
        kept = self.hidden * self.kept // self.heads
        layer = 2 * self.hidden * (self.hidden + kept) + 3 * self.hidden * self.inner
        return self.layers * layer + self.words * self.hidden


#: The positions that a file says its model has.
CONTEXT = 4096

#: The first tokens, bytes and the one that ends a text, are never the likeliest: servers hold back
#: parts of characters, and stop at an end.
NO_WORDS = 257


def write_llama(sizes: Sizes, kind: str, path: Path) -> None:
    """Write a model with a tokenizer of bytes and of pairs of them.

    Parameters
    ----------
    sizes : Sizes
    kind : str
        The type of the weights of products and of the embedding: F32, F16, Q8_0 or Q4_0.
    path : Path
    """
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(sizes.hidden)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_block_count(sizes.layers)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kept)
    writer.add_rope_dimension_count(sizes.hidden // sizes.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(sizes.words)
    file_type = {"F32": "ALL_F32", "Q4_K": "MOSTLY_Q4_K_M"}.get(kind, f"MOSTLY_{kind}")
    writer.add_file_type(gguf.LlamaFileType[file_type])
    _add_tokenizer(writer, sizes.words)
    form = gguf.GGMLQuantizationType[kind]
    rng = np.random.default_rng(0)
    for name, shape in _weights(sizes):
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            continue
        weight = rng.standard_normal(shape, np.float32) * np.float32(0.02)
        if name == "output.weight":
            weight[:NO_WORDS] = 0
        stored = quantize_q4_k(weight) if kind == "Q4_K" else gguf.quants.quantize(weight, form)
        writer.add_tensor(name, stored, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def quantize_q4_k(weight: np.ndarray) -> np.ndarray:
    """Return rows of weights as Q4_K, uint8, which the package gguf only reads.

    Of 256 weights, each 32 have a scale and an offset of 6 bits, which have common factors.
    """
    parts = weight.reshape(len(weight), -1, 8, 32)
    least = np.maximum(-parts.min(-1), 0)
    scale = (parts.max(-1) + least) / 15
    factors = [(each.max(-1) / 63).astype(np.float16) for each in (scale, least)]
    sixes = []
    for each, factor in zip((scale, least), factors, strict=True):
        divisor = np.maximum(factor.astype(np.float32), np.float32(1e-8))[..., None]
        sixes.append(np.clip(np.rint(each / divisor), 0, 63).astype(np.uint8))
    used, offset = (
        six.astype(np.float32) * factor.astype(np.float32)[..., None]
        for six, factor in zip(sixes, factors, strict=True)
    )
    steps = (parts + offset[..., None]) / np.maximum(used, np.float32(1e-8))[..., None]
    levels = np.clip(np.rint(steps), 0, 15).astype(np.uint8)
    scales, offsets = sixes
    block = (
        *(factor[..., None].view(np.uint8) for factor in factors),
        *(six[..., :4] | six[..., 4:] >> 4 << 6 for six in sixes),
        scales[..., 4:] & 15 | offsets[..., 4:] << 4,
        (levels[..., ::2, :] | levels[..., 1::2, :] << 4).reshape(*levels.shape[:2], 128),
    )
    return np.concatenate(block, -1).reshape(len(weight), -1)


def _weights(sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the names and shapes of the tensors."""
    hidden, inner = sizes.hidden, sizes.inner
    kept = hidden * sizes.kept // sizes.heads
    yield "token_embd.weight", (sizes.words, hidden)
    for layer in range(sizes.layers):
        for name, *shape in (
            ("attn_norm", hidden),
            ("attn_q", hidden, hidden),
            ("attn_k", kept, hidden),
            ("attn_v", kept, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_norm", hidden),
            ("ffn_gate", inner, hidden),
            ("ffn_up", inner, hidden),
            ("ffn_down", hidden, inner),
        ):
            yield f"blk.{layer}.{name}.weight", tuple(shape)
    yield "output_norm.weight", (hidden,)
    yield "output.weight", (sizes.words, hidden)


def _add_tokenizer(writer: gguf.GGUFWriter, words: int) -> None:
    """Add a byte-level BPE: a token for each byte, one that ends a text, and words of letters."""
    # GPT-2's characters for bytes: those that are printed, then ones from 256 on
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    single = [chr(byte) for byte in printed] + [chr(256 + i) for i in range(256 - len(printed))]
    pairs = [*product(ascii_letters, ascii_letters)]
    longer = ((a + b, c) for a, b in pairs for c in ascii_letters)
    merges = [*islice(chain(pairs, longer), words - NO_WORDS)]
    kinds = [gguf.TokenType.NORMAL] * words
    kinds[len(single)] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*single, "<|endoftext|>", *map("".join, merges)])
    writer.add_token_types(kinds)
    writer.add_token_merges([f"{a} {b}" for a, b in merges])
    writer.add_bos_token_id(len(single))
    writer.add_eos_token_id(len(single))
