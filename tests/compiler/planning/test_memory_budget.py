"""Plans that fit in a budget: the same bits, and the arena that a session has."""

import heapq

import numpy as np
import pytest

from branching_graphs import skips
from graph_checks import Builder, floats, random_inputs, shrink_cache
from marks import thinned
from random_graphs import random_graph
from taper_frontend.compiler import memory_budget
from taper_frontend.compiler.compile import compile_graph, fuse_again
from taper_frontend.compiler.memory_budget import fit, lay_out, report
from taper_frontend.compiler.planning import make_plan, make_schedule
from taper_frontend.compiler.planning.tile_regions import tiled_regions
from taper_runtime import InferenceSession
from taper_runtime.executor.memory_use import memory_use


def natural_of(graph, passes=None):
    """The graph as planned without a budget, and before its nodes were fused."""
    unfused = []
    names = [f"out{i}" for i in range(len(graph.outputs))]
    compile_graph(
        graph, passes, output_names=names, before_fusion=lambda each: unfused.append(each.copy())
    )
    return lay_out(graph, make_schedule(graph)), unfused


def run(fitted, feeds):
    """The plan of a graph, and its results."""
    plan = make_plan(fitted.graph, fitted.schedule)
    return plan, InferenceSession(plan).run(None, feeds)


def never(fitted):
    raise AssertionError("recomputation of whole nodes gives the same bits")


@pytest.mark.parametrize("seed", thinned(4, range(18)))
def test_random_graphs_in_budgets(seed, monkeypatch):
    shrink_cache(monkeypatch, 256)
    graph = random_graph(seed)
    natural, unfused = natural_of(graph)
    feeds = random_inputs(graph, seed)
    budget = max(1, int(natural.arena.nbytes * (0.9, 0.6, 0.0)[seed % 3]))
    fitted = fit(
        natural,
        budget,
        lambda room: fuse_again(unfused[0], None, room, graph.outputs),
        lambda other: all(
            np.array_equal(a, b, equal_nan=True)
            for a, b in zip(run_copy(natural, feeds)[1], run_copy(other, feeds)[1], strict=True)
        ),
    )
    fitted.graph.verify()
    before, expected = run_copy(natural, feeds)
    plan, results = run(fitted, feeds)
    assert memory_use(plan).arena == fitted.arena.nbytes <= natural.arena.nbytes
    assert memory_use(before).arena == natural.arena.nbytes
    told = report(natural, fitted, budget)
    assert told["natural"] - told["achieved"] == sum(move["bytes"] for move in told["moves"])
    for want, got in zip(expected, results, strict=True):
        assert want.tobytes() == got.tobytes()


def run_copy(fitted, feeds):
    """The plan and the results of a graph that stays as it is."""
    graph = fitted.graph.copy()
    order = tuple(graph.nodes[node.output] for node in fitted.schedule.order)
    return run(fitted._replace(graph=graph, schedule=fitted.schedule._replace(order=order)), feeds)


def long_skip(width=8192):
    """A tensor that is made first and read last, over a chain of products that is small there."""
    b = Builder()
    x = b.input("x", 1, width)
    skip = b.op("EXP", x)
    y = b.op("MATMUL", skip, b.constant(floats(width, 8)))
    for _ in range(3):
        y = b.op("MATMUL", y, b.constant(floats(8, 8)))
    y = b.op("MATMUL", y, b.constant(floats(8, width)))
    y = b.op("MATMUL", y, b.constant(floats(width, 8)))
    y = b.op("MATMUL", y, b.constant(floats(8, width)))
    return b.done(b.op("MUL", y, skip))


def test_recomputation_alone_meets_60_percent():
    graph = long_skip()
    natural, _ = natural_of(graph, ())
    budget = int(0.6 * natural.arena.nbytes)
    fitted = fit(natural, budget, None, never)
    assert fitted.arena.nbytes <= budget
    assert {move.kind for move in fitted.moves} == {"recompute"}
    assert [node.op for node in fitted.schedule.order].count("EXP") == 2
    feeds = random_inputs(graph)
    _, expected = run(natural, feeds)
    plan, results = run(fitted, feeds)
    assert memory_use(plan).arena == fitted.arena.nbytes
    assert expected[0].tobytes() == results[0].tobytes()
    session = InferenceSession(plan)
    session.run(None, feeds)
    assert session.stats().layout.arena_bytes == fitted.arena.nbytes


def residual_blocks(height=24, width=8):
    """Blocks that add what they read, wide between a narrow beginning and a narrow end."""
    b = Builder()
    y = b.input("x", 1, height, width, 2)
    window = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    y = b.op("MATMUL", y, b.constant(floats(2, 64)))
    for _ in range(2):
        z = b.op("MATMUL", y, b.constant(floats(64, 8)))
        z = b.op("CONV", z, b.constant(floats(3, 3, 8, 8)), **window)
        y = b.op("ADD", b.op("MATMUL", z, b.constant(floats(8, 64))), y)
    return b.done(b.op("MATMUL", y, b.constant(floats(64, 2))))


