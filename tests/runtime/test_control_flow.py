"""Control flow in one call into C: against the interpreter, which calls the ops' evaluators."""

import os
import signal
import threading
import time

import numpy as np
import pytest

from control_plans import INT, N, branching, counting, cumulative, parts
from taper_runtime.base.errors import InputError
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.plan.plan import PlanNode
from taper_runtime.plan.validate import validate


def same(plan, arrays, threads=1):
    got = CompiledExecutor.compile(plan, Settings(threads)).run(arrays)
    for a, b in zip(got, InterpretedExecutor.compile(plan).run(arrays), strict=True):
        np.testing.assert_array_equal(a, b)
    return got


@pytest.mark.parametrize("threads", [1, 2])
def test_scans_in_scans(threads):
    rng = np.random.default_rng(0)
    executor = CompiledExecutor.compile(cumulative(), Settings(threads))
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
    x = np.array([-1, 0, 2], np.float32)
    (y,) = same(branching(), [np.array(predicate), x])
    np.testing.assert_allclose(y, np.maximum(x, 0) if predicate else np.sin(-x), rtol=1e-6)
