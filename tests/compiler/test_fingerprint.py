"""Names of graphs: one for equal ones, in every process; another after any change."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from random_graphs import random_graph
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.graph.constants import Parameter, derived, literal
from taper_frontend.compiler.graph.fingerprint import fingerprint
from taper_frontend.compiler.planning import make_plan
from taper_runtime.base.sizes import variable
from taper_runtime.ops.opdef import TensorType

SEEDS = range(20)


def rewire(graph, rng):
    """Have a node read another tensor of the type of one that it reads."""
    places = [
        (node, index, name)
        for node in graph.order()
        for index, old in enumerate(node.inputs)
        for name in graph.inputs
        if name != old and graph.tensors[name].type == graph.tensors[old].type
    ]
    if not places:
        return False
    node, index, name = places[rng.integers(len(places))]
    graph.rewire_input(node, index, name)
    return True


def number(graph, rng):
    """Change the number among a node's operands, by the least amount."""
    nodes = [node for node in graph.order() if type(node.attrs.get("scalar")) is float]
    if not nodes:
        return False
    node = nodes[rng.integers(len(nodes))]
    scalar = float(np.nextafter(node.attrs["scalar"], 9))
    graph.replace_node(node, node.op, node.inputs, {**node.attrs, "scalar": scalar})
    return True


def literal_value(graph, rng):
    """Change one element of one constant."""
    names = [name for name, constant in graph.constants.items() if constant.nbytes]
    if not names:
        return False
    name = names[rng.integers(len(names))]
    array = graph.constants[name].value().copy()
    index = rng.integers(array.size)
    old = array.reshape(-1)[index]
    array.reshape(-1)[index] = not old if array.dtype == np.bool_ else old + 1
    graph.constants[name] = literal(array)
    return True


def rename(graph, rng):
    names = [node.output for node in graph.order()]
    graph.rename({names[rng.integers(len(names))]: "renamed"})
    return True


def add(graph, rng):
    graph.set_outputs([*graph.outputs, graph.add_node("NEG", [graph.outputs[0]])])
    return True


def repeat(graph, rng):
    graph.set_outputs([*graph.outputs, graph.outputs[0]])
    return True


def add_input(graph, rng):
    graph.add_input("more", "float32", (1,))
    return True


def add_state(graph, rng):
    graph.add_state("kept", np.zeros(2, np.float32))
    return True


def add_size(graph, rng):
    graph.sizes["rows"], graph.examples["rows"] = (1, 9), 3
    return True


CHANGES = [rewire, number, literal_value, rename, add, repeat, add_input, add_state, add_size]


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_graphs_have_one_name_and_changed_ones_others(seed):
    graph, again = random_graph(seed), random_graph(seed)
    name = fingerprint(graph)
    assert fingerprint(again) == fingerprint(graph.copy()) == name
    names = {name}
    made = 0
    for change in CHANGES:
        changed = graph.copy()
        if change(changed, np.random.default_rng(seed)):
            made += 1
            names.add(fingerprint(changed))
    assert made >= 6
    assert len(names) == 1 + made
    assert fingerprint(graph) == name, "a copy's changes are not the graph's"
    compile_graph(again)
    assert again.nodes.keys() == graph.nodes.keys() or fingerprint(again) != name


def test_names_that_are_equal_are_of_graphs_with_equal_plans():
    plans = [random_graph(seed) for seed in (3, 3, 4)]
    names = [fingerprint(graph) for graph in plans]
    for graph in plans:
        compile_graph(graph)
    first, second, other = (make_plan(graph).fingerprint() for graph in plans)
    assert (names[0] == names[1]) == (first == second) == True  # noqa: E712
    assert names[2] != names[0]
    assert other != first


def test_every_process_gives_the_same_names():
    code = """
from random_graphs import random_graph
from taper_frontend.compiler.graph.fingerprint import fingerprint
print(*[fingerprint(random_graph(seed)) for seed in range(4)])
"""
    support = str(Path(__file__).parents[1] / "support")
    environment = {**os.environ, "PYTHONPATH": support, "PYTHONHASHSEED": "77"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == [fingerprint(random_graph(seed)) for seed in range(4)]


WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)


def parameter(array=WEIGHT, **changes):
    fields = {"type": TensorType("float32", (2, 3)), "names": ("w",), "read": lambda: array}
    return Parameter(**{**fields, **changes})


def reading(constant):
    graph = Graph()
    x = graph.add_input("x", "float32", constant.shape)
    graph.set_outputs([graph.add_node("ADD", [x, graph.add_constant("c", constant)])])
    return fingerprint(graph)


def test_constants_are_named_by_what_they_are_made_of():
    def product(weight, other=2.0, **attrs):
        scaled = derived("MUL", [weight, literal(np.full((2, 3), other, np.float32))])
        return derived("RESHAPE", [scaled], {"shape": attrs.get("shape", (3, 2))})

    same = reading(product(parameter()))
    assert same == reading(product(parameter(WEIGHT.copy())))
    other = WEIGHT.copy()
    other[1, 2] = np.nextafter(other[1, 2], 9)
    signed = WEIGHT.copy()
    signed[0, 0] = -0.0
    changed = [
        product(parameter(other)),
        product(parameter(signed)),
        product(parameter(names=("v",))),
        product(parameter(kind="buffer")),
        product(parameter(is_replaceable=True)),
        product(parameter(), 3.0),
        product(parameter(), shape=(6,)),
        product(literal(WEIGHT)),
        derived("RESHAPE", [parameter()], {"shape": (3, 2)}),
    ]
    names = [reading(constant) for constant in changed]
    assert len({same, *names}) == 1 + len(changed)


def sized(limits=(1, 8), example=2, shape=None, first=0.0):
    graph = Graph()
    n = variable("n", *limits)
    graph.sizes["n"], graph.examples["n"] = limits, example
    x = graph.add_input("x", "float32", shape or (n, 4))
    state = graph.add_state("s", np.full(4, first, np.float32))
    graph.set_next("s", graph.add_node("NEG", [state]))
    graph.set_outputs([graph.add_node("ADD", [x, state])])
    return fingerprint(graph)


def test_sizes_and_states_are_in_the_name():
    names = [
        sized(), sized((1, 9)), sized((2, 8)), sized(example=3), sized(shape=(8, 4)),
        sized(first=1.0), sized(first=-0.0),
    ]  # fmt: skip
    assert len(set(names)) == len(names)
    assert sized() == names[0]


def branching(*ops):
    graph = Graph()
    x, p = graph.add_input("x", "float32", (4,)), graph.add_input("p", "bool", ())
    blocks = []
    for op in ops:
        block = graph.new_block()
        y = block.add_input("y", "float32", (4,))
        weight = block.add_constant("w", np.ones(4, np.float32))
        block.set_outputs([block.add_node("ADD", [block.add_node(op, [y]), weight])])
        blocks.append(block)
    graph.set_outputs(graph.add_multi_output("IF", [p, x], blocks=blocks))
    return fingerprint(graph)


def test_blocks_are_in_the_name():
    names = [branching("EXP", "NEG"), branching("NEG", "EXP"), branching("EXP", "EXP")]
    assert len(set(names)) == 3
    assert branching("EXP", "NEG") == names[0]
