"""Texts of a Generator: draws, penalties, ends, many at once, and what is refused."""

import contextlib
import itertools
import os
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import taper_runtime
from taper_runtime import Generator, InputError, PlanFormatError
from taper_runtime.generation.decoder_convention import written_parts
from taper_runtime.generation.generation_request import find_continuation
from taper_runtime.generation.prefix_cache import PrefixCache
from taper_runtime.generation.sampling import (
    Sampler,
    Sampling,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_presence,
    penalize_repetition,
)
from tests.support.decoders import CONTEXT, WORDS, plan

SAMPLED = {"do_sample": True, "temperature": 0.7, "top_k": 20, "top_p": 0.9, "seed": 5}


@pytest.fixture(scope="module")
def generator(tmp_path_factory: pytest.TempPathFactory) -> Generator:
    path: Path = tmp_path_factory.mktemp("plans") / "decoder.taper"
    plan("gemma3").save(path)
    return Generator(taper_runtime.InferenceSession(path))


@pytest.fixture(autouse=True)
def _none_is_left(generator: Generator) -> Iterator[None]:
    yield
    assert generator.active == ()


@pytest.mark.parametrize("seed", range(5))
def test_filters_are_transformers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal(200).astype(np.float32) * 3
    ids = rng.integers(0, 200, 30)
    for ours, theirs in (
        (penalize_repetition(scores, ids, 1.3), RepetitionPenaltyLogitsProcessor(1.3)),
        (scores / np.float32(0.7), TemperatureLogitsWarper(0.7)),
        (keep_top_k(scores, 7), TopKLogitsWarper(7)),
        (keep_top_k(scores, 500), TopKLogitsWarper(500)),
        (keep_top_p(scores, 0.8), TopPLogitsWarper(0.8)),
        (keep_top_p(scores, 1e-6), TopPLogitsWarper(1e-6)),
        (keep_min_p(scores, 0.1), MinPLogitsWarper(0.1)),
        (
            keep_min_p(keep_top_p(keep_top_k(scores, 30), 0.9), 0.02),
            LogitsProcessorList(
                [TopKLogitsWarper(30), TopPLogitsWarper(0.9), MinPLogitsWarper(0.02)]
            ),
        ),
    ):
        want = theirs(torch.from_numpy(ids)[None], torch.from_numpy(scores)[None])[0].numpy()
        np.testing.assert_allclose(ours, want, rtol=1e-6)


def test_presence_and_frequency() -> None:
    scores = penalize_presence(np.zeros(4, np.float32), [1, 3, 3], 0.5, 0.25)
    assert scores.tolist() == [0, -0.75, 0, -1]


def test_draws_follow_the_probabilities() -> None:
    likely = np.array([0.5, 0.3, 0.2, 0.0])
    with np.errstate(divide="ignore"):
        logits = np.log(likely).astype(np.float32)
    sampler = Sampler(Sampling(do_sample=True, seed=0))
    drawn = np.bincount([sampler.choose(logits, [0], 1) for _ in range(4000)], minlength=4)
    np.testing.assert_allclose(drawn / 4000, likely, atol=0.03)
    assert drawn[3] == 0


def test_seed_repeats_a_text_and_none_does_not(generator: Generator) -> None:
    first, second = ([*generator.generate([3], max_new_tokens=40, **SAMPLED)] for _ in range(2))
    assert first == second
    other = {**SAMPLED, "seed": None}
    first, second = ([*generator.generate([3], max_new_tokens=40, **other)] for _ in range(2))
    assert first != second


def test_requests_join_and_leave_without_a_change(generator: Generator) -> None:
    """Texts have the same tokens and probabilities, in all bits, whoever else is written."""
    rng = random.Random(0)
    asked = [
        (
            [rng.randrange(WORDS) for _ in range(rng.choice((1, 2, 5, 17)))],
            {
                "max_new_tokens": rng.randrange(1, 30),
                "logprobs": 3,
                **rng.choice(
                    (
                        {},
                        {**SAMPLED, "seed": number},
                        {"repetition_penalty": 1.2, "frequency_penalty": 0.5},
                        {"prompt_lookup_num_tokens": 4},
                    )
                ),
            },
        )
        for number in range(12)
    ]
    alone = []
    for prompt, options in asked:
        request = generator.submit(prompt, **options)
        while generator.active:
            generator.step()
        alone.append((request.tokens, request.logprobs, request.finish_reason))
    waiting, together = [*asked], []
    while waiting or generator.active:
        if waiting and (rng.random() < 0.4 or not generator.active):
            prompt, options = waiting.pop(0)
            together.append(generator.submit(prompt, **options))
        if rng.random() < 0.1:
            generator.cancel(generator.submit([1, 2, 3]))
        generator.step()
    assert [(r.tokens, r.logprobs, r.finish_reason) for r in together] == alone


