"""Test the pattern language: operands, order, binding, products, the sole-consumer rule."""

import math

import numpy as np
import pytest

from graph_checks import Builder, floats
from taper_frontend.compiler.rules.pattern import (
    attr,
    constant,
    either,
    inverse,
    matches,
    number,
    op,
    product,
    shared,
    tensor,
)


def found(builder, name, pattern):
    return next(matches(builder.graph, builder.graph.nodes[name], pattern), None)


def test_binding():
    b = Builder()
    x, y = b.input("x", 3), b.input("y", 3)
    root = b.op("SUB", x, b.op("EXP", y))
    left, right = tensor(), tensor()
    exp = op("EXP", right)
    match = found(b, root, op("SUB", left, exp))
    assert (match[left], match[right], match[exp]) == ("x", "y", "exp")
    assert match.inner == {"exp", root}


def test_order_of_operands():
    b = Builder()
    x, y = b.input("x", 3), b.input("y", 3)
    exp = op("EXP", tensor())
    assert found(b, b.op("ADD", b.op("EXP", y), x), op("ADD", tensor(), exp))
    assert found(b, b.op("ADD", x, b.op("EXP", y)), op("ADD", tensor(), exp))
    assert not found(b, b.op("SUB", b.op("EXP", y), x), op("SUB", tensor(), exp))


def test_one_piece_is_one_tensor():
    b = Builder()
    x, y = b.input("x", 3), b.input("y", 3)
    piece = tensor()
    squared = op("SUB", piece, piece)
    assert found(b, b.op("SUB", x, x), squared)
    assert not found(b, b.op("SUB", x, y), squared)


def test_matching_tries_again():
    # the first operand that fits MAXIMUM binds x wrongly; only the other one works
    b = Builder()
    x, y = b.input("x", 3), b.input("y", 3)
    root = b.op("MUL", b.op("MAXIMUM", x, y), b.op("EXP", x))
    piece = tensor()
    for operands in ((piece, tensor()), (tensor(), piece)):
        assert found(b, root, op("MUL", op("MAXIMUM", *operands), op("EXP", piece)))


def test_numbers():
    b = Builder()
    x = b.input("x", 3)
    root = b.op("ADD", x, 0.25)
    value = number()
    assert found(b, root, op("ADD", tensor(), value))[value] == 0.25
    assert found(b, root, op("ADD", 0.25, tensor()))
    assert found(b, root, op("ADD", tensor(), 0.2500000001))
    assert not found(b, root, op("ADD", tensor(), 0.2501))
    assert not found(b, root, op("ADD", tensor(), tensor()))
    assert not found(b, b.op("SUB", 0.25, x), op("SUB", tensor(), 0.25))


def test_attrs_and_conditions():
    b = Builder()
    x = b.input("x", 3, 4)
    root = b.op("SUM", x, axes=(1,))
    assert found(b, root, op("SUM", tensor(), keepdim=False))  # a default
    assert not found(b, root, op("SUM", tensor(), keepdim=True))
    assert found(b, root, op("SUM", tensor(where=lambda spec: spec.shape == (3, 4))))
    assert not found(b, root, op("SUM", tensor(where=lambda spec: spec.shape == (4, 3))))
    assert found(b, root, op("SUM"))  # any operands


def test_either():
    b = Builder()
    x = b.input("x", 3)
    formula = either(op("EXP", tensor()), op("LOG", tensor()))
    assert found(b, b.op("EXP", x), formula)
    assert found(b, b.op("LOG", x), formula)
    assert not found(b, b.op("SIN", x), formula)


