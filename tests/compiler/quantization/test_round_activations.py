"""Products that round their activations round a tensor once."""

import numpy as np
import pytest

from graph_checks import Builder, floats, only, op_counts, random_inputs
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.graph.constants import derived, literal
from taper_frontend.compiler.quantization.round_activations import round_activations
from taper_frontend.compiler.stages import merge_parallel_matmuls


class Layers(Builder):
    def __init__(self):
        super().__init__()
        self.x = self.input("x", 2, 5, 64)

    def weight_in_blocks(self, columns, seed, format="blocks.8.32.float16.symmetric"):
        levels = np.random.default_rng(seed).integers(-7, 8, (64, columns)).astype(np.int8)
        scales = np.abs(floats(2, columns, seed=seed)).astype(np.float16)
        recipe = derived("PACK", [literal(levels), literal(scales)], {"format": format})
        return self.graph.add_constant(f"w{seed}", recipe)

    def project(self, columns, seed, **attrs):
        return self.op("MATMUL", self.x, self.weight_in_blocks(columns, seed), **attrs)


def gated(b, second=24):
    gate, up = b.project(24, 1), b.weight_in_blocks(second, 2)
    program = {"code": ("SILU", "MUL"), "args": (1, 0, 2), "scalars": ()}
    return gate, b.graph.add_node("MATMUL", [b.x, up, gate], program)


def test_gate_and_the_other_half_are_one_product():
    b = Layers()
    expected = Layers()
    graph, apart = b.done(gated(b)[1]), expected.done(gated(expected)[1])
    round_activations(graph)
    for node in apart.order():
        apart.replace_node(node, node.op, node.inputs, {**node.attrs, "activation_group": 64})
    assert op_counts(graph) == {"MATMUL": 1, "SLICE": 2, "MAP": 1}
    assert only(graph, "MATMUL").attrs["activation_group"] == 64
    assert graph.tensors[only(graph, "MATMUL").inputs[1]].shape == (64, 48)
    inputs = random_inputs(graph)
    for name, array in evaluate(apart, inputs).items():
        # numpy's BLAS adds in an order that depends on the columns
        np.testing.assert_allclose(evaluate(graph, inputs)[name], array, rtol=1e-4)


def test_an_epilogue_stays_where_nothing_shares_its_tensor():
    b = Layers()
    y = b.graph.add_node(
        "MATMUL", [b.x, b.weight_in_blocks(24, 1)], {"code": ("SILU",), "args": (0,)}
    )
    graph = b.done(y)
    round_activations(graph)
    assert op_counts(graph) == {"MATMUL": 1}
    assert only(graph, "MATMUL").attrs["code"] == ("SILU",)


@pytest.mark.parametrize(
    "other", ["blocks.8.64.float16.symmetric", "blocks.8.32.float32.symmetric"]
)
def test_weights_in_other_blocks_stay_apart(other):
    b = Layers()
    first = b.op("TANH", b.project(24, 1))
    levels, scales = np.ones((64, 24), np.int8), np.ones((2, 24), np.float16)
    parts = [literal(levels), literal(scales[: 1 if ".64." in other else 2])]
    if "float32" in other:
        parts[1] = literal(scales.astype(np.float32))
    weight = b.graph.add_constant("other", derived("PACK", parts, {"format": other}))
    graph = b.done(first, b.op("TANH", b.op("MATMUL", b.x, weight)))
    round_activations(graph)
    assert op_counts(graph)["MATMUL"] == 2
    assert "MAP" not in op_counts(graph)


def test_queries_keys_and_values_of_a_quantized_checkpoint():
    b = Layers()
    heads = (b.transpose(b.reshape(b.project(24, i), 2, 5, 3, 8), 1, 2) for i in (1, 2, 3))
    graph = b.done(b.op("ATTENTION", *heads, scale=0.5))
    inputs = random_inputs(graph)
    expected = evaluate(graph, inputs)
    assert merge_parallel_matmuls(graph)
    assert op_counts(graph)["MATMUL"] == 1
    for name, array in evaluate(graph, inputs).items():
        np.testing.assert_array_equal(array, expected[name])
