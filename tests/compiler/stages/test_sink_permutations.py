"""Permutations move towards the outputs, and cancel where two meet."""

from __future__ import annotations

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import (
    Group,
    eliminate_common_subexpressions,
    fold_constants,
    remove_noops,
    sink_permutations,
)

FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)  # what makes channels first of channels last, and back

#: Of two axes, each with a size and a scale.
RESAMPLE = {"axes": (2, 3), "sizes": (9, 9), "mode": "linear", "scales": (1.7, 1.8)}

settle = Group(sink_permutations, remove_noops, fold_constants)


class Image(Builder):
    """A graph whose input ``x`` lies channels-last and is permuted to channels first."""

    def __init__(self, *shape):
        super().__init__()
        self.last = self.input("x", *(shape or (2, 4, 5, 6)))
        self.first = self.permute(self.last, FIRST)

    def permute(self, x, axes):
        return self.op("PERMUTE", x, axes=axes)

    def back(self, x):
        return self.done(self.permute(x, LAST))


def moves(graph):
    return sum(node.op in ("PERMUTE", "TRANSPOSE") for node in graph.nodes.values())


def test_two_meet_after_an_elementwise_op():
    b = Image()
    graph = check_fires(settle, b.back(b.op("RELU", b.first)))
    assert op_counts(graph) == {"RELU": 1}


def test_operands_permuted_alike():
    b = Image()
    other = b.permute(b.op("TANH", b.last), FIRST)
    graph = check_fires(settle, b.back(b.op("ADD", b.first, other)))
    assert op_counts(graph) == {"TANH": 1, "ADD": 1}


@pytest.mark.parametrize("shape", [(6, 1, 1), (1, 6, 1, 1), (4, 1), (5,), (), (2, 1, 1, 1)])
def test_constant_operand_is_permuted_at_export(shape):
    b = Image()
    graph = check_fires(settle, b.back(b.op("MUL", b.constant(floats(*shape)), b.first)))
    assert op_counts(graph) == {"MUL": 1}


def test_operand_with_one_dimension_that_counts_is_reshaped():
    b = Image()
    scale = b.reshape(b.input("scale", 6), 6, 1, 1)
    graph = check_fires(settle, b.back(b.op("MUL", b.first, scale)))
    assert op_counts(graph) == {"RESHAPE": 1, "MUL": 1}


def test_operand_that_lies_otherwise_stays_if_the_result_is_wanted_so():
    b = Image()
    y = b.op("ADD", b.first, b.input("y", 2, 6, 4, 5))
    check_keeps(sink_permutations, b.done(y))


def test_operand_that_lies_otherwise_is_permuted_if_the_result_is():
    b = Image()
    y = b.op("ADD", b.op("RELU", b.first), b.input("y", 2, 6, 4, 5))
    graph = check_fires(settle, b.back(b.op("TANH", y)))
    assert moves(graph) == 1
    assert only(graph, "PERMUTE").inputs == ["y"]


@pytest.mark.parametrize("axis", range(4))
def test_cat(axis):
    b = Image()
    zeros = [2, 6, 4, 5]
    zeros[axis] = 3
    border = b.op("EXPAND", b.constant(0.0), shape=tuple(zeros))
    graph = check_fires(settle, b.back(b.op("CAT", border, b.first, b.first, axis=axis)))
    assert moves(graph) == 0


@pytest.mark.parametrize(
    ("op", "attrs"),
    [
        ("SLICE", {"axis": 1, "start": 1, "stop": 5, "step": 2}),
        ("FLIP", {"axes": (1, 2)}),
        ("SOFTMAX", {"axis": 1}),
        ("CUMSUM", {"axis": 2}),
        ("RESAMPLE", {"axes": (3,), "sizes": (7,), "mode": "linear", "scales": (0.0,)}),
        ("RESAMPLE", RESAMPLE),
        ("MEAN", {"axes": (1, 3), "keepdim": True}),
    ],
)
def test_attrs_name_the_axes_before(op, attrs):
    b = Image()
    graph = check_fires(settle, b.back(b.op(op, b.first, **attrs)))
    assert op_counts(graph) == {op: 1}


