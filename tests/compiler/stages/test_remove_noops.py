"""Movement that moves nothing is removed; movements in a row become one."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import remove_noops


def build(make, shape=(2, 3, 4), dtype="float32"):
    """A graph of ``make(builder, x)`` between two nodes, so that no name is an output's."""
    b = Builder()
    x = b.op("NEG", b.input("x", *shape, dtype=dtype))
    return b.done(b.op("ABS", make(b, x)))


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.reshape(x, 2, 3, 4),
        lambda b, x: b.op("CAST", x, dtype="float32"),
        lambda b, x: b.op("EXPAND", x, shape=(2, 3, 4)),
        lambda b, x: b.op("SLICE", x, axis=1, start=0, stop=3),
        lambda b, x: b.op("PERMUTE", x, axes=(0, 1, 2)),
        lambda b, x: b.transpose(x, 1, 1),
        lambda b, x: b.op("COPY", x),
        lambda b, x: b.op("CAT", x, axis=0),
        lambda b, x: b.transpose(b.transpose(x, 0, 2), 2, 0),
        lambda b, x: b.op("PERMUTE", b.op("PERMUTE", x, axes=(1, 2, 0)), axes=(2, 0, 1)),
        lambda b, x: b.op("CAST", b.op("CAST", x, dtype="float64"), dtype="float32"),
        lambda b, x: b.reshape(b.reshape(x, 24), 2, 3, 4),
        lambda b, x: b.op("INDEX_SELECT", x, b.constant(np.arange(3)), axis=1),
    ],
)
def test_nothing_is_left_of_an_identity(make):
    graph = build(make)
    check_fires(lambda g: bool(remove_noops(g) | remove_noops(g)), graph)
    assert op_counts(graph) == {"NEG": 1, "ABS": 1}


@pytest.mark.parametrize(
    ("make", "op", "attrs"),
    [
        (lambda b, x: b.reshape(b.reshape(x, 24), 4, 6), "RESHAPE", {"shape": (4, 6)}),
        (
            lambda b, x: b.transpose(b.op("PERMUTE", x, axes=(1, 2, 0)), 0, 1),
            "TRANSPOSE",
            {"axis0": 0, "axis1": 2},
        ),
        (
            lambda b, x: b.transpose(b.transpose(x, 0, 1), 1, 2),
            "PERMUTE",
            {"axes": (1, 2, 0)},
        ),
        (
            lambda b, x: b.op("PERMUTE", x, axes=(0, 2, 1)),
            "TRANSPOSE",
            {"axis0": 1, "axis1": 2},
        ),
        (
            lambda b, x: b.op(
                "SLICE", b.op("SLICE", x, axis=2, start=1, stop=4), axis=2, start=0, stop=3, step=2
            ),
            "SLICE",
            {"axis": 2, "start": 1, "stop": 4, "step": 2},
        ),
        (
            lambda b, x: b.op(
                "SLICE", b.op("SLICE", x, axis=2, start=0, stop=4, step=2), axis=2, start=2, stop=2
            ),
            "SLICE",
            {"axis": 2, "start": 0, "stop": 0, "step": 2},
        ),
        (
            lambda b, x: b.op(
                "EXPAND", b.op("EXPAND", x, shape=(5, 2, 3, 4)), shape=(6, 5, 2, 3, 4)
            ),
            "EXPAND",
            {"shape": (6, 5, 2, 3, 4)},
        ),
        (
            lambda b, x: b.op("CAST", b.op("CAST", x, dtype="float64"), dtype="int64"),
            "CAST",
            {"dtype": "int64"},
        ),
    ],
)
def test_two_become_one(make, op, attrs):
    graph = build(make)
    check_fires(remove_noops, graph)
    assert op_counts(graph) == {"NEG": 1, op: 1, "ABS": 1}
    assert only(graph, op).attrs == attrs


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.reshape(x, 6, 4),
        lambda b, x: b.op("EXPAND", x, shape=(1, 2, 3, 4)),
        lambda b, x: b.transpose(x, 0, 1),
        lambda b, x: b.op("PERMUTE", x, axes=(1, 2, 0)),
        lambda b, x: b.op("SLICE", x, axis=1, start=0, stop=2),
        # other axes
        lambda b, x: b.op(
            "SLICE", b.op("SLICE", x, axis=1, start=0, stop=2), axis=2, start=0, stop=2
        ),
        # int64 and float16 do not hold every float32
        lambda b, x: b.op("CAST", b.op("CAST", x, dtype="int64"), dtype="float32"),
        lambda b, x: b.op("CAST", b.op("CAST", x, dtype="float16"), dtype="float32"),
        # other elements, or another order
        lambda b, x: b.op("INDEX_SELECT", x, b.constant(np.array([0, 2, 1])), axis=1),
        lambda b, x: b.op("INDEX_SELECT", x, b.constant(np.array([0, 1])), axis=1),
        lambda b, x: b.op("CAT", x, x, axis=0),
    ],
)
def test_what_does_something_stays(make):
    check_keeps(remove_noops, build(make))


