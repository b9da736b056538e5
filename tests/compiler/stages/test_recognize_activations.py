"""Activations by hand, bracketed as people bracket them; constants that differ are not them."""

import math

import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import recognize_activations, simplify_arithmetic

ROOT = math.sqrt(2 / math.pi)


def cube_pow(b, x):
    return b.op("POW", x, 3.0)


def cube_left(b, x):
    return b.op("MUL", b.op("MUL", x, x), x)


def cube_right(b, x):
    return b.op("MUL", x, b.op("MUL", x, x))


def cube_of_square(b, x):
    return b.op("MUL", x, b.op("SQUARE", x))


def gelu_tanh(b, x, cube=cube_pow, coefficient=0.044715, root=ROOT, half=0.5, one=1.0):
    cubic = b.op("ADD", x, b.op("MUL", cube(b, x), coefficient))
    tanh = b.op("TANH", b.op("MUL", root, cubic))
    return b.op("MUL", b.op("MUL", x, half), b.op("ADD", tanh, one))


def gelu_factored(b, x):
    """tanh(sqrt(2/pi) * x * (1 + 0.044715 * x * x)), the half taken last."""
    bracket = b.op("ADD", 1.0, b.op("MUL", b.op("MUL", 0.044715, x), x))
    tanh = b.op("TANH", b.op("MUL", b.op("MUL", x, ROOT), bracket))
    return b.op("MUL", 0.5, b.op("MUL", x, b.op("ADD", tanh, 1.0)))


def gelu_erf(b, x, scale=lambda b, x: b.op("DIV", x, math.sqrt(2))):
    return b.op("MUL", x, b.op("MUL", 0.5, b.op("ADD", 1.0, b.op("ERF", scale(b, x)))))


def silu(b, x):
    return b.op("MUL", x, b.op("SIGMOID", x))


def swish(b, x):
    return b.op("DIV", x, b.op("ADD", 1.0, b.op("EXP", b.op("NEG", x))))


FORMULAS = [
    *(
        ("GELU_TANH", lambda b, x, cube=cube: gelu_tanh(b, x, cube))
        for cube in (cube_pow, cube_left, cube_right, cube_of_square)
    ),
    ("GELU_TANH", lambda b, x: gelu_tanh(b, x, root=0.7978845608)),
    ("GELU_TANH", gelu_factored),
    ("GELU", gelu_erf),
    ("GELU", lambda b, x: gelu_erf(b, x, lambda b, x: b.op("MUL", x, 0.7071067811865475))),
    ("SILU", silu),
    ("SILU", swish),
]


@pytest.mark.parametrize(("op", "formula"), FORMULAS)
@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("producer", ["INPUT", "MUL"])
def test_formula(op, formula, simplified, producer):
    b = Builder()
    x = b.input("x", 5, 7)
    if producer == "MUL":  # a product that is the argument is no factor of the formula
        x = b.op("MUL", x, b.constant(floats(7)))
    graph = b.done(formula(b, x))
    while simplified and simplify_arithmetic(graph):
        pass
    check_fires(recognize_activations, graph)
    assert op_counts(graph).pop(op) == 1
    assert len(graph.nodes) == (1 if producer == "INPUT" else 2)


def test_numbers_rounded_to_float32():
    b = Builder()
    graph = b.done(gelu_tanh(b, b.input("x", 4), root=0.7978845834732056))
    check_fires(recognize_activations, graph)
    assert op_counts(graph) == {"GELU_TANH": 1}


@pytest.mark.parametrize(
    "wrong",
    [{"coefficient": 0.0447}, {"root": 0.8}, {"half": 0.25}, {"one": 1.5}],
)
def test_other_numbers_stay(wrong):
    b = Builder()
    check_keeps(recognize_activations, b.done(gelu_tanh(b, b.input("x", 4), **wrong)))


def test_quick_gelu_is_not_silu():
    b = Builder()
    x = b.input("x", 4)
    graph = b.done(b.op("MUL", x, b.op("SIGMOID", b.op("MUL", x, 1.702))))
    check_keeps(recognize_activations, graph)


def test_gate_is_not_silu():
    b = Builder()
    graph = b.done(b.op("MUL", b.input("x", 4), b.op("SIGMOID", b.input("gate", 4))))
    check_keeps(recognize_activations, graph)


def test_gated_silu():
    b = Builder()
    graph = b.done(b.op("MUL", silu(b, b.input("gate", 4)), b.input("up", 4)))
    check_fires(recognize_activations, graph)
    assert op_counts(graph) == {"SILU": 1, "MUL": 1}


def test_inner_value_that_others_read_stays():
    b = Builder()
    x = b.input("x", 4)
    gate = b.op("SIGMOID", x)
    check_keeps(recognize_activations, b.done(b.op("MUL", x, gate), b.op("NEG", gate)))
    b = Builder()
    x = b.input("x", 4)
    gate = b.op("SIGMOID", x)
    check_keeps(recognize_activations, b.done(b.op("MUL", x, gate), gate))


def test_argument_that_others_read_is_no_obstacle():
    b = Builder()
    x = b.op("EXP", b.input("x", 4))
    graph = b.done(silu(b, x), b.op("NEG", x))
    check_fires(recognize_activations, graph)
    assert only(graph, "SILU").inputs == [x]


def test_float64_stays():
    b = Builder()
    check_keeps(recognize_activations, b.done(silu(b, b.input("x", 4, dtype="float64"))))