class TestProduct:
    @pytest.mark.parametrize(
        "make",
        [
            lambda b, x, y: b.op("MUL", b.op("MUL", x, 3.0), y),
            lambda b, x, y: b.op("MUL", b.op("MUL", 6.0, y), b.op("DIV", x, 2.0)),
            lambda b, x, y: b.op("DIV", b.op("MUL", x, y), 1 / 3),
            lambda b, x, y: b.op("DIV", b.op("MUL", 3.0, x), b.op("RECIPROCAL", y)),
        ],
    )
    def test_any_grouping(self, make):
        b = Builder()
        left, right = tensor(), tensor()
        match = found(b, make(b, b.input("x", 3), b.input("y", 3)), product(3.0, left, right))
        assert {match[left], match[right]} == {"x", "y"}

    def test_powers(self):
        b = Builder()
        x = b.input("x", 3)
        piece = tensor()
        for y in (b.op("POW", x, 3.0), b.op("MUL", x, b.op("SQUARE", x))):
            assert found(b, y, product(piece, piece, piece))
            assert not found(b, y, product(piece, piece))
        assert not found(b, b.op("POW", x, 4.0), product(piece, piece, piece, piece))
        assert not found(b, b.op("POW", 3.0, x), product(piece, piece, piece))

    def test_inverse(self):
        b = Builder()
        x, y = b.input("x", 3), b.input("y", 3)
        above, below = tensor(), tensor()
        match = found(b, b.op("DIV", x, y), product(above, inverse(below)))
        assert (match[above], match[below]) == ("x", "y")
        assert not found(b, b.op("MUL", x, y), product(above, inverse(below)))

    def test_factors_must_all_match(self):
        b = Builder()
        x, y = b.input("x", 3), b.input("y", 3)
        assert not found(b, b.op("MUL", x, y), product(tensor()))
        assert not found(b, b.op("MUL", b.op("MUL", x, y), 2.0), product(tensor(), tensor()))
        assert not found(b, b.op("DIV", x, 0.0), product(math.inf, tensor()))

    def test_product_that_others_read_is_a_factor(self):
        b = Builder()
        inner = b.op("MUL", b.input("x", 3), b.input("y", 3))
        root = b.op("MUL", inner, b.op("SIGMOID", inner))
        piece = tensor()
        match = found(b, root, product(piece, op("SIGMOID", piece)))
        assert match[piece] == inner


class TestSoleConsumer:
    def pattern(self):
        return op("NEG", op("EXP", tensor()))

    def test_inner_value_that_others_read(self):
        b = Builder()
        exp = b.op("EXP", b.input("x", 3))
        root = b.op("NEG", exp)
        assert found(b, root, self.pattern())
        b.op("ABS", exp)
        assert not found(b, root, self.pattern())

    def test_inner_value_that_is_an_output(self):
        b = Builder()
        exp = b.op("EXP", b.input("x", 3))
        root = b.op("NEG", exp)
        b.done(root, exp)
        assert not found(b, root, self.pattern())

    def test_leaves_and_root_may_have_others(self):
        b = Builder()
        x = b.op("LOG", b.input("x", 3))
        root = b.op("NEG", b.op("EXP", x))
        b.done(b.op("ABS", x), root, b.op("SIN", root))
        assert found(b, root, self.pattern())


class TestShared:
    def test_inner_value_may_have_others(self):
        b = Builder()
        exp = b.op("EXP", b.op("LOG", b.input("x", 3)))
        root = b.op("NEG", exp)
        b.done(root, exp, b.op("ABS", exp), b.op("SIN", "log"))
        pattern = op("NEG", shared(op("EXP", op("LOG", tensor()))))
        match = found(b, root, pattern)
        assert match.inner == {root}

    def test_the_rest_may_not(self):
        b = Builder()
        exp = b.op("EXP", b.op("LOG", b.input("x", 3)))
        root = b.op("NEG", exp)
        b.op("ABS", exp)
        assert not found(b, root, op("NEG", op("EXP", shared(op("LOG", tensor())))))


def test_one_of_several_ops():
    b = Builder()
    x = b.input("x", 3)
    assert found(b, b.op("EXP", x), op(("EXP", "LOG"), tensor()))
    assert not found(b, b.op("SIN", x), op(("EXP", "LOG"), tensor()))


def test_dtypes():
    b = Builder()
    root = b.op("CAST", b.input("x", 3), dtype="int64")
    assert found(b, root, op("CAST", tensor("float32")))
    assert not found(b, root, op("CAST", tensor("int64")))


def test_constants():
    b = Builder()
    root = b.op("ADD", b.constant(floats(3)), b.input("x", 3))
    piece = tensor()
    assert found(b, root, op("ADD", piece, constant()))[piece] == "x"
    assert not found(b, b.op("ADD", "x", "x"), op("ADD", tensor(), constant()))
    ones = b.op("ADD", "x", b.constant(np.ones(3, np.float32)))
    assert found(b, ones, op("ADD", tensor(), constant(1)))
    assert not found(b, root, op("ADD", tensor(), constant(1)))


def test_attr_is_bound():
    b = Builder()
    x = b.input("x", 3, 4)
    axes = attr()
    twice = op("SUM", op("SUM", tensor(), axes=axes, keepdim=True), axes=axes)
    same = b.op("SUM", b.op("SUM", x, axes=(1,), keepdim=True), axes=(1,))
    assert found(b, same, twice)[axes] == (1,)
    assert not found(b, b.op("SUM", b.op("SUM", x, axes=(1,), keepdim=True), axes=(0,)), twice)


def test_number_that_float32_holds_is_exact():
    b = Builder()
    root = b.op("MUL", b.input("x", 3), 1 + 2**-23)
    assert not found(b, root, op("MUL", tensor(), 1))
    assert found(b, root, op("MUL", tensor(), 1.0000001))
