"""Control flow in one call into C: against the interpreter, which calls the ops' evaluators."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from taper_runtime.errors import InputError
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Block, Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate
from taper_runtime.sizes import variable

ROWS = variable("rows", 0, 50)
N = 6000  # elements of a row: two threads share the work of one


def parts(**tensors):
    """Specs and placements of ``name=(dtype, shape, role)``, with a root behind that if any."""
    specs, placements = {}, {}
    for name, (dtype, shape, role, *root) in tensors.items():
        specs[name] = TensorSpec(name, dtype, shape, role)
        placements[name] = Placement(root[0] if root else name, 0, contiguous_strides(shape))
    return specs, placements


def block(nodes, inputs, outputs, **tensors):
    return Block(tuple(nodes), *parts(**tensors), tuple(inputs.split()), tuple(outputs.split()))


def plan_of(node, inputs, outputs, constants=None, sizes=None, **tensors):
    specs, placements = parts(**tensors)
    plan = Plan(
        (node,), specs, placements, tuple(inputs.split()), tuple(outputs.split()), constants or {}
    )
    plan = plan._replace(sizes=sizes or {})
    validate(plan)
    return plan


F, INT, B = "float32", "int64", "bool"


def cumulative(last="ADD"):
    """For each row x: h = sin(h) + x, z = h * w; within it, s adds up h's four parts."""
    part = (N // 4,)
    inner = block(
        [PlanNode("ADD", ("s", "p"), ("s1",))],
        "s p",
        "s1",
        s=(F, part, "input"),
        p=(F, part, "input"),
        s1=(F, part, "output", "s"),
    )
    body = block(
        [
            PlanNode("SIN", ("h",), ("a",)),
            PlanNode(last, ("a", "x"), ("h1",)),
            PlanNode("MUL", ("h1", "w"), ("z",)),
            PlanNode("RESHAPE", ("h1",), ("parts",), {"shape": (4, N // 4)}),
            PlanNode("SCAN", ("t", "parts"), ("t1",), {"carries": 1, "xs": 1}, blocks=(inner,)),
        ],
        "h t x",
        "h1 t1 z",
        h=(F, (N,), "input"),
        t=(F, part, "input"),
        x=(F, (N,), "input"),
        a=(F, (N,), "intermediate"),
        h1=(F, (N,), "output"),
        z=(F, (N,), "output"),
        parts=(F, (4, N // 4), "intermediate", "h1"),
        t1=(F, part, "output"),
    )
    return plan_of(
        PlanNode(
            "SCAN", ("h0", "t0", "xs"), ("ho", "to", "zs"), {"carries": 2, "xs": 1}, blocks=(body,)
        ),
        "h0 t0 xs",
        "ho to zs",
        {"w": np.linspace(-1, 1, N, dtype=np.float32)},
        {"rows": (0, 50)},
        h0=(F, (N,), "input"),
        t0=(F, part, "input"),
        xs=(F, (ROWS, N), "input"),
        w=(F, (N,), "constant"),
        ho=(F, (N,), "output"),
        to=(F, part, "output"),
        zs=(F, (ROWS, N), "output"),
    )


def same(plan, arrays, threads=1):
    got = CompiledExecutor.compile(plan, threads=threads).run(arrays)
    for a, b in zip(got, InterpretedExecutor.compile(plan).run(arrays), strict=True):
        np.testing.assert_array_equal(a, b)
    return got


@pytest.mark.parametrize("threads", [1, 2])
def test_scans_in_scans(threads):
    rng = np.random.default_rng(0)
    executor = CompiledExecutor.compile(cumulative(), threads=threads)
    for rows in (5, 0, 1, 5):
        xs = rng.standard_normal((rows, N)).astype(np.float32)
        h0, t0 = xs.sum(0, initial=0.5)[:N], np.zeros(N // 4, np.float32)
        h, t, zs = h0, t0, []
        w = np.linspace(-1, 1, N, dtype=np.float32)
        for x in xs.astype(np.float64):
            h = np.sin(h) + x
            t = t + h.reshape(4, -1).sum(0)
            zs.append(h * w)
        got = executor.run([h0, t0, xs])
        np.testing.assert_allclose(got[0], h, atol=1e-5)
        np.testing.assert_allclose(got[1], t, atol=1e-4)
        np.testing.assert_allclose(got[2], np.reshape(zs, (rows, N)), atol=1e-5)
        for a, b in zip(got, same(cumulative(), [h0, t0, xs]), strict=True):
            np.testing.assert_array_equal(a, b)


def counting(limit_op="LT", add="ADD"):
    """While i < limit: i = i + 1, and x = x + i where i is odd, else table[i]."""
    sizes = {"i": (INT, (), "input"), "x": (F, (2,), "input"), "limit": (INT, (), "input")}
    condition = block(
        [PlanNode(limit_op, ("ci", "climit"), ("more",))],
        "ci cx climit",
        "more",
        more=(B, (), "output"),
        **{f"c{name}": spec for name, spec in sizes.items()},
    )
    body = block(
        [
            PlanNode(add, ("i", "one"), ("i1",)),
            PlanNode("INDEX_SELECT", ("table", "i"), ("row",), {"axis": 0}),
            PlanNode("LGAMMA", ("row",), ("g",)),  # numpy's
            PlanNode("ADD", ("x", "g"), ("x1",)),
        ],
        "i x limit",
        "i1 x1",
        i1=(INT, (), "output"),
        row=(F, (2,), "intermediate"),
        g=(F, (2,), "intermediate"),
        x1=(F, (2,), "output", "x"),
        **sizes,
    )
    return plan_of(
        PlanNode(
            "WHILE", ("i0", "x0", "top"), ("io", "xo"), {"carries": 2}, blocks=(condition, body)
        ),
        "i0 x0 top",
        "io xo",
        {"one": np.array(1), "table": np.arange(2, 22, dtype=np.float32).reshape(10, 2)},
        i0=(INT, (), "input"),
        x0=(F, (2,), "input"),
        top=(INT, (), "input"),
        one=(INT, (), "constant"),
        table=(F, (10, 2), "constant"),
        io=(INT, (), "output"),
        xo=(F, (2,), "output"),
    )


@pytest.mark.parametrize("limit", [-1, 0, 1, 9])
def test_while_with_a_node_of_numpys(limit):
    got = same(counting(), [np.array(0), np.ones(2, np.float32), np.array(limit)])
    assert got[0] == max(limit, 0)


def test_what_fails_inside_a_loop_is_named():
    executor = CompiledExecutor.compile(counting())
    x = np.ones(2, np.float32)
    with pytest.raises(InputError, match=r"node row \(INDEX_SELECT\)"):
        executor.run([np.array(0), x, np.array(99)])
    assert executor.run([np.array(0), x, np.array(3)])[0] == 3


@pytest.mark.skipif(os.name != "posix", reason="sends itself a signal")
def test_a_loop_without_end_is_interrupted():
    plan = counting()
    node = plan.nodes[0]
    nodes = (node.blocks[1].nodes[1]._replace(inputs=("table", "zero")), *node.blocks[1].nodes[2:])
    endless = node.blocks[1]._replace(
        nodes=(PlanNode("ADD", ("i", "zero"), ("i1",)), *nodes),
    )
    tensors, placements = parts(zero=(INT, (), "constant"))
    plan = plan._replace(
        nodes=(node._replace(blocks=(node.blocks[0], endless)),),
        tensors={**plan.tensors, **tensors},
        placements={**plan.placements, **placements},
        constants={**plan.constants, "zero": np.array(0)},
    )
    validate(plan)
    executor = CompiledExecutor.compile(plan)
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    begin = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        executor.run([np.array(0), np.ones(2, np.float32), np.array(3)])
    assert time.monotonic() - begin < 5
    timer.join()
    assert executor.run([np.array(3), np.ones(2, np.float32), np.array(3)])[0] == 3


@pytest.mark.parametrize("predicate", [True, False])
def test_branches_write_where_the_node_does(predicate):
    row = (F, (3,), "input")
    then = block([PlanNode("RELU", ("a",), ("b",))], "a", "b", a=row, b=(F, (3,), "output"))
    other = block(
        [PlanNode("NEG", ("c",), ("d",)), PlanNode("SIN", ("d",), ("e",))],
        "c",
        "e",
        c=row,
        d=(F, (3,), "intermediate"),
        e=(F, (3,), "output"),
    )
    plan = plan_of(
        PlanNode("IF", ("p", "x"), ("y",), blocks=(then, other)),
        "p x",
        "y",
        p=(B, (), "input"),
        x=row,
        y=(F, (3,), "output"),
    )
    x = np.array([-1, 0, 2], np.float32)
    (y,) = same(plan, [np.array(predicate), x])
    np.testing.assert_allclose(y, np.maximum(x, 0) if predicate else np.sin(-x), rtol=1e-6)
