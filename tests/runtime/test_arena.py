"""Offsets in the arena: no overlap in time and bytes, within the bounds."""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from taper_runtime.base.checks import ALIGNMENT, aligned
from taper_runtime.executor._program import assign_offsets
from taper_runtime.plan.liveness import LiveRange, live_bytes

BLOCKS = st.lists(
    st.builds(
        lambda birth, span, nbytes: LiveRange(birth, birth + span, nbytes),
        st.integers(0, 20),
        st.integers(0, 8),
        st.integers(0, 500),
    ),
    max_size=25,
)


def lower_bound(blocks):
    """The most bytes live at once, by definition."""
    return max(
        (
            sum(aligned(b.nbytes) for b in blocks if b.birth <= step <= b.death)
            for step in range(30)
        ),
        default=0,
    )


@settings(derandomize=True)
@given(BLOCKS)
def test_live_blocks_never_overlap(blocks):
    offsets, arena = assign_offsets(blocks)
    for i, a in enumerate(blocks):
        assert offsets[i] % ALIGNMENT == 0
        assert offsets[i] + a.nbytes <= arena or a.nbytes == 0
        for j, b in enumerate(blocks[:i]):
            if a.birth <= b.death and b.birth <= a.death and a.nbytes and b.nbytes:
                apart = offsets[i] + a.nbytes <= offsets[j] or offsets[j] + b.nbytes <= offsets[i]
                assert apart, (a, b)
    assert lower_bound(blocks) <= arena <= sum(aligned(block.nbytes) for block in blocks)


@settings(derandomize=True)
@given(BLOCKS)
def test_live_bytes_count_every_block_at_its_steps(blocks):
    expected = [sum(b.nbytes for b in blocks if b.birth <= s <= b.death) for s in range(30)]
    assert live_bytes(blocks, 30) == expected


def test_reuses_memory_of_the_dead():
    chain = [LiveRange(i, i + 1, 100) for i in range(10)]
    _, arena = assign_offsets(chain)
    assert arena == lower_bound(chain) == 256


def test_keeps_the_smaller_of_two_layouts():
    """By birth alone the late large block would go above the early small ones."""
    blocks = [LiveRange(0, 3, 64), LiveRange(0, 1, 64), LiveRange(2, 3, 192), LiveRange(1, 2, 64)]
    _, arena = assign_offsets(blocks)
    assert arena <= 64 + 64 + 192


def test_blocks_that_all_live_at_once_are_placed_in_steps_that_end():
    """Placing each among all others looked at billions of pairs, for a file of some megabytes."""
    count = 60_000
    blocks = [LiveRange(i, count, 64 + i % 7) for i in range(count)]
    offsets, arena = assign_offsets(blocks)
    assert arena == sum(aligned(block.nbytes) for block in blocks)
    spans = sorted((at, at + b.nbytes) for at, b in zip(offsets, blocks, strict=True))
    assert all(stop <= start for (_, stop), (start, _) in pairwise(spans))


def test_packs_the_fullest_step_first():
    """By birth 448 bytes are needed, largest first 448, where 384 are live at most."""
    blocks = [
        LiveRange(4, 6, 128),
        LiveRange(2, 4, 128),
        LiveRange(3, 4, 128),
        LiveRange(1, 2, 192),
    ]
    _, arena = assign_offsets(blocks)
    assert arena == lower_bound(blocks) == 384


def test_nothing_needs_nothing():
    assert assign_offsets([]) == ([], 0)
