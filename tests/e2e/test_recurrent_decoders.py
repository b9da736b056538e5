"""Texts of decoders with recurrent states; those of transformers are in tests/zoo."""

import random
from typing import Any

import numpy as np
import pytest

import taper_runtime
from taper_frontend import ExportError
from taper_frontend.decoders.recurrent_layers import recurrent_spec
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


def test_layers_that_hold_both_are_refused() -> None:
    from transformers.cache_utils import LinearAttentionAndFullAttentionLayer

    layer: Any = LinearAttentionAndFullAttentionLayer()
    with pytest.raises(ExportError, match="layer 3 of the cache: expected keys and values, or rec"):
        recurrent_spec(decoder("gpt2"), 3, layer)
