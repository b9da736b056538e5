"""Sliding windows whose positions are taken modulo a length: how far back a text can go."""

import numpy as np
import pytest
import torch

import taper_runtime
from taper_runtime import Generator, InputError, Plan
from taper_runtime.plan.rewind_rule import RewindRule
from tests.support.decoders import CONTEXT, ROOM, WINDOW, decoder, plan
from tests.support.followers import follower_plan, text

LENGTH = WINDOW + ROOM

IDS = [(7 * place + place // 5) % 60 for place in range(60)]


class Row:
    """A row of a plan, run by hand."""

    def __init__(self, made: Plan) -> None:
        self.session = taper_runtime.InferenceSession(made)
        self.state = self.session.new_state()

    def run(self, ids: list[int], position: int, kept: int | None = None) -> np.ndarray:
        """Read tokens; return the logits of the last one, ``[words]``."""
        feed = {
            "input_ids": np.array([ids]),
            "position": np.array([position]),
            "logits_to_keep": np.array([len(ids) - 1 if kept is None else kept]),
        }
        return self.session.run(None, feed, state=[self.state])[0][0, 0]

    def read(self, ids: list[int]) -> None:
        """Read a text from its beginning."""
        for first in range(0, len(ids), ROOM):
            self.run(ids[first : first + ROOM], first)


def logits(ids: list[int]) -> np.ndarray:
    """Return those of the last token by the model itself."""
    with torch.no_grad():
        return decoder("gemma3")(torch.tensor([ids])).logits[0, -1].numpy()


def test_a_ring_keeps_the_window_and_its_room() -> None:
    made = plan("gemma3")
    assert [made.tensors[name].shape[2] for name in ("keys_0", "keys_1")] == [LENGTH, CONTEXT]
    assert made.metadata["rewind"] == RewindRule("position", "reached", ROOM, LENGTH)._asdict()
    row = Row(made)
    row.read(IDS)
    assert row.state.get("reached").tolist() == [60]


@pytest.mark.parametrize("back", [1, 12, 20])
def test_a_text_goes_back_within_the_room_and_no_further(back: int) -> None:
    row = Row(plan("gemma3"))
    row.read(IDS)
    with pytest.raises(InputError, match=r"position\[0\]: expected 0, where a row .* 40 to 60: it"):
        row.run([9], 60 - ROOM - 1)
    begun = 60 - back
    got = row.run([9, 8, 7], begun)
    np.testing.assert_allclose(got, logits([*IDS[:begun], 9, 8, 7]), rtol=1e-3, atol=1e-3)
    # what was overwritten does not come back because a row has fewer positions now
    if back > 3:
        with pytest.raises(InputError, match="states have had 60 positions and can go back by 20,"):
            row.run([9], 39)
    row.read([3, 4])  # a text that begins anew has no past
    row.run([5] * 6, 2)
    for position in (-1, 9):
        with pytest.raises(InputError, match="expected 0, where a row begins anew, or 0 to 8: its"):
            row.run([5], position)
    assert row.state.get("reached").tolist() == [8]
    got = row.run([6], 1)
    np.testing.assert_allclose(got, logits([3, 6]), rtol=1e-3, atol=1e-3)


def test_a_run_that_fails_changes_nothing() -> None:
    row = Row(plan("gemma3"))
    row.read(IDS[:40])
    before = row.state.copy()
    with pytest.raises(taper_runtime.TaperError):
        row.run([1, 2, 3], 40, kept=3)  # after all layers have written
    for name, array in row.state.copy().items():
        np.testing.assert_array_equal(array, before[name])


def test_guesses_and_prefixes_leave_texts_as_they_are() -> None:
    made = plan("gemma3")
    expected = [*Generator(taper_runtime.InferenceSession(made)).generate(IDS, max_new_tokens=20)]
    generator = Generator(taper_runtime.InferenceSession(made), prefix_cache_bytes=10**6)
    found = [*generator.generate(IDS, max_new_tokens=20, prompt_lookup_num_tokens=7)]
    assert found == expected
    again = generator.submit(IDS, max_new_tokens=20)
    assert again.read == 59  # its states can go back by one position
    assert [*generator.stream(again)] == expected
    assert generator.submit(IDS[:30], max_new_tokens=2).read == 0  # and not by 30
    short = [*generator.generate(IDS[:20], max_new_tokens=2)]
    assert len(short) == 2
    assert generator.submit([*IDS[:5], 1], max_new_tokens=2).read == 5  # of one that is kept whole


def test_a_recurrent_row_goes_on_or_begins_anew() -> None:
    row = Row(follower_plan(reads_one=False))
    prompt = [1, 2, 3, 4]
    first = row.run(prompt, 0)
    assert int(first.argmax()) == text(prompt, 1)[0]
    for position in (2, 5):
        with pytest.raises(InputError, match=r"expected 0, where a row begins anew, or 4: its st"):
            row.run([4], position)
    kept = row.state.copy()
    other = row.run([5], 4)
    row.state.restore(kept)
    np.testing.assert_array_equal(row.run([5], 4), other)
    np.testing.assert_array_equal(row.run(prompt, 0), first)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": 1}, "metadata.rewind: expected an object with position, reached, back, whole"),
        ({"back": -1}, "metadata.rewind.back: expected an int of at least 0, got -1"),
        ({"whole": "24"}, "metadata.rewind.whole: expected an int of at least 0, got '24'"),
        ({"position": 1}, "metadata.rewind.position: expected a name, got 1"),
        ({"position": "input_ids"}, "metadata.rewind.position: expected one of .* of rank 1, got"),
        ({"reached": "keys_0"}, "metadata.rewind.reached: expected one of .* of rank 1, got 'key"),
    ],
)
def test_wrong_rules_are_refused(change: dict[str, object], message: str) -> None:
    made = plan("gemma3")
    rule = {**made.metadata["rewind"], **change}
    with pytest.raises(InputError, match=message):
        taper_runtime.InferenceSession(made._replace(metadata={**made.metadata, "rewind": rule}))


def test_rings_without_a_rule_are_no_decoder() -> None:
    made = plan("gemma3")
    others = {key: value for key, value in made.metadata.items() if key != "rewind"}
    session = taper_runtime.InferenceSession(made._replace(metadata=others))
    with pytest.raises(InputError, match=r"state 'keys_0': expected \[rows, heads, 80, width\]"):
        Generator(session)
