"""Copies in a row that only change the order of rows become one."""

from __future__ import annotations

import numpy as np

from graph_checks import Builder, check_fires, check_keeps, op_counts
from taper_frontend.compiler.stages import Group, merge_selections

merge = Group(merge_selections)


class Windows(Builder):
    """Images shifted along both axes and cut into windows, as Swin does it."""

    def __init__(self, channels=16):
        super().__init__()
        self.x = self.input("x", 2, 6, 4, channels)
        self.channels = channels

    def shifted(self, x, axes=(1, 2)):
        for axis in axes:
            size = self.graph.tensors[x].shape[axis]
            x = self.op("INDEX_SELECT", x, self.constant(np.roll(np.arange(size), 1)), axis=axis)
        return x

    def cut(self, x):
        y = self.transpose(self.reshape(x, 2, 3, 2, 2, 2, self.channels), 2, 3)
        return self.reshape(y, 12, 4, self.channels)


def test_shift_and_cut():
    b = Windows()
    graph = check_fires(merge, b.done(b.cut(b.shifted(b.x))))
    assert op_counts(graph) == {"RESHAPE": 2, "INDEX_SELECT": 1}


def test_row_is_as_long_as_what_moves_together():
    b = Windows()
    graph = check_fires(merge, b.done(b.shifted(b.shifted(b.x, (1,)), (1,))))
    (rows,) = (n for n in graph.nodes.values() if n.inputs == ["x"])
    assert graph.tensors[rows.output].shape == (2, 6, 64)


def test_part_of_the_elements():
    b = Windows()
    y = b.op("SLICE", b.shifted(b.x), axis=1, start=1, stop=6, step=2)
    check_fires(merge, b.done(b.op("FLIP", y, axes=(2,))))


def test_everything_back_where_it_was():
    b = Windows()
    x = b.shifted(b.x, (1,))
    back = b.constant(np.roll(np.arange(6), -1))
    graph = check_fires(merge, b.done(b.op("INDEX_SELECT", x, back, axis=1)))
    assert op_counts(graph) == {"RESHAPE": 1}


class TestStays:
    def test_rows_that_would_be_a_copy(self):
        b = Builder()
        x = b.op("EXPAND", b.input("x", 3, 1, 16), shape=(3, 2, 16))
        for axis, order in ((0, [2, 0, 1]), (1, [1, 0])):
            x = b.op("INDEX_SELECT", x, b.constant(np.array(order)), axis=axis)
        check_keeps(merge, b.done(x))

    def test_one_copy(self):
        b = Windows()
        check_keeps(merge, b.done(b.cut(b.x)))

    def test_short_rows(self):
        b = Windows(8)
        check_keeps(merge, b.done(b.cut(b.shifted(b.x))))

    def test_value_on_the_way_that_others_read(self):
        b = Windows()
        shifted = b.shifted(b.x, (1,))
        check_keeps(merge, b.done(b.cut(shifted), shifted))

    def test_places_that_are_no_constant(self):
        b = Windows()
        y = b.op("INDEX_SELECT", b.x, b.input("index", 6, dtype="int64"), axis=1)
        check_keeps(merge, b.done(b.shifted(y, (1,))))


def test_no_elements():
    b = Builder()
    x = b.input("x", 0, 4, 16)
    for _ in range(2):
        x = b.op("INDEX_SELECT", x, b.constant(np.array([1, 0])), axis=1)
    check_fires(merge, b.done(x))