def test_axes_with_values_of_their_own_keep_their_order():
    b = Builder()
    x = b.op("TRANSPOSE", b.input("x", 2, 6, 5, 5), axis0=2, axis1=3)
    y = b.op("RESAMPLE", x, **RESAMPLE)
    check_keeps(sink_permutations, b.done(b.op("TRANSPOSE", y, axis0=2, axis1=3)))


@pytest.mark.parametrize("axes", [(1,), (2,), (2, 3), (0, 3), (0, 1, 2, 3)])
def test_reduction_without_the_dims(axes):
    b = Image()
    check_fires(settle, b.done(b.op("SUM", b.first, axes=axes)))


def test_reduction_of_places_needs_no_permutation():
    b = Image()
    graph = check_fires(settle, b.done(b.op("MEAN", b.first, axes=(2, 3))))
    assert op_counts(graph) == {"MEAN": 1}


@pytest.mark.parametrize("keepdim", [False, True])
def test_position_of_the_largest(keepdim):
    b = Image()
    graph = check_fires(settle, b.done(b.op("ARGMAX", b.first, axis=1, keepdim=keepdim)))
    assert only(graph, "ARGMAX").attrs["axis"] == 3


@pytest.mark.parametrize("axis", range(4))
def test_selection(axis):
    b = Image()
    index = b.constant(np.array([1, 0, 0]))
    graph = check_fires(settle, b.back(b.op("INDEX_SELECT", b.first, index, axis=axis)))
    assert moves(graph) == 0


@pytest.mark.parametrize("axis", range(4))
def test_selection_that_adds_an_axis(axis):
    b = Image()
    y = b.op("INDEX_SELECT", b.first, b.constant(np.array([[1, 0, 0], [0, 1, 1]])), axis=axis)
    check_keeps(settle, b.done(y))  # there would be more to permute


def test_selection_that_adds_an_axis_where_that_is_undone():
    b = Image()
    y = b.op("INDEX_SELECT", b.first, b.constant(np.array([[1, 0, 0], [0, 1, 1]])), axis=2)
    graph = check_fires(settle, b.done(b.op("PERMUTE", y, axes=(0, 2, 3, 4, 1))))
    assert moves(graph) == 0


def test_norm_and_product_over_a_dimension_that_stays():
    for keeps in (True, False):
        b = Builder()
        x = b.input("x", 2, 3, 4, 5)
        x = b.op("PERMUTE", x, axes=(0, 2, 1, 3) if keeps else (0, 3, 1, 2))
        width = 5 if keeps else 4
        attrs = {"dims": 1, "eps": 1e-5}
        y = b.op("LAYER_NORM", b.op("MATMUL", x, b.weight(width, width)), **attrs)
        (check_fires if keeps else check_keeps)(sink_permutations, b.done(y))


