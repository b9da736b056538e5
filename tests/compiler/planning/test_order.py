"""Memory-aware order."""

from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning.order import memory_order, peak_bytes


def test_big_temporaries_do_not_pile_up():
    """Four wide branches, each reduced at once: in the graph's order all four are live together."""
    graph = Graph()
    x = graph.add_input("x", "float32", (8,))
    wide = [graph.add_node("EXPAND", [x], {"shape": (1000, 8)}) for _ in range(4)]
    wide = [graph.add_node("EXP", [w]) for w in wide]
    small = [graph.add_node("SUM", [w], {"axes": (0,)}) for w in wide]
    total = small[0]
    for s in small[1:]:
        total = graph.add_node("ADD", [total, s])
    graph.set_outputs([total])
    order = memory_order(graph)
    assert len(order) == len(graph.nodes)
    assert peak_bytes(graph, order) < 2 * 1000 * 8 * 4
    assert peak_bytes(graph, list(graph.order())) >= 4 * 1000 * 8 * 4


def test_order_is_topological():
    graph = Graph()
    x = graph.add_input("x", "float32", (4, 4))
    a = graph.add_node("EXP", [x])
    b = graph.add_node("MATMUL", [a, x])
    c = graph.add_node("ADD", [a, b])
    graph.set_outputs([graph.add_node("MATMUL", [c, b])])
    seen = set(graph.inputs)
    for node in memory_order(graph):
        assert set(node.inputs) <= seen
        seen.add(node.output)
