"""Decoders of local checkpoints: folders and GGUF files give the texts of their models."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

import taper_frontend
import taper_runtime
from decoders import greedy
from marks import REFERENCE
from quantized_checkpoints import gguf_file
from taper_frontend import ExportError
from taper_frontend.decoders.decoder_folder import open_decoder

WORDS, SIZE, LAYERS = 64, 32, 1
PROMPT = [5, 6, 7]
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


def config(**more):
    return transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=SIZE,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=SIZE,
        max_position_embeddings=64,
        eos_token_id=1,
        tie_word_embeddings=False,
        **more,
    )


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(config()).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return made


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("folder")
    model.save_pretrained(path)
    words = {f"w{number}": number for number in range(WORDS)}
    own = Tokenizer(models.WordLevel(words, "w0"))
    own.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=own, eos_token="w1")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(path)
    return path


def export(source, **options):
    return taper_frontend.export_decoder(source, max_context=32, verify=False, **options)


def text(plan):
    generator = taper_runtime.Generator(taper_runtime.InferenceSession(plan))
    return [*generator.generate(PROMPT, max_new_tokens=12)]


def check_logits(opened, model):
    """Compare what two models compute."""
    ids = torch.tensor([PROMPT])
    with torch.no_grad():
        torch.testing.assert_close(
            opened(input_ids=ids).logits, model(input_ids=ids).logits, rtol=1e-5, atol=1e-5
        )


@REFERENCE
def test_the_texts_of_a_folder(model, folder):
    plan = export(str(folder))
    assert text(plan) == greedy(model, PROMPT, 12)
    assert plan.assets["chat_template.jinja"].tobytes().decode() == TEMPLATE
    assert {"tokenizer.json"} < {*plan.assets}
    assert plan.metadata["decoder"]["eos_token_ids"] == [1]


def test_a_folder(model, folder):
    opened, tokenizer = open_decoder(folder)
    check_logits(opened, model)
    assert tokenizer.chat_template == TEMPLATE
    assert opened.generation_config.eos_token_id == 1


def test_weights_of_a_folder_are_mapped(folder):
    opened, _ = open_decoder(folder)
    address = opened.lm_head.weight.data_ptr()
    places = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    (found,) = (
        file
        for span, *_, file in places
        if int(span.split("-")[0], 16) <= address < int(span.split("-")[1], 16)
    )
    assert found == str(folder / "model.safetensors")


def test_a_folder_that_lacks_weights(folder, tmp_path):
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(ExportError, match=r"expected weights of lm_head\.weight, got none"):
        open_decoder(tmp_path)
    tensors["lm_head.weight"] = torch.zeros(3, SIZE)
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match="expected a checkpoint that transformers reads, got"):
        open_decoder(tmp_path)


def rows(weight, heads):
    """Put the rows of a head in llama.cpp's order: of both halves, in turns."""
    return weight.reshape(heads, 2, -1, weight.shape[-1]).swapaxes(1, 2).reshape(weight.shape)


def q8_0(weight):
    """The blocks of a weight, and its numbers after rounding."""
    blocks = weight.reshape(-1, 32)
    scale = (np.abs(blocks).max(1, keepdims=True) / 127).astype(np.float16)
    levels = np.rint(blocks / scale.astype(np.float32)).astype(np.int8)
    packed = np.concatenate([scale.view(np.uint8), levels.view(np.uint8)], 1)
    numbers = levels.astype(np.float32) * scale.astype(np.float32)
    return packed.tobytes(), numbers.reshape(weight.shape)


NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
METADATA = {
    "general.architecture": "llama",
    "llama.embedding_length": SIZE,
    "llama.block_count": LAYERS,
    "llama.feed_forward_length": SIZE,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 1e-6,
    "llama.context_length": 64,
    "tokenizer.ggml.eos_token_id": 1,
}
TOKENIZER = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "qwen2",
    "tokenizer.ggml.tokens": [
        "!",
        "<|endoftext|>",
        *(chr(ord("!") + number) for number in range(2, WORDS)),
    ],
    "tokenizer.ggml.merges": [],
    "tokenizer.chat_template": TEMPLATE,
}