class TestReshape:
    def test_places_are_flattened_before(self):
        b = Image()
        y = b.reshape(b.first, 2, 6, 20)
        graph = check_fires(settle, b.done(b.transpose(y, 1, 2)))
        assert op_counts(graph) == {"RESHAPE": 1}

    def test_places_are_unfolded_before(self):
        b = Builder()
        x = b.transpose(b.input("x", 2, 20, 6), 1, 2)
        graph = check_fires(settle, b.done(b.op("PERMUTE", b.reshape(x, 2, 6, 4, 5), axes=LAST)))
        assert op_counts(graph) == {"RESHAPE": 1}

    def test_channels_are_grouped_before(self):
        b = Image()
        y = b.op("TANH", b.reshape(b.first, 2, 3, 2, 4, 5))
        graph = check_fires(settle, b.back(b.reshape(y, 2, 6, 4, 5)))
        assert moves(graph) == 0

    @pytest.mark.parametrize("batch", [1, 2])
    @pytest.mark.parametrize(
        "shape", [(6, 1, 4, 5), (1, 6, 4, 5), (6, 4, 5, 1), (6, 4, 1, 5), (3, 2, 1, 20)]
    )
    def test_dims_of_size_one(self, batch, shape):
        b = Image(batch, 4, 5, 6)
        graph = check_fires(settle, b.done(b.reshape(b.first, batch, *shape)))
        (node,) = (n for n in graph.nodes.values() if n.op == "RESHAPE")
        assert graph.tensors[node.output].shape[0] == batch  # the batch stays in front

    def test_one_pixel_or_one_channel(self):
        for shape in ((2, 1, 1, 6), (2, 4, 5, 1), (1, 1, 1, 1)):
            b = Image(*shape)
            count = int(np.prod(shape[1:]))
            graph = check_fires(settle, b.done(b.reshape(b.first, shape[0], count)))
            assert op_counts(graph) == {"RESHAPE": 1}

    def test_all_joined_cannot_sink(self):
        b = Image()
        check_keeps(sink_permutations, b.done(b.reshape(b.first, 2, 120)))

    def test_nothing_cannot_sink(self):
        b = Image(0, 4, 5, 6)
        check_keeps(sink_permutations, b.done(b.reshape(b.first, 0, 7)))

    def test_shuffle_of_channels_is_one_move(self):
        b = Image()
        y = b.transpose(b.reshape(b.first, 2, 3, 2, 4, 5), 1, 2)
        graph = check_fires(settle, b.back(b.reshape(y, 2, 6, 4, 5)))
        assert op_counts(graph) == {"RESHAPE": 2, "TRANSPOSE": 1}

    def test_shuffle_of_pixels_is_one_move(self):
        b = Image(2, 4, 5, 12)
        y = b.op("PERMUTE", b.reshape(b.first, 2, 3, 2, 2, 4, 5), axes=(0, 1, 4, 2, 5, 3))
        y = b.op("TANH", b.reshape(y, 2, 3, 8, 10))
        graph = check_fires(settle, b.back(y))
        assert op_counts(graph) == {"RESHAPE": 2, "PERMUTE": 1, "TANH": 1}

    def test_heads_are_not_split_from_what_joins_them(self):
        b = Builder()
        x = b.transpose(b.input("x", 2, 3, 4, 5), 1, 2)
        y = b.op("MATMUL", b.reshape(x, 2, 4, 15), b.weight(15, 7))
        check_keeps(sink_permutations, b.done(y))


def test_one_of_several_readers():
    b = Image()
    graph = check_fires(settle, b.done(b.permute(b.op("RELU", b.first), LAST), b.first))
    assert moves(graph) == 1


def test_it_settles_where_readers_disagree():
    b = Image()
    total = b.op("ADD", b.first, b.input("y", 2, 6, 4, 5))
    check_keeps(settle, b.done(b.permute(total, LAST), b.op("RELU", total)))


def test_all_of_several_readers_undo_it():
    b = Image()
    total = b.op("ADD", b.first, b.input("y", 2, 6, 4, 5))
    graph = check_fires(
        settle, b.done(b.permute(b.op("RELU", total), LAST), b.permute(total, LAST))
    )
    assert moves(graph) == 1


def test_it_is_undone_at_the_end_of_a_layer():
    """A layer of a transformer has some thirty nodes between a residual sum and the last norm."""
    b = Image()
    x = total = b.op("ADD", b.first, b.input("y", 2, 6, 4, 5))
    for _ in range(30):
        x = b.op("RELU", x)
    graph = check_fires(settle, b.done(b.permute(x, LAST), b.permute(total, LAST)))
    assert moves(graph) == 1


def test_an_output_that_repeats_a_permuted_one_stays_a_copy():
    b = Builder()
    x = b.op("TANH", b.input("x", 2, 3, 4))
    graph = b.done(b.transpose(x, 1, 2), b.transpose(x, 1, 2))
    check_fires(Group(sink_permutations, remove_noops, eliminate_common_subexpressions), graph)
    assert op_counts(graph) == {"TANH": 1, "TRANSPOSE": 1, "COPY": 1}
