"""Sessions of several ISA levels in one process."""

import json
import os
import pickle
import subprocess
import sys
from hashlib import sha256

import numpy as np
import pytest

from control_plans import cumulative
from taper_runtime import InferenceSession, InputError, SessionOptions
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.executor import Settings
from taper_runtime.executor.interpreted import InterpretedExecutor
from taper_runtime.extend.providers import Dispatch
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.opdef import contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.plan.validate import validate

LEVELS = _kernels.available_isas()


def straight_plan(steps, constants, rows=37, columns=301):
    """x [rows, columns] through steps of (op, further inputs, attrs); every result is an output."""
    specs = {"x": TensorSpec("x", "float32", (rows, columns), "input")}
    specs.update(
        (n, TensorSpec(n, a.dtype.name, a.shape, "constant")) for n, a in constants.items()
    )
    nodes, last = [], "x"
    for i, (op, further, attrs) in enumerate(steps):
        inputs, name = (last, *further), f"y{i}"
        definition = REGISTRY[op]
        types = [specs[each].type for each in inputs]
        (result,) = definition.infer_types(types, attrs)
        specs[name] = TensorSpec(name, result.dtype, result.shape, "output")
        nodes.append(PlanNode(op, inputs, (name,), attrs))
        last = name
    plan = Plan(
        nodes=tuple(nodes),
        tensors=specs,
        placements={n: Placement(n, 0, contiguous_strides(s.shape)) for n, s in specs.items()},
        inputs=("x",),
        outputs=tuple(node.output for node in nodes),
        constants=constants,
    )
    validate(plan)
    return plan


def sums_and_functions():
    """Products, sums and transcendental functions: what levels round differently."""
    rng = np.random.default_rng(7)
    w = rng.standard_normal((301, 64)).astype(np.float32)
    return straight_plan(
        [
            ("SOFTMAX", (), {"axis": 1}),
            ("LOG", (), {}),
            ("MATMUL", ("w",), {}),
            ("TANH", (), {}),
            ("VAR", (), {"axes": (0,), "correction": 1, "keepdim": True}),
            ("SUM", (), {"axes": (1,), "keepdim": False}),
        ],
        {"w": w},
    )


PLANS = {"straight": sums_and_functions, "blocks": cumulative}


def feed_of(plan):
    rng = np.random.default_rng(8)
    return {
        name: rng.standard_normal(
            [size if isinstance(size, int) else 3 for size in plan.tensors[name].shape]
        ).astype(np.float32)
        for name in plan.inputs
    }


def results(isa):
    """Digests of the bits of every output of every plan under either executor."""
    made = {}
    for name, make in PLANS.items():
        for executor in ("compiled", "interpreted"):
            options = SessionOptions()
            options.isa, options.executor = isa, executor
            plan = make()
            outputs = InferenceSession(plan, options).run(None, feed_of(plan))
            made[f"{name}, {executor}"] = [sha256(output).hexdigest() for output in outputs]
    return made


def elsewhere(isa):
    """What ``results`` gives in a process of its own, whose level TAPER_ISA decides."""
    code = (
        f"import sys, json; sys.path[:0] = {[*sys.path, os.path.dirname(__file__)]!r}; "
        "import test_isa; print(json.dumps(test_isa.results(None)))"
    )
    made = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TAPER_ISA": isa},
        stdout=subprocess.PIPE,
        check=True,
    )
    return json.loads(made.stdout)


@pytest.mark.parametrize("isa", LEVELS)
def test_a_session_of_a_level_gives_what_a_process_of_that_level_gives(isa):
    expected = elsewhere(isa)
    for other in LEVELS:
        results(other)  # sessions of other levels were there before
    assert results(isa) == expected


def test_levels_of_one_process_differ():
    if len(LEVELS) == 1:
        pytest.skip("this CPU has one level")
    made = [results(isa) for isa in LEVELS]
    for key in made[0]:
        assert any(each[key] != made[0][key] for each in made), key


def test_runs_of_two_levels_take_turns():
    plan = sums_and_functions()
    feed = feed_of(plan)
    sessions = []
    for isa in LEVELS:
        options = SessionOptions()
        options.isa = isa
        sessions.append(InferenceSession(plan, options))
    first = [session.run(None, feed) for session in sessions]
    for _ in range(3):
        for session, expected in zip(sessions, first, strict=True):
            for got, want in zip(session.run(None, feed), expected, strict=True):
                np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("isa", ["sse9", "", "AVX2", "baseline "])
def test_a_level_that_is_not_here_is_refused_with_those_that_are(isa):
    options = SessionOptions()
    options.isa = isa
    with pytest.raises(InputError) as error:
        InferenceSession(sums_and_functions(), options)
    assert str(error.value) == f"isa: expected one of {', '.join(LEVELS)} on this CPU, got {isa!r}"


def test_a_level_is_a_name():
    with pytest.raises(InputError, match="isa: expected a string"):
        SessionOptions().isa = 2


def test_the_option_counts_more_than_the_environment():
    code = f"""
import sys
sys.path[:0] = {[*sys.path, os.path.dirname(__file__)]!r}
import test_isa
from taper_runtime.base.errors import TaperError
test_isa.results({LEVELS[0]!r})
try:
    test_isa.results(None)
except TaperError as error:
    print(type(error).__name__, error)
"""
    made = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TAPER_ISA": "abacus"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert made.stdout.startswith("TaperError TAPER_ISA='abacus': expected one of ")


def test_the_option_survives_pickling(tmp_path):
    path = tmp_path / "a.taper"
    sums_and_functions().save(path)
    options = SessionOptions()
    options.isa = LEVELS[-1]
    session = pickle.loads(pickle.dumps(InferenceSession(path, options)))  # noqa: S301
    assert session.get_session_options().isa == LEVELS[-1]


@pytest.mark.parametrize("isa", LEVELS)
def test_kernels_are_listed_by_level(isa):
    ops = {op for _, op, _ in _kernels.list_kernels(isa)}
    assert ops == {op for _, op, _ in _kernels.list_kernels()}
    assert all(_kernels.kernel_signatures(op, isa) for op in ops)


def test_a_level_that_is_not_here_is_refused_by_everything():
    (node, *_) = (plan := sums_and_functions()).nodes
    types = [(plan.tensors[n].type, plan.placements[n].strides) for n in ("x", "y0")]
    for call in (
        lambda: _kernels.active_isa("sse9"),
        lambda: _kernels.list_kernels("sse9"),
        lambda: _kernels.kernel_signatures("MATMUL", "sse9"),
        lambda: _kernels.measure("sse9", "fma", 1, _kernels.Buffer(64), 64, 1),
        lambda: _kernels.prepare(REGISTRY[node.op], node.attrs, types[:1], types[1:], ("sse9",)),
        lambda: CompiledExecutor.compile(plan, Settings(dispatch=Dispatch(isa="sse9"))),
        lambda: InterpretedExecutor.compile(plan, Settings(dispatch=Dispatch(isa="sse9"))),
    ):
        with pytest.raises(InputError, match=r"isa: expected one of .*, got 'sse9'"):
            call()


def test_the_trace_of_a_session_names_its_level(tmp_path):
    for isa in LEVELS:
        options = SessionOptions()
        options.isa, options.enable_profiling = isa, True
        options.profile_file_prefix = str(tmp_path / isa)
        session = InferenceSession(sums_and_functions(), options)
        session.run(None, feed_of(session.plan))
        with open(session.end_profiling()) as file:
            assert json.load(file)["otherData"]["isa"] == isa
