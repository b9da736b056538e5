"""Products of one tensor with several weights merge where their slices are read for free."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import merge_parallel_matmuls


class Projections(Builder):
    def __init__(self):
        super().__init__()
        self.x = self.input("x", 2, 5, 12)

    def project(self, seed, columns=12, bias=True, transposed=True, **attrs):
        shape = (columns, 12) if transposed else (12, columns)
        w = self.weight(*shape, seed=seed, name=f"w{seed}")
        y = self.op("MATMUL", self.x, w, transpose_b=transposed, **attrs)
        return self.op("ADD", y, self.constant(floats(columns, seed=seed))) if bias else y

    def heads(self, y, count=3):
        columns = self.graph.tensors[y].shape[-1]
        return self.transpose(self.reshape(y, 2, 5, count, columns // count), 1, 2)

    def attention(self, q, k, v, **counts):
        return self.done(
            self.op(
                "ATTENTION",
                self.heads(q),
                self.heads(k, **counts),
                self.heads(v, **counts),
                scale=0.5,
            )
        )


def test_queries_keys_and_values():
    b = Projections()
    graph = check_fires(merge_parallel_matmuls, b.attention(*(b.project(i) for i in range(3))))
    assert op_counts(graph) == {
        "MATMUL": 1, "ADD": 1, "SLICE": 3, "RESHAPE": 3, "TRANSPOSE": 3, "ATTENTION": 1,
    }  # fmt: skip
    assert sorted(array.shape for array in graph.constants.values()) == [(12, 36), (36,)]
    assert graph.outputs == ["attention"]


def test_grouped_heads_without_bias():
    b = Projections()
    widths = {1: 12, 2: 4, 3: 4}
    q, k, v = (b.project(i, width, bias=False) for i, width in widths.items())
    graph = check_fires(merge_parallel_matmuls, b.attention(q, k, v, count=1))
    assert op_counts(graph)["MATMUL"] == 1
    assert "ADD" not in op_counts(graph)


def test_halves():
    """As a half-precision model has them: weights are widened, results rounded and widened."""
    b = Projections()

    def project(seed):
        w = b.constant(floats(12, 12, seed=seed).astype(np.float16), f"w{seed}")
        y = b.op("MATMUL", b.x, b.op("CAST", w, dtype="float32"), transpose_b=True)
        y = b.op("ADD", y, b.constant(floats(12, seed=seed)))
        return b.op("CAST", b.op("CAST", y, dtype="float16"), dtype="float32")

    graph = check_fires(merge_parallel_matmuls, b.attention(*(project(i) for i in range(3))))
    counts = op_counts(graph)
    assert (counts["MATMUL"], counts["ADD"], counts["CAST"]) == (1, 1, 3)
    weight = only(graph, "MATMUL").inputs[1]
    assert graph.constants[graph.producers.get(weight).inputs[0]].dtype == "float16"


def test_halves_and_floats_stay_apart():
    b = Projections()
    w = b.constant(floats(12, 12).astype(np.float16), "w")
    q = b.op("MATMUL", b.x, b.op("CAST", w, dtype="float32"))
    check_keeps(merge_parallel_matmuls, b.attention(q, b.project(1, bias=False), b.x))


def test_missing_biases_are_zeros():
    b = Projections()
    q, k, v = (b.project(i, bias=i != 1) for i in range(3))
    graph = check_fires(merge_parallel_matmuls, b.attention(q, k, v))
    (bias,) = (a.value() for a in graph.constants.values() if len(a.shape) == 1)
    np.testing.assert_array_equal(bias[12:24], np.zeros(12))


def test_both_layouts_of_weights():
    b = Projections()
    q, k, v = (b.project(i, transposed=i != 1) for i in range(3))
    graph = check_fires(merge_parallel_matmuls, b.attention(q, k, v))
    assert op_counts(graph)["MATMUL"] == 1


def test_different_factors_stay_apart():
    b = Projections()
    q, k, v = (b.project(i, alpha=0.5 if i == 0 else 1.0) for i in range(3))
    graph = check_fires(merge_parallel_matmuls, b.attention(q, k, v))
    assert op_counts(graph)["MATMUL"] == 2


def test_weights_shared_by_layers_are_joined_once():
    b = Projections()
    weights = [b.weight(12, 12, seed=i) for i in range(3)]
    first = b.x
    for _ in range(2):
        q, k, v = (b.heads(b.op("MATMUL", first, w)) for w in weights)
        y = b.op("ATTENTION", q, k, v, scale=0.5, transpose_output=True)
        first = b.reshape(y, 2, 5, 12)
    graph = check_fires(merge_parallel_matmuls, b.done(first))
    assert [array.shape for array in graph.constants.values()] == [(12, 36)]
    assert op_counts(graph)["MATMUL"] == 2


class TestStays:
    def test_elementwise_reader_is_an_epilogue(self):
        # gate and up of a gated MLP
        b = Projections()
        gate, up = (b.project(i, bias=False) for i in range(2))
        check_keeps(merge_parallel_matmuls, b.done(b.op("MUL", b.op("SILU", gate), up)))

    def test_reader_that_needs_contiguous_memory(self):
        b = Projections()
        check_keeps(
            merge_parallel_matmuls,
            b.done(*(b.op("SOFTMAX", b.project(i), axis=2) for i in range(2))),
        )

    def test_view_that_strides_cannot_express(self):
        b = Projections()
        flat = [b.reshape(b.project(i), 2, 60) for i in range(2)]
        check_keeps(
            merge_parallel_matmuls, b.done(b.op("MATMUL", flat[0], b.transpose(flat[1], 0, 1)))
        )

    @pytest.mark.parametrize("view", [False, True])
    def test_output_of_the_graph(self, view):
        b = Projections()
        results = [b.project(i) for i in range(2)]
        if view:
            results = [b.heads(y) for y in results]
        check_keeps(merge_parallel_matmuls, b.done(*results))

    def test_weights_that_are_not_constant(self):
        b = Projections()
        ys = [b.op("MATMUL", b.x, b.input(f"w{i}", 12, 12)) for i in range(3)]
        check_keeps(merge_parallel_matmuls, b.attention(*ys))

    def test_different_tensors(self):
        b = Projections()
        ys = []
        for i in range(3):
            b.x = b.input(f"x{i}", 2, 5, 12)
            ys.append(b.project(i))
        check_keeps(merge_parallel_matmuls, b.attention(*ys))

    def test_one_alone(self):
        b = Projections()
        y = b.project(0)
        check_keeps(merge_parallel_matmuls, b.attention(y, y, y))

    def test_batched_weights(self):
        b = Projections()
        ys = [b.op("MATMUL", b.x, b.weight(2, 12, 12, seed=i)) for i in range(3)]
        check_keeps(merge_parallel_matmuls, b.attention(*ys))


def test_bias_of_another_shape_is_a_reader():
    b = Projections()
    ys = [b.op("ADD", b.project(i, bias=False), b.constant(floats(5, 12))) for i in range(3)]
    check_keeps(merge_parallel_matmuls, b.attention(*ys))


def test_only_what_pays_is_merged():
    b = Projections()
    q, k, v = (b.project(i) for i in range(3))
    other = b.op("EXP", b.project(3))
    y = b.op("ATTENTION", b.heads(q), b.heads(k), b.heads(v), scale=0.5)
    graph = check_fires(merge_parallel_matmuls, b.done(y, other))
    assert op_counts(graph)["MATMUL"] == 2
    assert only(graph, "EXP").inputs[0] in graph.nodes
