"""Attention writes its heads side by side if all readers read them so."""

import pytest

from graph_checks import Builder, check_fires, check_keeps, only, op_counts
from taper_frontend.compiler.stages import absorb_output_transpose


def attention(b, *shape, **attrs):
    q = b.input("q", *(shape or (2, 3, 5, 4)))
    return b.op("ATTENTION", q, q, q, scale=0.5, **attrs)


@pytest.mark.parametrize(
    "move",
    [lambda b, y: b.transpose(y, 1, 2), lambda b, y: b.op("PERMUTE", y, axes=(0, 2, 1, 3))],
)
def test_heads_beside_each_other(move):
    b = Builder()
    graph = b.done(b.reshape(move(b, attention(b, causal=True)), 2, 5, 12))
    check_fires(absorb_output_transpose, graph)
    assert op_counts(graph) == {"ATTENTION": 1, "RESHAPE": 1}
    assert only(graph, "ATTENTION").attrs == {
        "scale": 0.5,
        "causal": True,
        "transpose_output": True,
    }


@pytest.mark.parametrize(("axis0", "axis1"), [(0, 1), (2, 3), (1, 3)])
def test_other_axes_stay(axis0, axis1):
    b = Builder()
    graph = b.done(b.transpose(attention(b, 4, 4, 4, 4), axis0, axis1))
    check_keeps(absorb_output_transpose, graph)


def test_output_that_others_read_stays():
    b = Builder()
    y = attention(b)
    check_keeps(absorb_output_transpose, b.done(b.transpose(y, 1, 2), b.op("NEG", y)))


def test_output_of_the_graph_stays():
    b = Builder()
    y = attention(b)
    check_keeps(absorb_output_transpose, b.done(b.transpose(y, 1, 2), y))


def test_rank_three_stays():
    b = Builder()
    check_keeps(absorb_output_transpose, b.done(b.transpose(attention(b, 2, 5, 4), 1, 2)))


def test_transposed_output_stays():
    b = Builder()
    y = attention(b, transpose_output=True)
    check_keeps(absorb_output_transpose, b.done(b.transpose(y, 1, 2)))


def test_transpose_of_something_else_stays():
    b = Builder()
    check_keeps(
        absorb_output_transpose, b.done(b.transpose(b.op("EXP", b.input("x", 2, 3, 5, 4)), 1, 2))
    )
