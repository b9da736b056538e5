"""Texts with an assistant model: the same tokens in fewer runs."""

import random
from typing import Any

import numpy as np
import pytest

import taper_runtime
from taper_runtime import Generator, InferenceSession, InputError
from taper_runtime.generation.decoder_convention import DecoderConvention
from taper_runtime.generation.decoder_session import DecoderSession
from taper_runtime.generation.draft_model import DraftModel, DraftText
from taper_runtime.generation.guess_count import MOST_GUESSES, GuessCount
from tests.support import followers
from tests.support.decoders import ROOM, WORDS, plan

SAMPLED = {"do_sample": True, "temperature": 0.7, "seed": 5}


@pytest.fixture(scope="module")
def target() -> InferenceSession:
    return InferenceSession(plan("gemma3"))


@pytest.fixture(scope="module")
def follower() -> InferenceSession:
    return InferenceSession(followers.follower_plan(reads_one=False))


def written(generator: Generator, ids: list[int], count: int, **options: Any) -> tuple[Any, int]:
    """Return tokens with their probabilities, and the number of steps."""
    request = generator.submit(ids, max_new_tokens=count, logprobs=2, **options)
    steps = 0
    while generator.active:
        generator.step()
        steps += 1
    return (request.tokens, request.logprobs), steps


@pytest.mark.parametrize("options", [{}, SAMPLED])
def test_texts_have_the_same_bits_in_fewer_runs(
    target: InferenceSession, options: dict[str, Any]
) -> None:
    alone, _ = written(Generator(target), [3, 1, 4], 60, **options)
    for assistant, most in ((target, 30), (InferenceSession(plan("gpt2")), 60)):
        generator = Generator(target, assistant_model=assistant)
        assert generator._draft is not None
        generator._draft.cost = 0.1  # that of a smaller one
        found, steps = written(generator, [3, 1, 4], 60, **options)
        assert found == alone
        assert steps <= (60 if options else most)


@pytest.mark.parametrize("name", ["gemma3", "gpt2"])
def test_tokens_that_are_read_together_have_the_bits_of_single_ones(name: str) -> None:
    """Up to so many as a run of guesses has, at different places of a cache."""
    decoder = DecoderSession(InferenceSession(plan(name)), "session")
    ids = np.random.default_rng(0).integers(0, WORDS, 70).tolist()
    for first in (1, 30, 60):
        one, many = (decoder.session.new_state() for _ in range(2))
        for state in (one, many):
            for begin in range(0, first, ROOM):
                decoder.feed([state], [ids[begin : min(begin + ROOM, first)]], [begin], [0])
        places = range(first, first + MOST_GUESSES + 1)
        singly = [decoder.feed([one], [[ids[at]]], [at], [0])[0, 0] for at in places]
        rest = [ids[at] for at in places]
        together = decoder.feed([many], [rest], [first], range(len(rest)))[0]
        np.testing.assert_array_equal(together, singly)


def test_guesses_wait_while_several_texts_are_written(target: InferenceSession) -> None:
    generator = Generator(target, assistant_model=target)
    alone = [written(Generator(target), [word, 2], 20)[0] for word in (7, 8)]
    requests = [generator.submit([word, 2], max_new_tokens=20, logprobs=2) for word in (7, 8)]
    for _ in range(10):
        generator.step()
    assert all(request.guesses is None for request in requests)
    generator.cancel(requests[1])
    while generator.active:
        generator.step()
    assert requests[0].guesses is not None
    assert (requests[0].tokens, requests[0].logprobs) == alone[0]


