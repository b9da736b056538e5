"""Elementwise ops come before a RESHAPE that parts them from a product, or that is a copy."""

from __future__ import annotations

import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import (
    Group,
    fuse_elementwise,
    fuse_epilogues,
    remove_noops,
    sink_reshapes,
)

fuse = Group(sink_reshapes, remove_noops, fuse_elementwise, fuse_epilogues)


class Parted(Builder):
    """``y`` [2, 12, 7] is a product of another shape."""

    def __init__(self):
        super().__init__()
        self.product = self.op("MATMUL", self.input("x", 2, 3, 4, 5), self.weight(5, 7))
        self.y = self.reshape(self.product, 2, 12, 7)


def test_activation():
    b = Parted()
    graph = check_fires(fuse, b.done(b.op("GELU", b.op("MUL", b.y, 2.0))))
    assert op_counts(graph) == {"MATMUL": 1, "RESHAPE": 1}


def test_bias_and_residual():
    b = Parted()
    y = b.op("ADD", b.constant(floats(7)), b.y)
    graph = check_fires(fuse, b.done(b.op("ADD", y, b.input("r", 2, 12, 7))))
    assert op_counts(graph) == {"MATMUL": 1, "RESHAPE": 2}


def test_both_operands():
    b = Parted()
    graph = check_fires(fuse, b.done(b.op("MUL", b.y, b.y)))
    assert op_counts(graph) == {"MATMUL": 1, "RESHAPE": 1}


def test_copy_is_read_as_it_lies():
    b = Builder()
    y = b.transpose(b.input("x", 2, 3, 4, 5, 6), 2, 3)
    y = b.op("ADD", b.reshape(y, 2, 60, 6), b.input("r", 2, 60, 6))
    graph = check_fires(Group(sink_reshapes), b.done(y))
    assert graph.tensors[only(graph, "ADD").output].shape == (2, 3, 5, 4, 6)


def test_operands_parted_from_different_shapes():
    # either could come before its RESHAPE, by turns and forever
    b = Builder()
    x, y = b.op("TANH", b.input("x", 2, 6)), b.op("EXP", b.input("y", 3, 4))
    graph = check_fires(fuse, b.done(b.op("ADD", b.reshape(x, 12), b.reshape(y, 12))))
    assert op_counts(graph) == {"MAP": 1, "RESHAPE": 2}


def test_product_before_an_elementwise_operand():
    b = Parted()
    graph = check_fires(fuse, b.done(b.op("ADD", b.op("TANH", b.input("r", 2, 12, 7)), b.y)))
    assert op_counts(graph) == {"MATMUL": 1, "TANH": 1, "RESHAPE": 2}


class TestStays:
    def test_reshape_that_is_free(self):
        b = Builder()
        check_keeps(sink_reshapes, b.done(b.op("TANH", b.reshape(b.input("x", 2, 3), 6))))

    @pytest.mark.parametrize("output", ["y", "product"])
    def test_other_readers(self, output):
        b = Parted()
        check_keeps(sink_reshapes, b.done(b.op("TANH", b.y), getattr(b, output)))

    def test_operand_that_broadcasts_otherwise(self):
        b = Parted()
        check_keeps(sink_reshapes, b.done(b.op("ADD", b.y, b.input("r", 12, 1))))

    def test_operand_that_would_be_copied(self):
        b = Builder()
        y = b.op("MATMUL", b.input("x", 2, 12, 5), b.weight(5, 7))
        other = b.transpose(b.input("r", 2, 4, 3, 7), 1, 2)
        check_keeps(sink_reshapes, b.done(b.op("ADD", b.reshape(y, 2, 3, 4, 7), other)))

    def test_result_of_a_larger_shape(self):
        b = Parted()
        check_keeps(sink_reshapes, b.done(b.op("ADD", b.y, b.input("r", 3, 2, 12, 7))))
