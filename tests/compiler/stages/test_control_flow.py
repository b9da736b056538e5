"""Decided branches, loops of few steps, inputs of blocks, work that every step repeats."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts, random_inputs
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.stages import (
    hoist_invariants,
    inline_blocks,
    prune_operands,
    simplify_blocks,
)
from taper_runtime.base.sizes import variable


def loop(b, body, carries=("i", "x"), others=("y",), limit=3):
    """WHILE over a counter and vectors, whose body is ``body(block, i, *vectors)``."""
    names = [*carries, *others]
    test, inner = b.block(), b.block()
    specs = [b.graph.tensors[name] for name in names]
    given = [
        [block.graph.add_input(f"inner.{spec.name}", spec.dtype, spec.shape) for spec in specs]
        for block in (test, inner)
    ]
    test.done(test.op("LT", given[0][0], limit))
    inner.done(*body(inner, *given[1]))
    return b.flow("WHILE", *names, blocks=[test.graph, inner.graph], carries=len(carries))


def ends(b, *vectors):
    b.input("i", dtype="int64")
    for name in vectors:
        b.input(name, 3)
    return b


def branch(b, predicate, *inputs, then, otherwise):
    blocks = []
    for body in (then, otherwise):
        inner = b.block()
        for name in inputs:
            spec = b.graph.tensors[name]
            inner.graph.add_input(f"inner.{name}", spec.dtype, spec.shape)
        made = body(inner, *(f"inner.{name}" for name in inputs))
        blocks.append(inner.done(*([made] if isinstance(made, str) else made)))
    return b.flow("IF", predicate, *inputs, blocks=blocks)


def scan(b, body, carries, xs, others=()):
    inner = b.block()
    for name in (*carries, *xs, *others):
        dtype, shape, _ = b.graph.tensors[name].type
        inner.graph.add_input(f"inner.{name}", dtype, shape[1:] if name in xs else shape)
    inner.done(*body(inner, *(f"inner.{name}" for name in (*carries, *xs, *others))))
    names = (*carries, *xs, *others)
    return b.flow("SCAN", *names, blocks=[inner.graph], carries=len(carries), xs=len(xs))


@pytest.mark.parametrize("decided", [True, False])
def test_a_decided_branch_takes_the_place_of_the_op(decided):
    b = Builder()
    x = b.input("x", 3)
    predicate = b.constant(np.array(decided))
    (y,) = branch(
        b,
        predicate,
        x,
        then=lambda g, x: g.op("RELU", x),
        otherwise=lambda g, x: g.op("MUL", g.op("EXP", x), g.weight(3)),
    )
    graph = check_fires(inline_blocks, b.done(y))
    assert op_counts(graph) == ({"RELU": 1} if decided else {"EXP": 1, "MUL": 1})


def test_a_branch_that_gives_its_operand_becomes_a_copy_of_it():
    b = Builder()
    x = b.input("x", 3)
    outputs = branch(
        b,
        b.constant(np.array(True)),
        x,
        then=lambda g, x: (x, x),
        otherwise=lambda g, x: (x, g.op("EXP", x)),
    )
    graph = check_fires(inline_blocks, b.done(*outputs))
    assert op_counts(graph) == {"COPY": 2}


def test_a_branch_that_inputs_decide_stays():
    b = Builder()
    x = b.input("x", 3)
    predicate = b.input("p", dtype="bool")
    body = {"then": lambda g, x: g.op("RELU", x), "otherwise": lambda g, x: g.op("EXP", x)}
    check_keeps(inline_blocks, b.done(*branch(b, predicate, x, **body)))


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_scan_of_at_most_one_step_takes_the_place_of_the_op(steps):
    b = Builder()
    c, x = b.input("c", 3), b.input("x", steps, 3)
    graph = b.done(*scan(b, lambda g, c, x: (g.op("ADD", c, x), g.op("EXP", x)), [c], [x]))
    if steps == 2:
        check_keeps(inline_blocks, graph)
    else:
        assert "SCAN" not in op_counts(check_fires(inline_blocks, graph))


def test_a_scan_of_a_varying_number_of_steps_stays():
    b = Builder()
    b.graph.sizes["n"] = (0, 100)
    c, x = b.input("c", 3), b.input("x", variable("n", 1, 100), 3)
    graph = b.done(*scan(b, lambda g, c, x: (g.op("ADD", c, x),), [c], [x]))
    check_keeps(inline_blocks, graph)


def test_what_constants_decide_moves_into_the_blocks():
    b = ends(Builder(), "x")
    b.constant(floats(3), "y")
    graph = b.done(*loop(b, lambda g, i, x, y: (g.op("ADD", i, 1), g.op("MUL", x, y))))
    check_fires(prune_operands, graph)
    node = only(graph, "WHILE")
    assert node.inputs == ["i", "x"]
    assert [list(block.constants) for block in node.blocks] == [[], ["y"]]
    assert not graph.constants


def test_an_operand_is_given_once_and_only_if_it_is_read():
    b = ends(Builder(), "x", "y", "z")
    made = loop(
        b,
        lambda g, i, x, y, z, again: (g.op("ADD", i, 1), g.op("MUL", g.op("ADD", x, y), again)),
        others=("y", "z", "y"),
    )
    check_fires(prune_operands, b.done(*made))
    assert only(b.graph, "WHILE").inputs == ["i", "x", "y"]


def add_one(g, i, *rest):
    return (g.op("ADD", i, 1), *rest)


def test_a_carry_that_no_step_changes_is_none():
    b = ends(Builder(), "x", "y", "z")
    made = loop(
        b,
        lambda g, i, x, y, z: add_one(g, i, g.op("ADD", x, y), y),
        carries=("i", "x", "y"),
        others=("z",),
    )
    y = b.op("NEG", made[2])
    graph = check_fires(prune_operands, b.done(made[1], y))
    node = only(graph, "WHILE")
    assert (node.inputs, node.attrs["carries"]) == (["i", "x", "y"], 2)
    assert only(graph, "NEG").inputs == ["y"]


def test_a_carry_that_only_itself_needs_is_left_out():
    b = ends(Builder(), "x", "y", "z")
    made = loop(
        b,
        lambda g, i, x, y, z: add_one(g, i, g.op("EXP", x), g.op("ADD", y, x), g.op("MUL", z, z)),
        carries=("i", "x", "y", "z"),
        others=(),
    )
    graph = check_fires(prune_operands, b.done(made[2]))
    node = only(graph, "WHILE")  # x decides y
    assert (node.inputs, node.attrs["carries"]) == (["i", "x", "y"], 3)
    assert op_counts(node.blocks[1]) == {"ADD": 2, "EXP": 1}


def test_results_and_slices_that_nothing_needs_are_left_out():
    b = Builder()
    c, x, y = b.input("c", 3), b.input("x", 4, 3), b.input("y", 4, 3)
    made = scan(
        b, lambda g, c, x, y: (g.op("ADD", c, x), g.op("EXP", y), g.op("NEG", x)), [c], [x, y]
    )
    graph = check_fires(prune_operands, b.done(made[0], made[2]))
    node = only(graph, "SCAN")
    assert (node.inputs, node.attrs["xs"], len(node.outputs)) == (["c", "x"], 1, 2)


def test_the_number_of_steps_stays():
    b = Builder()
    c, x = b.input("c", 3), b.input("x", 4, 3)
    graph = b.done(*scan(b, lambda g, c, x: (g.op("EXP", c),), [c], [x]))
    check_keeps(prune_operands, graph)


def test_what_every_step_computes_alike_is_computed_before():
    b = ends(Builder(), "x", "y")
    graph = b.done(
        *loop(
            b,
            lambda g, i, x, y: add_one(
                g, i, g.op("ADD", x, g.op("MUL", g.op("EXP", g.op("RESHAPE", y, shape=[3])), y))
            ),
        )
    )
    check_fires(hoist_invariants, graph)
    assert op_counts(graph) == {"RESHAPE": 1, "EXP": 1, "MUL": 1, "WHILE": 1}
    check_fires(prune_operands, graph)
    node = only(graph, "WHILE")
    assert node.inputs == ["i", "x", only(graph, "MUL").output]
    assert op_counts(node.blocks[1]) == {"ADD": 2}


def test_what_may_fail_stays_in_a_loop_that_may_have_no_steps():
    b = ends(Builder(), "x", "y")
    b.input("at", 3, dtype="int64")

    def body(g, i, x, y, at):
        return add_one(g, i, g.op("ADD", x, g.op("INDEX_SELECT", y, at, axis=0)))

    check_keeps(hoist_invariants, b.done(*loop(b, body, others=("y", "at"))))


def test_a_block_in_a_block_is_simplified():
    b = Builder()
    c, x = b.input("c", 3), b.input("x", 4, 3)

    def body(g, c, x):
        predicate = g.op("LOGICAL_NOT", g.constant(np.array(False)))
        (y,) = branch(
            g,
            predicate,
            c,
            x,
            then=lambda g, c, x: g.op("ADD", c, g.op("MUL", x, 1.0)),
            otherwise=lambda g, c, x: x,
        )
        return (y,)

    graph = check_fires(simplify_blocks, b.done(*scan(b, body, [c], [x])))
    assert op_counts(only(graph, "SCAN").blocks[0]) == {"ADD": 1}


def test_blocks_go_through_all_stages():
    b = Builder()
    c, x = b.input("c", 2, 8), b.input("x", 4, 2, 8)

    def body(g, c, x):
        product = g.op("MATMUL", c, g.weight(8, 8))
        return (g.op("TANH", g.op("ADD", g.op("MUL", product, x), 1.0)),)

    graph = b.done(*scan(b, body, [c], [x]))
    inputs = random_inputs(graph)
    expected = evaluate(graph, inputs)
    compile_graph(graph, verify=True)
    block = only(graph, "SCAN").blocks[0]
    assert op_counts(block) == {"MATMUL": 1}  # with a packed weight and an epilogue
    assert [constant.type.format for constant in block.constants.values()] == ["panels.1"]
    for name, want in zip(expected.values(), evaluate(graph, inputs).values(), strict=True):
        np.testing.assert_allclose(want, name, rtol=1e-5, atol=1e-5)
