"""States take memory for what has been written, not for the whole context."""

import os
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from stateful_plans import WIDTH, sequence_plan
from taper_runtime import InferenceSession
from taper_runtime.base.buffers import copy_written, lazy_zeros

#: Positions of a cache of 16 MB.
LENGTH = (16 << 20) // (4 * WIDTH)


def resident() -> int:
    """Return the bytes of this process's own memory."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_Dirty:"))


@pytest.fixture(scope="module")
def session() -> InferenceSession:
    return InferenceSession(sequence_plan(length=LENGTH))


def feed(rows: int, step: int) -> dict[str, np.ndarray]:
    return {"x": np.full((rows, 1, WIDTH), 0.5, np.float32), "at": np.array([step])}


def test_states_of_a_long_context_take_little_memory(session: InferenceSession) -> None:
    """Alone, side by side, in other rows, and after a reset."""
    session.run(None, feed(1, 0))  # what every run needs
    before = resident()
    states = [session.new_state() for _ in range(8)]
    assert resident() - before < 1 << 20
    session.run(None, feed(8, LENGTH // 2), state=states)
    session.run(None, feed(3, 1), state=states[5:2:-1])
    side_by_side = [state._arrays["cache"].base for state in states[3:6]]
    session.run(None, feed(3, 1), state=states[5:2:-1])  # without a copy
    for state, base in zip(states[3:6], side_by_side, strict=True):
        assert state._arrays["cache"].base is base is side_by_side[0]
    assert resident() - before < 2 << 20
    wanted = np.zeros((LENGTH, WIDTH), np.float32)
    wanted[LENGTH // 2] = np.tanh(np.float32(0.5))
    np.testing.assert_allclose(states[0].get("cache")[0], wanted, rtol=1e-6)
    wanted[1] = wanted[LENGTH // 2]
    np.testing.assert_allclose(states[4].get("cache")[0], wanted, rtol=1e-6)
    del wanted
    states[0].set("cache", np.ones((1, LENGTH, WIDTH), np.float32))
    full = resident()
    states[0].reset("cache")
    session.run(None, feed(7, 2), state=states[1:])  # no row of the first one's array is left
    assert full - resident() > 8 << 20
    assert not states[0].get("cache").any()


def test_a_state_that_has_its_memory_alone_is_not_copied(session: InferenceSession) -> None:
    state = session.new_state()
    own = state._arrays["cache"]
    for step in range(2):
        session.run(None, feed(1, step), state=[state])
        assert np.shares_memory(state._arrays["cache"], own)
    np.testing.assert_allclose(own[0, :2], np.tanh(np.float32(0.5)), rtol=1e-6)


def test_a_part_of_an_array_is_restored_without_a_copy_of_it(session: InferenceSession) -> None:
    """As a prefix that a longer one begins with."""
    whole, state = session.new_state(), session.new_state()
    whole.set("cache", np.full((1, LENGTH, WIDTH), 0.25, np.float32))
    taken = whole.copy()
    taken["cache"] = taken["cache"][..., : WIDTH // 2]
    tracemalloc.start()
    state.restore(taken, {"cache": (..., slice(WIDTH // 2))})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20
    found = state.get("cache")
    assert (found[..., : WIDTH // 2] == 0.25).all()
    assert not found[..., WIDTH // 2 :].any()


def test_joined_rows_have_what_the_run_reads(session: InferenceSession) -> None:
    """A hint counts for one run; what it leaves out becomes zeros."""
    states = [session.new_state() for _ in range(2)]
    for state in states:
        state.set("cache", np.ones((1, LENGTH, WIDTH), np.float32))
        state.mark_read({"cache": (slice(None), slice(3))})
    session.run(None, feed(2, 5), state=states)
    found = states[1].get("cache")[0]
    np.testing.assert_array_equal(found.any(1).nonzero()[0], [0, 1, 2, 5])
    assert states[1].take_read() == {}
    states[0].mark_read({"cache": (slice(None), slice(3))})
    session.run(None, feed(1, 5), state=states[0])  # copies nothing
    session.run(None, feed(2, 7), state=[states[1], states[0]])
    assert states[0].get("cache")[0, 5].all()


@pytest.mark.parametrize("size", [3, 5000, 300_000])
def test_pages_of_zeros_are_not_copied(size: int) -> None:
    rng = np.random.default_rng(0)
    source = np.zeros((2, size), np.float32)
    for begin in rng.integers(0, 2 * size, 5):
        source.reshape(-1)[begin : begin + 1500] = rng.standard_normal(1)
    source[-1, -1] = -0.0  # which is no byte of 0
    target = lazy_zeros(source.shape, source.dtype)
    assert target.flags.writeable
    copy_written(target, source)
    np.testing.assert_array_equal(target.view(np.uint32), source.view(np.uint32))


def test_states_are_a_process_own() -> None:
    """A child of a fork does not write to the memory of its parent."""
    array = lazy_zeros((1 << 20,), np.dtype(np.float32))
    array[0] = 1
    child = os.fork()
    if child == 0:
        array[:] = 2
        os._exit(0)
    os.waitpid(child, 0)
    assert (array[0], array[1]) == (1, 0)
