"""Decoders of transformers as plans write what torch writes, one by one and together."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers

import taper_frontend
import taper_runtime
from marks import REFERENCE, some
from taper_frontend import ExportError
from taper_frontend.decoders.decoder_exporter import _eos_token_ids
from tests.support.decoders import decoder, greedy, plan

PROMPTS = [[5, 6, 7], [9], [1, 2, 3, 4, 8, 33, 12]]


@pytest.mark.parametrize("name", some(["gemma3", "gpt2"], ["gpt2"]))
def test_texts_are_torchs_alone_and_in_a_batch(name: str) -> None:
    """Also beyond the length of the ring that a sliding window has."""
    model, made = decoder(name), plan(name)
    assert all(made.is_in_place(state) for state in made.states if state != "reached")
    generator = taper_runtime.Generator(taper_runtime.InferenceSession(made))
    expected = [greedy(model, prompt, 32) for prompt in PROMPTS]
    assert len({*map(tuple, expected)}) == len(PROMPTS)
    alone = [[*generator.generate(prompt, max_new_tokens=32)] for prompt in PROMPTS]
    assert alone == expected
    together = [generator.submit(prompt, max_new_tokens=32) for prompt in PROMPTS]
    while generator.active:
        generator.step()
    assert [request.tokens for request in together] == expected


@pytest.mark.parametrize(
    ("dtype", "error"),
    some([("float16", 2e-3), ("bfloat16", 2e-2), ("int8", 5e-2)], [("bfloat16", 2e-2)]),
)
def test_caches_of_fewer_bits(dtype: str, error: float) -> None:
    """Keys and values are rounded as torch rounds, and attention reads them as they are."""
    model, whole = decoder("gpt2"), plan("gpt2")
    made = taper_frontend.export_decoder(model, max_context=96, cache_dtype=dtype)
    scales = [name for name in made.states if "scale" in name]
    assert len(scales) == (2 if dtype == "int8" else 0)
    assert {made.tensors[name].dtype for name in {*made.states} - {*scales}} == {dtype}
    assert all(made.is_in_place(state) for state in made.states)
    attention = [node for node in made.nodes if node.op == "ATTENTION"]
    assert {made.tensors[node.inputs[1]].dtype for node in attention} == {dtype}
    widened = {made.tensors[node.output].shape[2:] for node in made.nodes if node.op == "CAST"}
    assert all(96 not in shape for shape in widened)
    generator = taper_runtime.Generator(taper_runtime.InferenceSession(made))
    texts = [generator.submit(prompt, max_new_tokens=30) for prompt in PROMPTS]
    while generator.active:
        generator.step()
    for prompt, text in zip(PROMPTS, texts, strict=True):
        assert text.tokens == [*generator.generate(prompt, max_new_tokens=30)]
    feed = {
        "input_ids": np.array([PROMPTS[2]]),
        "position": np.array([0]),
        "logits_to_keep": np.arange(7),
    }
    got, expected = (
        taper_runtime.InferenceSession(each).run(None, feed)[0] for each in (made, whole)
    )
    apart = np.linalg.norm(got - expected) / np.linalg.norm(expected)
    assert 0 < apart < error


@REFERENCE
def test_activations_are_rounded_by_row() -> None:
    """The logits are those of the quantized module, which is not the model."""
    model = decoder("gpt2")
    made = taper_frontend.export_decoder(
        model, max_context=96, quantize="int8_dynamic", verify=False
    )
    assert "int8" in {made.tensors[node.inputs[1]].dtype for node in made.nodes if node.inputs[1:]}
    feed = {
        "input_ids": np.array([PROMPTS[2]]),
        "position": np.array([0]),
        "logits_to_keep": np.arange(7),
    }
    (got,) = taper_runtime.InferenceSession(made).run(None, feed)
    ids = torch.tensor([PROMPTS[2]])
    with torch.no_grad():
        expected, whole = (
            each(ids).logits.numpy()
            for each in (taper_frontend.quantize(model, "int8_dynamic"), model)
        )
    assert np.linalg.norm(got - expected) < 0.01 * np.linalg.norm(expected)
    assert np.linalg.norm(got - whole) > 1e-3 * np.linalg.norm(whole)


def test_activations_that_cannot_be_rounded() -> None:
    with pytest.raises(ExportError, match=r"need data; call taper_frontend\.quantize\("):
        taper_frontend.export_decoder(decoder("gpt2"), max_context=96, quantize="int8_static")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 20}
    bart = transformers.BartForConditionalGeneration(transformers.BartConfig(**sizes)).eval()
    with pytest.raises(ExportError, match="quantize: expected activations='', 'rounded' or"):
        taper_frontend.export_decoder(bart, max_context=32, max_source=16, quantize="int8_dynamic")


def test_options_are_those_of_export() -> None:
    made = plan("gpt2")
    assert made.metadata["quantized"]["scheme"] == "float32"
    assert made.metadata["quantized"]["layers"]
    assert made.metadata["quantized"]["distance"]["logits"]["relative_error"] < 1e-6  # verified
    assert made.metadata["user"] == {"licence": "none"}
    assert made.metadata["warnings"] == []  # the caches are meant
    # the parts have the model's own names
    assert made.made_from("transformer.h.0.mlp.c_fc.weight")


def test_samples_are_of_the_row_that_a_session_has() -> None:
    session = taper_runtime.InferenceSession(plan("gpt2"))
    assert session(*session.load_sample_inputs()[0], **session.load_sample_inputs()[1]) is not None


def test_model_is_left_as_it_was() -> None:
    model = decoder("gpt2")
    before = {name: id(buffer) for name, buffer in model.named_buffers()}
    with pytest.raises(taper_frontend.ExportError, match="scheme: expected float32"):
        taper_frontend.export_decoder(model, max_context=16, quantize="int99")
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == before
    assert "forward" not in vars(model)


def test_tokens_that_end_texts_are_the_models() -> None:
    model = decoder("gpt2")
    for given, found in ((None, ()), (7, (7,)), ([7, 9], (7, 9))):
        model.generation_config.eos_token_id = given
        assert _eos_token_ids(model) == found


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("rwkv", {}, r"RwkvForCausalLM: expected a decoder-only model that returns a Cache of tr"),
        ("gpt2", {"max_source": 8}, r"max_source: expected None for GPT2LM.*, which has no enc"),
        ("gpt_neo", {}, r"GPTNeoForCausalLM: expected the logits of whole texts .* relative error"),
        ("gpt2", {"checkpoint": "missing.safetensors"}, r"missing.safetensors"),
        ("gpt2", {"max_context": 129}, r"max_context: expected at most 128, the positions of GPT2"),
        ("gpt2", {"max_context": 1}, r"max_context: expected an int of at least 2, got 1"),
        ("gpt2", {"cache_dtype": "int4"}, r"cache_dtype: expected None or one of float32, float16"),
        ("gpt2", {"window_room": 0}, r"window_room: expected None or an int of at least 1, got 0"),
        ("gpt2", {"max_context": "8"}, r"max_context: expected an int of at least 2, got '8'"),
    ],
)
def test_models_that_are_no_such_decoders(name: str, change: Any, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        taper_frontend.export_decoder(decoder(name), **{"max_context": 32, **change})


def test_wrong_modes_and_modules() -> None:
    with pytest.raises(ExportError, match="expected evaluation mode, got training mode"):
        taper_frontend.export_decoder(decoder("gpt2").train(), max_context=8)
    with pytest.raises(ExportError, match="expected a model of transformers, with a config, got L"):
        taper_frontend.export_decoder(torch.nn.Linear(2, 2), max_context=8)
    with pytest.raises(ExportError, match="expected a model with an embedding and a head of logit"):
        taper_frontend.export_decoder(decoder("gpt2").transformer.eval(), max_context=8)
    model = decoder("gpt2")
    model.config._attn_implementation = "flex_attention"
    with pytest.raises(
        ExportError, match=r"attention of GPT2LM.*: expected sdpa or eager, got 'fl"
    ):
        taper_frontend.export_decoder(model, max_context=8)


def test_a_state_may_go_back() -> None:
    """The plan can be run by hand: a row's position says what its state has."""
    model = decoder("gpt2")
    session = taper_runtime.InferenceSession(plan("gpt2"))
    state = session.new_state()

    def run(ids: list[int], position: int) -> np.ndarray:
        feed = {
            "input_ids": np.array([ids]),
            "position": np.array([position]),
            "logits_to_keep": np.arange(len(ids)),
        }
        return session.run(None, feed, state=[state])[0][0]

    run([1, 2, 3, 4], 0)
    again = run([5, 6], 2)
    with torch.no_grad():
        expected = model(torch.tensor([[1, 2, 5, 6]])).logits[0, 2:]
    np.testing.assert_allclose(again, expected.numpy(), rtol=1e-4, atol=1e-4)
