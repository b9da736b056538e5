"""Arena layouts: no overlap in time and bytes, within the bounds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from taper_frontend.compiler.planning.arena import ALIGNMENT, Interval, lay_out, lower_bound

INTERVALS = st.lists(
    st.builds(
        lambda birth, span, nbytes: Interval(birth, birth + span, nbytes),
        st.integers(0, 20),
        st.integers(0, 8),
        st.integers(0, 500),
    ),
    max_size=25,
)


@settings(deadline=None, derandomize=True)
@given(INTERVALS)
def test_live_blocks_never_overlap(intervals):
    offsets, arena = lay_out(intervals)
    for i, a in enumerate(intervals):
        assert offsets[i] % ALIGNMENT == 0
        assert offsets[i] + a.nbytes <= arena or a.nbytes == 0
        for j, b in enumerate(intervals[:i]):
            if a.birth <= b.death and b.birth <= a.death and a.nbytes and b.nbytes:
                apart = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
                assert apart, (a, b)
    assert lower_bound(intervals) <= arena <= sum(interval.size for interval in intervals)


def test_reuses_memory_of_the_dead():
    chain = [Interval(i, i + 1, 100) for i in range(10)]
    _, arena = lay_out(chain)
    assert arena == lower_bound(chain) == 256


def test_keeps_the_smaller_of_two_layouts():
    """By birth alone the late large block would go above the early small ones."""
    intervals = [
        Interval(0, 3, 64),
        Interval(0, 1, 64),
        Interval(2, 3, 192),
        Interval(1, 2, 64),
    ]
    _, arena = lay_out(intervals)
    assert arena <= 64 + 64 + 192


def test_nothing_needs_nothing():
    assert lay_out([]) == ([], 0)
    assert lower_bound([]) == 0
