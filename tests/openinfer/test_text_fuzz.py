"""Whatever text or JSON somebody writes: a graph, or an OpenInferError whose text is safe."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fuzz import programs


@given(st.lists(st.sampled_from(programs.words()), max_size=60), st.sampled_from(("", " ")))
@settings(max_examples=300, deadline=None)
def test_soups_of_tokens(words, between):
    programs.check(between.join(words).encode())


@given(st.text(max_size=200), st.booleans())
@settings(max_examples=300, deadline=None)
def test_any_text(text, is_json):
    programs.check((("{" if is_json else "") + text).encode(errors="replace"))


def test_changed_programs():
    rng, results = random.Random(0), Counter()
    for blob in list(programs.seeds()) * 50:
        results[programs.check(programs.mutate(blob, rng, []))] += 1
    assert results["refused"] > 100
    assert results["ran"] > 30


def test_unchanged_programs_link():
    assert {programs.check(blob) for blob in programs.seeds()} == {"ran"}
