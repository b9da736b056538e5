"""Stretches of ops as native plans, against numpy's evaluators, at every ISA level."""

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulated import executor, step
from taper_openinfer import Model, Simulator, StepError, parse
from taper_openinfer.dtypes import DTYPES, from_float32, to_float32
from taper_openinfer.errors import OpenInferError
from taper_openinfer.native import Stretches
from taper_openinfer.ops import OPS, evaluate, output_type
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.native import _kernels

LEVELS = _kernels.available_isas()
EVERY_LEVEL = {isa: Stretches(isa) for isa in LEVELS}
#: Absolute and relative, of one device against another.
TOLERANCES = {"f8": (0.6, 0.25), "bf16": (0.1, 0.02), "f16": (0.6, 0.08)}


class Call(NamedTuple):
    op: str
    inputs: tuple[int, ...]
    settings: dict[str, Any]
    output_dtype: str


def call(op, *inputs, dtype="f32", **settings):
    return Call(op, inputs, settings, dtype)


def array(dtype, shape, seed=0):
    """Numbers of a type, in storage form; small where they are floats."""
    rng, row = np.random.default_rng(seed), DTYPES[dtype]
    if row.kind == "float":
        numbers = rng.uniform(-3, 3, shape).astype(np.float32)
        return from_float32(dtype, numbers) if dtype in TOLERANCES else numbers.astype(row.storage)
    whole = rng.integers(int(row.low), int(row.high), shape, row.storage, endpoint=True)
    return np.asarray(whole, row.storage)


def numbers(dtype, values):
    return to_float32(dtype, values) if dtype in TOLERANCES else values


def check_equal(dtype, got, want, what=""):
    assert got.dtype == want.dtype, what
    assert got.shape == want.shape, what
    assert got.flags.c_contiguous, what
    if DTYPES[dtype].kind != "float":
        np.testing.assert_array_equal(got, want, what)
        return
    absolute, relative = TOLERANCES.get(dtype, (1e-4, 1e-4) if dtype == "f32" else (1e-7, 1e-7))
    got, want = numbers(dtype, got), numbers(dtype, want)
    np.testing.assert_allclose(got, want, relative, absolute, err_msg=what)


def run(stretches, calls, arrays, dtypes, outputs, constants=()):
    made = stretches.make(
        calls,
        [each.shape for each in arrays],
        dtypes,
        {number: arrays[number] for number in constants},
        outputs,
    )
    return made([each for number, each in enumerate(arrays) if number not in constants])


def check_calls(calls, arrays, dtypes, results):
    """Compare what each call has given with numpy's evaluation of what it was given."""
    values = [*arrays, *results]
    types = [*dtypes, *[each.output_dtype for each in calls]]
    for each, got in zip(calls, results, strict=True):
        inputs = [values[number] for number in each.inputs]
        given = [types[number] for number in each.inputs]
        want = evaluate(each.op, inputs, given, each.settings, each.output_dtype)
        check_equal(each.output_dtype, got, want, str(each))


# -- any straight line ---------------------------------------------------------------------------

SHAPES = [(3, 4), (3, 4), (4,), (1, 4), (), (4, 3), (2, 3, 4), (0, 4)]
SOME_DTYPES = [
    "f32",
    "f32",
    "f64",
    "f16",
    "bf16",
    "i64",
    "i32",
    "i8",
    "u8",
    "u16",
    "u64",
    "bool",
    "i4",
]


@st.composite
def programs(draw):
    """Inputs, some of them constant, and calls that take what was there before."""
    dtypes = draw(st.lists(st.sampled_from(SOME_DTYPES), min_size=1, max_size=2))
    types = [
        (draw(st.sampled_from(dtypes)), draw(st.sampled_from(SHAPES)))
        for _ in range(draw(st.integers(1, 4)))
    ]
    seed = draw(st.integers(0, 1000))
    arrays = [array(dtype, shape, seed + i) for i, (dtype, shape) in enumerate(types)]
    constants = draw(st.sets(st.integers(0, len(types) - 1)))
    calls = []
    for _ in range(draw(st.integers(1, 10))):
        op = draw(st.sampled_from(list(OPS)))
        inputs = [draw(st.integers(0, len(types) - 1)) for _ in range(OPS[op].arity)]
        given = [types[number] for number in inputs]
        values = draw_settings(draw, op, len(given[0][1]))
        try:
            dtype, shape = output_type(op, given, values)
        except (OpError, OpenInferError):
            continue
        calls.append(Call(op, tuple(inputs), values, dtype))
        types.append((dtype, shape))
    behind = range(len(arrays), len(types))
    wanted = draw(st.lists(st.sampled_from(behind), unique=True)) if calls else []
    return calls, arrays, [dtype for dtype, _ in types[: len(arrays)]], constants, wanted


