"""Whatever text somebody writes: a graph, or an error. tests/fuzz changes right programs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz import programs


@given(st.lists(st.sampled_from(programs.words()), max_size=60), st.sampled_from(("", " ")))
@settings(max_examples=120)
def test_soups_of_tokens(words, between):
    programs.check(between.join(words).encode())


@given(st.text(max_size=200), st.booleans())
@settings(max_examples=120)
def test_any_text(text, is_json):
    programs.check((("{" if is_json else "") + text).encode(errors="replace"))
