"""Attention is found however it is masked, scaled and batched; what only looks alike is not."""

import math

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import (
    Group,
    absorb_into_matmul,
    hoist_reshapes,
    recognize_attention,
    remove_noops,
)

MIN = float(np.finfo(np.float32).min)


class Attention(Builder):
    """q, k, v and the steps of attention."""

    def __init__(self, shape=(2, 3), queries=5, keys=6, dim=4, value_dim=7):
        super().__init__()
        self.q = self.input("q", *shape, queries, dim)
        self.k = self.input("k", *shape, keys, dim)
        self.v = self.input("v", *shape, keys, value_dim)

    def scores(self, alpha=0.5):
        return self.op("MATMUL", self.q, self.k, transpose_b=True, alpha=alpha)

    def output(self, scores, axis=None):
        axis = len(self.graph.tensors[scores].shape) - 1 if axis is None else axis
        return self.op("MATMUL", self.op("SOFTMAX", scores, axis=axis), self.v)


@pytest.mark.parametrize("shape", [(2, 3), (6,)])
def test_plain(shape):
    b = Attention(shape)
    graph = check_fires(recognize_attention, b.done(b.output(b.scores())))
    assert op_counts(graph) == {"ATTENTION": 1}
    node = only(graph, "ATTENTION")
    assert node.inputs == ["q", "k", "v"]
    assert node.attrs == {"scale": 0.5, "safe_softmax": False}


def test_keys_that_are_not_transposed_yet():
    b = Attention()
    keys = b.input("kt", 2, 3, 4, 6)
    graph = b.done(b.output(b.op("MATMUL", b.q, keys)))
    check_fires(recognize_attention, graph)
    assert op_counts(graph) == {"ATTENTION": 1, "TRANSPOSE": 1}
    assert only(graph, "ATTENTION").attrs["scale"] == 1.0


def test_keys_by_permute():
    b = Attention()
    source = b.input("kp", 2, 6, 3, 4)  # [B, L, H, D]
    graph = b.done(b.output(b.op("MATMUL", b.q, b.op("PERMUTE", source, axes=(0, 2, 3, 1)))))
    check_fires(recognize_attention, graph)
    while remove_noops(graph):
        pass
    assert op_counts(graph) == {"ATTENTION": 1, "TRANSPOSE": 1}
    assert only(graph, "TRANSPOSE").attrs == {"axis0": 1, "axis1": 2}


@pytest.mark.parametrize("place", ["scores", "queries", "keys", "both"])
def test_scale(place):
    b = Attention()
    scale = 0.5
    if place == "scores":
        scores = b.op("DIV", b.op("MATMUL", b.q, b.k, transpose_b=True), 2.0)
    else:
        if place != "keys":
            b.q = b.op("MUL", b.q, 0.5)
        if place != "queries":
            b.k = b.op("MUL", b.k, 0.5)
        scores = b.op("MATMUL", b.q, b.k, transpose_b=True)
    graph = b.done(b.output(scores))
    check_fires(Group(Group(absorb_into_matmul), recognize_attention), graph)
    assert op_counts(graph) == {"ATTENTION": 1}
    assert only(graph, "ATTENTION").attrs["scale"] == (scale**2 if place == "both" else scale)


@pytest.mark.parametrize("masked", [False, True])
def test_factors_of_the_heads(masked):
    b = Attention()
    scores = b.op("MUL", b.scores(), b.constant(floats(3, 1, 1)))
    if masked:
        scores = b.op("ADD", scores, b.constant(floats(3, 5, 6, seed=1)))
    graph = check_fires(recognize_attention, b.done(b.output(scores)))
    assert op_counts(graph) == {"MUL": 1, "ATTENTION": 1}
    assert only(graph, "MUL").inputs[0] == "q"


def test_factors_of_the_keys_are_no_factors_of_the_heads():
    b = Attention()
    scores = b.op("MUL", b.scores(), b.constant(floats(3, 1, 6)))
    check_keeps(recognize_attention, b.done(b.output(scores)))


