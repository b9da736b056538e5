"""Constants per channel go into the weight and the bias of a product."""

from __future__ import annotations

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import Group, fold_scales

fold = Group(fold_scales)


class Product(Builder):
    """``y`` is a product of seven channels, and ``weight`` its weight."""

    def __init__(self, kind="CONV"):
        super().__init__()
        if kind.startswith("CONV"):
            attrs = {"kernel": (3,), "stride": (1,), "dilation": (1,), "padding": (1, 1)}
            shape = (3, 6, 7)
            if kind == "CONV depthwise":
                attrs["groups"], shape = 6, (3, 1, 12)
            self.w = self.weight(*shape)
            self.y = self.op(kind.split()[0], self.input("x", 2, 5, 6), self.w, **attrs)
        else:
            transposed = kind == "MATMUL transposed"
            self.w = self.weight(*((7, 6) if transposed else (6, 7)))
            self.y = self.op("MATMUL", self.input("x", 2, 5, 6), self.w, transpose_b=transposed)
        self.channels = self.graph.tensors[self.y].shape[-1]

    def vector(self, seed, *lead):
        return self.constant(floats(*lead, self.channels, seed=seed), f"c{seed}")


KINDS = ["CONV", "CONV depthwise", "CONV_TRANSPOSE", "MATMUL", "MATMUL transposed"]


@pytest.mark.parametrize("kind", KINDS)
def test_factor(kind):
    b = Product(kind)
    graph = check_fires(fold, b.done(b.op("MUL", b.vector(2), b.y)))
    assert op_counts(graph) == {kind.split()[0]: 1}
    assert len(graph.constants) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_bias_and_batch_norm(kind):
    b = Product(kind)
    y = b.op("ADD", b.y, b.vector(2))
    for op, seed in (("SUB", 3), ("MUL", 4), ("MUL", 5), ("ADD", 6)):
        y = b.op(op, y, b.vector(seed, 1, 1))
    graph = check_fires(fold, b.done(y))
    assert op_counts(graph) == {kind.split()[0]: 1, "ADD": 1}
    assert len(graph.constants) == 2


def test_one_number_for_all_channels():
    b = Product()
    graph = check_fires(fold, b.done(b.op("MUL", b.y, b.constant(floats(1, 1, 1)))))
    assert op_counts(graph) == {"CONV": 1}


def test_subtraction_from_a_constant_stays():
    b = Product()
    check_keeps(fold, b.done(b.op("SUB", b.vector(2), b.y)))


def test_factor_per_place_stays():
    b = Product()
    check_keeps(fold, b.done(b.op("MUL", b.y, b.constant(floats(5, 1)))))


def test_factor_that_enlarges_the_result_stays():
    b = Product()
    check_keeps(fold, b.done(b.op("MUL", b.y, b.vector(2, 1, 1, 1))))


def test_shared_weight_stays():
    b = Product()
    attrs = b.graph.nodes[b.y].attrs
    again = b.op("CONV", b.input("z", 2, 5, 6), b.w, **attrs)
    check_keeps(fold, b.done(b.op("MUL", b.y, b.vector(2)), again))


def test_product_that_others_read_stays():
    b = Product()
    check_keeps(fold, b.done(b.op("MUL", b.y, b.vector(2)), b.y))


def test_activation_between_stays():
    b = Product()
    check_keeps(fold, b.done(b.op("MUL", b.op("RELU", b.y), b.vector(2))))


def test_weight_that_is_no_constant_stays():
    b = Builder()
    y = b.op("MATMUL", b.input("x", 5, 6), b.input("w", 6, 7))
    check_keeps(fold, b.done(b.op("MUL", y, b.constant(floats(7)))))


def test_epilogue_stays():
    b = Builder()
    y = b.op("MATMUL", b.input("x", 5, 6), b.weight(6, 7), code=("RELU",), args=(0,))
    graph = check_keeps(fold, b.done(b.op("MUL", y, b.constant(floats(7)))))
    assert only(graph, "MATMUL").attrs["code"] == ("RELU",)


class Sums(Builder):
    """``y`` is the float32 of a product of bytes less zero points, times a factor per channel."""

    def __init__(self):
        super().__init__()
        levels = self.constant(floats(6, 7, seed=9).astype(np.int8), "levels")
        x = self.op("CAST", self.input("x", 5, 6), dtype="int8")
        sums = self.op("MATMUL", x, levels, accumulate="int32")
        zeros = self.constant(np.arange(7, dtype=np.int32), "zeros")
        self.y = self.op("CAST", self.op("SUB", sums, zeros), dtype="float32")
        self.y = self.op("MUL", self.y, self.vector(1))

    def vector(self, seed):
        return self.constant(floats(7, seed=seed), f"c{seed}")


def test_sums_of_bytes_are_scaled_once():
    b = Sums()
    y = b.op("ADD", b.op("MUL", b.y, b.vector(2)), b.vector(3))
    for op, scalar in (("MAXIMUM", 0.0), ("MINIMUM", 6.0)):
        y = b.op(op, y, scalar=scalar, scalar_index=1)
    graph = b.done(b.op("ROUND", b.op("MUL", y, scalar=20.0, scalar_index=1)))
    check_fires(fold, graph)
    assert op_counts(graph)["MUL"] == 1
    assert only(graph, "MINIMUM").attrs["scalar"] == 120.0


@pytest.mark.parametrize("factor", [-2.0, 0.0, np.inf, np.nan])
def test_no_factor_that_could_swap_bounds(factor):
    b = Sums()
    y = b.op("MAXIMUM", b.y, scalar=0.5, scalar_index=1)
    check_keeps(fold, b.done(b.op("MUL", y, scalar=factor, scalar_index=1)))


def test_bounds_that_others_read_stay():
    b = Sums()
    y = b.op("RELU", b.y)
    check_keeps(fold, b.done(y, b.op("MUL", y, scalar=2.0, scalar_index=1)))
