"""A value that an op refuses is an InputError that names node and value, in every executor."""

import itertools

import numpy as np
import pytest

from marks import thinned
from op_samples import types_of
from taper_runtime import InferenceSession, SessionOptions
from taper_runtime.base.errors import InputError, NodeInputError
from taper_runtime.formats import encode
from taper_runtime.native import _kernels
from taper_runtime.ops import REGISTRY
from taper_runtime.ops.elementwise import DIVISIONS
from taper_runtime.ops.opdef import TensorType, contiguous_strides
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec

X = np.arange(600 * 7, dtype=np.float32).reshape(600, 7)


def plan_of(op, arrays, attrs):
    """One node whose inputs are those of the plan."""
    (result,) = REGISTRY[op].infer_types(types_of(arrays), attrs)
    names = [f"x{i}" for i in range(len(arrays))]
    specs = {
        name: TensorSpec(name, array.dtype.name, array.shape, "input")
        for name, array in zip(names, arrays, strict=True)
    }
    specs["y"] = TensorSpec("y", result.dtype, result.shape, "output")
    return Plan(
        nodes=(PlanNode(op, tuple(names), ("y",), attrs),),
        tensors=specs,
        placements={n: Placement(n, 0, contiguous_strides(s.shape)) for n, s in specs.items()},
        inputs=tuple(names),
        outputs=("y",),
        constants={},
    )


def sessions(plan):
    """Sessions that compute a plan: kernels of every ISA level, threads, executors, numpy."""
    ways = [{"isa": level} for level in _kernels.available_isas()]
    ways += [{"intra_op_num_threads": 2}, {"executor": "interpreted"}]
    ways += [{"execution_mode": "parallel", "inter_op_num_threads": 2}]
    for way in ways:
        options = SessionOptions()
        for name, value in way.items():
            setattr(options, name, value)
        yield way, InferenceSession(plan, options)
    for executor in ("compiled", "interpreted"):
        options = SessionOptions()
        options.executor = executor
        yield executor, InferenceSession(plan, options, providers=["Numpy"])


def feed(arrays):
    return {f"x{i}": array for i, array in enumerate(arrays)}


def index(*shape, dtype=np.int64):
    return np.zeros(shape, dtype)


def with_value(array, place, value):
    array = array.copy()
    array.flat[place] = value
    return array


#: Op, inputs, attrs; the second input holds the places.
PLACES = [
    ("EMBEDDING", [X, index(90)], {}),
    ("INDEX_SELECT", [X, index(90)], {"axis": 0, "wrap": False}),
    ("INDEX_SELECT", [X[:, 0].copy(), index(5000, dtype=np.int32)], {"axis": 0, "wrap": False}),
    ("GATHER", [X, index(50, 7)], {"axis": 0, "wrap": False}),
    ("GATHER", [X, index(600, 3, dtype=np.int32)], {"axis": 1, "wrap": False}),
    ("WRITE", [X, index(9), X[:9]], {"axis": 0, "wrap": False}),
    *(
        ("SCATTER", [X, index(70, 7), X[:70]], {"axis": 0, "wrap": False, "reduce": reduce})
        for reduce in ("none", "sum", "prod", "amax", "amin")
    ),
]


@pytest.mark.parametrize(("op", "arrays", "attrs"), PLACES)
@pytest.mark.parametrize("value", [-1, -600, 600])
def test_places_that_are_outside(op, arrays, attrs, value):
    plan = plan_of(op, arrays, attrs)
    size = arrays[0].shape[attrs.get("axis", 0)]
    want = REGISTRY[op].evaluate(arrays, REGISTRY[op].complete(attrs))
    for way, session in sessions(plan):
        (got,) = session.run(None, feed(arrays))
        np.testing.assert_array_equal(got, want, err_msg=str(way))
        for place in (0, arrays[1].size - 1):
            bad = [arrays[0], with_value(arrays[1], place, value), *arrays[2:]]
            wanted = rf"node y \({op}\): expected indices in \[0, {size}\), got .*{value}"
            with pytest.raises(NodeInputError, match=wanted):
                session.run(None, feed(bad))


