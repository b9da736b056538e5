"""Encoder-decoders of transformers as plans write what torch writes, alone and together."""

from typing import Any

import numpy as np
import pytest
import torch

import taper_frontend
import taper_runtime
from taper_frontend import ExportError
from taper_runtime import Generator, InputError
from tests.support.encoder_decoders import CONTEXT, SOURCE, WORDS, greedy, model, plan

SOURCES = [[5, 6, 7], [9], [1, 2, 3, 4, 8, 33, 12]]


def test_texts_are_torchs_alone_and_in_a_batch() -> None:
    made, of = plan("bart"), model("bart")
    assert made.entry_names == ("decode", "encode")
    generator = Generator(taper_runtime.InferenceSession(made))
    expected = [greedy(of, source, 64) for source in SOURCES]
    assert len({*map(tuple, expected)}) == len(SOURCES)
    alone = [[*generator.generate(source, max_new_tokens=64)] for source in SOURCES]
    assert alone == expected
    together = [generator.submit(source, max_new_tokens=64) for source in SOURCES[:2]]
    for _ in range(3):
        generator.step()
    together.append(generator.submit(SOURCES[2], max_new_tokens=64))  # joins
    while generator.active:
        generator.step()
    assert [request.tokens for request in together] == expected


def test_caches_are_written_in_place_and_weights_stored_once() -> None:
    made = plan("bart")
    for entry in made.entry_names:
        one = made.entry(entry)
        assert [n for n in one.states if not one.is_in_place(n) and "keys" in n] == []
    decode = made.entry("decode")
    assert decode.states["cross_keys_0"] == "cross_keys_0"  # only read
    assert decode.states["keys_0"] != "keys_0"
    assert made.metadata["warnings"] == []
    # the embedding is of both entries; the head is tied to it, and the positions are tables
    assert sum(array.shape == (WORDS, 16) for array in made.constants.values()) == 1
    names = [node.op for node in made.entry("encode").nodes]
    assert names.count("SOFTMAX") + names.count("ATTENTION") <= 1  # nothing of the decoder's run


def test_files_list_the_feature() -> None:
    from taper_runtime.plan.features import SHOWN

    assert SHOWN["read_states"](plan("bart"))
    assert not SHOWN["read_states"](plan("bart").entry("encode"))


def test_plans_that_write_to_a_state_that_they_only_read() -> None:
    one, state = plan("bart").entry("encode"), "cross_keys_0"
    written = one.states[state]
    spec = one.tensors[written]._replace(role="intermediate")
    changed = one._replace(
        states={**one.states, state: state}, tensors={**one.tensors, written: spec}
    )
    message = rf"states\['{state}'\]: expected another tensor than the state, which a node writes"
    with pytest.raises(taper_runtime.PlanFormatError, match=message):
        taper_runtime.InferenceSession(changed)


def test_a_prompt_of_the_decoder() -> None:
    of, prompt = model("bart"), [2, 7, 3]
    generator = Generator(taper_runtime.InferenceSession(plan("bart")))
    expected = of.generate(
        torch.tensor([SOURCES[0]]),
        decoder_input_ids=torch.tensor([prompt]),
        max_new_tokens=12,
        do_sample=False,
    )[0, 3:].tolist()
    options = {"decoder_input_ids": prompt, "max_new_tokens": 12}
    assert [*generator.generate(SOURCES[0], **options)] == expected
    lookup = generator.generate(SOURCES[0], **options, prompt_lookup_num_tokens=4)
    assert [*lookup] == expected


