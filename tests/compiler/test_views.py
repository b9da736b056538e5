"""Tensors that are views, and the strides that their readers take."""

import pytest

from taper_frontend.compiler.analysis.views import can_have_strides, strides_of, view_roots
from taper_frontend.compiler.graph import Graph
from taper_runtime.ops.opdef import contiguous_strides


@pytest.fixture
def graph():
    """x transposed, as one row, and transposed back: the second is a copy."""
    graph = Graph()
    graph.add_input("x", "float32", (4, 6))
    graph.add_node("TRANSPOSE", ["x"], {"axis0": 0, "axis1": 1}, name="t")
    graph.add_node("RESHAPE", ["t"], {"shape": (24,)}, name="row")
    graph.add_node("SLICE", ["row"], {"axis": 0, "start": 2, "stop": 8}, name="part")
    graph.add_node("EXP", ["part"], name="y")
    graph.set_outputs(["y"])
    return graph


def test_a_view_that_strides_cannot_express_has_memory_of_its_own(graph):
    roots = view_roots(graph, graph.order())
    assert roots == {"x": "x", "t": "x", "row": "row", "part": "row", "y": "y"}
    assert strides_of(graph, "t") == (1, 6)
    assert strides_of(graph, "row") == (1,)


def test_readers_decide_which_strides_a_tensor_can_have():
    """A slice of a wider matrix, read by a product, by a view of it, and by a copy of it."""
    wide = (24, 1)

    def can(op, inputs, attrs=None, *, copies):
        graph = Graph()
        graph.add_input("x", "float32", (4, 6))
        graph.add_input("w", "float32", (6, 5))
        middle = graph.add_node("EXP", ["x"], name="m")
        read = graph.add_node(op, inputs, attrs or {})
        graph.set_outputs([graph.add_node("EXP", [read])])
        return can_have_strides(graph, middle, wide, copies=copies)

    assert can("MATMUL", ["m", "w"], copies=False)
    assert can("TRANSPOSE", ["m"], {"axis0": 0, "axis1": 1}, copies=False)
    flat = {"shape": (24,)}  # of strides no view
    assert can("RESHAPE", ["m"], flat, copies=True)
    assert not can("RESHAPE", ["m"], flat, copies=False)
    assert not can("SOFTMAX", ["m"], {"axis": 1}, copies=True)


def test_outputs_are_contiguous():
    graph = Graph()
    graph.add_input("x", "float32", (4, 6))
    graph.set_outputs([graph.add_node("EXP", ["x"], name="y")])
    assert not can_have_strides(graph, "y", (12, 1), copies=True)
    assert contiguous_strides((4, 6)) == strides_of(graph, "y")