@pytest.fixture(scope="module")
def described(model):
    """The tensors of a file, and the model whose weights are rounded like them."""
    rounded = transformers.LlamaForCausalLM(config()).eval()
    tensors, state = {}, {}
    for own, tensor in model.state_dict().items():
        module = own.removesuffix(".weight")
        inner = module.removeprefix("model.layers.0.")
        name = NAMES[inner] if inner == module else f"blk.0.{NAMES[inner]}"
        weight = tensor.numpy()
        heads = {"attn_q": 4, "attn_k": 2}.get(NAMES[inner])
        if weight.ndim == 1:
            tensors[f"{name}.weight"] = (0, weight.shape, weight.tobytes())
        else:
            packed, weight = q8_0(weight)
            if heads:
                packed, _ = q8_0(rows(tensor.numpy(), heads))
            tensors[f"{name}.weight"] = (8, weight.shape, packed)
        state[own] = torch.from_numpy(np.array(weight))
    rounded.load_state_dict(state)
    return tensors, rounded


@pytest.fixture(scope="module")
def gguf(described, tmp_path_factory):
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    path.write_bytes(gguf_file(described[0], metadata=METADATA | TOKENIZER))
    return path


def test_a_gguf_file(described, gguf):
    opened, tokenizer = open_decoder(gguf)
    check_logits(opened, described[1])
    assert tokenizer.chat_template == TEMPLATE
    assert tokenizer.backend_tokenizer.encode("!").ids == [0]
    assert opened.generation_config.eos_token_id == 1


@REFERENCE
def test_the_texts_of_a_gguf_file(described, gguf):
    _, rounded = described
    path = gguf
    plan = export(path)
    assert text(plan) == greedy(rounded, PROMPT, 12)
    form = "blocks.8.32.float16.symmetric"
    matrices = [math.prod(shape) for kind, shape, _ in described[0].values() if kind]
    kept = [tensor.type.size for tensor in plan.tensors.values() if tensor.format == form]
    assert sum(kept) == sum(matrices) - WORDS * SIZE  # products of one tensor are merged
    looked_up = [plan.tensors[n.reads[0]].dtype for n in plan.nodes if n.op == "EMBEDDING"]
    assert sorted(looked_up) == ["float16", "int8"]
    assert plan.assets["chat_template.jinja"].tobytes().decode() == TEMPLATE
    tokens = json.loads(plan.assets["tokenizer.json"].tobytes())["model"]["vocab"]
    assert tokens["!"] == 0


def test_a_quantized_folder(folder, tmp_path):
    torch.manual_seed(0)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if "_proj" in name]:
        weight = tensors.pop(name)
        scale = weight.abs().amax(1, keepdim=True) / 127
        tensors[name] = (weight / scale).round().to(torch.int8)
        tensors[f"{name}_scale"] = scale
    save_file(tensors, tmp_path / "model.safetensors")
    settings = json.loads((folder / "config.json").read_text())
    quantization = {
        "quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"g": {"weights": {"num_bits": 8, "symmetric": True}}},
    }
    settings["quantization_config"] = quantization
    (tmp_path / "config.json").write_text(json.dumps(settings))
    opened, tokenizer = open_decoder(tmp_path)
    assert tokenizer is None
    levels = opened.model.layers[0].mlp.up_proj.parametrizations.weight.original
    assert levels.dtype == torch.int8
    state = {name: tensor for name, tensor in tensors.items() if not name.endswith("_scale")}
    for name in state:
        if f"{name}_scale" in tensors:
            state[name] = state[name].float() * tensors[f"{name}_scale"]
    rounded = transformers.LlamaForCausalLM(config()).eval()
    rounded.load_state_dict(state)
    check_logits(opened, rounded)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"general.architecture": "rwkv7"}, "expected one of llama, qwen2, qwen3, got 'rwkv7'"),
        ({"llama.rope.scaling.type": "yarn"}, "positions that are not scaled, got 'yarn'"),
        ({"llama.block_count": "one"}, "llama.block_count: expected a number, got 'one'"),
        ({"llama.block_count": 0}, "expected the tensors of llama, got blk.0"),
        ({"tokenizer.ggml.model": "other"}, "expected a tokenizer that transformers converts"),
    ],
)
def test_gguf_files_that_are_refused(change, message, described, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf_file(described[0], metadata=METADATA | TOKENIZER | change))
    with pytest.raises(ExportError, match=message):
        export(path)


def test_what_is_no_checkpoint(folder, tmp_path):
    with pytest.raises(ExportError, match=r"a folder with config\.json, or a GGUF file, got"):
        export(tmp_path)
    with pytest.raises(ExportError, match="checkpoint: expected None for"):
        export(folder, checkpoint=folder / "model.safetensors")
    (tmp_path / "config.json").write_text('{"model_type": "unknown"}')
    with pytest.raises(ExportError, match="expected a checkpoint that transformers reads"):
        export(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(ExportError, match=r"model.gguf: expected"):
        export(tmp_path / "model.gguf")
