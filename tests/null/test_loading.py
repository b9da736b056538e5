"""Loads that something ends: at every look, from other threads, apart from what cannot look."""

import copy
import gc
import json
import pickle
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import taper_runtime.plan.replaceable as weights_of_plans
from plan_files import chain, small_file, small_plan
from taper_runtime import InferenceSession, InputError, SessionOptions
from taper_runtime.base import loading
from taper_runtime.base.errors import LoadTimeoutError, StoppedError
from taper_runtime.base.loading import apart, ended_by, load_check, look
from taper_runtime.file.container import _DECODER
from taper_runtime.file.pieces import Pieces
from taper_runtime.file.reader import load, loads
from weighted_plans import weighted_plan


class Ended(Exception):
    pass


class Countdown:
    """A check that raises at one look of a load, and counts them."""

    def __init__(self, at=None):
        self.at, self.looks = at, 0

    def __call__(self):
        self.looks += 1
        if self.looks == self.at:
            raise Ended


def with_sizes(tmp_path):
    from measured_plans import measured_plan

    return measured_plan()


@pytest.mark.parametrize(
    "make", [lambda path: small_plan(), lambda path: weighted_plan(), with_sizes]
)
@pytest.mark.parametrize("load_mode", ["map", "copy"])
def test_a_load_ends_at_every_look(make, load_mode, monkeypatch, tmp_path):
    monkeypatch.setattr(loading, "_GLANCE_S", 60)  # as many looks every time
    path = tmp_path / "m.taper"
    plan = make(tmp_path)
    plan.save(path, **({"folded": False} if plan.weights else {}))
    options = SessionOptions()
    options.load_mode = load_mode
    count = Countdown()

    def opening(check):
        session = InferenceSession.__new__(InferenceSession)
        with ended_by(check):
            session._open(path, options.copy(), ("NativeCPU", "Numpy"), None)
        return session

    assert opening(count).plan.outputs
    assert count.looks > 10
    for at in range(1, count.looks + 1):
        with pytest.raises(Ended):
            opening(Countdown(at))
    assert opening(Countdown()).plan.outputs


def longest_without_a_look(blob):
    """Return how many functions, of Python and of C, a load calls at most between two looks."""
    most = since = 0

    def check():
        nonlocal most, since
        most, since = max(most, since), 0

    def profile(frame, event, argument):
        nonlocal since
        since += event in ("call", "c_call")

    with ended_by(check):
        session = InferenceSession.__new__(InferenceSession)
        sys.setprofile(profile)
        try:
            session._open(blob, SessionOptions(), ("NativeCPU", "Numpy"), None)
        finally:
            sys.setprofile(None)
    return max(most, since)


def test_what_a_load_does_between_two_looks_does_not_grow_much_with_the_file(tmp_path):
    """Work on each node or tensor; what is done once for all of them at a time is little."""
    found = []
    for count in (400, 800):
        chain(["NEG", "SIN"] * count, 8).save(tmp_path / "m.taper")
        found.append(longest_without_a_look((tmp_path / "m.taper").read_bytes()))
    assert found[1] < 1.2 * found[0]
    assert found[1] < 6000


def test_long_data_is_looked_through_piece_by_piece():
    plan = small_plan()
    values = {"numbers": [1] * 20_000, "keys": {f"k{i}": None for i in range(20_000)}}
    deep = {"lists": [[[i]] for i in range(5000)]}
    for metadata in (values, deep):
        changed = plan._replace(metadata=metadata)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "m.taper")
            changed.save(path)
            assert longest_without_a_look(path.read_bytes()) < 6000


def test_no_garbage_is_collected_while_a_load_may_be_ended():
    seen = []
    for enabled in (True, False):
        (gc.enable if enabled else gc.disable)()
        try:
            with ended_by(lambda: None):
                with ended_by(lambda: None):
                    seen.append(gc.isenabled())
                seen.append(gc.isenabled())
            seen.append(gc.isenabled())
            with pytest.raises(Ended), ended_by(Countdown(1)):
                look()
            seen.append(gc.isenabled())
        finally:
            gc.enable()
    assert seen == [False, False, True, True, False, False, False, False]
    with ended_by(None):
        assert gc.isenabled()


def test_a_flag_ends_loads_and_lets_them_begin_again(tmp_path):
    path = tmp_path / "m.taper"
    small_plan().save(path)
    options = SessionOptions()
    session = InferenceSession(path, options)
    options.set_load_cancellation_flag(True)
    for source in (path, path.read_bytes(), small_plan()):
        with pytest.raises(StoppedError, match="load cancellation flag of its options is set"):
            InferenceSession(source, options)
    with pytest.raises(StoppedError):
        InferenceSession(path, options.copy())
    assert len(session.run(None, dict(small_plan().samples))) > 0  # it has options of its own
    options.set_load_cancellation_flag(False)
    assert InferenceSession(path, options).plan.nodes
    for wrong in (None, 2, "yes"):
        with pytest.raises(InputError, match="is_cancelled: expected True or False"):
            options.set_load_cancellation_flag(wrong)


