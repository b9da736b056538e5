"""Times of plans in memory budgets beside the least ones, which a constraint solver bounds."""

import pytest

from branching_graphs import nested_skips
from marks import REFERENCE
from solving import solved
from taper_frontend.compiler.analysis.estimates import placed_cost
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.memory_budget import fit
from taper_frontend.compiler.planning import make_schedule
from taper_frontend.compiler.planning.fitted import lay_out

pytestmark = REFERENCE

#: What the solver may do for one graph, in its own deterministic seconds.
EFFORT = 30.0


class NodeTimes:
    """Inputs, bytes and nanoseconds of the nodes of a graph whose nodes share no memory."""

    def __init__(self, natural, order):
        graph, arena = natural.graph, natural.arena
        number = {name: i for i, name in enumerate(order)}

        def source(name):
            while name in graph.producers and name not in number:
                name = graph.producers[name].inputs[0]  # of a view
            return number.get(name)

        found = [{source(each) for each in graph.nodes[name].reads} for name in order]
        self.inputs = [sorted(each - {None}) for each in found]
        self.readers = [
            [j for j, each in enumerate(self.inputs) if i in each] for i in number.values()
        ]
        self.size = [arena.ranges[name].nbytes if name in arena.ranges else 0 for name in order]
        self.scratch = [arena.scratch[arena.steps[name]] for name in order]
        self.ns = [placed_cost(graph, graph.nodes[name]) for name in order]


def least_ns(times, budget):
    """A bound below which no time is, of plans that fit in a budget and keep the nodes' order.

    As in Jain et al., "Checkmate: breaking the memory wall with optimal tensor rematerialization",
    2020: stage t computes node t for the first time. Before it, nodes may be computed again, in
    order (``again``); ``kept`` are those whose results are in memory when a stage begins. A node is
    computed again only in the stage of a reader that did not just follow it, since it could wait.
    """
    from ortools.sat.python import cp_model

    model, count = cp_model.CpModel(), len(times.ns)
    again, kept = {}, {}
    for t in range(count):
        again[t, t] = model.new_constant(1)
        waits = any(i < t - 1 for i in times.inputs[t])
        above = ancestors(times.inputs, t) if waits else ()
        for i in range(t):
            kept[t, i] = model.new_bool_var(f"kept{t},{i}")
            if i in above:
                again[t, i] = model.new_bool_var(f"again{t},{i}")
    for (t, j), computed in again.items():
        for i in times.inputs[j]:
            there = [kept[t, i], again[t, i]] if (t, i) in again else [kept[t, i]]
            model.add_bool_or(computed.negated(), *there)
    for (t, i), literal in kept.items():
        before = [each[t - 1, i] for each in (kept, again) if (t - 1, i) in each]
        model.add_bool_or(literal.negated(), *before)
    for (t, k), computed in again.items():
        needed = [times.scratch[k] + times.size[k]]
        for i in range(count):
            there = [
                each[t, i] for each in (kept, again) if (t, i) in each and (each is kept or i < k)
            ]
            if i == k or not times.size[i] or not there:
                continue
            later = [again[t, j] for j in times.readers[i] if (t, j) in again and j >= k]
            later += [kept[t + 1, i]] if (t + 1, i) in kept else []
            live = model.new_bool_var(f"live{t},{k},{i}")
            for one in there:
                for other in later:
                    model.add_bool_or(one.negated(), other.negated(), live)
            needed.append(times.size[i] * live)
        if k == t:
            model.add(sum(needed) <= budget)
        else:
            model.add(sum(needed) <= budget).only_enforce_if(computed)
    ns = [round(each) for each in times.ns]
    model.minimize(sum(ns[i] * literal for (_, i), literal in again.items()))
    return solved(model, EFFORT).best_objective_bound


def ancestors(inputs, node):
    """All nodes that a node needs, directly or not."""
    found, left = set(), list(inputs[node])
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += inputs[each]
    return found


@pytest.mark.parametrize("count", [20, 30, 40])
@pytest.mark.parametrize("seed", range(2))
def test_time_in_a_budget_is_within_5_percent_of_the_optimum(seed, count):
    graph = nested_skips(seed, count)
    compile_graph(graph, (), output_names=["out"])
    natural = lay_out(graph, make_schedule(graph))
    fitted = fit(natural, int(0.7 * natural.arena.nbytes), None, lambda other: True)
    # the order in which nodes, or what replaces them, run first
    names = dict.fromkeys(node.output.split(".again")[0] for node in fitted.schedule.order)
    order = [name for name in names if name in natural.arena.steps]
    times = NodeTimes(natural, order)
    assert sum(times.ns) == pytest.approx(natural.ns)
    bound = least_ns(times, fitted.arena.nbytes)
    assert natural.ns < 1.01 * bound < 1.02 * fitted.ns
    assert fitted.ns <= 1.05 * bound