#: Shapes of dividends and divisors: one for all, columns, rows, short rows, many dims.
SHAPES = [
    ((), ()),
    ((5000,), (5000,)),
    ((5000,), (1,)),
    ((1,), (5000,)),
    ((37, 301), (37, 1)),
    ((37, 301), (301,)),
    ((300, 3), (300, 3)),
    ((300, 3), (300, 1)),
    ((40, 1, 30, 2), (40, 1, 2)),
    ((3, 5), (7, 3, 1)),
]


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
@pytest.mark.parametrize("op", DIVISIONS)
def test_integers_divided_by_0(op, dtype):
    rng = np.random.default_rng(0)
    wanted = rf"node y \({op}\): expected integers other than 0 as divisors, got 0"
    for first, second in SHAPES:
        a = np.asarray(rng.integers(0, 50, first), dtype)
        b = np.asarray(rng.integers(1, 50, second), dtype)
        allowed = REGISTRY[op].complete({})
        for way, session in sessions(plan_of(op, [a, b], {"by_zero": False})):
            (got,) = session.run(None, feed([a, b]))
            np.testing.assert_array_equal(got, REGISTRY[op].evaluate([a, b], allowed), str(way))
            for place in {0, b.size // 2, b.size - 1}:
                with pytest.raises(NodeInputError, match=wanted):
                    session.run(None, feed([a, with_value(b, place, 0)]))


#: Programs of a dividend and a divisor: the division first, last, between, by what is computed.
PROGRAMS = {
    "first": (["{}", "ADD"], [0, 1, 2, 0]),
    "last": (["ADD", "{}"], [0, 0, 2, 1]),
    "between": (["NEG", "{}", "MUL"], [0, 2, 1, 3, 1]),
    "twice": (["{}", "ADD", "{}"], [0, 1, 1, 1, 2, 3]),
    "of numbers": (["SUB", "{}", "{}"], [1, -1, -2, 2, 3, -2]),
}


@pytest.mark.parametrize(
    ("program", "op", "dtype"), thinned(2, PROGRAMS, DIVISIONS, ["int64", "int32"])
)
def test_integers_divided_by_0_in_a_program(program, op, dtype):
    rng = np.random.default_rng(0)
    wanted = rf"node y \(MAP\): {op}: expected integers other than 0 as divisors, got 0"
    code, args = PROGRAMS[program]
    attrs = {"code": [name.format(f"{op}:nonzero") for name in code], "args": args}
    attrs["scalars"] = [50, 9]
    allowed = REGISTRY["MAP"].complete({**attrs, "code": [name.format(op) for name in code]})
    zero = 50 if program == "of numbers" else 0
    for first, second in SHAPES:
        a = np.asarray(rng.integers(0, 50, first), dtype)
        b = np.asarray(rng.integers(1, 50, second), dtype)
        for way, session in sessions(plan_of("MAP", [a, b], attrs)):
            (got,) = session.run(None, feed([a, b]))
            np.testing.assert_array_equal(got, REGISTRY["MAP"].evaluate([a, b], allowed), str(way))
            for place in {0, b.size // 2, b.size - 1}:
                with pytest.raises(NodeInputError, match=wanted):
                    session.run(None, feed([a, with_value(b, place, zero)]))


@pytest.mark.parametrize("op", DIVISIONS)
def test_what_is_refused_is_not_overwritten(op):
    """The values stay that an error is about, where the result takes their memory."""
    alone = (REGISTRY[op], {"by_zero": False})
    for definition, attrs in (
        alone,
        (REGISTRY["MAP"], {"code": ["NEG", f"{op}:nonzero", "SUB"], "args": [0, 2, 1, 3, 1]}),
    ):
        attrs = definition.complete(attrs)
        for shape in ((70000,), (300, 7), (3, 900)):
            a, b = np.full(shape, 20, np.int64), np.full(shape, 3, np.int64)
            operands = [(t, contiguous_strides(t.shape)) for t in types_of([a, b])]
            for level in _kernels.available_isas():
                node = _kernels.prepare(definition, attrs, operands, operands[:1], (level,))
                for place in (0, 1234, a.size - 1):
                    for over in (0, 1):
                        arrays = [a.copy(), with_value(b, place, 0)]
                        with pytest.raises(InputError, match=f"{op}: expected .* got 0"):
                            node.run(arrays, [arrays[over]])


@pytest.mark.parametrize("op", DIVISIONS)
def test_a_division_that_allows_0_or_divides_nothing(op):
    for attrs, shape in (({}, (3,)), ({"by_zero": False}, (0, 3)), ({"by_zero": False}, (3, 0))):
        a, b = np.full(shape, 5, np.int64), np.zeros((3,) if shape[-1] else (3, 1), np.int64)
        for _, session in sessions(plan_of(op, [a, b], attrs)):
            (got,) = session.run(None, feed([a, b]))
            assert not got.any()
    for shape, refused in (((3,), True), ((0,), False)):
        a = np.ones(shape, np.int32)
        attrs = {"by_zero": False, "scalar": 0, "scalar_index": 1}
        for _, session in sessions(plan_of(op, [a], attrs)):
            if refused:
                with pytest.raises(InputError, match="got 0"):
                    session.run(None, feed([a]))
            else:
                assert session.run(None, feed([a]))[0].size == 0


@pytest.mark.parametrize("op", DIVISIONS)
def test_floats_are_divided_by_0(op):
    a, b = np.array([1.0, -1.0, 0.0], np.float32), np.zeros(3, np.float32)
    want = REGISTRY[op].evaluate([a, b], REGISTRY[op].complete({}))
    for _, session in sessions(plan_of(op, [a, b], {"by_zero": False})):
        np.testing.assert_array_equal(session.run(None, feed([a, b]))[0], want)


@pytest.mark.parametrize("op", DIVISIONS)
def test_divisors_with_strides(op):
    """Kernels read divisors by their strides, reversed and transposed ones too."""
    definition = REGISTRY[op]
    attrs = definition.complete({"by_zero": False})
    base = np.full((12, 14, 16), 3, np.int64)
    a = np.full((6, 7, 8), 20, np.int64)
    for strided, flip in itertools.product((np.s_[::2, ::2, ::2], np.s_[::2, ::-2, 1::2]), (0, 1)):
        for place in ((0, 0, 0), (5, 6, 7), (2, 3, 4)):
            b = base.copy()[strided]
            if flip:
                b = np.ascontiguousarray(b.T).T
            types = [
                (t, [s // 8 for s in x.strides])
                for t, x in zip(types_of([a, b]), (a, b), strict=True)
            ]
            node = _kernels.prepare(definition, attrs, types, types[:1])
            got = np.empty_like(a)
            node.run([a, b], [got])
            np.testing.assert_array_equal(got, definition.evaluate([a, b], attrs))
            b[place] = 0
            with pytest.raises(InputError, match="got 0"):
                node.run([a, b], [got])


@pytest.mark.parametrize("factor", [np.nan, np.inf])
def test_a_packed_matrix_times_nan_stays_zero_beyond_its_columns(factor):
    definition = REGISTRY["MUL"]
    for columns, factors in ((20, (5, 1)), (20, (1,)), (16, (5, 1)), (3, (5, 1)), (1500, (1,))):
        matrix = np.ones((5, columns), np.float32)
        packed = TensorType("float32", matrix.shape, "panels.1")
        factor_of_rows = np.full(factors, factor, np.float32)
        types = [packed, *types_of([factor_of_rows])]
        operands = [(t, contiguous_strides(t.storage.shape)) for t in types]
        stored = encode(matrix, packed)
        for level in _kernels.available_isas():
            attrs = definition.complete({})
            node = _kernels.prepare(definition, attrs, operands, operands[:1], (level,))
            got = np.empty_like(stored)
            node.run([stored, factor_of_rows], [got])
            np.testing.assert_array_equal(got, encode(matrix * factor, packed))


@pytest.mark.parametrize("scale", [1e308, -1e308, np.inf])
def test_attention_takes_a_scale_that_no_float_holds(scale):
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal((1, 2, length, 8)).astype(np.float32) for length in (9, 4, 4)]
    arrays[0][0, 0, 5] = 0  # times infinity it would be no number
    attrs = REGISTRY["ATTENTION"].complete({"scale": scale, "causal": True, "diagonal": -3})
    want = REGISTRY["ATTENTION"].evaluate(arrays, attrs)
    plan = plan_of("ATTENTION", arrays, attrs)
    feed = dict(zip(plan.inputs, arrays, strict=True))
    for way, session in sessions(plan):
        np.testing.assert_array_equal(session.run(None, feed)[0], want, err_msg=str(way))