def test_a_timeout_ends_a_load():
    options = SessionOptions()
    options.load_timeout_s = 1e-9
    with pytest.raises(LoadTimeoutError, match="within 1e-09 s") as caught:
        InferenceSession(small_file(), options)
    assert isinstance(caught.value, TimeoutError)
    assert isinstance(caught.value, StoppedError)
    options.load_timeout_s = None
    assert InferenceSession(small_file(), options).plan.nodes
    for wrong in (0, -1, "1", True):
        with pytest.raises(InputError, match="load_timeout_s"):
            options.load_timeout_s = wrong


def test_what_another_thread_sets_is_what_the_load_looks_at(monkeypatch, tmp_path):
    """An op of a recipe that never ends, as LAPACK over a large matrix might: the load does."""
    path = tmp_path / "m.taper"
    weighted_plan().save(path, folded=False)
    options = SessionOptions()
    begun, never = threading.Event(), threading.Event()

    def endless(*arguments):
        begun.set()
        never.wait()

    def cancel():
        begun.wait()
        options.set_load_cancellation_flag(True)

    monkeypatch.setattr(weights_of_plans, "evaluate_step", endless)
    other = threading.Thread(target=cancel)
    other.start()
    with pytest.raises(StoppedError):
        InferenceSession(path, options)
    other.join()
    options.set_load_cancellation_flag(False)
    options.load_timeout_s = 0.01
    with pytest.raises(LoadTimeoutError):
        InferenceSession(path, options)
    never.set()


def test_what_is_computed_apart_raises_and_returns_as_elsewhere():
    def refuse():
        raise InputError("refused")

    for check in (None, Countdown()):
        with ended_by(check):
            assert apart(divmod, 7, 2) == (3, 1)
            assert apart(np.ones(3).max, initial=5) == 5
            with pytest.raises(InputError, match="refused"):
                apart(refuse)
            look()


def test_a_session_is_opened_anew_with_its_timeout(tmp_path):
    path = tmp_path / "m.taper"
    small_plan().save(path)
    options = SessionOptions()
    options.load_timeout_s = 100.0
    session = InferenceSession(path, options)
    again = pickle.loads(pickle.dumps(session))  # noqa: S301
    assert again.get_session_options().load_timeout_s == 100.0
    assert copy.deepcopy(options).load_timeout_s == 100.0
    state = session.__getstate__()
    state["options"].load_timeout_s = 1e-9
    with pytest.raises(LoadTimeoutError):
        InferenceSession.__new__(InferenceSession).__setstate__(state)


def test_loads_that_nobody_ends_do_not_look_for_it(tmp_path):
    path = tmp_path / "m.taper"
    small_plan().save(path)
    options = SessionOptions()
    options.set_load_cancellation_flag(True)
    assert load(path).nodes
    assert loads(path.read_bytes()).nodes
    with pytest.raises(StoppedError), ended_by(load_check(lambda: options._end.is_set, None)):
        load(path)


scalars = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8)
trees = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=40,
)


def parsed(parse):
    try:
        return parse()
    except ValueError:
        return "refused"


@given(trees, st.sampled_from([None, 1]), st.data())
def test_json_in_pieces_is_what_it_is_as_a_whole(tree, indent, data):
    text = json.dumps(tree, indent=indent)
    if data.draw(st.booleans()):  # a character less, more, or another
        at = data.draw(st.integers(0, len(text)))
        more = data.draw(
            st.sampled_from(["", "[", "]", "{", "}", ",", ":", '"', "1", " ", "-", "e"])
        )
        text = text[:at] + more + text[at + data.draw(st.integers(0, 1)) :]
    wanted = parsed(lambda: _DECODER.decode(text))
    for short, long in ((1, 2), (3, 9), (1 << 10, 1 << 16)):
        pieces = Pieces(_DECODER, text, short, long)
        assert parsed(pieces.parse) == wanted


def test_json_in_pieces_refuses_a_key_twice_and_endless_nesting():
    for text in ('{"a": [1, 2, 3], "a": 2}', '[{"b": 1, "b": 2}]'):
        with pytest.raises(ValueError, match="duplicate key"):
            Pieces(_DECODER, text, 1, 2).parse()
    with pytest.raises(RecursionError):
        Pieces(_DECODER, "[" * 100_000, 1, 2).parse()
