"""Factors per channel that a run decides go into the weight of a product with many rows."""

from __future__ import annotations

import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import fold_packing, move_scales


def packed(b, matrix):
    name = b.op("PACK", b.constant(matrix), format="panels.1")
    fold_packing(b.graph)
    return name


class Scaled(Builder):
    """``y`` is a product of 20 columns from rows of 6 channels, each channel times a factor."""

    def __init__(self, rows=(1, 5, 8), scale=(1, 1, 6), swapped=False, dtype="float32"):
        super().__init__()
        self.x, self.s = self.input("x", *rows, 6), self.input("s", *scale)
        operands = (self.s, self.x) if swapped else (self.x, self.s)
        self.scaled = self.op("MUL", *operands)
        self.w = packed(self, floats(6, 20).astype(dtype))
        self.y = self.op("MATMUL", self.scaled, self.w)


@pytest.mark.parametrize("swapped", [False, True])
def test_weight_is_scaled(swapped):
    b = Scaled(swapped=swapped)
    graph = check_fires(move_scales, b.done(b.y))
    assert op_counts(graph) == {"RESHAPE": 1, "MUL": 1, "MATMUL": 1}
    assert only(graph, "MATMUL").inputs[0] == b.x
    assert graph.tensors[only(graph, "MUL").output].type == ("float32", (6, 20), "panels.1")


def test_epilogue_stays():
    b = Scaled()
    bias_residual = {"code": ("ADD", "ADD"), "args": (0, 1, 3, 2)}
    y = b.op("MATMUL", b.scaled, b.w, b.input("c", 20), b.input("r", 1, 5, 8, 20), **bias_residual)
    b.graph.remove_node(b.graph.nodes[b.y])
    check_fires(move_scales, b.done(y))


def test_shared_weight_is_scaled_for_each_product():
    b = Scaled()
    graph = check_fires(move_scales, b.done(b.y, b.op("MATMUL", b.x, b.w)))
    assert op_counts(graph)["MATMUL"] == 2


@pytest.mark.parametrize(
    "b",
    [
        Scaled(rows=(1, 4, 8)),  # as many rows as columns in whole panels
        Scaled(rows=(2, 5, 8), scale=(2, 1, 1, 6)),  # factors of its own for each image
        Scaled(scale=(5, 1, 6)),
        Scaled(scale=(1, 8, 1)),
        Scaled(dtype="float16"),
    ],
)
def test_what_is_left_alone(b):
    check_keeps(move_scales, b.done(b.y))


def test_input_that_something_else_reads_is_kept():
    b = Scaled()
    check_keeps(move_scales, b.done(b.y, b.scaled))
    b = Scaled(rows=(1, 5, 12))
    square = packed(b, floats(6, 6))
    add = {"code": ("ADD",), "args": (0, 1)}
    b.graph.remove_node(b.graph.nodes[b.y])
    check_keeps(move_scales, b.done(b.op("MATMUL", b.scaled, square, b.scaled, **add)))
