"""Factors per channel that a run decides go into the weight of a product with many rows."""

from __future__ import annotations

import pytest

from graph_checks import Builder, check_fires, check_keeps, only, op_counts
from taper_frontend.passes.move_scales import move_scales


class Scaled(Builder):
    """``y`` is a product of 3 columns from rows of 6 channels, each channel times a factor."""

    def __init__(self, rows=(1, 5, 4), scale=(1, 1, 6), transposed=False, swapped=False):
        super().__init__()
        self.x, self.s = self.input("x", *rows, 6), self.input("s", *scale)
        operands = (self.s, self.x) if swapped else (self.x, self.s)
        self.scaled = self.op("MUL", *operands)
        self.w = self.weight(*((3, 6) if transposed else (6, 3)))
        self.y = self.op("MATMUL", self.scaled, self.w, transpose_b=transposed)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("swapped", [False, True])
def test_weight_is_scaled(transposed, swapped):
    b = Scaled(transposed=transposed, swapped=swapped)
    graph = check_fires(move_scales, b.done(b.y))
    assert op_counts(graph) == {"RESHAPE": 1, "MUL": 1, "MATMUL": 1}
    assert only(graph, "MATMUL").inputs[0] == b.x
    assert graph.tensors[only(graph, "MUL").output].shape == (6, 3)


def test_few_rows_are_kept():
    b = Scaled(rows=(1, 11))
    check_keeps(move_scales, b.done(b.y))


def test_factors_of_their_own_for_each_image_are_kept():
    b = Scaled(rows=(2, 20), scale=(2, 1, 6))
    check_keeps(move_scales, b.done(b.y))


def test_product_that_something_else_reads_is_kept():
    b = Scaled()
    check_keeps(move_scales, b.done(b.y, b.scaled))


def test_shared_weight_is_kept():
    b = Scaled()
    check_keeps(move_scales, b.done(b.y, b.op("MATMUL", b.x, b.w)))
