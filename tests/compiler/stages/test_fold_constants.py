"""Nodes that depend on no input are computed at export, unless the file would only grow."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, op_counts
from taper_frontend.compiler.stages import fold_constants
from taper_runtime.base.dtypes import DTYPES


def test_chain_becomes_one_constant():
    b = Builder()
    angle = b.op("MUL", b.constant(floats(4), "angle"), 2.0)
    graph = b.done(b.op("ADD", b.input("x", 4), b.op("COS", angle)))
    check_fires(fold_constants, graph)
    assert op_counts(graph) == {"ADD": 1}
    assert list(graph.constants) == ["cos"]  # not the values on the way to it
    np.testing.assert_allclose(graph.constants["cos"].value(), np.cos(2 * floats(4)), rtol=1e-6)


def test_value_on_the_way_that_others_read_is_kept():
    b = Builder()
    double = b.op("MUL", b.constant(floats(4)), 2.0)
    x = b.input("x", 4)
    graph = b.done(b.op("ADD", x, b.op("COS", double)), b.op("SUB", x, double))
    check_fires(fold_constants, graph)
    assert sorted(graph.constants) == ["cos", "mul"]


def test_what_an_input_decides_stays():
    b = Builder()
    check_keeps(fold_constants, b.done(b.op("ADD", b.input("x", 4), b.constant(floats(4)))))


def test_constant_output_is_a_copy():
    b = Builder()
    graph = b.done(b.op("EXP", b.constant(floats(4))))
    check_fires(fold_constants, graph)
    assert graph.outputs == ["exp"]
    assert op_counts(graph) == {"COPY": 1}
    check_keeps(fold_constants, graph)


def test_any_op_folds_native_or_not():
    b = Builder()
    mask = b.op("CUMSUM", b.constant(np.ones((3, 3), np.int64)), axis=1)
    graph = b.done(b.op("ADD", b.input("x", 3, 3, dtype="int64"), mask))
    check_fires(fold_constants, graph)
    assert op_counts(graph) == {"ADD": 1}


def mask_from_positions(b, size):
    rows = b.reshape(b.constant(np.arange(size)), size, 1)
    return b.op("GE", rows, b.constant(np.arange(size)))


def test_small_value_may_be_many_times_its_source():
    b = Builder()
    graph = b.done(
        b.op("LOGICAL_AND", b.input("x", 64, 64, dtype="bool"), mask_from_positions(b, 64))
    )
    check_fires(fold_constants, graph)
    assert op_counts(graph) == {"LOGICAL_AND": 1}


def test_large_value_much_larger_than_its_source_stays_computed():
    b = Builder()
    mask = mask_from_positions(b, 2100)  # 4.4 MB from 34 KB
    graph = b.done(b.op("LOGICAL_AND", b.input("x", 2100, 2100, dtype="bool"), mask))
    check_fires(fold_constants, graph)
    assert op_counts(graph) == {"LOGICAL_AND": 1, "GE": 1}  # the reshape of positions is folded
    check_keeps(fold_constants, graph)


def test_large_value_of_the_size_of_its_source_is_folded():
    b = Builder()
    weight = b.op("MUL", b.constant(floats(1200, 1200)), 0.5)
    graph = check_fires(fold_constants, b.done(b.op("MATMUL", b.input("x", 1, 1200), weight)))
    assert op_counts(graph) == {"MATMUL": 1}


def test_repeating_view_stays_a_view():
    b = Builder()
    zeros = b.op("EXPAND", b.op("NEG", b.constant(floats(1, 4))), shape=(3, 4))
    graph = check_fires(fold_constants, b.done(b.op("CAT", b.input("x", 3, 4), zeros, axis=0)))
    assert op_counts(graph) == {"CAT": 1, "EXPAND": 1}
    assert [array.shape for array in graph.constants.values()] == [(1, 4)]


def test_value_computed_from_a_repeating_view_is_folded():
    b = Builder()
    grid = b.op("EXPAND", b.constant(floats(1, 4)), shape=(3, 4))
    mask = b.op("ADD", grid, b.constant(floats(3, 1)))
    graph = check_fires(fold_constants, b.done(b.op("ADD", b.input("x", 3, 4), mask)))
    assert op_counts(graph) == {"ADD": 1}


def test_constants_that_were_folded_away_are_gone():
    b = Builder()
    table = b.constant(floats(100, 4))
    rows = b.op("SLICE", table, axis=0, start=0, stop=3)
    graph = check_fires(fold_constants, b.done(b.op("ADD", b.input("x", 3, 4), rows)))
    assert [array.shape for array in graph.constants.values()] == [(3, 4)]


@pytest.mark.parametrize("dtype", ["float64", "int32", "bool", "int8"])
def test_every_dtype(dtype):
    b = Builder()
    value = b.op("CAST", b.constant(np.arange(4)), dtype=dtype)
    graph = check_fires(fold_constants, b.done(b.op("EQ", b.input("x", 4, dtype=dtype), value)))
    assert op_counts(graph) == {"EQ": 1}


def test_bfloat16():
    b = Builder()
    value = b.op("CAST", b.constant(floats(4)), dtype="bfloat16")
    graph = b.done(b.op("CAST", b.op("CAT", value, value, axis=0), dtype="float32"))
    check_fires(fold_constants, graph)
    assert op_counts(graph) == {"COPY": 1}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_stored_as_halves_stay_halves(dtype):
    def graph(rows):
        b = Builder()
        table = b.graph.add_constant("w", np.zeros((rows, 256), DTYPES[dtype].storage), dtype)
        wide = b.op("CAST", table, dtype="float32")
        return b.done(b.op("MATMUL", b.input("x", 4, rows), wide))

    check_keeps(fold_constants, graph(1024))
    check_fires(fold_constants, graph(2))
