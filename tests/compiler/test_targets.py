"""ATen ops that a node comes from, also after passes that merge nodes."""

from __future__ import annotations

from graph_checks import Builder, floats, only
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import SourceLine
from taper_frontend.compiler.stages import fuse_elementwise


def add(b, op, *inputs, **attrs):
    """Add a node that comes from the ATen op of its name."""
    source = SourceLine(f"m.py:{len(b.graph.nodes)}", (f"aten.{op.lower()}.default",))
    return b.graph.add_node(op, inputs, attrs, source=source)


def test_fused_node_has_the_targets_of_all():
    b = Builder()
    x = b.input("x", 64, 64)
    y = add(b, "EXP", add(b, "SIN", add(b, "TANH", x)))
    graph = b.done(y)
    fuse_elementwise(graph)
    source = only(graph, "MAP").source
    assert source.targets == ("aten.tanh.default", "aten.sin.default", "aten.exp.default")
    assert source.line == "m.py:2"


def test_product_has_those_of_its_epilogue():
    b = Builder()
    x, w = b.input("x", 40, 64), b.constant(floats(64, 32))
    y = add(b, "RELU", add(b, "ADD", add(b, "MATMUL", x, w), b.constant(floats(32))))
    z = add(b, "ABS", x)
    graph = b.done(y, z)
    compile_graph(graph)
    assert only(graph, "MATMUL").source.targets == (
        "aten.matmul.default",
        "aten.add.default",
        "aten.relu.default",
    )
    assert graph.producers.get(z).source.targets == ("aten.abs.default",)


def test_each_target_once():
    first, second = SourceLine("a", ("x", "y")), SourceLine("b", ("y", "z"))
    assert second.joined([first, first]) == SourceLine("b", ("x", "y", "z"))
