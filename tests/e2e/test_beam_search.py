"""Texts of beam searches, which are those of transformers, and what is refused."""

from typing import Any

import pytest
import torch

import taper_runtime
from marks import thinned
from taper_runtime import Generator, InputError
from tests.support.decoders import decoder, plan


@pytest.fixture(scope="module")
def model() -> Any:
    return decoder("gpt2")


@pytest.fixture(scope="module")
def generator() -> Generator:
    return Generator(taper_runtime.InferenceSession(plan("gpt2")))


@pytest.mark.parametrize(
    ("options", "ends"),
    thinned(
        2,
        [
            {"num_beams": 1},
            {"num_beams": 3},
            {"num_beams": 5, "early_stopping": True},
            {"num_beams": 4, "length_penalty": 2.0, "early_stopping": "never"},
            {"num_beams": 4, "length_penalty": -1.0},
        ],
        [(), (7,), (3, 11, 20, 41)],
    ),
    ids=str,
)
def test_texts_are_those_of_transformers(
    generator: Generator, model: Any, options: dict[str, Any], ends: tuple[int, ...]
) -> None:
    for prompt, count in (([5], 1), ([5, 6, 7], 9), ([1, 2, 3, 4], 24)):
        out = model.generate(
            torch.tensor([prompt]),
            max_new_tokens=count,
            do_sample=False,
            eos_token_id=[*ends] or None,
            pad_token_id=0,
            **options,
        )
        wanted = out[0, len(prompt) :].tolist()
        found = generator.beam_search(prompt, max_new_tokens=count, eos_token_id=ends, **options)
        assert found == wanted


def test_other_texts_are_left_alone(generator: Generator) -> None:
    alone = [*generator.generate([5], max_new_tokens=9)]
    request = generator.submit([5], max_new_tokens=9)
    generator.step()
    generator.beam_search([5], num_beams=3, max_new_tokens=5)
    assert len(request.tokens) == 1
    assert [*generator.stream(request)] == alone
    assert generator.active == ()


def test_long_prompts_are_read_in_chunks(
    generator: Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [*range(20)]
    wanted = generator.beam_search(prompt, num_beams=2, max_new_tokens=6)
    monkeypatch.setattr(generator._decoder, "chunk", 7)
    assert generator.beam_search(prompt, num_beams=2, max_new_tokens=6) == wanted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_beams": 0}, "num_beams: expected an int from 1 to 60, the number of tokens, got 0"),
        ({"num_beams": True}, "num_beams: expected an int from 1 to 60"),
        ({"num_beams": 61}, "num_beams: expected an int from 1 to 60.*got 61"),
        ({"max_new_tokens": None}, "max_new_tokens: expected an int, got None"),
        ({"max_new_tokens": 0}, "max_new_tokens: expected None or an int of at least 1"),
        ({"max_new_tokens": 81}, "max_new_tokens: expected at most 80 after a prompt of 1"),
        ({"length_penalty": float("nan")}, "length_penalty: expected a number from -30 to 30"),
        ({"length_penalty": 10**400}, "length_penalty: .* from -30 to 30, got an integer"),
        ({"length_penalty": "1"}, "length_penalty: expected a number from -30 to 30, got '1'"),
        ({"early_stopping": "always"}, "early_stopping: expected True, False or 'never'"),
        ({"early_stopping": 1}, "early_stopping: expected True, False or 'never', got 1"),
        ({"eos_token_id": 60}, r"eos_token_id\[0\]: expected an id from 0 to 59, got 60"),
        ({"ids": []}, "ids: expected a prompt of 1 to 80 tokens"),
    ],
)
def test_what_is_refused(generator: Generator, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generator.beam_search(**{"ids": [1], "num_beams": 2, "max_new_tokens": 3, **given})