def test_threads_write_beside_each_other(generator: Generator) -> None:
    expected = [[*generator.generate([word], max_new_tokens=20)] for word in range(4)]
    found: dict[int, list[int]] = {}

    def write(word: int) -> None:
        found[word] = [*generator.generate([word], max_new_tokens=20)]

    threads = [threading.Thread(target=write, args=(word,)) for word in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[word] for word in range(4)] == expected


def test_long_prompts_are_read_in_chunks(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [word % WORDS for word in range(40)]
    expected = generator.submit(prompt, max_new_tokens=5, logprobs=2)
    while generator.active:
        generator.step()
    monkeypatch.setattr(generator._decoder, "chunk", 10)
    request = generator.submit(prompt, max_new_tokens=5, logprobs=2)
    assert generator.step() == []  # the prompt goes on
    while generator.active:
        generator.step()
    assert (request.tokens, request.logprobs) == (expected.tokens, expected.logprobs)


def test_texts_are_written_while_prompts_are_read(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step reads a chunk of prompts at most, those that came first before others."""
    monkeypatch.setattr(generator._decoder, "chunk", 20)
    prompts = [[5], [1] * 50, [2] * 30, [3] * 4, [4] * 4]
    options = {"max_new_tokens": 12, "logprobs": 2}
    alone = []
    for prompt in prompts:
        request = generator.submit(prompt, **options)
        while generator.active:
            generator.step()
        alone.append((request.tokens, request.logprobs))
    requests = [generator.submit(prompt, **options) for prompt in prompts]
    read = []
    while generator.active:
        got = generator.step()
        read.append([request.read for request in requests[1:]])
        assert requests[0] in got or requests[0].is_finished
    # the third has room for 10 tokens of its 20 beside the second's last 10, so it waits
    assert read[:5] == [
        [20, 0, 0, 0],
        [40, 0, 0, 0],
        [50, 0, 0, 0],
        [51, 20, 0, 0],
        [52, 30, 4, 4],
    ]
    assert [(request.tokens, request.logprobs) for request in requests] == alone


@pytest.mark.parametrize("options", [{}, SAMPLED])
def test_lookup_changes_nothing_but_the_number_of_steps(
    generator: Generator, options: dict[str, Any]
) -> None:
    prompt = [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3]
    counts, texts = [], []
    for lookup in (None, 5):
        request = generator.submit(
            prompt, max_new_tokens=60, prompt_lookup_num_tokens=lookup, **options
        )
        counts.append(0)
        while generator.active:
            generator.step()
            counts[-1] += 1
        texts.append(request.tokens)
    assert texts[0] == texts[1]
    assert counts[0] == 60
    if not options:  # a greedy text of such a model repeats itself
        assert counts[1] < 50


def test_continuations() -> None:
    assert find_continuation([1, 2, 3, 4, 1, 2, 3], 2) == [4, 1]
    assert find_continuation([1, 2, 9, 3, 2], 3) == [9, 3, 2]
    assert find_continuation([5, 5, 5], 4) == [5]
    assert find_continuation([1, 2, 3], 4) == []
    assert find_continuation([1], 4) == []
    assert find_continuation([1, 1, 1], 0) == []


@pytest.fixture
def keeping(generator: Generator) -> Generator:
    session = taper_runtime.InferenceSession(plan("gemma3"))
    return Generator(session, prefix_cache_bytes=1_000_000)


def test_texts_that_begin_alike_are_read_once_and_stay_the_same(
    generator: Generator, keeping: Generator
) -> None:
    prompt = [word % WORDS for word in range(30)]
    first = [*keeping.generate(prompt, max_new_tokens=5)]
    assert first == [*generator.generate(prompt, max_new_tokens=5)]
    for more, known in (
        ([*first, 3], 34),  # a chat goes on: its last token was not read
        ([7, 8], 30),
        ([], 29),  # the last token of a prompt is read for its logits
    ):
        request = keeping.submit([*prompt, *more], max_new_tokens=6, logprobs=1)
        other = generator.submit([*prompt, *more], max_new_tokens=6, logprobs=1)
        assert request.read == known
        for each, of in ((request, keeping), (other, generator)):
            while of.active:
                of.step()
            assert each.finish_reason == "length"
        assert request.tokens == other.tokens
        for ours, theirs in zip(request.logprobs, other.logprobs, strict=True):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-5)
    assert keeping.submit([9, 9]).read == 0
    keeping.cancel(keeping.active[0])


def test_a_prompt_is_kept_at_once_unless_most_of_it_is_kept(keeping: Generator) -> None:
    prompt = [word % WORDS for word in range(20)]
    for more, waits in (([], False), ([3, 4], True)):
        request = keeping.submit([*prompt, *more], max_new_tokens=3)
        keeping.step()
        assert not request.is_finished
        assert keeping.submit([*prompt, *more, 9]).read == len(prompt) + (0 if waits else len(more))
        keeping.cancel(keeping.active[-1])
        text = [*prompt, *more, *keeping.stream(request)]
        assert keeping.submit([*text, 9]).read == len(text) - 1
        keeping.cancel(keeping.active[-1])


def test_prefixes_are_saved_and_mapped(keeping: Generator, tmp_path: Path) -> None:
    path = tmp_path / "prefixes.safetensors"
    text = [5, 6, 7, *keeping.generate([5, 6, 7], max_new_tokens=4)]
    [*keeping.generate([9, 8], max_new_tokens=2)]
    keeping.save_prefixes(path)
    stored = safetensors.numpy.load_file(path)  # of another reader
    assert stored["0/ids"].tolist() == text[:-1]
    assert stored["0/keys_1"].shape == (1, 2, 6, 8)
    other = Generator(taper_runtime.InferenceSession(plan("gemma3")), prefix_cache_bytes=10**6)
    other.load_prefixes(path)
    request = other.submit(text[:5], max_new_tokens=2)
    assert request.read == 4
    assert [*other.stream(request)] == text[5:]
    none = Generator(taper_runtime.InferenceSession(plan("gemma3")))
    none.load_prefixes(path)  # there is no room
    assert none.submit(text[:5]).read == 0


def test_files_of_prefixes_are_checked(keeping: Generator, tmp_path: Path) -> None:
    path = tmp_path / "prefixes.safetensors"
    [*keeping.generate([5, 6, 7], max_new_tokens=4)]
    keeping.save_prefixes(path)
    good = safetensors.numpy.load_file(path)
    with safetensors.safe_open(path, "np") as file:
        metadata = file.metadata()

    def changed(name: str, array: np.ndarray | None) -> dict[str, np.ndarray]:
        tensors = {**good, name: array}
        return {each: found for each, found in tensors.items() if found is not None}

    ids = good["0/ids"]
    for tensors, told, message in (
        (good, {**metadata, "plan": "0" * 64}, "plan: expected .* got '0000"),
        (good, {**metadata, "format": "pt"}, "format: expected 'taper prefixes', got 'pt'"),
        (good, None, "format: expected 'taper prefixes', got None"),
        (changed("0/more", ids), metadata, r"header\['0/more'\]: expected a state of"),
        (changed("0/keys_0", None), metadata, r"header\['0'\]: expected \['ids', 'keys_0'"),
        (changed("0/keys_0", good["0/keys_0"][:, :, :2]), metadata, "shape: expected"),
        (changed("0/ids", ids.astype(np.int32)), metadata, "dtype: expected int64, got 'int32'"),
        (changed("0/ids", ids[:0]), metadata, "expected 1 to 80 ids"),
        (changed("0/ids", ids + 60), metadata, "expected ids from 0 to 59"),
        (changed("0/ids", ids - 60), metadata, "expected ids from 0 to 59"),
    ):
        safetensors.numpy.save_file(tensors, path, told)
        with pytest.raises(PlanFormatError, match=message):
            keeping.load_prefixes(path)
    path.write_bytes(b"no safetensors")
    with pytest.raises(PlanFormatError):
        keeping.load_prefixes(path)


def test_prefixes_leave_when_there_is_no_room() -> None:
    def arrays(count: int) -> dict[str, np.ndarray]:
        return {"keys": np.zeros((1, 1, count, 23), np.float32)}  # with the ids 100 bytes each

    cache = PrefixCache(1000)
    cache.put([1, 2, 3], arrays(3))
    cache.put([1, 2, 3, 4], arrays(4))  # in place of its beginning
    assert cache.nbytes == 400
    cache.put([5] * 5, arrays(5))
    assert cache.nbytes == 900
    assert cache.find([1, 2, 9])[0] == 2  # used, so the other is older
    cache.put([6, 6], arrays(2))
    assert cache.nbytes == 600
    assert cache.find([5, 5])[0] == 0
    assert cache.has([1, 2, 3, 4])
    assert not cache.has([1, 2, 3, 4, 5])
    cache.put([7] * 11, arrays(11))  # larger than all room
    assert cache.nbytes == 600
    assert cache.find([])[0] == 0


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_states_go_on_from_parts_of_another(
    count: int, mapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the system cannot map memory; what one writes, no other sees."""
    if not mapped:
        monkeypatch.delattr(os, "memfd_create", raising=False)
    whole = plan("gemma3")
    session = taper_runtime.InferenceSession(whole)
    first, other, third = (session.new_state() for _ in range(3))
    rng = np.random.default_rng(0)
    written = {
        name: (array + rng.integers(1, 9, array.shape)).astype(array.dtype)
        for name, array in first.copy().items()
    }
    first.restore(written)
    kept = first.share(written_parts(whole, 5))
    first.reset()
    for state in (other, third):
        state.adopt(kept, written_parts(whole, count), written_parts(whole, 5, count))
        for name, array in state.copy().items():
            want = np.zeros_like(array)
            part = written_parts(whole, count).get(name, ...)
            want[part] = written[name][part]
            np.testing.assert_array_equal(array, want, name)
            state.set(name, array * 0 + 7)
    for name, array in kept.items():
        np.testing.assert_array_equal(array, written[name][written_parts(whole, 5).get(name, ...)])


def test_a_part_of_a_state_must_fit() -> None:
    state = taper_runtime.InferenceSession(plan("gemma3")).new_state()
    parts = written_parts(plan("gemma3"), 3)
    saved = {name: array + 1 for name, array in state.copy(parts).items()}
    state.restore(saved, parts)
    for name, array in state.copy().items():
        part = parts.get(name, ...)
        assert (array[part] == 1).all()
        array[part] = 0
        assert not array.any(), name
    with pytest.raises(InputError, match="keys_0"):
        state.restore(saved)
    with pytest.raises(InputError, match="prefix_cache_bytes: expected an int of at least 0, got"):
        Generator(taper_runtime.InferenceSession(plan("gemma3")), prefix_cache_bytes=-1)


def test_ends(generator: Generator) -> None:
    text = [*generator.generate([5, 6], max_new_tokens=30)]
    stop = text[4]
    cut = text[: text.index(stop) + 1]
    assert [*generator.generate([5, 6], eos_token_id=stop)] == cut
    assert [*generator.generate([5, 6], eos_token_id=(), stop_token_ids=[stop])] == cut
    request = generator.submit([5, 6], stop_token_ids=[stop])
    assert [*generator.stream(request)] == cut
    assert request.finish_reason == "stop"
    request = generator.submit([5, 6], max_new_tokens=3)
    assert [*generator.stream(request)] == text[:3]
    assert request.finish_reason == "length"


def test_logprobs_are_those_of_the_logits(generator: Generator) -> None:
    request = generator.submit([5, 6], max_new_tokens=1, logprobs=2)
    [*generator.stream(request)]
    session = taper_runtime.InferenceSession(plan("gemma3"))
    feed = {
        "input_ids": np.array([[5, 6]]),
        "position": np.array([0]),
        "logits_to_keep": np.array([1]),
    }
    (logits,) = session.run(None, feed, state=[session.new_state()])
    expected = torch.from_numpy(logits[0, 0]).double().log_softmax(0)
    token, logprob, top = request.logprobs[0]
    assert token == request.tokens[0] == top[0][0] == int(expected.argmax())
    assert logprob == top[0][1] == pytest.approx(float(expected[token]), abs=1e-9)
    assert [each for each, _ in top] == expected.topk(2).indices.tolist()


def test_processors_see_all_tokens_and_choose(generator: Generator) -> None:
    seen = []

    def only(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        seen.append(ids.tolist())
        result = np.full_like(logits, -np.inf)
        result[len(ids)] = 0
        return result

    text = [*generator.generate([9, 8], max_new_tokens=3, logits_processors=[only])]
    assert text == [2, 3, 4]
    assert seen == [[9, 8], [9, 8, 2], [9, 8, 2, 3]]


@pytest.mark.parametrize("options", [{}, SAMPLED], ids=["greedy", "drawn"])
def test_allowed_tokens_are_ids_or_a_mask(generator: Generator, options: dict[str, Any]) -> None:
    asked: list[list[int]] = []

    def follow(ids: np.ndarray) -> list[int]:
        asked.append(ids.tolist())
        return [(int(ids[-1]) + step) % WORDS for step in (1, 2)]

    def mask(ids: np.ndarray) -> np.ndarray:
        return np.isin(np.arange(WORDS), follow(ids))

    free = [*generator.generate([5], max_new_tokens=8)]
    other = generator.submit([5], max_new_tokens=8)
    texts = [
        [*generator.generate([9, 8], max_new_tokens=8, allowed_tokens=each, **options)]
        for each in (follow, mask)
    ]
    assert texts[0] == texts[1]
    whole = [8, *texts[0]]
    assert {(b - a) % WORDS for a, b in itertools.pairwise(whole)} <= {1, 2}
    assert asked[:8] == asked[8:] == [[9, *whole[: n + 1]] for n in range(8)]
    assert other.tokens == free
    guessed = generator.generate(
        [9, 8], max_new_tokens=8, allowed_tokens=follow, prompt_lookup_num_tokens=3, **options
    )
    assert [*guessed] == texts[0]


def test_masks_are_asked_for_while_a_run_goes_on(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each token, also if the run fails, while others are written."""
    runs: list[bool] = []  # whether one goes on, at the time of each call
    asked: list[int] = []
    feed, fails, going, seen = generator._decoder.feed, [True], [False], threading.Event()

    def slow(*given: Any) -> np.ndarray:
        going[0] = True
        seen.wait(20)  # for a mask
        going[0] = False
        seen.clear()
        if fails and len(asked) == 3:
            fails.clear()
            seen.set()  # the same mask is not asked for again
            raise taper_runtime.TaperError("no")
        return feed(*given)

    def follow(ids: np.ndarray) -> list[int]:
        while not going[0]:
            time.sleep(0)
        runs.append(going[0])
        asked.append(len(ids))
        seen.set()
        return [len(ids)]

    monkeypatch.setattr(generator._decoder, "feed", slow)
    request = generator.submit([9, 8], max_new_tokens=6, allowed_tokens=follow)
    while generator.active:
        with contextlib.suppress(taper_runtime.TaperError):
            generator.step()
    assert not fails
    assert request.tokens == asked == [2, 3, 4, 5, 6, 7]
    assert runs == [True] * 6


@pytest.mark.parametrize(
    ("allowed", "message"),
    [
        ([], "allowed_tokens: expected at least one token that may follow, got none"),
        (np.zeros(WORDS, bool), "allowed_tokens: expected at least one token that may follow"),
        ([WORDS], r"allowed_tokens\[0\]: expected an id from 0 to 59, got 60"),
        (np.ones(3, bool), r"allowed_tokens\[0\]: expected an int, got bool"),
        (None, "allowed_tokens: expected a sequence of token ids, got NoneType"),
        (np.ones((1, WORDS), int), "allowed_tokens: expected one dimension"),
    ],
)
def test_tokens_that_cannot_follow_end_one_text(
    generator: Generator, allowed: Any, message: str
) -> None:
    other = generator.submit([5], max_new_tokens=3)
    with pytest.raises(InputError, match=message):
        [*generator.generate([7], allowed_tokens=lambda _: allowed)]
    assert [*generator.stream(other)] == [*generator.generate([5], max_new_tokens=3)]


def test_text_that_fails_leaves_others(generator: Generator) -> None:
    expected = [*generator.generate([5], max_new_tokens=6)]

    def fail(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        if len(ids) > 2:
            raise RuntimeError("no more")
        return logits

    def nothing(ids: np.ndarray, logits: np.ndarray) -> np.ndarray:
        return np.full_like(logits, -np.inf)

    other = generator.submit([5], max_new_tokens=6)
    bad = [
        generator.submit([7], logits_processors=[fail]),
        generator.submit([7], logits_processors=[nothing]),
        generator.submit([7], logits_processors=[nothing], do_sample=True),
        generator.submit([7], logits_processors=[lambda _, logits: logits[:3]]),
    ]
    assert [*generator.stream(other)] == expected
    assert [request.finish_reason for request in bad] == ["error"] * 4
    with pytest.raises(RuntimeError, match="no more"):
        [*generator.stream(bad[0])]
    assert len(bad[0].tokens) == 2
    for request in bad[1:3]:
        with pytest.raises(InputError, match="expected a token with a finite logit, got -inf"):
            [*generator.stream(request)]
    with pytest.raises(InputError, match=r"expected logits of shape \(60,\), got \(3,\)"):
        [*generator.stream(bad[3])]


def test_full_context_is_an_error(generator: Generator) -> None:
    request = generator.submit([1] * 70)
    with pytest.raises(
        InputError, match="the context is full: expected at most 80 tokens, got a prompt of 70 and"
    ):
        [*generator.stream(request)]
    # all positions were used: the last token was chosen, and there is no room to read it
    assert len(request.tokens) == CONTEXT + 1 - 70
    text = [*generator.generate([1] * 70, max_new_tokens=11, prompt_lookup_num_tokens=8)]
    assert text == request.tokens


def test_texts_wait_for_a_place(generator: Generator, monkeypatch: pytest.MonkeyPatch) -> None:
    session = taper_runtime.InferenceSession(plan("gemma3"))
    small = Generator(session, max_active=2)
    asked = [([3 + number, 4], {"max_new_tokens": 4 + 3 * number}) for number in range(5)]
    requests = [small.submit(ids, **options) for ids, options in asked]
    assert small.active == (*requests[:2],)
    assert small.waiting == (*requests[2:],)
    assert not hasattr(requests[2], "state")
    small.cancel(requests[3])
    small.cancel(requests[0])
    assert small.active == (requests[1], requests[2])
    while small.active:
        assert len(small.active) <= 2
        small.step()
    assert small.waiting == ()
    assert not any(hasattr(request, "state") for request in requests)  # whose memory is free
    for (ids, options), request in zip(asked, requests, strict=True):
        if request not in (requests[0], requests[3]):
            assert request.tokens == [*generator.generate(ids, **options)]
    assert requests[3].finish_reason == "cancelled"

    monkeypatch.setattr(type(session), "new_state", _no_memory)
    failed = small.submit([3])  # it alone ends
    assert (failed.finish_reason, type(failed.error)) == ("error", MemoryError)
    monkeypatch.undo()
    assert [*small.generate(*asked[0][:1], **asked[0][1])]

    for wrong in (0, True, 1.0):
        with pytest.raises(InputError, match="max_active: expected None or an int of at least 1"):
            Generator(session, max_active=wrong)  # type: ignore[arg-type]


def _no_memory(_: Any) -> None:
    raise MemoryError


def test_iterator_that_is_left_ends_its_text(generator: Generator) -> None:
    for token in generator.generate([1]):
        assert 0 <= token < WORDS
        break
    assert generator.active == ()
    stream = generator.generate([1])
    assert len(generator.active) == 1
    del stream  # never begun


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([], {}, "ids: expected a prompt of 1 to 80 tokens, the context of the model, got 0"),
        ([1] * 81, {}, "ids: expected a prompt of 1 to 80 tokens.*got 81"),
        ([1, 60], {}, r"ids\[1\]: expected an id from 0 to 59, got 60"),
        ([-1], {}, r"ids\[0\]: expected an id from 0 to 59, got -1"),
        ([1.0], {}, r"ids\[0\]: expected an int, got float"),
        ([True], {}, r"ids\[0\]: expected an int, got bool"),
        (np.array([[1]]), {}, r"ids: expected one dimension, got an array of shape \(1, 1\)"),
        (5, {}, "ids: expected a sequence of token ids, got int"),
        ("ab", {}, r"ids\[0\]: expected an int, got str"),
        ([1] * 70, {"max_new_tokens": 12}, "max_new_tokens: expected at most 11 after a prompt of"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens: expected None or an int of at least 1, got"),
        ([1], {"do_sample": 1}, "do_sample: expected a bool, got 1"),
        ([1], {"temperature": 0.5}, "temperature: expected do_sample=True beside it"),
        ([1], {"seed": 1}, "seed: expected do_sample=True beside it"),
        ([1], {"do_sample": True, "temperature": 0}, "temperature: expected a number at least"),
        ([1], {"do_sample": True, "temperature": "1"}, "temperature: expected a number at least"),
        ([1], {"do_sample": True, "temperature": np.nan}, "temperature: expected a number at"),
        ([1], {"do_sample": True, "temperature": np.inf}, "temperature: .* at most 1e.30, got inf"),
        ([1], {"do_sample": True, "temperature": 1e-40}, "temperature: expected a number at least"),
        ([1], {"do_sample": True, "temperature": 10**400}, "temperature: .*an integer of 1329"),
        ([1], {"repetition_penalty": 1e39}, "repetition_penalty: .* at most 1e.30, got 1e.39"),
        ([1], {"do_sample": True, "top_k": 0}, "top_k: expected None or an int of at least 1, got"),
        ([1], {"do_sample": True, "top_p": 1.1}, "top_p: expected a number more than 0, at most 1"),
        ([1], {"do_sample": True, "min_p": -0.1}, "min_p: expected a number at least 0, at most 1"),
        ([1], {"do_sample": True, "seed": "a"}, "seed: expected None or an int"),
        ([1], {"repetition_penalty": -1}, "repetition_penalty: expected a number at least"),
        ([1], {"presence_penalty": 3}, "presence_penalty: expected a number at least -2, at most"),
        ([1], {"frequency_penalty": None}, "frequency_penalty: expected a number at least -2"),
        ([1], {"logits_processors": [1]}, "logits_processors: expected a list of callables, got"),
        ([1], {"allowed_tokens": [1]}, "allowed_tokens: expected None or a callable, got"),
        ([1], {"eos_token_id": 60}, r"eos_token_id\[0\]: expected an id from 0 to 59, got 60"),
        ([1], {"stop_token_ids": ["a"]}, r"stop_token_ids\[0\]: expected an int, got str"),
        ([1], {"logprobs": -1}, "logprobs: expected None or an int of at least 0, got -1"),
        ([1], {"prompt_lookup_num_tokens": 0}, "prompt_lookup_num_tokens: expected None or an int"),
    ],
)
def test_what_is_refused(
    generator: Generator, ids: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        generator.generate(ids, **options)


def test_plans_that_are_no_decoders() -> None:
    with pytest.raises(InputError, match="session: expected an InferenceSession, got str"):
        Generator("decoder.taper")  # type: ignore[arg-type]
    whole = plan("gemma3")
    good = whole.metadata["decoder"]
    for data, message in (
        (None, "plan: expected a decoder, which taper_frontend.export_decoder makes, got a plan"),
        ([1], "metadata.decoder: expected an object with vocabulary, context, eos_token_ids"),
        ({**good, "more": 1}, "metadata.decoder: expected an object with"),
        ({**good, "vocabulary": "a"}, "metadata.decoder.vocabulary: expected a positive int"),
        ({**good, "vocabulary": 61}, r"output 'logits': expected \[rows, kept, 61\]"),
        ({**good, "context": 0}, "metadata.decoder.context: expected a positive int, got 0"),
        ({**good, "context": 20}, r"state 'keys_0': expected \[rows, heads, 20, width\]"),
        ({**good, "eos_token_ids": [60]}, "metadata.decoder.eos_token_ids: expected ids from 0"),
        ({**good, "eos_token_ids": 1}, "metadata.decoder.eos_token_ids: expected ids from 0"),
    ):
        metadata = {**whole.metadata, "decoder": data}
        if data is None:
            del metadata["decoder"]
        session = taper_runtime.InferenceSession(whole._replace(metadata=metadata))
        with pytest.raises(InputError, match=message):
            Generator(session)
