"""Caches beside a plain model: a dictionary of entries, sizes and counts."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taper_openinfer.errors import StepError
from taper_openinfer.simulator.access import show_access
from taper_openinfer.simulator.caches import make_cache


def make(shape=(), indices=(), auto_dim=(), fixed=None, fill=0.0):
    return make_cache("A", shape, np.array(fill, np.float32), indices, auto_dim, fixed)


def row(value, n=2):
    return np.full(n, value, np.float32)


class Model:
    """What the specification says, with no thought of speed or memory."""

    def __init__(self, shape, indices, auto_dim, fixed, fill):
        self.shape, self.indices, self.auto = shape, indices, auto_dim
        self.table = [name for name in indices if name not in auto_dim]
        self.fixed, self.fill = fixed, fill
        self.reset_all()

    def reset_all(self):
        self.entries = {}
        self.sizes = {name: self.fixed.get(name, 0) for name in self.table}
        self.counts = dict.fromkeys(self.auto, 0)

    def entry_shape(self, counts):
        extra = [counts[name] for name in self.auto] or [0] * len(self.shape)
        return tuple(np.add(self.shape, extra).tolist())

    def select(self, access):
        """Positions along each table index, cuts of the entry, sizes and counts afterwards."""
        if len(access) > len(self.indices):
            raise ValueError
        sizes, counts = dict(self.sizes), dict(self.counts)
        given = dict(itertools.zip_longest(self.indices, access, fillvalue=(None, None)))
        for name, index in given.items():
            if isinstance(index, int):
                limit = self.fixed.get(name)
                if index < 0:
                    raise ValueError
                if name in sizes:
                    if limit is not None and index >= limit:
                        raise ValueError
                    sizes[name] = max(sizes[name], index + 1)
                else:
                    if limit is not None and index > limit:
                        raise ValueError
                    counts[name] = max(counts[name], index)
        grown = dict(zip(self.auto, self.entry_shape(counts), strict=True)) if self.auto else {}
        chosen = {}
        for name, index in given.items():
            size = sizes[name] if name in sizes else grown[name]
            if isinstance(index, int):
                chosen[name] = index if name in sizes else list(range(size))
                continue
            start, end = index
            start = 0 if start is None else start
            end = size if end is None else end + size * (end < 0)
            if start < 0 or end < start:
                raise ValueError
            if name in sizes:
                if self.fixed.get(name) is not None and end > self.fixed[name]:
                    raise ValueError
                sizes[name] = max(size, end)
            elif end > size:
                raise ValueError
            chosen[name] = list(range(start, end))
        return chosen, sizes, counts

    def entry(self, key, counts):
        whole = np.full(self.entry_shape(counts), self.fill, np.float32)
        if key in self.entries:
            old = self.entries[key]
            whole[tuple(map(slice, old.shape))] = old
        return whole

    def read(self, access):
        chosen, sizes, counts = self.select(access)
        self.sizes, self.counts = sizes, counts
        lists = [np.atleast_1d(chosen[name]).tolist() for name in self.table]
        shape = [len(chosen[name]) for name in self.table if isinstance(chosen[name], list)]
        whole = self.entry_shape(counts)
        cuts = [chosen[name] for name in self.auto] or [range(n) for n in whole]
        parts = [self.entry(key, counts)[np.ix_(*cuts)] for key in itertools.product(*lists)]
        return np.reshape(np.array(parts, np.float32), (*shape, *map(len, cuts)))

    def shape_for(self, access):
        """The shape that a write to there takes."""
        try:
            return self.entry_shape(self.select(access)[2])
        except ValueError:
            return self.entry_shape(self.counts)

    def write(self, access, value):
        if len(access) != len(self.indices) or not all(isinstance(i, int) for i in access):
            raise ValueError
        chosen, sizes, counts = self.select(access)
        if value.shape != self.entry_shape(counts):
            raise ValueError
        self.sizes, self.counts = sizes, counts
        self.entries[tuple(chosen[name] for name in self.table)] = value

    def reset(self, access):
        if not access:
            return self.reset_all()
        if len(access) > len(self.indices):
            raise ValueError
        prefix = {}
        for name, index in zip(self.indices, access, strict=False):
            limit = self.fixed.get(name)
            if not isinstance(index, int) or name in self.auto or index < 0:
                raise ValueError
            if limit is not None and index >= limit:
                raise ValueError
            prefix[name] = index
        self.entries = {
            key: value
            for key, value in self.entries.items()
            if any(key[self.table.index(name)] != index for name, index in prefix.items())
        }
        for place, name in enumerate(self.table):
            most = max((key[place] + 1 for key in self.entries), default=0)
            self.sizes[name] = self.fixed.get(name, most)
        return None


KINDS = {
    "table": ((2,), ("i",), (), {}),
    "scalars": ((), ("i", "j"), (), {}),
    "limited": ((2,), ("i", "j"), (), {"i": 3}),
    "grown": ((2, 1), ("r", "c"), ("r", "c"), {}),
    "grown and limited": ((1, 2), ("r", "c"), ("r", "c"), {"c": 2}),
    "both": ((1, 2), ("l", "i", "j"), ("i", "j"), {}),
    "both, mixed up": ((1, 2), ("i", "l", "j"), ("i", "j"), {"l": 2, "j": 3}),
}
POSITION = st.integers(-1, 4)
END = st.none() | st.integers(-3, 5)
INDEX = POSITION | st.tuples(END, END)
WORK = st.lists(
    st.tuples(
        st.sampled_from(["read", "read", "write", "write", "reset"]),
        st.lists(INDEX, max_size=3),
        st.integers(0, 9),
    ),
    max_size=12,
)


@pytest.mark.parametrize("kind", KINDS)
@given(work=WORK, fill=st.sampled_from([0.0, 7.0]))
@settings(max_examples=60)
def test_any_accesses_do_what_the_model_does(kind, work, fill):
    shape, indices, auto_dim, fixed = KINDS[kind]
    cache = make(shape, indices, auto_dim, fixed, fill)
    model = Model(shape, indices, auto_dim, fixed, fill)
    for number, (what, access, wrong) in enumerate(work):
        arguments = [access]
        if what == "write":
            if wrong:  # most writes are of positions
                positions = [max(i, 0) if isinstance(i, int) else 0 for i in access]
                arguments = [[*positions, 0, 0, 0][: len(indices)]]
            entry = model.shape_for(arguments[0])
            arguments.append(np.full((*entry, 1) if wrong == 9 else entry, number + 1, np.float32))
        try:
            expected = getattr(model, what)(*arguments)
        except ValueError:
            with pytest.raises(StepError, match=r"^A: "):
                getattr(cache, what)(*arguments)
        else:
            np.testing.assert_array_equal(getattr(cache, what)(*arguments), expected)
        assert cache.sizes == tuple(model.sizes.values())
        assert cache.entry_shape == model.entry_shape(model.counts)


def test_a_scalar_is_read_and_written_whole():
    cache = make(fill=5.0)
    assert not cache.is_loaded
    assert cache.read() == 5
    assert cache.read().shape == ()
    cache.write((), np.array(6, np.float32))
    assert cache.read() == 6
    with pytest.raises(StepError, match=r"A: expected no indices, got \[0\]"):
        cache.read([0])
    cache.reset()
    assert not cache.is_loaded
    assert cache.read() == 5


def test_a_tensor_is_read_and_written_whole():
    cache = make((2, 3))
    np.testing.assert_array_equal(cache.read(), np.zeros((2, 3)))
    with pytest.raises(StepError, match=r"A: expected a value of shape \(2, 3\), got \(3, 2\)"):
        cache.write((), np.ones((3, 2), np.float32))
    np.testing.assert_array_equal(cache.read(), np.zeros((2, 3)))


def test_a_table_of_three_writes_as_the_example_has_it():
    cache = make((2,), ("i",), fixed={"i": 3})
    for i in range(3):
        cache.write([i], row(i + 1))
    np.testing.assert_array_equal(cache.read([]), [[1, 1], [2, 2], [3, 3]])
    np.testing.assert_array_equal(cache.read([(0, 2)]), [[1, 1], [2, 2]])
    cache.reset([1])
    np.testing.assert_array_equal(cache.read([]), [[1, 1], [0, 0], [3, 3]])


def test_a_window_of_a_table_ends_before_the_last():
    cache = make((2,), ("i",))
    for i in range(10):
        cache.write([i], row(i))
    assert cache.read([(0, -3)]).shape == (7, 2)
    with pytest.raises(
        StepError,
        match=r"A: index i: expected an end of at least 4, .* \[4\.\.-8\] of 10, which ends at 2",
    ):
        cache.read([(4, -8)])
    assert cache.read([(8, 12)]).shape == (4, 2)
    assert cache.sizes == (12,)


@pytest.mark.parametrize(("index", "message"), [(4, "positions below 4"), (9, "got 9")])
def test_a_table_beyond_its_limit_names_variable_index_and_limit(index, message):
    cache = make((2,), ("i",), fixed={"i": 4})
    with pytest.raises(StepError, match=r"A: index i: .*limit in @fixed") as caught:
        cache.write([index], row(1))
    assert message in str(caught.value)
    assert cache.sizes == (4,)
    with pytest.raises(StepError, match="index i: expected an end of at most 4"):
        cache.read([(0, 5)])


def test_a_growing_tensor_keeps_its_corner_and_never_shrinks():
    cache = make((2, 2), ("r", "c"), ("r", "c"), fill=9.0)
    assert cache.read([3, 2]).shape == (5, 4)
    cache.write([3, 2], np.ones((5, 4), np.float32))
    assert cache.read([0, 5]).shape == (5, 7)
    assert cache.read([5, 0]).shape == (7, 7)
    expected = np.full((7, 7), 9.0)
    expected[:5, :4] = 1
    np.testing.assert_array_equal(cache.read([0, 0]), expected)
    assert (cache.count("r"), cache.count("c")) == (5, 5)
    np.testing.assert_array_equal(cache.read([(4, 6), (0, 1)]), [[1], [9]])
    with pytest.raises(StepError, match="slices of @auto_dim do not grow"):
        cache.read([(0, 8)])
    with pytest.raises(StepError, match="expected no index of @auto_dim in a reset, got one for r"):
        cache.reset([1])
    cache.reset()
    np.testing.assert_array_equal(cache.read([0, 0]), np.full((2, 2), 9.0))


def test_a_growing_tensor_beyond_its_limit_names_count_and_limit():
    cache = make((2, 2), ("r", "c"), ("r", "c"), {"r": 4, "c": 4})
    cache.read([4, 4])
    with pytest.raises(StepError, match=r"A: index r: expected a count of at most 4, .* got 5"):
        cache.read([5, 5])


def test_entries_that_grow_do_so_together():
    cache = make((1,), ("l", "i"), ("i",))
    cache.write([0, 0], row(1, 1))
    cache.write([2, 2], row(2, 3))
    np.testing.assert_array_equal(cache.read([]), [[1, 0, 0], [0, 0, 0], [2, 2, 2]])
    np.testing.assert_array_equal(cache.read([0]), [1, 0, 0])
    np.testing.assert_array_equal(cache.read([2, (0, 2)]), [2, 2])
    cache.reset([2])
    assert (cache.sizes, cache.entry_shape) == ((1,), (3,))


def test_what_was_read_may_be_a_view_and_is_read_only():
    cache = make((2,), ("i",))
    cache.write([0], row(1))
    seen = cache.read([])
    assert cache.holds(seen)
    with pytest.raises(ValueError, match="read-only"):
        seen[0, 0] = 3
    strided = make((), ("i", "j"))
    strided.write([3, 3], np.array(1, np.float32))
    column = strided.read([(None, None), 3])
    assert column.flags.c_contiguous
    assert not strided.holds(column)


def test_growing_row_by_row_copies_seldom():
    cache = make((4,), ("i",))
    boxes = set()
    for i in range(1000):
        cache.write([i], row(i, 4))
        boxes.add(id(cache._box))
    assert len(boxes) <= 11
    assert cache.read([]).shape == (1000, 4)


def test_sizes_beyond_memory_are_an_error_that_names_the_variable():
    cache = make((2,), ("i", "j"))
    with pytest.raises(
        StepError, match=r"A: expected memory for \d+ bytes of shape .*, got too little"
    ):
        cache.write([2**61, 2**61], row(1))
    assert cache.sizes == (0, 0)
    with pytest.raises(StepError, match="got too little"):
        cache.read([2**42, 0])
    cache.write([0, 0], row(1))
    assert cache.sizes == (1, 1)


def test_indices_are_shown_as_programs_spell_them():
    assert show_access([1, (None, 3), (2, None), (None, None)]) == "[1, ..3, 2.., ..]"
