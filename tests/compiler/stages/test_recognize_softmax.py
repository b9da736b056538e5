"""Softmax by hand is found in its safe form only."""

import pytest

from graph_checks import Builder, check_fires, check_keeps, only, op_counts
from taper_frontend.compiler.stages import recognize_softmax


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_by_hand(axis):
    b = Builder()
    graph = b.done(b.softmax_by_hand(b.input("x", 2, 3, 4), axis))
    check_fires(recognize_softmax, graph)
    assert op_counts(graph) == {"SOFTMAX": 1}
    assert only(graph, "SOFTMAX").attrs == {"axis": axis, "log": False}


def parts(b, x, axes=(1,), sum_axes=None, keepdim=True):
    peak = b.op("AMAX", x, axes=axes, keepdim=keepdim)
    shifted = b.op("SUB", x, peak)
    exp = b.op("EXP", shifted)
    return shifted, exp, b.op("SUM", exp, axes=sum_axes or axes, keepdim=keepdim)


def test_multiplied_by_the_reciprocal():
    b = Builder()
    _, exp, total = parts(b, b.input("x", 3, 4))
    graph = b.done(b.op("MUL", b.op("RECIPROCAL", total), exp))
    check_fires(recognize_softmax, graph)
    assert op_counts(graph) == {"SOFTMAX": 1}


def test_logarithm():
    b = Builder()
    shifted, _, total = parts(b, b.input("x", 3, 4))
    graph = b.done(b.op("SUB", shifted, b.op("LOG", total)))
    check_fires(recognize_softmax, graph)
    assert only(graph, "SOFTMAX").attrs == {"axis": 1, "log": True}


def test_without_the_maximum_stays():
    b = Builder()
    exp = b.op("EXP", b.input("x", 3, 4))
    graph = b.done(b.op("DIV", exp, b.op("SUM", exp, axes=(1,), keepdim=True)))
    check_keeps(recognize_softmax, graph)


@pytest.mark.parametrize(
    ("axes", "sum_axes", "keepdim"),
    [
        ((1,), (0,), True),  # other axes
        ((0, 1), (0, 1), True),  # two
        ((0,), (0,), False),  # a peak per column, taken from rows: square only
    ],
)
def test_other_axes_stay(axes, sum_axes, keepdim):
    b = Builder()
    _, exp, total = parts(b, b.input("x", 4, 4), axes, sum_axes, keepdim)
    check_keeps(recognize_softmax, b.done(b.op("DIV", exp, total)))


def test_maximum_of_another_tensor_stays():
    b = Builder()
    x, other = b.input("x", 3, 4), b.input("other", 3, 4)
    peak = b.op("AMAX", other, axes=(1,), keepdim=True)
    exp = b.op("EXP", b.op("SUB", x, peak))
    graph = b.done(b.op("DIV", exp, b.op("SUM", exp, axes=(1,), keepdim=True)))
    check_keeps(recognize_softmax, graph)


@pytest.mark.parametrize("index", [0, 1, 2])
def test_term_that_others_read_stays(index):
    b = Builder()
    terms = parts(b, b.input("x", 3, 4))
    graph = b.done(b.op("DIV", terms[1], terms[2]), b.op("NEG", terms[index]))
    check_keeps(recognize_softmax, graph)


def test_term_that_is_an_output_stays():
    b = Builder()
    _, exp, total = parts(b, b.input("x", 3, 4))
    check_keeps(recognize_softmax, b.done(b.op("DIV", exp, total), total))


def test_float64_stays():
    b = Builder()
    check_keeps(
        recognize_softmax, b.done(b.softmax_by_hand(b.input("x", 3, 4, dtype="float64"), 1))
    )