def test_residual_blocks_are_computed_in_parts():
    """No split of a chain helps: a node reads and writes whole wide tensors."""
    graph = residual_blocks()
    natural, _ = natural_of(graph)
    budget = int(0.6 * natural.arena.nbytes)
    fitted = fit(natural, budget, None, lambda other: True)
    assert fitted.arena.nbytes <= budget
    assert {move.kind for move in fitted.moves} == {"tile"}
    assert sum(move.ns for move in fitted.moves) >= 0
    feeds = random_inputs(graph)
    _, expected = run(natural, feeds)
    plan, results = run(fitted, feeds)
    assert memory_use(plan).arena == fitted.arena.nbytes
    assert expected[0].tobytes() == results[0].tobytes()
    # a neighbour of two parts is computed once in each, and only what a part needs
    convolutions = [node for node in fitted.schedule.order if node.op == "CONV"]
    rows = [fitted.graph.tensors[node.output].shape[1] for node in convolutions]
    assert sum(rows) < 2 * 24 * 2


def test_regions_of_a_strangers_forms_are_left_alone():
    """Rows of softmax over rows cannot be cut, and a region has one result alone."""
    b = Builder()
    x = b.input("x", 1, 16, 64)
    y = b.op("EXP", x)
    z = b.op("SOFTMAX", y, axis=1)
    graph = b.done(z, b.op("MATMUL", y, b.constant(floats(64, 64))))
    natural, _ = natural_of(graph, ())
    assert tiled_regions(graph, natural.schedule.order, natural.arena, 1) == []


def test_a_budget_that_is_large_enough_changes_nothing():
    natural, _ = natural_of(long_skip(), ())
    assert fit(natural, natural.arena.nbytes, never, never) is natural


def test_a_form_with_other_bits_is_not_used():
    natural, _ = natural_of(long_skip(), ())
    asked = []

    def smaller(room):
        form = long_skip(64)
        compile_graph(form, (), output_names=["out0"])
        return form

    def refuse(fitted):
        asked.append({move.kind for move in fitted.moves})
        return False

    assert {"split"} == {move.kind for move in fit(natural, 20_000, smaller, lambda _: True).moves}
    fitted = fit(natural, 20_000, smaller, refuse)
    assert asked == [{"split"}]
    assert {move.kind for move in fitted.moves} == {"recompute"}


def test_trials_are_bounded(monkeypatch):
    laid_out = []
    original = memory_budget.lay_out_graph

    def counted(graph, schedule):
        laid_out.append(graph)
        return original(graph, schedule)

    monkeypatch.setattr(memory_budget, "lay_out_graph", counted)
    graph = random_graph(7)
    natural, unfused = natural_of(graph)
    fit(
        natural,
        1,
        lambda room: fuse_again(unfused[0], None, room, graph.outputs),
        lambda other: False,
    )
    forms = 1 + memory_budget.MOST_FORMS
    most = 1 + 4 * forms + memory_budget.MOST_TRIALS * forms
    assert len(laid_out) <= most + 4 + memory_budget.MOST_TRIALS  # again without parts


# -- beside the optimum ------------------------------------------------------------------------


def least_peak(natural):
    """The least peak of any order, with any nodes computed any number of times.

    A state is the set of tensors that are in memory; Dijkstra's algorithm finds the way to the last
    node whose largest state is smallest.
    """
    arena, graph = natural.arena, natural.graph
    names = [name for name in arena.steps if name in graph.nodes]
    number = {name: i for i, name in enumerate(names)}

    def source(name):
        while name in graph.producers and name not in number:
            name = graph.producers[name].inputs[0]
        return name

    needs = []
    for name in names:
        sources = {source(each) for each in graph.nodes[name].reads}
        needs.append(sum(1 << number[each] for each in sources if each in number))
    size = [arena.ranges[name].nbytes if name in arena.ranges else 0 for name in names]
    scratch = [arena.scratch[arena.steps[name]] for name in names]
    last = 1 << (len(names) - 1)
    best, heap = {0: 0}, [(0, 0)]
    while heap:
        peak, state = heapq.heappop(heap)
        if state & last:
            return peak
        if best[state] < peak:
            continue
        live = sum(size[i] for i in range(len(names)) if state >> i & 1)
        following = [(peak, state & ~(1 << i)) for i in range(len(names)) if state >> i & 1]
        following += [
            (max(peak, live + size[i] + scratch[i]), state | 1 << i)
            for i in range(len(names))
            if not state >> i & 1 and state & needs[i] == needs[i]
        ]
        for cost, after in following:
            if cost < best.get(after, 1 << 62):
                best[after] = cost
                heapq.heappush(heap, (cost, after))
    raise AssertionError("no way to the output")


@pytest.mark.parametrize("seed", thinned(3, range(6)))
def test_near_the_optimum(seed):
    natural, _ = natural_of(skips(seed, 9), ())
    optimum = least_peak(natural)
    fitted = fit(natural, optimum, None, never)
    assert optimum <= fitted.arena.nbytes <= 1.05 * optimum