def test_float64_does_not_hold_every_int64():
    b = Builder()
    x = b.input("x", 4, dtype="int64")
    wide = b.op("CAST", b.op("CAST", x, dtype="float64"), dtype="int64")
    check_keeps(remove_noops, b.done(wide))


def test_a_half_goes_to_integers_by_way_of_float32():
    """No kernel converts it at once; back to what it was nothing is left to do."""
    b = Builder()
    x = b.input("x", 4, dtype="float16")
    wide = b.op("CAST", x, dtype="float32")
    check_keeps(remove_noops, b.done(b.op("CAST", wide, dtype="int64")))
    b = Builder()
    wide = b.op("CAST", b.input("x", 2, 3, dtype="float16"), dtype="float32")
    graph = b.done(b.transpose(b.op("CAST", wide, dtype="float16"), 0, 1))
    check_fires(remove_noops, graph)
    assert op_counts(graph) == {"TRANSPOSE": 1}


def test_shared_first_movement_stays_for_its_other_reader():
    b = Builder()
    x = b.input("x", 2, 3)
    first = b.transpose(x, 0, 1)
    graph = b.done(b.op("ABS", b.transpose(first, 0, 1)), b.op("NEG", first))
    check_fires(remove_noops, graph)
    assert op_counts(graph) == {"ABS": 1, "NEG": 1, "TRANSPOSE": 1}


def test_output_keeps_its_name():
    b = Builder()
    y = b.reshape(b.op("EXP", b.input("x", 2, 3)), 2, 3)
    graph = check_fires(remove_noops, b.done(y))
    assert graph.outputs == ["reshape"]
    assert op_counts(graph) == {"EXP": 1}


def test_output_that_is_an_input_is_a_copy():
    b = Builder()
    graph = b.done(b.reshape(b.input("x", 2, 3), 2, 3))
    check_fires(remove_noops, graph)
    assert op_counts(graph) == {"COPY": 1}
    check_keeps(remove_noops, graph)


def test_elementwise_op_broadcasts_itself():
    b = Builder()
    x, bias = b.input("x", 2, 3, 4), b.input("bias", 4)
    graph = b.done(b.op("ADD", x, b.op("EXPAND", bias, shape=(2, 3, 4))))
    check_fires(remove_noops, graph)
    assert only(graph, "ADD").inputs == ["x", "bias"]
    assert op_counts(graph) == {"ADD": 1}


def test_both_sides_broadcast():
    b = Builder()
    row, column = b.input("row", 1, 4), b.input("column", 3, 1)
    expanded = [b.op("EXPAND", t, shape=(3, 4)) for t in (row, column)]
    graph = check_fires(remove_noops, b.done(b.op("MUL", *expanded)))
    assert op_counts(graph) == {"MUL": 1}


def test_value_is_computed_before_it_is_repeated():
    b = Builder()
    expanded = b.op("EXPAND", b.input("x", 1, 4), shape=(3, 4))
    graph = b.done(b.op("MUL", b.op("EXP", expanded), 2.0))
    check_fires(remove_noops, graph)
    assert [n.op for n in graph.order()] == ["EXP", "MUL", "EXPAND"]
    assert graph.tensors[only(graph, "EXP").output].shape == (1, 4)


def test_repeated_value_that_others_read_stays_repeated():
    b = Builder()
    expanded = b.op("EXPAND", b.input("x", 1, 4), shape=(3, 4))
    check_keeps(remove_noops, b.done(b.op("EXP", expanded), b.op("SUM", expanded, axes=(0,))))


def test_the_other_operand_may_need_the_repeated_size():
    b = Builder()
    expanded = b.op("EXPAND", b.constant(floats(1, 4)), shape=(3, 4))
    graph = b.done(b.op("MATMUL", expanded, b.input("y", 4, 2)))
    check_keeps(remove_noops, graph)
