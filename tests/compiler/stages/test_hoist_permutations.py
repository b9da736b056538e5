"""An elementwise node reads its operands permuted where its result would be copied."""

from __future__ import annotations

import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, op_counts
from taper_frontend.compiler.stages import Group, hoist_permutations, remove_noops

AXES = (0, 2, 3, 1)


def test_result_that_is_an_output():
    b = Builder()
    y = b.op("MUL", b.op("TANH", b.input("x", 2, 3, 4, 5)), b.constant(floats(4, 1)))
    graph = check_fires(Group(hoist_permutations), b.done(b.op("PERMUTE", y, axes=AXES)))
    assert graph.nodes[graph.outputs[0]].op == "MUL"


def test_two_permutations_meet():
    b = Builder()
    y = b.op("PERMUTE", b.input("x", 2, 3, 4, 5), axes=AXES)
    y = b.op("PERMUTE", b.op("TANH", y), axes=(0, 3, 1, 2))
    graph = check_fires(Group(hoist_permutations, remove_noops), b.done(y))
    assert op_counts(graph) == {"TANH": 1}


def test_reader_that_needs_rows():
    b = Builder()
    y = b.op("PERMUTE", b.op("ADD", b.input("x", 2, 3, 4, 5), 1.0), axes=AXES)
    check_fires(Group(hoist_permutations), b.done(b.op("SOFTMAX", y, axis=3)))


@pytest.mark.parametrize("why", ["strided reader", "two readers", "not elementwise"])
def test_stays(why):
    b = Builder()
    x = b.input("x", 2, 3, 4, 5)
    y = b.op("SOFTMAX", x, axis=3) if why == "not elementwise" else b.op("TANH", x)
    z = b.op("PERMUTE", y, axes=AXES)
    if why == "strided reader":
        check_keeps(hoist_permutations, b.done(b.op("MATMUL", z, b.weight(3, 2))))
    else:
        check_keeps(hoist_permutations, b.done(z, y))
