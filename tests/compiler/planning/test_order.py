"""Orders that keep few bytes live."""

from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.planning.order import memory_order, memory_roots, peak_bytes


def peak(graph, order):
    return peak_bytes(graph, order, memory_roots(graph, order))


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
    assert peak(graph, order) < 2 * 1000 * 8 * 4
    assert peak(graph, graph.order()) >= 4 * 1000 * 8 * 4


ROW = 1000 * 4  # bytes


def concatenations(parts):
    """Multiply two concatenations of four rows; ``parts`` makes a row of each."""
    graph = Graph()
    x = graph.add_input("x", "float32", (4, 1000))
    rows = []
    for item in range(4):
        row = graph.add_node("SLICE", [x], {"axis": 0, "start": item, "stop": item + 1})
        wide = graph.add_node("EXPAND", [row], {"shape": (8, 1000)})
        rows.append(parts(graph, graph.add_node("EXP", [wide])))
    first, second = zip(*rows, strict=True)
    late = graph.add_node("CAT", second, {"axis": 0})  # the graph's order begins both at once
    early = graph.add_node("CAT", first, {"axis": 0})
    product = graph.add_node("MUL", [early, late])
    graph.set_outputs([graph.add_node("SUM", [product], {"axes": (0, 1)})])
    return graph


def test_a_concat_buffer_is_filled_before_the_next_is_begun():
    def parts(graph, wide):
        first = graph.add_node("SUM", [wide], {"axes": (0,), "keepdim": True})
        return first, graph.add_node("NEG", [first])

    graph = concatenations(parts)
    assert peak(graph, memory_order(graph)) == (4 + 8) * ROW
    assert peak(graph, graph.order()) == (4 + 8 + 4) * ROW


def test_concat_buffers_are_begun_at_once_where_that_keeps_less():
    def parts(graph, wide):
        attrs = {"axes": (0,), "keepdim": True}
        return graph.add_node("SUM", [wide], attrs), graph.add_node("AMAX", [wide], attrs)

    graph = concatenations(parts)
    assert peak(graph, memory_order(graph)) == (4 + 8 + 4) * ROW


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
