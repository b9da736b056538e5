"""Test the generator of random numbers, and the two ops that draw from its state."""

import math
import os
from collections import Counter

import numpy as np
import pytest

from taper_runtime.base.errors import InputError, OpError
from taper_runtime.base.random_state import STATE_SIZE, MersenneTwister, check_seed, new_state
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType

RANDOM, NEXT = REGISTRY["RANDOM"], REGISTRY["RANDOM_NEXT"]


def draw(state, shape, **attrs):
    """What is drawn, and the state after it."""
    values = RANDOM.evaluate([state], RANDOM.complete({"shape": shape, **attrs}))
    attrs.pop("dtype")
    return values, NEXT.evaluate([state, values], NEXT.complete(attrs))


def test_words_are_those_of_the_standard():
    """C++ defines mt19937 by its 10000th word from the default seed."""
    assert MersenneTwister(new_state(5489)).words(10000)[-1] == 4123659995


def test_seeds_count_by_their_lower_bits():
    np.testing.assert_array_equal(new_state(7), new_state(2**32 + 7))
    np.testing.assert_array_equal(new_state(-1), new_state(2**32 - 1))
    assert not np.array_equal(new_state(None), new_state(None))
    assert check_seed(np.int64(5)) == 5
    assert check_seed(None) is None


def test_a_state_goes_on():
    """Skipping, drawing in parts and drawing at once come to the same."""
    whole = MersenneTwister(new_state(3))
    words = whole.words(2000)
    parts = MersenneTwister(new_state(3))
    first = parts.words(700)
    rest = MersenneTwister(parts.state)
    rest.skip(300)
    np.testing.assert_array_equal(first, words[:700])
    np.testing.assert_array_equal(rest.words(1000), words[1000:])
    np.testing.assert_array_equal(rest.state, whole.state)


@pytest.mark.parametrize("used", [-1, 625, 2**40])
def test_a_state_that_is_none_is_refused(used):
    """numpy would read beyond its words."""
    state = new_state(0)
    state[624] = used
    with pytest.raises(InputError, match=f"expected 0 to 624 words, got {used}"):
        draw(state, (2,), law="uniform", dtype="float32")


def test_any_words_are_a_state():
    state = np.full(STATE_SIZE, -1)
    state[624] = 0
    values, after = draw(state, (9,), law="serial_normal", dtype="float64")
    assert values.shape == (9,)
    assert after.shape == (STATE_SIZE,)


@pytest.mark.parametrize("counts", [(1, 1, 3), (5, 15, 2), (3, 17, 1), (1, 0, 1)])
def test_a_normal_left_over_is_the_next(counts):
    state = new_state(2)
    drawn = []
    for count in counts:
        values, state = draw(state, (count,), law="serial_normal", dtype="float64")
        drawn.append(values)
    once, _ = draw(new_state(2), (sum(counts),), law="serial_normal", dtype="float64")
    np.testing.assert_array_equal(np.concatenate(drawn), once)


@pytest.mark.parametrize("law", ["uniform", "normal", "half_normal", "serial_normal"])
def test_moments(law):
    values, _ = draw(new_state(1), (40000,), law=law, dtype="float32")
    mean, variance = (0.5, 1 / 12) if law == "uniform" else (0, 1)
    assert abs(values.mean() - mean) < 6 * math.sqrt(variance / values.size)
    assert abs(values.var() / variance - 1) < 0.05


def test_integers_and_permutations():
    values, _ = draw(new_state(1), (6000,), law="integer", dtype="int64", limit=6)
    counts = Counter(values.tolist())
    assert set(counts) == set(range(6))
    assert max(abs(n - 1000) for n in counts.values()) < 200
    values, _ = draw(new_state(1), (100,), law="permutation", dtype="int64")
    assert sorted(values.tolist()) == list(range(100))


@pytest.mark.parametrize(
    ("attrs", "message"),
    [
        ({"law": "cauchy", "dtype": "float32"}, "a law of uniform"),
        ({"law": "uniform", "dtype": "int64"}, "float32 or float64"),
        ({"law": "integer", "dtype": "float32"}, "int64"),
        ({"law": "integer", "dtype": "int64", "limit": -1}, "a limit of at least 0"),
    ],
)
def test_what_is_no_law(attrs, message):
    state = TensorType("int64", (STATE_SIZE,))
    with pytest.raises(OpError, match=message):
        RANDOM.infer_type([state], {"shape": (2,), **attrs})
    with pytest.raises(OpError, match="a generator's state"):
        RANDOM.infer_type([TensorType("int64", (3,))], {"shape": (2,), **attrs})


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of forks with threads
def test_the_child_of_a_fork_draws_other_numbers():
    new_state(None)  # the parent's are drawn from what the child has a copy of
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, new_state(None)[:8].tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 64) != new_state(None)[:8].tobytes()
    os.close(read)
    os.close(write)


def test_states_without_a_seed_have_whole_words():
    states = np.stack([new_state(None) for _ in range(50)])
    words = states[:, :624]
    assert words.min() >= 0
    assert words.max() < 2**32
    assert len(np.unique(words)) > 31_000  # of 31,200
    assert abs(words.mean() / 2**31 - 1) < 0.02  # six standard deviations
    np.testing.assert_array_equal(states[:, 624:], np.tile([624, 0, 0], (50, 1)))
