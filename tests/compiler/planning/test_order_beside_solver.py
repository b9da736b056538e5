"""Peaks of orders beside the least ones that a constraint solver finds and proves."""

from itertools import combinations

import pytest

from branching_graphs import branching
from marks import REFERENCE
from solving import solved
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.memory_budget import fit
from taper_frontend.compiler.planning import make_schedule
from taper_frontend.compiler.planning.fitted import lay_out, lay_out_orders
from taper_frontend.compiler.planning.order import schedule_as
from taper_runtime.base.checks import aligned
from taper_runtime.ops import REGISTRY

pytestmark = REFERENCE

#: What the solver may do for one graph, in its own deterministic seconds.
EFFORT = 60.0


class NodeMemory:
    """What each node of a graph without views needs, by the planner's rules of liveness."""

    def __init__(self, natural):
        graph, arena = natural.graph, natural.arena
        self.names = list(arena.steps)
        number = {name: i for i, name in enumerate(self.names)}
        nodes = [graph.nodes[name] for name in self.names]
        self.inputs = [{number[each] for each in node.reads if each in number} for node in nodes]
        self.readers = [
            {i for i, inputs in enumerate(self.inputs) if j in inputs} for j in range(len(nodes))
        ]
        self.size = [
            0 if graph.is_output(name) else aligned(graph.tensors[name].nbytes)
            for name in self.names
        ]
        self.scratch = [arena.scratch[arena.steps[name]] for name in self.names]
        # inputs over which a node may compute, if nothing reads them afterwards
        self.over = [
            {
                number[node.inputs[place]]
                for place in REGISTRY[node.op].inplace
                if place < len(node.inputs)
                and node.inputs[place] in number
                and graph.tensors[node.inputs[place]].type == graph.tensors[node.output].type
            }
            for node in nodes
        ]

    def peak(self, order):
        """The most bytes that are live at once."""
        at = {i: step for step, i in enumerate(order)}
        last = [max([at[i], *map(at.__getitem__, self.readers[i])]) for i in range(len(order))]
        first = [at[i] + any(last[j] == at[i] for j in self.over[i]) for i in range(len(order))]
        return max(
            self.scratch[order[step]] + sum(self.size[i] for i in at if first[i] <= step <= last[i])
            for step in range(len(order))
        )


def least(memory, order):
    """The order with the least peak, and a bound below which no peak is.

    ``before[i, j]`` says that node i runs before node j; three nodes never form a cycle. A tensor
    is in memory at a node that runs after its own and not after all of its readers.
    """
    from ortools.sat.python import cp_model

    model, count = cp_model.CpModel(), len(order)
    before = {}
    for j in range(count):
        for i in range(j):
            before[i, j] = model.new_bool_var(f"before{i},{j}")
            before[j, i] = before[i, j].negated()
    for j, above in enumerate(closure(memory.inputs)):
        for i in above:
            model.add(before[i, j] == 1)
    for i, j, k in combinations(range(count), 3):
        model.add_bool_or(before[j, i], before[k, j], before[i, k])
        model.add_bool_or(before[i, j], before[j, k], before[k, i])
    peak = model.new_int_var(0, memory.peak(order) // 64, "peak")
    for k in range(count):
        over = []
        for j in memory.over[k]:
            over.append(model.new_bool_var(f"over{j},{k}"))
            for r in memory.readers[j] - {k}:
                model.add_implication(over[-1], before[r, k])
        model.add_at_most_one(over)
        needed = [memory.scratch[k] // 64, memory.size[k] // 64 * (1 - sum(over))]
        for i in range(count):
            if i == k or not memory.size[i]:
                continue
            if k in memory.readers[i]:
                needed.append(memory.size[i] // 64)
                continue
            live = model.new_bool_var(f"live{i},{k}")
            for r in memory.readers[i]:
                model.add_bool_or(before[k, i], before[r, k], live)
            needed.append(memory.size[i] // 64 * live)
        model.add(sum(needed) <= peak)
    model.minimize(peak)
    at = {i: step for step, i in enumerate(order)}
    for (i, j), literal in before.items():
        if i < j:
            model.add_hint(literal, at[i] < at[j])
    solver = solved(model, EFFORT)
    place = [
        sum(solver.boolean_value(before[i, j]) for i in range(count) if i != j)
        for j in range(count)
    ]
    return sorted(range(count), key=place.__getitem__), 64 * round(solver.best_objective_bound)


def closure(edges):
    """All that can be reached from each node."""
    found = [set() for _ in edges]
    for _ in edges:
        for i, to in enumerate(edges):
            found[i] |= to.union(*(found[j] for j in to))
    return found


@pytest.mark.parametrize("count", [10, 20, 30, 40, 50, 60])
@pytest.mark.parametrize("seed", range(4))
def test_arena_is_within_5_percent_of_the_optimum(seed, count):
    graph = branching(seed, count)
    compile_graph(graph, (), output_names=["out"])
    natural = lay_out(graph, make_schedule(graph))
    memory = NodeMemory(natural)

    def numbers(fitted):
        return [memory.names.index(node.output) for node in fitted.schedule.order]

    # the model has the planner's rules
    assert memory.peak(numbers(natural)) == max(natural.arena.live)
    fitted = fit(natural, 1, None, lambda other: True)
    ordered = min([natural, *lay_out_orders(graph)], key=lambda each: each.arena.nbytes)
    order, bound = least(memory, numbers(ordered))
    optimum = memory.peak(order)
    assert optimum == bound  # proved
    nodes = [graph.nodes[memory.names[i]] for i in order]
    assert max(lay_out(graph, schedule_as(graph, nodes)).arena.live) == optimum
    assert optimum <= max(ordered.arena.live)
    assert ordered.arena.nbytes <= 1.05 * optimum
    assert fitted.arena.nbytes <= ordered.arena.nbytes
