"""Equal nodes become one; nodes that only look equal stay two."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, op_counts
from taper_frontend.compiler.stages import eliminate_common_subexpressions, remove_noops


def two(make, **inputs):
    """Both results joined, so neither is an output."""
    b = Builder()
    x = b.input("x", 3, 3)
    first, second = make(b, x)
    return b.done(b.op("SUB", first, second))


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: (b.op("EXP", x), b.op("EXP", x)),
        lambda b, x: (b.transpose(b.op("EXP", x), 0, 1), b.transpose(b.op("EXP", x), 0, 1)),
        lambda b, x: (b.op("MUL", x, 2.0), b.op("MUL", x, 2.0)),
        lambda b, x: (b.op("ADD", x, b.op("EXP", x)), b.op("ADD", b.op("EXP", x), x)),
        lambda b, x: (b.op("ADD", x, b.constant(floats(3))), b.op("ADD", x, b.constant(floats(3)))),
        # a default attr, written out or not
        lambda b, x: (
            b.op("SUM", x, axes=(0,)),
            b.op("SUM", x, axes=(0,), keepdim=False),
        ),
    ],
)
def test_equal_nodes_become_one(make):
    graph = check_fires(eliminate_common_subexpressions, two(make))
    (sub,) = (n for n in graph.nodes.values() if n.op == "SUB")
    assert sub.inputs[0] == sub.inputs[1]


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: (b.op("EXP", x), b.op("EXPM1", x)),
        lambda b, x: (b.op("MUL", x, 2.0), b.op("MUL", x, 2.5)),
        lambda b, x: (b.op("MUL", x, 0.0), b.op("MUL", x, -0.0)),
        lambda b, x: (b.op("SUB", x, b.op("EXP", x)), b.op("SUB", b.op("EXP", x), x)),
        lambda b, x: (b.op("SUB", x, 2.0), b.op("SUB", 2.0, x)),
        lambda b, x: (b.op("MATMUL", x, b.op("EXP", x)), b.op("MATMUL", b.op("EXP", x), x)),
        lambda b, x: (b.op("SUM", x, axes=(0,)), b.op("SUM", x, axes=(1,))),
        lambda b, x: (
            b.op("ADD", x, b.constant(floats(3))),
            b.op("ADD", x, b.constant(-floats(3))),
        ),
    ],
)
def test_different_nodes_stay_two(make):
    graph = two(make)
    eliminate_common_subexpressions(graph)  # what the two are made of may merge
    (sub,) = (n for n in graph.nodes.values() if n.op == "SUB" and graph.is_output(n.output))
    assert sub.inputs[0] != sub.inputs[1]


def test_constants_differ_by_shape_and_dtype():
    b = Builder()
    x = b.input("x", 4)
    zeros = [np.zeros(4, np.float32), np.zeros((1, 4), np.float32), np.zeros(4, np.int32)]
    names = [b.constant(z) for z in zeros]
    cast = b.op("CAST", names[2], dtype="float32")
    graph = b.done(b.op("ADD", x, names[0]), b.op("ADD", x, names[1]), b.op("ADD", x, cast))
    check_keeps(eliminate_common_subexpressions, graph)


def test_large_constants_merge_only_if_they_are_one_memory():
    table = floats(600, 600)
    for other, count in ((table, 1), (table.copy(), 2)):
        b = Builder()
        a, c = b.constant(table), b.constant(other)
        x = b.input("x", 1, 600)
        graph = b.done(b.op("MATMUL", b.op("MATMUL", x, a), c))
        eliminate_common_subexpressions(graph)
        graph.verify()
        assert len(graph.constants) == count


def test_output_keeps_its_name():
    b = Builder()
    x = b.input("x", 3)
    first, second = b.op("EXP", x), b.op("EXP", x)
    graph = b.done(second, b.op("NEG", first))
    check_fires(eliminate_common_subexpressions, graph)
    assert graph.outputs == [second, "neg"]
    assert op_counts(graph) == {"EXP": 1, "NEG": 1}


def test_three_of_which_one_is_an_output():
    b = Builder()
    x = b.input("x", 3)
    first, second, third = (b.op("EXP", x) for _ in range(3))
    graph = b.done(second, b.op("ADD", first, third))
    check_fires(eliminate_common_subexpressions, graph)
    assert op_counts(graph) == {"EXP": 1, "ADD": 1}


def test_two_equal_outputs_are_one_and_its_copy():
    b = Builder()
    x = b.input("x", 3)
    graph = b.done(b.op("EXP", x), b.op("EXP", x))
    check_fires(eliminate_common_subexpressions, graph)
    assert op_counts(graph) == {"EXP": 1, "COPY": 1}
    check_keeps(eliminate_common_subexpressions, graph)


def test_outputs_that_are_one_constant_stay_copies_of_it():
    b = Builder()
    constant = b.constant(floats(3))
    graph = b.done(b.op("COPY", constant), b.op("COPY", constant))
    check_keeps(eliminate_common_subexpressions, graph)
    check_keeps(remove_noops, graph)
