"""Nodes that no output needs are removed; inputs stay."""

from graph_checks import Builder, check_fires, check_keeps, floats
from taper_frontend.compiler.stages import eliminate_dead_code


def test_dead_nodes_and_constants_go():
    b = Builder()
    x, unused = b.input("x", 3), b.input("unused", 3)
    b.op("ADD", b.op("LOG", x), b.constant(floats(3)))
    graph = b.done(b.op("EXP", x))
    check_fires(eliminate_dead_code, graph)
    assert list(graph.nodes) == ["exp"]
    assert not graph.constants
    assert graph.inputs == ["x", unused]


def test_live_nodes_stay():
    b = Builder()
    x = b.input("x", 3)
    y = b.op("EXP", x)
    check_keeps(eliminate_dead_code, b.done(y, b.op("NEG", y)))