class TestMask:
    @pytest.mark.parametrize("shape", [(5, 6), (2, 1, 1, 6), (2, 3, 5, 6)])
    @pytest.mark.parametrize("first", [False, True])
    def test_added(self, shape, first):
        b = Attention()
        mask = b.input("mask", *shape)
        operands = [mask, b.scores()] if first else [b.scores(), mask]
        graph = check_fires(recognize_attention, b.done(b.output(b.op("ADD", *operands))))
        assert op_counts(graph) == {"ATTENTION": 1}
        assert only(graph, "ATTENTION").inputs == ["q", "k", "v", "mask"]

    def test_kept_where_true(self):
        b = Attention()
        keep = b.input("keep", 5, 6, dtype="bool")
        graph = b.done(b.output(b.op("WHERE", keep, b.scores(), -math.inf)))
        check_fires(recognize_attention, graph)
        assert only(graph, "ATTENTION").inputs == ["q", "k", "v", "keep"]

    def test_dropped_where_true(self):
        b = Attention()
        drop = b.input("drop", 5, 6, dtype="bool")
        graph = b.done(b.output(b.op("WHERE", drop, -math.inf, b.scores())))
        check_fires(recognize_attention, graph)
        assert op_counts(graph) == {"ATTENTION": 1, "LOGICAL_NOT": 1}

    @pytest.mark.parametrize("fill", [-1e9, -1e10, MIN])
    def test_low_number_for_infinity(self, fill):
        b = Attention(keys=2)  # of two keys, both are often masked
        keep = b.input("keep", 2, 1, 5, 2, dtype="bool")
        graph = b.done(b.output(b.op("WHERE", keep, b.scores(), fill)))
        check_fires(recognize_attention, graph)
        assert op_counts(graph) == {"ATTENTION": 1, "WHERE": 1}
        assert graph.tensors[only(graph, "WHERE").output].shape == (2, 1, 5, 2)
        # added to a score it has to swallow it whatever the precision, for rows without a key
        assert only(graph, "WHERE").attrs["scalar"] == min(fill, -1e30)

    @pytest.mark.parametrize("fill", [0.0, -1.0, -1e4, math.inf])
    def test_number_that_is_no_infinity_stays(self, fill):
        b = Attention()
        keep = b.input("keep", 5, 6, dtype="bool")
        graph = b.done(b.output(b.op("WHERE", keep, b.scores(), fill)))
        check_keeps(recognize_attention, graph)

    def test_row_with_every_key_masked_is_nan(self):
        b = Attention()
        keep = b.constant(np.arange(5)[:, None] > np.zeros(6))
        graph = b.done(b.output(b.op("WHERE", keep, b.scores(), -math.inf)))
        check_fires(recognize_attention, graph)

    @pytest.mark.parametrize(
        ("steps", "nodes"),
        [
            (["add", "add"], {"ADD": 1}),
            (["keep", "keep"], {"LOGICAL_AND": 1}),
            (["add", "keep"], {"WHERE": 1}),
            (["keep", "add"], {"WHERE": 1, "ADD": 1}),
            (["add", "low"], {"WHERE": 1}),
            (["keep", "low"], {"WHERE": 2}),
            (["low", "add", "keep"], {"WHERE": 2, "ADD": 1}),
        ],
    )
    def test_several(self, steps, nodes):
        b = Attention()
        scores = b.scores()
        for index, step in enumerate(steps):
            if step == "add":
                scores = b.op("ADD", scores, b.input(f"mask{index}", 1, 3, 5, 6))
            else:
                keep = b.input(f"mask{index}", 2, 1, 1, 6, dtype="bool")
                scores = b.op("WHERE", keep, scores, -math.inf if step == "keep" else -1e9)
        graph = check_fires(recognize_attention, b.done(b.output(scores)))
        assert op_counts(graph) == {"ATTENTION": 1, **nodes}

    def test_position_bias_that_is_itself_a_product(self):
        b = Attention()
        bias = b.op("MATMUL", b.input("r", 2, 3, 5, 2), b.input("s", 2, 3, 2, 6))
        graph = check_fires(recognize_attention, b.done(b.output(b.op("ADD", bias, b.scores()))))
        assert op_counts(graph).items() >= {"ATTENTION": 1, "MATMUL": 1}.items()

    def test_that_makes_the_scores_larger_stays(self):
        b = Attention((1, 3))
        b.v = b.input("wide", 4, 3, 6, 7)
        graph = b.done(b.output(b.op("ADD", b.scores(), b.input("mask", 4, 1, 5, 6))))
        check_keeps(recognize_attention, graph)


def test_bmm_form():
    b = Attention()
    q, k, v = b.reshape(b.q, 6, 5, 4), b.reshape(b.k, 6, 6, 4), b.reshape(b.v, 6, 6, 7)
    scores = b.op("MATMUL", q, b.transpose(k, 1, 2))
    scores = b.op("MUL", b.reshape(scores, 2, 3, 5, 6), 0.5)
    scores = b.op("ADD", scores, b.input("mask", 2, 1, 1, 6))
    weights = b.op("EXPAND", b.op("SOFTMAX", scores, axis=3), shape=(2, 3, 5, 6))
    y = b.op("MATMUL", b.reshape(weights, 6, 5, 6), v)
    graph = b.done(b.reshape(y, 2, 3, 5, 7))
    prepare = Group(remove_noops, absorb_into_matmul, hoist_reshapes)
    check_fires(Group(prepare, recognize_attention), graph)
    assert op_counts(graph) == {"ATTENTION": 1}
    assert only(graph, "ATTENTION").inputs == ["q", "k", "v", "mask"]


