"""RESHAPEs that regroup leading dimensions move up to where another one cancels them."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.compiler.stages import Group, hoist_reshapes, remove_noops

settle = Group(hoist_reshapes, remove_noops)


def test_addmm_gets_its_dimensions_back():
    b = Builder()
    x = b.input("x", 2, 3, 4)
    y = b.op("MATMUL", b.reshape(x, 6, 4), b.weight(4, 5))
    y = b.op("GELU", b.reshape(b.op("ADD", y, b.weight(5)), 2, 3, 5))
    graph = b.done(b.op("ADD", y, b.input("residual", 2, 3, 5)))
    check_fires(settle, graph)
    assert op_counts(graph) == {"MATMUL": 1, "ADD": 2, "GELU": 1}
    assert only(graph, "MATMUL").inputs[0] == "x"


def test_bmm_gets_its_dimensions_back():
    b = Builder()
    q, k = b.input("q", 2, 3, 4, 5), b.input("k", 2, 3, 6, 5)
    y = b.op("MATMUL", b.reshape(q, 6, 4, 5), b.reshape(k, 6, 6, 5), transpose_b=True, alpha=0.5)
    graph = check_fires(settle, b.done(b.reshape(y, 2, 3, 4, 6)))
    assert op_counts(graph) == {"MATMUL": 1}
    assert only(graph, "MATMUL").attrs == {"transpose_b": True, "alpha": 0.5}


def test_over_softmax_and_norm():
    b = Builder()
    x = b.reshape(b.input("x", 2, 3, 4), 6, 4)
    y = b.op("SOFTMAX", x, axis=1)
    y = b.op(
        "RMS_NORM",
        b.op("LAYER_NORM", y, ABSENT, b.weight(4), dims=1, eps=1e-5),
        b.weight(4),
        dims=1,
        eps=1e-5,
    )
    graph = check_fires(settle, b.done(b.reshape(y, 2, 3, 4)))
    assert op_counts(graph) == {"SOFTMAX": 1, "LAYER_NORM": 1, "RMS_NORM": 1}
    assert only(graph, "SOFTMAX").attrs["axis"] == 2


@pytest.mark.parametrize("operand", [(4,), (1, 4), (6, 1), (), (1, 1)])
def test_over_broadcasts(operand):
    b = Builder()
    x = b.reshape(b.input("x", 2, 3, 4), 6, 4)
    graph = b.done(b.reshape(b.op("SUB", x, b.input("y", *operand)), 2, 3, 4))
    check_fires(settle, graph)
    assert op_counts(graph) == {"SUB": 1} | ({"RESHAPE": 1} if len(operand) == 2 else {})


def test_where_no_other_reshape_lies_above_it_stays():
    b = Builder()
    x = b.op("EXP", b.op("NEG", b.input("x", 6, 4)))
    check_keeps(hoist_reshapes, b.done(b.reshape(x, 2, 3, 4)))


def test_that_splits_the_last_dimension_stays():
    b = Builder()
    x = b.reshape(b.input("x", 2, 3, 4), 6, 4)
    check_keeps(hoist_reshapes, b.done(b.reshape(b.op("EXP", x), 6, 2, 2)))


def test_over_what_others_read_stays():
    b = Builder()
    y = b.op("EXP", b.reshape(b.input("x", 2, 3, 4), 6, 4))
    check_keeps(hoist_reshapes, b.done(b.reshape(y, 2, 3, 4), b.op("NEG", y)))


def test_that_would_have_to_copy_a_strided_view_stays():
    b = Builder()
    x = b.reshape(b.input("x", 6, 4), 2, 3, 4)
    strided = b.transpose(b.input("y", 3, 2, 4), 0, 1)
    check_keeps(hoist_reshapes, b.done(b.reshape(b.op("ADD", x, strided), 6, 4)))


def test_over_a_view_that_it_can_regroup_for_free():
    b = Builder()
    x = b.reshape(b.input("x", 2, 3, 4), 6, 4)
    columns = b.op("SLICE", b.input("y", 6, 8), axis=1, start=0, stop=4)
    graph = check_fires(settle, b.done(b.reshape(b.op("ADD", x, columns), 2, 3, 4)))
    assert op_counts(graph) == {"ADD": 1, "SLICE": 1, "RESHAPE": 1}


def test_over_softmax_of_a_regrouped_axis_stays():
    b = Builder()
    x = b.reshape(b.input("x", 2, 3, 4), 6, 4)
    check_keeps(hoist_reshapes, b.done(b.reshape(b.op("SOFTMAX", x, axis=0), 2, 3, 4)))


def test_over_norm_of_a_regrouped_axis_stays():
    b = Builder()
    x = b.reshape(b.input("x", 2, 3, 4), 6, 4)
    y = b.op("RMS_NORM", x, dims=2, eps=1e-5)
    check_keeps(hoist_reshapes, b.done(b.reshape(y, 2, 3, 4)))


def test_over_partly_broadcast_leading_dimensions_stays():
    b = Builder()
    x = b.reshape(b.input("x", 6, 4), 2, 3, 4)
    y = b.op("ADD", x, b.input("y", 2, 1, 4))
    check_keeps(hoist_reshapes, b.done(b.reshape(y, 6, 4)))


def test_over_one_matrix_for_all_batches():
    b = Builder()
    a = b.reshape(b.input("a", 2, 3, 4, 5), 6, 4, 5)
    y = b.op("MATMUL", a, b.input("b", 1, 5, 7))
    graph = check_fires(settle, b.done(b.reshape(y, 2, 3, 4, 7)))
    assert op_counts(graph) == {"MATMUL": 1, "RESHAPE": 1}  # of b, which is no copy


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("CUMSUM", {"axis": 1}),
        ("SUM", {"axes": (1,)}),
        ("MEAN", {"axes": (1,), "keepdim": True}),
        ("ARGSORT", {"axis": 2}),
        ("MAX_POOL", None),
    ],
)
def test_over_what_leaves_leading_dimensions_apart(op, attrs):
    b = Builder()
    x = b.reshape(b.input("x", 2, 3, 4, 5), 6, 4, 5)
    if attrs is None:  # it knows images [N, L, C] and [N, H, W, C] alone, of one batch dimension
        attrs = {"kernel": (2,), "stride": (1,), "padding": (0, 0), "dilation": (1,)}
        y = b.op(op, x, **attrs)
        check_keeps(hoist_reshapes, b.done(b.reshape(y, 2, 3, 3, 5)))
        return
    y = b.op(op, x, **attrs)
    shape = b.graph.tensors[y].shape
    graph = check_fires(settle, b.done(b.reshape(y, 2, 3, *shape[1:])))
    assert op_counts(graph) == {op: 1}


def test_over_a_lookup():
    b = Builder()
    ids = b.reshape(b.input("ids", 2, 3, dtype="int64"), 6)
    y = b.op("EMBEDDING", b.weight(4, 5), ids)
    graph = check_fires(settle, b.done(b.reshape(y, 2, 3, 5)))
    assert op_counts(graph) == {"EMBEDDING": 1}


def test_below_what_cannot_be_crossed_stays():
    b = Builder()
    x = b.op("CUMSUM", b.reshape(b.input("x", 2, 3, 4), 6, 4), axis=0)
    check_keeps(hoist_reshapes, b.done(b.reshape(b.op("EXP", x), 2, 3, 4)))


def test_that_regroups_rows_of_batches_stays():
    # [6, 4, 7] -> [24, 7] mixes batches and rows, and each batch has a matrix of its own; with as
    # many inner as rows, the shapes of both operands could be regrouped
    b = Builder()
    a = b.reshape(b.input("a", 2, 3, 4, 4), 6, 4, 4)
    y = b.op("MATMUL", a, b.input("b", 6, 4, 7))
    check_keeps(hoist_reshapes, b.done(b.reshape(y, 24, 7)))


def test_empty_leading_dimensions_stay():
    b = Builder()
    x = b.reshape(b.input("x", 0, 3, 2, 4), 6, 0, 4)
    check_keeps(
        hoist_reshapes, b.done(b.reshape(b.op("ADD", x, b.constant(floats(6, 1, 1))), 5, 0, 4))
    )


def test_of_what_is_repeated_is_no_reshape():
    b = Builder()
    x = b.reshape(b.input("x", 2, 3, 4, 5), 6, 4, 5)
    places = b.op("EXPAND", b.constant(np.zeros((1, 4, 2), np.int64)), shape=(6, 4, 2))
    graph = check_fires(settle, b.done(b.reshape(b.op("GATHER", x, places, axis=2), 2, 3, 4, 2)))
    assert op_counts(graph) == {"EXPAND": 1, "GATHER": 1}


@pytest.mark.parametrize(("before", "after"), [((6, 4), (1, 6, 4)), ((1, 6, 4), (6, 4))])
def test_that_adds_or_drops_a_dimension(before, after):
    b = Builder()
    y = b.op("MATMUL", b.reshape(b.input("x", *after), *before), b.weight(4, 5))
    graph = check_fires(settle, b.done(b.reshape(b.op("ADD", y, b.weight(5)), *after[:-1], 5)))
    assert op_counts(graph) == {"MATMUL": 1, "ADD": 1}
