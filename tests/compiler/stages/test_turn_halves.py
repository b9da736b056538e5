"""Rotary embeddings read exchanged halves in place."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, op_counts, random_inputs
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.stages import PIPELINE, run_pipeline, turn_halves


def rotated(b, x, cosine, sine, *, axis=3, middle=4, end=8):
    low, high = (
        b.op("SLICE", x, axis=axis, start=start, stop=stop)
        for start, stop in ((0, middle), (middle, end))
    )
    turned = b.op("CAT", b.op("NEG", high), low, axis=axis)
    return b.op("ADD", b.op("MUL", x, cosine), b.op("MUL", turned, sine))


@pytest.mark.parametrize("shape", [(2, 5, 1, 8), (5, 1, 1), (8,), (2, 5, 3, 8)])
def test_views_and_one_product_have_the_same_bits(shape):
    b = Builder()
    x = b.input("x", 2, 5, 3, 8)
    angles = [b.input(name, *shape) for name in ("cosine", "sine")]
    graph = b.done(rotated(b, x, *angles))
    inputs = random_inputs(graph)
    expected = evaluate(graph, inputs)
    check_fires(turn_halves, graph)
    found = op_counts(graph)
    assert (found["FLIP"], found["MUL"], found["ADD"]) == (1, 3, 1)
    assert not found.keys() & {"CAT", "NEG", "SLICE"}
    for name, array in evaluate(graph, inputs).items():
        np.testing.assert_array_equal(array, expected[name])


def test_layers_share_the_signed_sine():
    b = Builder()
    cosine, sine = (b.input(name, 2, 5, 1, 8) for name in ("cosine", "sine"))
    graph = b.done(*(rotated(b, b.input(f"x{i}", 2, 5, 3, 8), cosine, sine) for i in range(3)))
    run_pipeline(graph, PIPELINE)
    found = op_counts(graph)
    assert (found["MAP"], found["MUL"]) == (3, 1)


def test_first_axis():
    b = Builder()
    x, cosine, sine = (b.input(name, 6, 4) for name in ("x", "cosine", "sine"))
    check_fires(turn_halves, b.done(rotated(b, x, cosine, sine, axis=0, middle=3, end=6)))


class TestStays:
    def test_parts_that_are_no_halves(self):
        b = Builder()
        x, cosine, sine = (b.input(name, 2, 8) for name in ("x", "cosine", "sine"))
        check_keeps(turn_halves, b.done(rotated(b, x, cosine, sine, axis=1, middle=3)))

    def test_halves_of_a_part(self):
        b = Builder()
        x, cosine, sine = (b.input(name, 2, 8) for name in ("x", "cosine", "sine"))
        y = b.op("SLICE", x, axis=1, start=0, stop=4)
        part = rotated(
            b, y, *(b.constant(floats(2, 4, seed=i)) for i in (1, 2)), axis=1, middle=2, end=4
        )
        assert (
            op_counts(check_fires(turn_halves, b.done(part, b.op("MUL", cosine, sine))))["FLIP"]
            == 1
        )

    def test_halves_that_others_read(self):
        b = Builder()
        x, cosine, sine = (b.input(name, 2, 8) for name in ("x", "cosine", "sine"))
        y = rotated(b, x, cosine, sine, axis=1)
        turned = next(node.output for node in b.graph.nodes.values() if node.op == "CAT")
        check_keeps(turn_halves, b.done(y, b.op("EXP", turned)))