def test_bmm_form_with_softmax_over_three_dimensions():
    b = Attention()
    q, k, v = b.reshape(b.q, 6, 5, 4), b.reshape(b.k, 6, 6, 4), b.reshape(b.v, 6, 6, 7)
    scores = b.op("MATMUL", b.op("MUL", q, 0.5), b.transpose(k, 1, 2))
    masked = b.op("ADD", b.reshape(scores, 2, 3, 5, 6), b.input("mask", 2, 1, 5, 6))
    weights = b.op("SOFTMAX", b.reshape(masked, 6, 5, 6), axis=2)
    graph = b.done(b.reshape(b.op("MATMUL", weights, v), 2, 3, 5, 7))
    prepare = Group(remove_noops, absorb_into_matmul, hoist_reshapes)
    check_fires(Group(prepare, recognize_attention), graph)
    assert op_counts(graph) == {"ATTENTION": 1}


class TestStays:
    def test_weights_that_others_read(self):
        b = Attention()
        weights = b.op("SOFTMAX", b.scores(), axis=3)
        graph = b.done(b.op("MATMUL", weights, b.v), b.op("NEG", weights))
        check_keeps(recognize_attention, graph)

    def test_weights_that_are_an_output(self):
        b = Attention()
        weights = b.op("SOFTMAX", b.scores(), axis=3)
        check_keeps(recognize_attention, b.done(b.op("MATMUL", weights, b.v), weights))

    def test_scores_that_others_read(self):
        b = Attention()
        scores = b.scores()
        check_keeps(recognize_attention, b.done(b.output(scores), b.op("NEG", scores)))

    def test_masked_scores_that_are_an_output(self):
        b = Attention()
        masked = b.op("ADD", b.scores(), b.input("mask", 5, 6))
        check_keeps(recognize_attention, b.done(b.output(masked), masked))

    def test_softmax_over_queries(self):
        b = Attention()
        check_keeps(recognize_attention, b.done(b.output(b.scores(), axis=2)))

    def test_logarithm_of_softmax(self):
        b = Attention()
        weights = b.op("SOFTMAX", b.scores(), axis=3, log=True)
        check_keeps(recognize_attention, b.done(b.op("MATMUL", weights, b.v)))

    def test_weights_on_the_right(self):
        b = Attention(queries=6)
        weights = b.op("SOFTMAX", b.scores(), axis=3)
        check_keeps(recognize_attention, b.done(b.op("MATMUL", b.transpose(b.v, 2, 3), weights)))

    def test_batches_that_broadcast(self):
        b = Attention()
        b.k = b.input("shared", 1, 3, 6, 4)
        check_keeps(recognize_attention, b.done(b.output(b.scores())))

    def test_values_that_are_a_matrix(self):
        b = Attention()
        b.v = b.weight(6, 7)
        check_keeps(recognize_attention, b.done(b.output(b.scores())))

    def test_rank_five(self):
        b = Attention((1, 2, 3))
        check_keeps(recognize_attention, b.done(b.output(b.scores())))

    def test_softmax_of_something_else(self):
        b = Attention()
        check_keeps(recognize_attention, b.done(b.output(b.op("TANH", b.scores()))))

    def test_scaled_output(self):
        b = Attention()
        weights = b.op("SOFTMAX", b.scores(), axis=3)
        check_keeps(recognize_attention, b.done(b.op("MATMUL", weights, b.v, alpha=2.0)))


def test_values_that_are_stored_transposed():
    b = Attention()
    weights = b.op("SOFTMAX", b.scores(), axis=3)
    graph = b.done(b.op("MATMUL", weights, b.input("vt", 2, 3, 7, 6), transpose_b=True))
    check_fires(recognize_attention, graph)
    assert op_counts(graph) == {"ATTENTION": 1, "TRANSPOSE": 1}


def test_large_scores_do_not_overflow():
    b = Attention()
    b.q = b.op("MUL", b.q, b.constant(floats(4) * 1e4))
    graph = b.done(b.output(b.scores()))
    check_fires(recognize_attention, graph)