def draw_settings(draw, op, rank):
    if op == "relu":
        return draw(st.sampled_from([{}, {"alpha": 1}, {"clamp_max": 2}]))
    if op == "clamp":
        return draw(st.sampled_from([{"min": 0}, {"max": 1}, {"min": 0, "max": 1}]))
    if op in ("shl", "shr"):
        return {"bits": draw(st.integers(0, 9))}
    if op == "fill":
        return {"value": draw(st.integers(0, 1))}
    if op == "cast":
        return {"to": draw(st.sampled_from(["f32", "f64", "i64", "i32", "f16", "u8"]))}
    if op.endswith("_axis"):
        axes = draw(st.lists(st.integers(0, max(0, rank - 1)), min_size=1, max_size=2, unique=True))
        where = {"axis": axes[0]} if op.startswith("arg") else {"axes": axes}
        return {**where, "keepdims": draw(st.booleans())}
    if op in ("add", "mul", "matmul"):
        return draw(st.sampled_from([{}, {}, {"acc": "i64"}]))
    return {}


@settings(max_examples=150)
@given(programs(), st.sampled_from(LEVELS))
def test_a_stretch_gives_what_numpy_gives(program, isa):
    calls, arrays, dtypes, constants, wanted = program
    stretches = EVERY_LEVEL[isa]
    for each in arrays:
        each.flags.writeable = False  # nobody writes to what is given
    everything = range(len(arrays), len(arrays) + len(calls))
    results = run(stretches, calls, arrays, dtypes, everything, constants)
    check_calls(calls, arrays, dtypes, results)
    # What is not wanted may be left out, stay in the arena or lie in another's memory: same bits.
    some = run(stretches, calls, arrays, dtypes, wanted, constants)
    for number, got in zip(wanted, some, strict=True):
        np.testing.assert_array_equal(got, results[number - len(arrays)])


# -- other shapes ---------------------------------------------------------------------------------


def resized(arrays, dtypes, before, after):
    """Other arrays, with another size for the dims of one size."""
    shapes = [[after if size == before else size for size in each.shape] for each in arrays]
    return [array(dtype, shape, 3) for dtype, shape in zip(dtypes, shapes, strict=True)]


