"""Times of plans in memory budgets beside the least ones, which a linear program bounds."""

from itertools import product

import pytest

from branching_graphs import nested_skips
from marks import REFERENCE
from taper_frontend.compiler.analysis.estimates import placed_cost
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.memory_budget import fit
from taper_frontend.compiler.planning import make_schedule
from taper_frontend.compiler.planning.fitted import lay_out

pytestmark = REFERENCE


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
    2020: stage t computes node t for the first time, and before it nodes again (``again``) if t has
    inputs that did not just precede it; ``kept`` are those whose results are in memory when a stage
    begins. Of a stage's memory only what each plan has counts: a node's inputs, result and scratch,
    and what is in memory before and after (``through``). Variables may take values between 0 and 1.
    Both can only make the least time less, and a linear program of O(n^2) variables remains.
    """
    from ortools.linear_solver import pywraplp

    program = pywraplp.Solver.CreateSolver("GLOP")
    count, every = len(times.ns), sum(times.size)
    kept, again, through = {}, {}, {}
    for t in range(count):
        waits = any(i < t - 1 for i in times.inputs[t])
        again |= {(t, i): program.NumVar(0, 1, "") for i in ancestors(times.inputs, t) if waits}
        kept |= {(t, i): program.NumVar(0, 1, "") for i in range(t)}
    there = {place: each + again.get(place, 0) for place, each in kept.items()}

    def needed(k):
        return times.scratch[k] + times.size[k] + sum(times.size[i] for i in times.inputs[k])

    for (t, i), each in kept.items():
        if i < t - 1:
            program.Add(each <= there[t - 1, i])
        if (t + 1, i) in kept:
            through[t, i] = program.NumVar(0, 1, "")
            last = 1 if i in times.inputs[t] else kept[t + 1, i]
            program.Add(through[t, i] >= each + last - 1)
    for t in range(count):
        for i in times.inputs[t]:
            program.Add(there[t, i] >= 1)
        others = set(range(t)) - set(times.inputs[t])
        after = sum(times.size[i] * kept[t + 1, i] for i in others if (t + 1, i) in kept)
        program.Add(after <= budget - needed(t))
    for (t, k), computed in again.items():
        program.Add(there[t, k] <= 1)
        for i in times.inputs[k]:
            program.Add(there[t, i] >= computed)
        others = set(range(t)) - {k, *times.inputs[k]}
        beside = sum(times.size[i] * through[t, i] for i in others if (t, i) in through)
        program.Add(beside <= budget - needed(k) + every * (1 - computed))
    program.Minimize(sum(times.ns) + sum(times.ns[i] * each for (_, i), each in again.items()))
    assert program.Solve() == program.OPTIMAL
    return program.Objective().Value()


def ancestors(inputs, node):
    """All nodes that a node needs, directly or not."""
    found, left = set(), list(inputs[node])
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += inputs[each]
    return found


#: Numbers of nodes, and budgets as shares of the natural arena that graphs of so many can meet.
CASES = [(20, 0.85), (30, 0.85), (30, 0.72), *product([40, 50, 60], [0.85, 0.7, 0.65, 0.6])]


@pytest.mark.parametrize(("count", "share"), CASES)
@pytest.mark.parametrize("seed", range(2))
def test_time_in_a_budget_is_within_5_percent_of_the_optimum(seed, count, share):
    graph = nested_skips(seed, count)
    compile_graph(graph, (), output_names=["out"])
    natural = lay_out(graph, make_schedule(graph))
    budget = int(share * natural.arena.nbytes)
    fitted = fit(natural, budget, None, lambda other: True)
    assert fitted.arena.nbytes <= budget
    # the order in which nodes, or what replaces them, run first
    names = dict.fromkeys(node.output.split(".again")[0] for node in fitted.schedule.order)
    order = [name for name in names if name in natural.arena.steps]
    times = NodeTimes(natural, order)
    assert sum(times.ns) == pytest.approx(natural.ns)
    bound = least_ns(times, budget)
    assert 1.01 * natural.ns < bound < 1.001 * fitted.ns
    assert fitted.ns <= 1.05 * bound
