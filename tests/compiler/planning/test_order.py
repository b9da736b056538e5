"""Orders that keep few bytes live."""

import pytest

from branching_graphs import branching
from random_graphs import random_graph
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.memory_budget import fit
from taper_frontend.compiler.planning import make_plan, make_schedule
from taper_frontend.compiler.planning.fitted import lay_out
from taper_frontend.compiler.planning.order import bytes_at_steps, memory_roots, schedule_as
from taper_frontend.compiler.planning.search_order import search_order
from taper_runtime.base.errors import InternalError
from taper_runtime.native import _kernels


def live_bytes(graph, order):
    order = list(order)
    nbytes = {name: graph.nbytes(name) for name in graph.producers}
    return bytes_at_steps(graph, order, memory_roots(graph, order), nbytes)


def peak(graph, order):
    return max(live_bytes(graph, order))


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
    order = make_schedule(graph).order
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
    assert peak(graph, make_schedule(graph).order) == (4 + 8) * ROW
    assert peak(graph, graph.order()) == (4 + 8 + 4) * ROW


def test_concat_buffers_are_begun_at_once_where_that_keeps_less():
    def parts(graph, wide):
        attrs = {"axes": (0,), "keepdim": True}
        return graph.add_node("SUM", [wide], attrs), graph.add_node("AMAX", [wide], attrs)

    graph = concatenations(parts)
    assert peak(graph, make_schedule(graph).order) == (4 + 8 + 4) * ROW


def test_order_is_topological():
    graph = Graph()
    x = graph.add_input("x", "float32", (4, 4))
    a = graph.add_node("EXP", [x])
    b = graph.add_node("MATMUL", [a, x])
    c = graph.add_node("ADD", [a, b])
    graph.set_outputs([graph.add_node("MATMUL", [c, b])])
    seen = set(graph.inputs)
    for node in make_schedule(graph).order:
        assert set(node.inputs) <= seen
        seen.add(node.output)


def branches(count):
    """Sums of wide tensors that all read one, and one that reads it after them."""
    graph = Graph()
    x = graph.add_input("x", "float32", (8,))
    wide = graph.add_node("EXP", [graph.add_node("EXPAND", [x], {"shape": (1000, 8)})], name="wide")
    total = graph.add_node("SUM", [wide], {"axes": (0, 1)})
    for _ in range(count):
        other = graph.add_node("EXP", [graph.add_node("EXPAND", [x], {"shape": (2000, 8)})])
        total = graph.add_node("ADD", [total, graph.add_node("SUM", [other], {"axes": (0, 1)})])
    late = graph.add_node("MUL", [wide, total], name="late")
    graph.set_outputs([graph.add_node("SUM", [late], {"axes": (0, 1)}, name="sum")])
    return graph


def test_a_schedule_tells_the_peak_and_where_it_is():
    graph = branches(2)
    schedule = make_schedule(graph)
    live = live_bytes(graph, schedule.order)
    assert schedule.peak == max(live) == live[schedule.at]
    assert max(live[: schedule.at]) < schedule.peak


def test_a_graph_can_change_while_the_peak_is_known():
    """As a pass does that computes again what is long kept: then the peak is less."""
    graph = branches(2)
    schedule = make_schedule(graph)
    again = graph.add_node("EXP", [graph.add_node("EXPAND", ["x"], {"shape": (1000, 8)})])
    graph.rewire_input(graph.nodes["late"], 0, again)
    with pytest.raises(InternalError, match="has changed since it was scheduled"):
        make_plan(graph, schedule)
    less = make_schedule(graph)
    assert less.peak < schedule.peak
    plan = make_plan(graph, less)
    assert [node.output for node in plan.nodes] == [node.output for node in less.order]


def test_blocks_are_scheduled_with_their_node():
    graph = Graph()
    x = graph.add_input("x", "float32", (4,))
    predicate = graph.add_input("p", "bool", ())
    blocks = []
    for op in ("EXP", "NEG"):
        block = graph.new_block()
        y = block.add_input("y", "float32", (4,))
        block.set_outputs([block.add_node(op, [block.add_node("TANH", [y])])])
        blocks.append(block)
    graph.set_outputs(graph.add_multi_output("IF", [predicate, x], blocks=blocks))
    schedule = make_schedule(graph)
    ((node, inside),) = schedule.inside.items()
    assert graph.nodes[node].op == "IF"
    assert [block.order[-1].op for block in inside] == ["EXP", "NEG"]
    make_plan(graph, schedule)


@pytest.mark.parametrize("seed", range(6))
def test_searched_order_has_each_node_after_what_it_needs(seed):
    graph = random_graph(seed)
    order = search_order(graph, graph.order(), {})
    schedule_as(graph, order).check(graph)
    done = set()
    for node in order:
        assert {name for name in graph.needs(node) if name in graph.producers} <= done
        done |= {*node.outputs}


def test_search_finds_what_greedy_orders_miss():
    """The solver of `test_order_beside_solver` proves these bytes for this graph."""
    scratch = 8192 if _kernels.active_isa() == "avx512" else 0  # more than other levels'
    graph, optimum = branching(1, 30), 43520 + scratch
    compile_graph(graph, (), output_names=["out"])
    natural = lay_out(graph, make_schedule(graph))
    fitted = fit(natural, int(1.01 * optimum), None, lambda other: True)
    assert natural.arena.nbytes > 1.2 * optimum
    assert fitted.arena.nbytes <= 1.01 * optimum
    assert [move.kind for move in fitted.moves] == ["order"]


def test_search_keeps_scratch_apart():
    """Scratch of one node alone decides which of two branches is computed first."""
    graph = Graph()
    x = graph.add_input("x", "float32", (16,))
    wide = [graph.add_node("EXPAND", [x], {"shape": (100, 16)}) for _ in range(2)]
    first, second = (graph.add_node("EXP", [each]) for each in wide)
    sums = [graph.add_node("SUM", [each], {"axes": (0,)}) for each in (first, second)]
    graph.set_outputs([graph.add_node("ADD", sums)])
    for early, late in ((first, second), (second, first)):
        order = [node.output for node in search_order(graph, graph.order(), {early: 1 << 20})]
        assert order.index(early) < order.index(late)