def test_a_forced_token_follows_the_first() -> None:
    of = model("bart")
    of.generation_config.forced_bos_token_id = 5
    from taper_frontend.decoders.encoder_decoder_exporter import _start

    assert _start(of) == (2, 5)
    of.generation_config.decoder_start_token_id = None
    of.config.decoder_start_token_id = None
    with pytest.raises(ExportError, match="expected a generation_config with decoder_start_token"):
        _start(of)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([], {}, f"ids: expected a source of 1 to {SOURCE} tokens, the positions of the enc"),
        ([1] * 33, {}, f"ids: expected a source of 1 to {SOURCE} tokens.* got 33"),
        ([60], {}, r"ids\[0\]: expected an id from 0 to 59, got 60"),
        ([1], {"decoder_input_ids": []}, f"decoder_input_ids: expected a prompt of 1 to {CONTEXT}"),
        ([1], {"decoder_input_ids": [1] * 81}, "decoder_input_ids: expected a prompt .* got 81"),
        ([1], {"decoder_input_ids": [60]}, r"decoder_input_ids\[0\]: expected an id from 0 to 59"),
        ([1], {"max_new_tokens": 81}, "max_new_tokens: expected at most 80 after a prompt of 1"),
    ],
)
def test_what_is_refused(ids: Any, options: dict[str, Any], message: str) -> None:
    generator = Generator(taper_runtime.InferenceSession(plan("bart")))
    with pytest.raises(InputError, match=message):
        generator.generate(ids, **options)
    assert generator.active == ()


def test_plans_with_no_such_encoder() -> None:
    session = taper_runtime.InferenceSession(plan("bart"))
    with pytest.raises(InputError, match="prefix_cache_bytes: expected 0 for a decoder behind an"):
        Generator(session, prefix_cache_bytes=1000)
    whole = plan("bart")
    good = whole.metadata["encoder"]
    for data, message in (
        (
            None,
            "metadata.encoder: expected an object with vocabulary, positions, decoder_input_ids",
        ),
        ({**good, "vocabulary": -1}, "metadata.encoder.vocabulary: expected an int of at least 0"),
        ({**good, "vocabulary": 0}, "entry 'encode': expected one input 'input_features', float32"),
        ({**good, "positions": 31}, r"state 'cross_keys_0' of entry 'encode': expected cross_keys"),
        ({**good, "decoder_input_ids": []}, "metadata.encoder.decoder_input_ids: expected a list"),
        ({**good, "decoder_input_ids": [60]}, r"decoder_input_ids\[0\]: expected an id from 0 to"),
    ):
        changed = whole._replace(metadata={**whole.metadata, "encoder": data})
        with pytest.raises(InputError, match=message):
            Generator(taper_runtime.InferenceSession(changed))
    alone = whole.entry("decode")
    with pytest.raises(InputError, match=r"plan: expected an entry 'encode', got \['decode'\]"):
        Generator(taper_runtime.InferenceSession(alone))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_source": None}, "max_source: expected an int of at least 2, the most tokens of a s"),
        ({"max_source": 129}, "max_source: expected at most 128, the positions of BartForCondit"),
        ({"max_context": 129}, "max_context: expected at most 128, the positions of BartForCond"),
    ],
)
def test_exports_that_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ExportError, match=message):
        taper_frontend.export_decoder(
            model("bart"), **{"max_context": 8, "max_source": 8, **changes}
        )


def test_the_plan_can_be_run_by_hand() -> None:
    of, session = model("bart"), taper_runtime.InferenceSession(plan("bart"))
    states = [session.new_state(), session.new_state()]
    source, ids = np.array([[5, 6, 7], [8, 9, 4]]), np.array([[2, 3], [2, 11]])
    (hidden,) = session.run(None, {"input_ids": source}, entry="encode", state=states)
    feed = {"input_ids": ids, "position": np.array([0, 0]), "logits_to_keep": np.array([0, 1])}
    (logits,) = session.run(None, feed, state=states)
    with torch.no_grad():
        whole = of(torch.from_numpy(source), decoder_input_ids=torch.from_numpy(ids))
    expected = whole.encoder_last_hidden_state.numpy()
    np.testing.assert_allclose(hidden, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits, whole.logits.numpy(), rtol=1e-4, atol=1e-3)
