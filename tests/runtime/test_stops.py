"""A run ends before its time where a flag or a timeout says so; the session goes on."""

import copy
import pickle
import threading
import time

import numpy as np
import pytest

from plan_files import small_plan, towers
from taper_runtime import InferenceSession, RunOptions, SessionOptions
from taper_runtime.base.errors import RunTimeoutError, StoppedError, TaperError
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import TensorType, contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

SIZE = 1 << 18
X = {"x": np.zeros(SIZE, np.float32)}


def session_of(threads=1, executor="compiled", mode="sequential"):
    options = SessionOptions()
    options.intra_op_num_threads, options.executor = threads, executor
    options.inter_op_num_threads, options.execution_mode = 2, mode
    return InferenceSession(towers(2, ["SIN"] * 2500, SIZE), options)


CASES = [(1, "compiled"), (2, "compiled"), (1, "interpreted"), (1, "compiled", "parallel")]


@pytest.mark.parametrize("how", CASES)
def test_a_run_is_terminated_by_another_thread(how):
    session, run = session_of(*how), RunOptions()

    def terminate():
        while not session.stats().frames.in_use:
            time.sleep(0.001)
        run.terminate = True

    thread = threading.Thread(target=terminate)
    thread.start()
    with pytest.raises(StoppedError, match=r"ended: run_options\.terminate is set") as raised:
        session.run(None, X, run)
    thread.join()
    assert not isinstance(raised.value, RunTimeoutError)
    with pytest.raises(StoppedError):
        session.run(None, X, run)
    stats = session.stats()
    assert (stats.errors, stats.frames.in_use) == (2, 0)


@pytest.mark.parametrize("how", [case for case in CASES if "interpreted" not in case])
def test_a_run_ends_at_its_timeout(how):
    session, run = session_of(*how), RunOptions()
    run.timeout_s = 0.05
    begin = time.monotonic()
    with pytest.raises(RunTimeoutError, match=r"did not end within 0\.05 s") as raised:
        session.run(None, X, run)
    assert time.monotonic() - begin >= 0.05
    assert isinstance(raised.value, (TimeoutError, TaperError))


def long_node(op, *shapes, **attrs):
    """A plan of one node over inputs of these shapes."""
    types = {f"x{i}": TensorType("float32", shape) for i, shape in enumerate(shapes)}
    types["y"] = REGISTRY[op].infer_type([*types.values()], attrs)
    return Plan(
        nodes=(PlanNode(op, tuple(types)[:-1], ("y",), attrs),),
        tensors={
            name: TensorSpec(name, *type_[:2], "output" if name == "y" else "input")
            for name, type_ in types.items()
        },
        placements={n: Placement(n, 0, contiguous_strides(t.shape)) for n, t in types.items()},
        inputs=tuple(types)[:-1],
        outputs=("y",),
        constants={},
    )


WINDOW = {
    "kernel": (3, 3),
    "stride": (1, 1),
    "padding": (1, 1, 1, 1),
    "dilation": (1, 1),
    "groups": 1,
}
LONG = {  # about 2 seconds each, on one core with AVX2
    "matmul": long_node("MATMUL", (4096, 4096), (4096, 4096)),
    "conv": long_node("CONV", (8, 112, 112, 256), (3, 3, 256, 256), **WINDOW),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("how", ["terminate", "timeout"])
@pytest.mark.parametrize("name", LONG)
def test_a_run_ends_inside_a_long_node(name, how, threads):
    """Between the only node's tasks, for nothing looks at the flag behind it."""
    options, run = SessionOptions(), RunOptions()
    options.intra_op_num_threads = threads
    session = InferenceSession(LONG[name], options)
    feed = {i.name: np.zeros(i.shape, np.float32) for i in session.get_inputs()}
    timer = threading.Timer(0.05, setattr, (run, "terminate", True))
    if how == "timeout":
        run.timeout_s = 0.05
    else:
        timer.start()
    with pytest.raises(StoppedError):
        session.run(None, feed, run)
    timer.cancel()
    assert session.stats().frames.in_use == 0


def test_a_frame_is_usable_after_an_end_inside_a_node():
    rng = np.random.default_rng(0)
    feed = {name: rng.random((2048, 2048), np.float32) for name in ("x0", "x1")}
    options = SessionOptions()
    options.intra_op_num_threads = 1
    session = InferenceSession(long_node("MATMUL", (2048, 2048), (2048, 2048)), options)
    (want,) = session.run(None, feed)
    run, ended = RunOptions(), 0
    for timeout in np.geomspace(1e-4, 3e-2, 6):
        run.timeout_s = float(timeout)
        try:
            session.run(None, feed, run)
        except StoppedError:
            ended += 1
        np.testing.assert_array_equal(session.run(None, feed)[0], want)
    assert ended > 0


def test_a_run_in_time_is_as_any_other():
    session, run = InferenceSession(small_plan()), RunOptions()
    run.timeout_s = 600
    x = {"x": np.ones((2, 4), np.float32)}
    np.testing.assert_array_equal(session.run(None, x, run)[0], session.run(None, x)[0])


def test_copies_of_options_do_not_end_each_others_runs():
    run = RunOptions()
    other = run.copy()
    run.terminate = True
    x = {"x": np.ones((2, 4), np.float32)}
    session = InferenceSession(small_plan())
    session.run(None, x, other)
    again = pickle.loads(pickle.dumps(run))  # noqa: S301
    for same in (copy.copy(run), again):
        with pytest.raises(StoppedError):
            session.run(None, x, same)