@settings(max_examples=100)
@given(programs())
def test_one_plan_for_all_sizes_gives_what_a_plan_for_each_gives(program):
    calls, arrays, dtypes, constants, wanted = program
    stretches = Stretches()
    for size in (4, 5, 7, 1, 4, 3):
        others = resized(arrays, dtypes, 4, size)
        for number in constants:
            others[number] = arrays[number]  # their sizes do not vary
        try:
            want = run(Stretches(), calls, others, dtypes, wanted, constants)
        except (OpError, OpenInferError) as error:
            with pytest.raises(type(error)):
                run(stretches, calls, others, dtypes, wanted, constants)
            continue
        got = run(stretches, calls, others, dtypes, wanted, constants)
        for mine, theirs in zip(got, want, strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_cache_that_grows_needs_no_new_plans(monkeypatch):
    compile_ = CompiledExecutor.compile
    plans = []
    monkeypatch.setattr(
        CompiledExecutor, "compile", lambda plan, given: plans.append(plan) or compile_(plan, given)
    )
    stretches = Stretches()
    calls = [
        call("mul", 0, 1),  # [n, 8] keys by a query
        call("sum_axis", 3, axes=[1]),
        call("taper.SOFTMAX", 4, axis=0),
        call("matmul", 5, 2),
    ]
    keys, values, query = (array("f32", (40, 8), 1), array("f32", (40, 8), 2), array("f32", (8,)))
    for count in range(1, 41):
        arrays = [keys[:count], query, values[:count]]
        (got,) = run(stretches, calls, arrays, ["f32"] * 3, [6])
        e = np.exp((keys[:count] * query).sum(1))
        np.testing.assert_allclose(got, (e / e.sum()) @ values[:count], 1e-4, 1e-5)
    assert len(plans) == 2
    assert [len(plan.sizes) for plan in plans] == [0, 1]


# -- constants -----------------------------------------------------------------------------------

PRODUCT = [call("matmul", 0, 1), call("add", 2, 0)]


def test_a_weight_is_packed_once():
    stretches = Stretches()
    x, w = array("f32", (4, 40)), array("f32", (40, 40), 1)
    for calls in (PRODUCT, [call("matmul", 0, 1)], PRODUCT):
        outputs = [1 + len(calls)]
        (got,) = run(stretches, calls, [x, w], ["f32"] * 2, outputs, [1])
        want = x @ w + (x if len(calls) == 2 else 0)
        np.testing.assert_allclose(got, want, 1e-5, 1e-5)
    assert stretches.packed_bytes == 3 * 16 * 40 * 4  # three panels of 16 columns


def test_the_same_calls_over_other_constants():
    stretches = Stretches()
    x, weights = array("f32", (4, 40)), [array("f32", (40, 40), seed) for seed in range(3)]
    made = [stretches.make(PRODUCT, [(4, 40), (40, 40)], ["f32"] * 2, {1: w}, [3]) for w in weights]
    for _ in range(2):  # in turns: each keeps its own
        for each, w in zip(made, weights, strict=True):
            np.testing.assert_allclose(each([x])[0], x @ w + x, 1e-5, 1e-5)


def test_a_constant_that_a_plan_reads_plainly_is_not_copied():
    stretches = Stretches()
    x, w = array("f32", (4, 40)), array("f32", (4, 40), 1)
    (got,) = run(stretches, [call("add", 0, 1)], [x, w], ["f32"] * 2, [2], [1])
    np.testing.assert_array_equal(got, x + w)
    assert stretches.packed_bytes == 0


# -- what kernels do not compute ------------------------------------------------------------------


def test_numpy_computes_between_two_plans():
    x, u = array("f32", (3, 4)), array("u16", (3, 4))
    calls = [
        call("add", 0, 0),
        call("mul", 1, 1, dtype="u16"),  # no kernel
        call("mul", 2, 0),
        call("cast", 3, dtype="f32", to="f32"),
        call("add", 4, 5),
    ]
    (got, product) = run(Stretches(), calls, [x, u], ["f32", "u16"], [6, 3])
    np.testing.assert_array_equal(product, u * u)
    np.testing.assert_allclose(got, (x + x) * x + (u * u).astype(np.float32), 1e-6)


def test_integers_wrap():
    for dtype in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"):
        row = DTYPES[dtype]
        high = np.full(3, row.high, row.storage)
        one = np.ones(3, row.storage)
        (got,) = run(Stretches(), [call("add", 0, 1, dtype=dtype)], [high, one], [dtype] * 2, [2])
        np.testing.assert_array_equal(got, np.full(3, row.low, row.storage))


def test_an_output_may_be_an_input_or_be_wanted_twice():
    x = array("f32", (3,))
    first, again, same = run(Stretches(), [call("neg", 0)], [x], ["f32"], [1, 1, 0])
    np.testing.assert_array_equal(first, -x)
    np.testing.assert_array_equal(again, -x)
    assert same is x


def test_calls_that_nobody_needs_are_left_out():
    x = array("f32", (3,))
    calls = [call("neg", 0), call("abs", 0), call("matmul", 0, 0)]
    (got,) = run(Stretches(), calls, [x], ["f32"], [1])
    np.testing.assert_array_equal(got, -x)
    assert run(Stretches(), calls, [x], ["f32"], []) == []


def test_taper_ops_are_native_and_movements_cost_nothing():
    x = array("f32", (2, 12))
    calls = [
        call("taper.RESHAPE", 0, shape=[4, 6]),
        call("neg", 1),
        call("taper.RESHAPE", 2, shape=[2, 3, 4]),
        call("taper.SOFTMAX", 3, axis=2),
    ]
    (got,) = run(Stretches(), calls, [x], ["f32"], [4])
    e = np.exp(-x.reshape(2, 3, 4))
    np.testing.assert_allclose(got, e / e.sum(2, keepdims=True), 1e-5)


# -- errors ---------------------------------------------------------------------------------------


def test_calls_that_do_not_fit_are_refused():
    x, y = array("f32", (3,)), array("f32", (4,))
    with pytest.raises(OpError, match="add"):
        run(Stretches(), [call("add", 0, 1)], [x, y], ["f32"] * 2, [2])


def test_a_level_that_is_not_here_is_refused():
    with pytest.raises(InputError, match="isa: expected one of"):
        Stretches("sse9")


def test_a_value_that_a_kernel_refuses_is_an_error_of_its_node():
    program = """
    dynamic { i: i64[2]; }
    volatile { y: f32[2, 3]; z: f32[2, 3]; }
    constant { w: f32[5, 3]; }
    block entry {
      op neg(y) >> z;
      op taper.EMBEDDING(w, i) >> y;
      op add(y, y) >> y;
    }
    """
    model = Model.of({"w": array("f32", (5, 3))})
    executor = Simulator(model, parse(program)).make_executor()
    executor.insert_dynamic("i", np.array([0, 9]))
    with pytest.raises(
        StepError, match=r"op taper.EMBEDDING\(w,i\) >> y: .*expected indices"
    ) as at:
        executor.step()
    assert at.value.place.line == 7


def test_a_run_of_ops_leaves_what_is_read_behind_it_alone():
    """Through loops, branches and blocks beside; the same numbers as node by node."""
    text = """
    dynamic { x: f32[3]; c: bool; n: i32; }
    volatile { y: f32[3] @init(1); z: f32[3] @init(2); w: f32[3] @init(0); }
    persistent { K(i): f32[3] @table @fixed(i=4); }
    block entry {
        assign a: f32[3]; assign b: f32[3]; assign d: f32[3]; assign e: f32[3];
        op add(x, y) >> a;
        op mul(x, z) >> b;
        op add(a, b) >> d;
        cache.write d >> K[0];
        op add(a, x) >> a;
        op mul(d, d) >> e;
        loop some (i in 0..n) {
            op add(a, e) >> y;
            op mul(b, x) >> d;
            cache.write d >> K[i];
            op add(b, y) >> e;
            branch c one two;
            op mul(e, x) >> b;
        }
        cache.write e >> K[3];
        op add(d, y) >> w;
        yield x;
        await x;
        op add(a, w) >> a;
        op add(w, a) >> w;
    }
    block one { op add(b, x) >> b; return; op add(e, e) >> e; }
    block two { op mul(a, x) >> e; op add(e, e) >> a; }
    block beside { await x; op add(a, x) >> z; yield z; }
    """
    by_step, by_node = (executor(text) for _ in range(2))
    first = by_step._blocks(is_split=False)["entry"]
    kept = [[by_step._slots[slot].name for slot in made._slots] for made in first
            if hasattr(made, "_outputs")]  # fmt: skip
    assert set(kept[0]) == {"a", "b", "d"}
    assert set(kept[-1]) == {"w"}
    for n in (0, 1, 3):
        for c in (True, False):
            values = {"x": np.array([0.5, -1, 2], np.float32), "c": c, "n": n}
            step(by_step, **values)
            for name, value in values.items():
                by_node.insert_dynamic(name, value)
            assert list(by_node.iterate())
            for name in "yzwK":
                np.testing.assert_array_equal(by_step.fetch(name), by_node.fetch(name), name)


@pytest.mark.parametrize(
    "block",
    [
        "op sub(y, x) >> r; return; op min(z, y) >> r;",
        "op sub(y, x) >> r; loop l (i in 0..n) { return; } op min(z, y) >> r;",
        """op sub(y, x) >> r; cache.write x >> K[1];
        loop l (i in 0..2) { return; }
        op min(z, y) >> r;""",
        """loop l (i in 0..2) { loop m (j in i..n) { return; } op add(x, z) >> r; }
        op min(z, y) >> r;""",
        """loop l (i in 0..2) {
            op add(x, z) >> r; cache.write x >> K[1];
            loop m (j in 1..n) { return; }
            op mul(x, z) >> r;
        }
        op min(z, y) >> r;""",
    ],
)
def test_what_a_block_leaves_where_it_returns_is_read(block):
    """A write behind a return does not hide the one before it."""
    text = f"""
    dynamic {{ x: f32[2]; n: i32; }}
    volatile {{ y: f32[2] @init(3); z: f32[2] @init(2); w: f32[2]; }}
    persistent {{ K(i): f32[2] @table @fixed(i=2); }}
    block entry {{ assign r: f32[2]; branch b; cache.write r >> K[0]; op add(r, x) >> w; }}
    block b {{ {block} }}
    """
    by_step, by_node = executor(text), executor(text)
    for n in (0, 1, 2, 3):
        values = {"x": np.array([0.5, -n], np.float32), "n": n}
        step(by_step, **values)
        for name, value in values.items():
            by_node.insert_dynamic(name, value)
        assert list(by_node.iterate())
        for name in "wK":
            np.testing.assert_array_equal(by_step.fetch(name), by_node.fetch(name), name)
