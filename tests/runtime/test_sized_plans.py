"""Plans with size variables: one layout per set of sizes, right at each, whatever came before."""

import math
import threading

import numpy as np
import pytest

import taper_runtime
from sized_plans import B, S, expected, sized_arrays, sized_plan
from taper_runtime.base.errors import InputError
from taper_runtime.base.sizes import variable
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.specialize import with_ranges
from taper_runtime.plan.validate import validate


def session(plan, executor="compiled", threads=1):
    options = taper_runtime.SessionOptions()
    options.executor = executor
    options.intra_op_num_threads = threads
    return taper_runtime.InferenceSession(plan, options)


def check(opened, plan, b, s):
    arrays = sized_arrays(b, s)
    for got, want in zip(opened.run(None, arrays), expected(plan, arrays), strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_every_shape(executor, threads):
    plan = sized_plan()
    opened = session(plan, executor, threads)
    for b, s in [(2, 3), (1, 2), (8, 32), (1, 32), (8, 2), (2, 3), (1, 2), (5, 7)]:
        check(opened, plan, b, s)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_an_empty_dim(executor, threads):
    plan = sized_plan()
    plan = with_ranges(plan, {**plan.sizes, "B": (0, 8)})
    opened = session(plan, executor, threads)
    for b, s in [(0, 3), (2, 3), (0, 3), (0, 32), (1, 2), (0, 2)]:
        check(opened, plan, b, s)
    out = {"y": np.empty((0, 3), np.float32), "z": np.empty(0, np.float32)}
    y, z = opened.run(None, sized_arrays(0, 5), out=out)
    assert y is out["y"]
    assert z is out["z"]
    with pytest.raises(InputError, match="expected 2 to 32, got 0"):
        opened.run(None, sized_arrays(0, 0))


def test_a_sample_that_is_empty():
    """A session opens with the sizes of the samples, but for those of 0."""
    plan = sized_plan()
    samples = {"x": np.ones((0, 3, 4), np.float32), "m": np.ones(6, np.float32)}
    plan = with_ranges(plan, {**plan.sizes, "B": (0, 8)})._replace(samples=samples)
    validate(plan)
    opened = session(plan)
    check(opened, plan, 0, 3)
    check(opened, plan, 2, 3)


def test_more_shapes_than_are_kept():
    plan = sized_plan()
    opened = session(plan)
    for _ in range(2):
        for b in range(1, 9):
            for s in range(2, 12):
                check(opened, plan, b, s)


def test_executors_agree_bit_for_bit():
    plan = sized_plan()
    arrays = sized_arrays(3, 9)
    for ours, theirs in zip(
        session(plan).run(None, arrays), session(plan, "interpreted").run(None, arrays), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_bad_shapes_leave_the_session_usable(executor):
    plan = sized_plan()
    opened = session(plan, executor)
    for b, s, s2 in ((9, 3, 3), (1, 1, 1), (1, 3, 4), (1, 33, 33)):
        arrays = sized_arrays(b, s) | {"m": np.zeros(2 * s2, np.float32)}
        with pytest.raises(InputError, match=r"\(B\)|\(S\)|\(2\*S\)") as caught:
            opened.run(None, arrays)
        assert (
            caught.value.__context__ is None
        )  # how layouts are found is no matter of the caller's
    with pytest.raises(InputError, match="'x': expected dtype float32"):
        opened.run(None, sized_arrays(1, 3) | {"x": np.zeros((1, 3, 4))})
    with pytest.raises(InputError, match="expected a numpy array"):
        opened.run(None, sized_arrays(1, 3) | {"m": [1.0] * 6})
    check(opened, plan, 4, 4)


def test_inputs_and_outputs_say_what_varies():
    opened = session(sized_plan())
    assert [arg.shape for arg in opened.get_inputs()] == [["B", "S", 4], ["2*S"]]
    assert [arg.shape for arg in opened.get_outputs()] == [["B", 3], ["6*B*S"]]


def test_out_takes_arrays_of_the_run():
    plan = sized_plan()
    opened = session(plan)
    arrays = sized_arrays(2, 5)
    z = np.empty(60, np.float32)
    _, got = opened.run(None, arrays, out={"z": z})
    assert got is z
    np.testing.assert_allclose(z, expected(plan, arrays)[1], rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"out\['z'\]: expected shape"):
        opened.run(None, sized_arrays(2, 6), out={"z": z})


def test_concurrent_runs_of_different_shapes():
    plan = sized_plan()
    opened = session(plan)
    failures = []

    def work(b):
        try:
            for s in range(2, 33):
                check(opened, plan, b, s)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(b,)) for b in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_node_that_numpy_computes():
    """Attrs and strides of a fallback are those of the sizes."""
    plan = sized_plan()
    cast = PlanNode("CAST", ("a",), ("d",), {"dtype": "float16"})
    wide = PlanNode("CAST", ("e",), ("c",), {"dtype": "float32"})
    cat = PlanNode("CAT", ("d", "d"), ("e",), {"axis": 1})
    specs = [
        TensorSpec("d", "float16", (B, S, 3), "intermediate"),
        TensorSpec("e", "float16", (B, 2 * S, 3), "intermediate"),
    ]
    nodes = (*plan.nodes[:3], cast, cat, wide, *plan.nodes[4:])
    plan = plan._replace(
        nodes=nodes,
        tensors={**plan.tensors, **{spec.name: spec for spec in specs}},
        placements={
            **plan.placements,
            **{
                spec.name: Placement(spec.name, 0, contiguous_strides(spec.shape)) for spec in specs
            },
        },
    )
    opened = session(plan)
    for b, s in ((1, 2), (3, 5), (1, 2)):
        arrays = sized_arrays(b, s)
        got = opened.run(None, arrays)
        for mine, want in zip(got, expected(plan, arrays), strict=True):
            np.testing.assert_allclose(mine, want, rtol=1e-2, atol=1e-2)


def plan_of_x(nodes, specs, placements, high):
    """From x to y, with one variable up to ``high``."""
    return Plan(
        nodes=nodes,
        tensors={spec.name: spec for spec in specs},
        placements=placements,
        inputs=("x",),
        outputs=("y",),
        constants={},
        sizes={"n": (1, high)},
    )


def cube_plan(high=2**31 - 1):
    """y = the sum of x's cube: small to feed, huge in between."""
    n = variable("n", 1, high)
    specs = [
        TensorSpec("x", "float32", (n,), "input"),
        TensorSpec("a", "float32", (n, n, n), "intermediate"),
        TensorSpec("b", "float32", (n, n, n), "intermediate"),
        TensorSpec("y", "float32", (), "output"),
    ]
    placements = {
        spec.name: Placement(spec.name, 0, contiguous_strides(spec.shape)) for spec in specs
    }
    placements["a"] = Placement("x", 0, (0, 0, 1))
    nodes = (
        PlanNode("EXPAND", ("x",), ("a",), {"shape": (n, n, n)}),
        PlanNode("RELU", ("a",), ("b",)),
        PlanNode("SUM", ("b",), ("y",), {"axes": (0, 1, 2)}),
    )
    return plan_of_x(nodes, specs, placements, high)


@pytest.mark.parametrize("size", [2**21, 70_000, 9000])
def test_sizes_that_need_too_much_memory_are_refused(size):
    """An overflow of 64 bits, a tensor beyond the format's limit, an arena beyond it."""
    opened = session(cube_plan())
    with pytest.raises(InputError, match=r"expected (tensors|an arena) of at most|memory"):
        opened.run(None, {"x": np.ones(size, np.float32)})
    (y,) = opened.run(None, {"x": np.ones(5, np.float32)})
    assert y == 125


@pytest.mark.parametrize("executor", ["compiled", "interpreted"])
def test_views_that_are_too_large_are_refused(executor):
    """A view takes no memory, and a kernel could not count its elements in 64 bits."""
    n = variable("n", 1, 2**31 - 1)
    many = math.prod([n] * 31)
    specs = [
        TensorSpec("x", "float32", (n,), "input"),
        TensorSpec("column", "float32", (n, 1), "intermediate"),
        TensorSpec("a", "float32", (n, many), "intermediate"),
        TensorSpec("b", "float32", (many, n), "intermediate"),
        TensorSpec("y", "float32", (n, n), "output"),
    ]
    placements = {"x": Placement("x", 0, (1,)), "y": Placement("y", 0, (n, 1))}
    for name, strides in {"column": (1, 1), "a": (1, 0), "b": (0, 1)}.items():
        placements[name] = Placement("x", 0, strides)
    nodes = (
        PlanNode("RESHAPE", ("x",), ("column",), {"shape": (n, 1)}),
        PlanNode("EXPAND", ("column",), ("a",), {"shape": (n, many)}),
        PlanNode("EXPAND", ("x",), ("b",), {"shape": (many, n)}),
        PlanNode("MATMUL", ("a", "b"), ("y",)),
    )
    plan = plan_of_x(nodes, specs, placements, 2**31 - 1)
    validate(plan)
    opened = session(plan, executor)
    for size in (3, 4):  # more than the limit; more than 64 bits
        with pytest.raises(InputError, match="expected tensors of at most"):
            opened.run(None, {"x": np.ones(size, np.float32)})
    (y,) = opened.run(None, {"x": np.ones(1, np.float32)})
    assert y == 1


def test_kernel_names_follow_the_last_run():
    executor = CompiledExecutor.compile(sized_plan())
    assert [site.node.op for site, _ in executor.steps] == [
        "MATMUL", "RELU", "CAT", "MUL", "SUM", "RESHAPE",
    ]  # fmt: skip