def test_wrong_guesses_become_rare(
    target: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, _ = written(Generator(target), [3], 75)
    guessed: list[int] = []

    def guess(_: DraftText, ids: list[int], count: int) -> list[int]:
        guessed.append(count)
        right = alone[0][len(ids) - 1 :]
        return [(token + 1) % WORDS for token in right[:count]]

    monkeypatch.setattr(DraftText, "guess", guess)
    found, _ = written(Generator(target, assistant_model=target), [3], 75)
    assert found == alone
    assert sum(guessed) <= 8


def test_number_of_guesses_follows_those_that_were_right() -> None:
    count = GuessCount(0.2)
    first = count.choose(7)
    assert 1 <= first <= 3
    for _ in range(10):
        count.learn(7, 7)
    assert count.choose(20) == MOST_GUESSES
    assert count.choose(2) == 2
    for _ in range(10):
        count.learn(7, 0)
    tried = [count.choose(7) for _ in range(200)]
    assert {*tried} == {0, 1}
    assert sum(tried) == 6  # after pauses of 4, 8, 16, 32, 64 and 64
    for _ in range(20):
        count.learn(7, 7)
    assert count.choose(7) == MOST_GUESSES
    assert GuessCount(1.5).choose(7) == 0  # a model as dear as the other


@pytest.mark.parametrize("reads_one", [False, True])
def test_draft_models_with_recurrent_states(follower: InferenceSession, *, reads_one: bool) -> None:
    """Their states are put back where guesses were wrong."""
    assistant = InferenceSession(followers.follower_plan(reads_one=reads_one))
    generator = Generator(follower, assistant_model=assistant)
    prompt = [word % followers.WORDS for word in range(13)]
    tokens = [*generator.generate(prompt, max_new_tokens=30)]
    assert tokens == followers.text(prompt, 30)
    draft = DraftModel(assistant, DecoderSession(follower, "session")).begin()
    rng, ids = random.Random(0), [1, 2, 3]
    for _ in range(6):
        for _ in range(2):  # again, as after a run that failed
            assert draft.guess(ids, 3) == followers.text(ids, 3)
        right = followers.text(ids, 3)[: rng.randrange(3)]
        ids = [*ids, *right, rng.randrange(followers.WORDS)]


def test_no_guesses_beyond_the_context_of_the_draft_model(follower: InferenceSession) -> None:
    short = DecoderConvention(followers.WORDS, 10).recorded(follower.plan)
    assistant = InferenceSession(short)
    draft = DraftModel(assistant, DecoderSession(follower, "session")).begin()
    assert draft.guess([1] * 8, 7) == followers.text([1] * 8, 3)
    assert draft.guess([1] * 11, 7) == []
    generator = Generator(follower, assistant_model=assistant)
    assert [*generator.generate([1], max_new_tokens=30)] == followers.text([1], 30)


def test_run_that_fails_leaves_the_text(
    target: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another step tries again, whichever run failed."""
    alone, _ = written(Generator(target), [3, 1, 4], 30)
    generator = Generator(target, assistant_model=InferenceSession(plan("gemma3")))
    request = generator.submit([3, 1, 4], max_new_tokens=30, logprobs=2)
    feed, rng, failed = DecoderSession.feed, random.Random(1), 0

    def sometimes(*given: Any) -> np.ndarray:
        if rng.random() < 0.3:
            raise taper_runtime.TaperError("no")
        return feed(*given)

    monkeypatch.setattr(DecoderSession, "feed", sometimes)
    while generator.active:
        try:
            generator.step()
        except taper_runtime.TaperError:
            failed += 1
    assert failed > 3
    assert (request.tokens, request.logprobs) == alone


def test_what_is_refused(
    target: InferenceSession, follower: InferenceSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads_one = InferenceSession(followers.follower_plan(reads_one=True))
    wrong: Any = "draft.taper"
    for session, assistant, message in (
        (target, wrong, "assistant_model: expected an InferenceSession, got str"),
        (target, follower, "assistant_model: expected a decoder of 60 tokens.* got 12"),
        (reads_one, follower, "assistant_model: expected None for a decoder that reads one token"),
    ):
        with pytest.raises(InputError, match=message):
            Generator(session, assistant_model=assistant)
    for module, message in (
        ("generator", "assistant_model: expected None for a decoder behind an encoder, got a"),
        ("draft_model", "assistant_model: expected a decoder alone, got one behind an encoder"),
    ):
        with monkeypatch.context() as patched:
            name = f"taper_runtime.generation.{module}.read_encoder"
            patched.setattr(name, lambda *_: object())
            with pytest.raises(InputError, match=message):
                Generator(target, assistant_model=target)
    with pytest.raises(InputError, match="num_assistant_tokens: expected None for a generator"):
        Generator(target).submit([1], num_assistant_tokens=3)
    generator = Generator(target, assistant_model=target)
    with pytest.raises(InputError, match="num_assistant_tokens: expected None or an int of at"):
        generator.submit([1], num_assistant_tokens=0)
    with pytest.raises(InputError, match="prompt_lookup_num_tokens: expected None beside an ass"):
        generator.submit([1], prompt_lookup_num_tokens=3)
