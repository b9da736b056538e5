"""Texts of decoders with recurrent states; those of transformers are in tests/zoo."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import LinearAttentionAndFullAttentionLayer

import taper_runtime
from taper_frontend.decoders.decoder_module import CacheSpec, MixedLayer, RowLayer, layer_spec
from taper_frontend.decoders.recurrent_layers import RecurrentLayer
from taper_runtime import Generator, InputError
from taper_runtime.generation.guess_count import GuessCount
from tests.support.decoders import decoder
from tests.support.followers import WORDS, follower_plan, text


def write(generator: Generator, prompts: list[list[int]], count: int, **options: Any) -> Any:
    """Return texts that are written together; the last one joins later."""
    requests = [generator.submit(p, max_new_tokens=count, **options) for p in prompts[:-1]]
    for _ in range(4):
        generator.step()
    requests.append(generator.submit(prompts[-1], max_new_tokens=count, **options))
    while generator.active:
        generator.step()
    return [request.tokens for request in requests]


@pytest.mark.parametrize("reads_one", [False, True])
@pytest.mark.parametrize("options", [{}, {"prompt_lookup_num_tokens": 4}])
def test_texts_are_those_of_whole_texts(
    options: dict[str, int], *, reads_one: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in chunks of a prompt, and with guesses, which are not read one by one."""
    monkeypatch.setattr("taper_runtime.generation.decoder_session._CHUNK", 5)
    generator = Generator(taper_runtime.InferenceSession(follower_plan(reads_one=reads_one)))
    prompts = [[word % WORDS for word in range(13)], [3], [1, 2, 3, 4, 1, 2, 3]]
    assert write(generator, prompts, 20, **options) == [text(prompt, 20) for prompt in prompts]


def test_wrong_guesses_leave_no_trace_in_a_state(monkeypatch: pytest.MonkeyPatch) -> None:
    """States read guesses before these are known to be wrong."""
    generator = Generator(taper_runtime.InferenceSession(follower_plan(reads_one=False)))
    rng, wrong = random.Random(0), 0
    request = generator.submit([1, 2, 3], max_new_tokens=40, prompt_lookup_num_tokens=3)
    monkeypatch.setattr(
        "taper_runtime.generation.generator.find_continuation",
        lambda _, count: [rng.randrange(WORDS) for _ in range(count)],
    )
    monkeypatch.setattr(GuessCount, "choose", lambda _, most: most)
    while generator.active:
        before = len(request.tokens)
        generator.step()
        wrong += 0 < len(request.tokens) - before < 4
        if request.is_finished:
            break
        fresh = generator._session.new_state()
        feed = {
            "input_ids": np.array([request.all_ids[: request.read]]),
            "position": np.array([0]),
            "logits_to_keep": np.array([0]),
        }
        generator._session.run(None, feed, state=[fresh])
        np.testing.assert_allclose(request.state.get("conv_0"), fresh.get("conv_0"), rtol=1e-6)
    assert request.tokens == text([1, 2, 3], 40)
    assert wrong > 10


def test_no_prefixes_are_kept_of_states_without_positions() -> None:
    session = taper_runtime.InferenceSession(follower_plan(reads_one=True))
    with pytest.raises(InputError, match=r"prefix_cache_bytes: expected 0 .* \['conv_0'\]"):
        Generator(session, prefix_cache_bytes=1000)


def test_layers_that_hold_both() -> None:
    """As those of Falcon-H1, whose texts are in test_texts.py."""
    layer: Any = LinearAttentionAndFullAttentionLayer()
    layer.update(torch.zeros(1, 2, 3, 4), torch.zeros(1, 2, 3, 5))
    layer.update_conv_state(torch.zeros(1, 6, 3))
    found = layer_spec(decoder("gpt2"), 3, layer)
    assert found.attention == CacheSpec((2, 4), (2, 5), torch.float32)
    assert found.recurrent is not None
    assert [name for name, _ in found.recurrent.names(3)] == ["conv_3_0"]
    row = RowLayer(torch.zeros(2, 2, 8, 4), torch.zeros(2, 2, 8, 5), torch.tensor([[6], [1]]))
    states = {"conv_3_0": torch.zeros(2, 6, 3)}
    mixed = MixedLayer(row, RecurrentLayer(3, found.recurrent, states))
    keys, values = mixed.update(torch.ones(2, 2, 1, 4), torch.ones(2, 2, 1, 5))
    for each in (keys, values):
        assert each.sum((1, 2, 3)).tolist() == [2 * each.shape[-1]] * 2
        assert each[0, :, 6].all()
        assert each[1, :, 1].all()
    mixed.update_conv_state(torch.ones(2, 6, 1))
    assert states["conv_3_0"][..., -1].all()
    assert mixed.get_mask_sizes(1) == (8, 0)
