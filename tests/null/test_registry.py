"""Every definition is complete, and its type rule lets nothing through that it cannot compute.

The type rule is what stands between a plan file and a kernel, so calls are made from samples by
mutation: whatever comes out is either OpError or a type, and what has a type can be computed.
"""

import itertools
import math
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from op_samples import (
    SAMPLED,
    all_samples,
    array_of,
    name_of,
    present,
    sample_types,
    samples_of,
    types_of,
)
from op_samples.sample import Sample
from taper_runtime.base.dtypes import DTYPES
from taper_runtime.base.errors import InputError, OpError
from taper_runtime.ops import REGISTRY, register
from taper_runtime.ops.elementwise import MICROOPS
from taper_runtime.ops.opdef import REQUIRED, Attr, TensorType

OPS = pytest.mark.parametrize("op", SAMPLED, ids=name_of)

#: Ops whose type rules differ by more than dtypes.
DISTINCT = pytest.mark.parametrize(
    "op",
    [op for op in SAMPLED if op.name not in {*MICROOPS} - {"NEG", "ADD", "WHERE"}],
    ids=name_of,
)

#: Values of each attr type, and of none.
VALUES = {
    "int": [-(2**63), -1, 0, 1, 2, 7, 2**40, 2**63 - 1],
    "float": [-1.5, 0.0, 1, 1e300, math.inf, math.nan],
    "bool": [True, False],
    "string": ["", "float32", "bool", "bfloat16", "sum", "CAST:bool", "\ud800"],
    "scalar": [True, -1, 0, 300, 2**63 - 1, 0.5, -0.0, math.nan, math.inf],
    "ints": [[], [0], [-1], [1, 0], [0, 0], [2, 3], [0, 1, 2], [2**62, 2**62], [-1] * 40],
    "strings": [[], ["ADD"], ["NEG", "WHERE"], ["CAST:int8"], ["CAST:x"], ["MAP"], ["NEG"] * 65],
    "scalars": [[], [1], [0.5, True], [math.nan]],
}
NO_VALUES = [None, object(), {}, 10**400, -(2**63) - 1, [[0]], [None], b"x", 1j, np.int64(1)]

#: Elements up to which what a type rule accepts is computed.
SMALL = 4096


def check_call(op, types, attrs):
    """Whatever is accepted has a type, and evaluates to it."""
    try:
        results = op.infer_types(types, attrs)
    except OpError:
        return
    for result in results:
        assert isinstance(result, TensorType)
        assert result.dtype in DTYPES
        assert type(result.shape) is tuple
        assert all(type(size) is int and size >= 0 for size in result.shape)
    if any(len(t.shape) > 32 or t.size > SMALL for t in (*present(types), *results)):
        return
    rng = np.random.default_rng(0)
    arrays = [t and array_of(t, rng) for t in types]
    try:
        values = op.evaluate_all(arrays, op.complete(attrs))
    except InputError:  # indices out of range
        return
    for array, result in zip(values, results, strict=True):
        assert (array.dtype, array.shape) == (DTYPES[result.dtype].storage, result.shape)


@cache
def some_samples(name):
    """The smallest samples of an op, one per set of attrs given."""
    chosen = {}
    for sample in sorted(samples_of(name), key=lambda s: sum(x.size for x in present(s.inputs))):
        if all(x.size for x in present(sample.inputs)):
            chosen.setdefault(frozenset(sample.attrs), sample)
    return list(chosen.values())


def mutations(types, attrs):
    """Calls that differ from a sample in one thing."""
    for name, value in attrs.items():
        yield types, {key: v for key, v in attrs.items() if key != name}
        for other in itertools.chain(*VALUES.values(), NO_VALUES):
            yield types, {**attrs, name: other}
        if isinstance(value, list | tuple):
            yield types, {**attrs, name: value[:-1]}
            yield types, {**attrs, name: [*value, *value]}
    for i, type_ in enumerate(types):
        before, after = types[:i], types[i + 1 :]
        yield [*before, None, *after], attrs
        if type_ is None:
            continue
        dtype, shape, format = type_
        yield before + after, attrs
        yield [*types, types[i]], attrs
        yield [*before, types[i], *types[i:]], attrs
        for other in DTYPES:
            yield [*before, TensorType(other, shape, format), *after], attrs
        for other in ("plain", "panels.0", "panels.1", "grouped_panels.1", "winograd.2"):
            yield [*before, TensorType(dtype, shape, other), *after], attrs
        for other in (shape[1:], (*shape, 2), (3, *shape), (0, *shape[1:]), (*shape[:-1], 5)):
            yield [*before, TensorType(dtype, other, format), *after], attrs
    yield [], attrs
    yield types * 40, attrs


@OPS
def test_one_mutation_is_refused_or_computed(op):
    for sample in some_samples(op.name):
        # Attrs left out are mutated too.
        attrs = {**{k: a.default for k, a in op.attrs.items()}, **sample.attrs}
        for types, mutated in mutations(sample_types(sample), attrs):
            check_call(op, types, mutated)


shapes = st.lists(st.integers(0, 4), max_size=5).map(tuple)
tensor_types = st.builds(TensorType, st.sampled_from(sorted(DTYPES)), shapes)


@cache
def values(kind):
    """Plausible values of an attr type: its own, and numbers in the range of axes and sizes."""
    numbers = st.integers(-2, 5)
    plausible = {
        "int": numbers,
        "scalar": numbers | st.floats(),
        "ints": st.lists(numbers, max_size=6),
        "strings": st.lists(st.sampled_from([*MICROOPS, "CAST:int64"]), max_size=4),
        "scalars": st.lists(numbers | st.floats(), max_size=3),
        "float": st.floats(),
    }
    listed = st.sampled_from(VALUES[kind])
    return plausible[kind] | listed if kind in plausible else listed


@DISTINCT
@settings(max_examples=12, derandomize=True)
@given(data=st.data())
def test_many_mutations_are_refused_or_computed(op, data):
    sample = data.draw(st.sampled_from(some_samples(op.name)))
    types, attrs = sample_types(sample), dict(sample.attrs)
    for name in data.draw(st.sets(st.sampled_from(sorted(op.attrs)))) if op.attrs else ():
        attrs[name] = data.draw(values(op.attrs[name].type), name)
    for i in data.draw(st.sets(st.sampled_from(range(len(types))), max_size=2)) if types else ():
        dtype = data.draw(st.sampled_from([types[i].dtype, *DTYPES]))
        types[i] = TensorType(dtype, data.draw(st.just(types[i].shape) | shapes))
    check_call(op, types, attrs)


@DISTINCT
@settings(max_examples=10, derandomize=True)
@given(data=st.data())
def test_any_call_is_refused_or_computed(op, data):
    types = data.draw(st.lists(tensor_types, max_size=4))
    attrs = {name: data.draw(values(attr.type), name) for name, attr in op.attrs.items()}
    check_call(op, types, attrs)


# -- definitions -----------------------------------------------------------------------------------


@OPS
def test_op_is_described(op):
    assert op.doc.endswith(".")
    assert op.name == op.name.upper()
    assert 0 <= op.inputs[0] <= op.inputs[1]
    assert all(0 <= index < op.inputs[1] for index in op.inplace)
    for attr in op.attrs.values():
        assert attr.type in VALUES


def test_every_op_without_blocks_has_samples():
    assert {op.name for op in SAMPLED} == set(all_samples())


@OPS
def test_samples_use_every_attr(op):
    samples = list(samples_of(op.name))
    assert samples
    unary = op.name in MICROOPS and op.inputs == (1, 1)  # it can have no scalar
    used = {name for sample in samples for name in sample.attrs}
    assert used == (set() if unary else set(op.attrs))
    for name, attr in op.attrs.items():
        if attr.default is not REQUIRED and not unary:
            given = [sample.attrs.get(name, attr.default) for sample in samples]
            assert any(value != attr.default for value in given), name


@OPS
def test_samples_are_deterministic_and_plain(op):
    for first, second in zip(samples_of(op.name), samples_of(op.name), strict=True):
        assert isinstance(first, Sample)
        assert first.attrs == second.attrs
        assert types_of(first.inputs) == types_of(second.inputs)
        for a, b in zip(present(first.inputs), present(second.inputs), strict=True):
            assert a.flags.c_contiguous
            np.testing.assert_array_equal(a, b)
        assert op.native or not first.native
    assert any(sample.native for sample in samples_of(op.name)) == op.native


@OPS
def test_bad_attrs_are_refused_by_name(op):
    sample = next(iter(samples_of(op.name)))
    types = sample_types(sample)
    with pytest.raises(OpError, match=rf"{op.name}: expected attrs of .*, got 'nonsense'"):
        op.infer_types(types, {**sample.attrs, "nonsense": 1})
    for name, attr in op.attrs.items():
        for value in NO_VALUES:
            with pytest.raises(OpError, match=rf"{op.name}\.{name}: expected {attr.type}"):
                op.infer_types(types, {**sample.attrs, name: value})
        if attr.default is REQUIRED:
            rest = {key: value for key, value in sample.attrs.items() if key != name}
            with pytest.raises(OpError, match=f"{op.name}.{name}: expected .*, got none"):
                op.infer_types(types, rest)


@OPS
def test_wrong_input_count_is_refused(op):
    sample = next(iter(samples_of(op.name)))
    types = sample_types(sample) or [TensorType("float32", ())]
    low, high = op.inputs
    for count in {low - 1, min(high + 1, 2**17)} - {-1}:
        with pytest.raises(
            OpError, match=f"{op.name}: expected {low} to {high} inputs, got {count}"
        ):
            op.infer_types((types * count)[:count], sample.attrs)


@pytest.mark.parametrize("kind", VALUES)
def test_attr_accepts_its_type_only(kind):
    attr = Attr(kind)
    assert all(map(attr.accepts, VALUES[kind]))
    assert not any(map(attr.accepts, NO_VALUES))


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("int", True),
        ("int", 1.0),
        ("int", 2**63),
        ("bool", 1),
        ("float", True),
        ("float", 2**63),  # a kernel takes it as a double, by way of an int64
        ("string", ["a"]),
        ("scalar", "1"),
        ("ints", [True]),
        ("ints", [1.0]),
        ("ints", 1),
        ("strings", "ADD"),
        ("scalars", [None]),
    ],
)
def test_attr_refuses_what_is_near(kind, value):
    assert not Attr(kind).accepts(value)


def run_apart(code):
    """Run code in a process in which no module of ops is imported yet."""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_table_names_every_op_of_every_module():
    run_apart(
        "import pkgutil, sys\n"
        "from importlib import import_module\n"
        "from taper_runtime import ops\n"
        "for name, module in [*ops.REGISTRY._pending.items()]:\n"
        "    assert name in ops.REGISTRY and ops.REGISTRY[name].name == name, name\n"
        "    assert ops.REGISTRY[name] in sys.modules[f'taper_runtime.ops.{module}'].OPS, name\n"
        "for found in pkgutil.iter_modules(ops.__path__):\n"
        "    for op in getattr(import_module(f'taper_runtime.ops.{found.name}'), 'OPS', ()):\n"
        "        assert op is ops.REGISTRY[op.name], op.name\n"
        "assert not ops.REGISTRY._pending\n"
    )


def test_op_imports_its_own_module_only():
    run_apart(
        "import sys\n"
        "from taper_runtime.ops import REGISTRY\n"
        "before = {*sys.modules}\n"
        "assert 'NMS' in REGISTRY and 'NONE' not in REGISTRY and REGISTRY.get('NONE') is None\n"
        "assert {*sys.modules} == before\n"
        "REGISTRY['NMS']\n"
        "new = {name for name in {*sys.modules} - before if name.startswith('taper_runtime')}\n"
        "modules = {f'taper_runtime.ops.{name}' for name in REGISTRY._pending.values()}\n"
        "assert 'taper_runtime.ops.nms' in new and not new & modules, new\n"
    )


def test_op_that_was_removed_is_gone():
    op = REGISTRY["NMS"]
    del REGISTRY["NMS"]
    try:
        assert "NMS" not in REGISTRY
        assert REGISTRY.get("NMS") is None
    finally:
        REGISTRY["NMS"] = op


def test_name_is_registered_once():
    with pytest.raises(ValueError, match="registered already"):
        register(REGISTRY["ADD"])


# -- refusals --------------------------------------------------------------------------------------

F = "float32"
WINDOW = {"kernel": [3], "stride": [1], "padding": [0, 0]}


def conv(**given):
    return WINDOW | {"dilation": [1]} | given


def _pad(mode, low, high):
    return {"axes": [1], "low": low, "high": high, "mode": mode}


def _resample(mode, axes=(1,), sizes=(4,), scales=(0.0,)):
    return {"mode": mode, "axes": axes, "sizes": sizes, "scales": scales}


@pytest.mark.parametrize(
    ("op", "types", "message", "attrs"),
    [
        ("ADD", [(2,), (3,)], "shapes that broadcast", {}),
        ("ADD", [(2,), ("int64", (2,))], "operand 1 of float32, got int64", {}),
        ("ADD", [(2,)], "2 operands", {}),
        ("ADD", [(2,), (2,)], "2 operands", {"scalar_index": 0}),
        ("ADD", [(2,)], "scalar_index", {"scalar_index": 2}),
        ("ADD", [(2,)], "scalar_index", {"scalar_index": -2}),
        ("NEG", [(2,)], "1 operands", {"scalar_index": 0}),
        ("ADD", [("int64", (2,))], "of int64, got 0.5", {"scalar": 0.5, "scalar_index": 0}),
        ("ADD", [("uint8", (2,))], "of uint8, got 256", {"scalar": 256, "scalar_index": 1}),
        ("ADD", [("bool", (2,))], "of bool, got 2", {"scalar": 2, "scalar_index": 1}),
        ("WHERE", [(2,), (2,), (2,)], "operand 0 of bool", {}),
        ("WHERE", [("bool", (2,)), (2,), ("int64", (2,))], "operand 2 of float32", {}),
        ("SUB", [("bool", (2,)), ("bool", (2,))], "operands of float32", {}),
        ("EXP", [("int64", (2,))], "operands of float32", {}),
        ("CAST", [(2,)], "dtype", {"dtype": "complex64"}),
        ("MAP", [(2,)], "1 to 64 instructions, got 0", {"code": [], "args": []}),
        ("MAP", [(2,)], "1 to 64 instructions, got 65", {"code": ["NEG"] * 65, "args": [0] * 65}),
        ("MAP", [(2,)], "a micro-op, got 'SUM'", {"code": ["SUM"], "args": [0]}),
        ("MAP", [(2,)], "a micro-op, got 'CAST:'", {"code": ["CAST:"], "args": [0]}),
        ("MAP", [(2,)], "a micro-op, got 'NEG:bool'", {"code": ["NEG:bool"], "args": [0]}),
        ("MAP", [(2,)], "args of 2 entries", {"code": ["ADD"], "args": [0]}),
        ("MAP", [(2,)], "args of 1 entries", {"code": ["NEG"], "args": [0, 0]}),
        ("MAP", [(2,)], r"args in \[0, 1\) for NEG, got 1", {"code": ["NEG"], "args": [1]}),
        ("MAP", [(2,)], r"\[0, 2\) for EXP, got 2", {"code": ["NEG", "EXP"], "args": [0, 2]}),
        ("MAP", [(2,)], r"args in \[0, 1\) for NEG, got -1", {"code": ["NEG"], "args": [-1]}),
        (
            "MAP",
            [(2,)],
            "an array among the operands",
            {"code": ["ADD"], "args": [-1, -1], "scalars": [1.0]},
        ),
        ("MAP", [(2,)], "CAST:bool", {"code": ["CAST:bool"], "args": [-1], "scalars": [1.0]}),
        ("MAP", [(2,), (3,)], "broadcast", {"code": ["NEG"], "args": [0]}),
        ("MATMUL", [(2, 3), (4, 5)], "as many columns of a as rows of b", {}),
        ("MATMUL", [(2, 3), (5, 4)], "as many columns", {"transpose_b": True}),
        ("MATMUL", [(), (3,)], "rank 1 or more", {}),
        ("MATMUL", [(3,), (3,)], "rank 2 or more with transpose_b", {"transpose_b": True}),
        ("MATMUL", [(2, 2, 3), (3, 3, 4)], "broadcast", {}),
        ("MATMUL", [("int64", (2, 3)), (3, 4)], "one dtype", {}),
        ("MATMUL", [("int64", (3,)), ("int64", (3,))], "float32", {"alpha": 0.5}),
        ("PACK", [(2, 3)], "one of plain, panels, .*; got 'tiles'", {"format": "tiles"}),
        ("PACK", [(2, 3)], "panels.0 or panels.1, got 'panels.2'", {"format": "panels.2"}),
        ("PACK", [(2, 3)], "panels.0 or panels.1, got 'panels'", {"format": "panels"}),
        ("PACK", [(2, 3)], "got 'panels.01'", {"format": "panels.01"}),
        ("PACK", [(2, 3)], r"got 'panels.1\\n'", {"format": "panels.1\n"}),
        ("PACK", [(2, 3, 4)], "expected a matrix", {"format": "panels.1"}),
        ("PACK", [(3, 4)], "outputs in 3 groups", {"format": "grouped_panels.3"}),
        ("PACK", [(3, 3, 4)], r"\[3, 3, C, O\]", {"format": "winograd.4"}),
        ("PACK", [(3, 4)], r"an int8 weight .* got float32 \[3, 4\]", {"format": "dots.1"}),
        ("PACK", [("float64", (3, 3, 4, 4))], "float32", {"format": "winograd.4"}),
        ("MATMUL", [(2, 3), (3, 4), (4,)], "code", {}),
        ("MATMUL", [(2, 3), (3, 4)], "code", {"scalars": [1.0]}),
        (
            "MATMUL",
            [(2, 3), (3, 4), (5, 2, 4)],
            "an epilogue whose result is",
            {"code": ["ADD"], "args": [0, 1]},
        ),
        (
            "MATMUL",
            [("int8", (2, 3)), ("int8", (3, 4))],
            "accumulate '' or 'int32', got 'int16'",
            {"accumulate": "int16"},
        ),
        ("MATMUL", [(2, 3), (3, 4)], "a where sums are int32 of int8", {"accumulate": "int32"}),
        ("MATMUL", [(2, 6), (6, 4)], "whole groups of 4 activations", {"activation_group": 4}),
        ("MATMUL", [(2, 6), (6, 4)], "whole groups of -2 activations", {"activation_group": -2}),
        ("MATMUL", [("int64", (3,)), ("int64", (3,))], "float32 acti", {"activation_group": 3}),
        ("MATMUL", [(2, 6), (6, 4)], "'' or 'bfloat16', got int8", {"activation_dtype": "int8"}),
        ("MATMUL", [(2, 6), (6, 4)], "beside bfloat16", {"activation_dtype": "bfloat16"}),
        (
            "MATMUL",
            [("int8", (2, 3)), ("uint8", (3, 4))],
            "alpha 1 where sums are int32",
            {"accumulate": "int32", "alpha": 2.0},
        ),
        ("CONV", [(1, 5, 2), (3, 2, 4)], r"x of rank 4", conv(kernel=[3, 3])),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "kernel of 1 to 3 dims", conv(kernel=[])),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "kernel of 1 integers from 1", conv(kernel=[0])),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "stride of 1 integers from 1", conv(stride=[0])),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "padding of 2 integers", conv(padding=[1])),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "to 2147483647", conv(padding=[0, 2**31])),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "within the padded input", conv(dilation=[3])),
        ("CONV", [(1, 5, 2), (2, 2, 4)], r"a weight of \[3, 2, O\]", conv()),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "divide the 2 channels", conv(groups=3)),
        ("CONV", [(1, 5, 2), (3, 1, 3)], "divide the 3 channels", conv(groups=2)),
        ("CONV", [(1, 5, 2), (3, 2, 4), (4,)], "code", conv()),
        (
            "CONV",
            [(1, 5, 2), (3, 2, 4), (7, 3, 4)],
            "an epilogue whose result is",
            conv(code=["ADD"], args=[0, 1]),
        ),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "a where sums are int32", conv(accumulate="int32")),
        ("CONV", [(1, 5, 2), (3, 2, 4)], "a border from 0 to 0, got 1", conv(border=1)),
        (
            "CONV",
            [("uint8", (1, 5, 2)), ("int8", (3, 2, 4))],
            "a border from 0 to 255, got -1",
            conv(accumulate="int32", border=-1),
        ),
        ("CONV_TRANSPOSE", [(1, 5, 2), (3, 2, 4)], "not empty", conv(padding=[4, 4])),
        ("CONV_TRANSPOSE", [(1, 0, 2), (3, 2, 4)], "not empty", conv()),
        ("MAX_POOL", [("bool", (1, 5, 2))], "float32", WINDOW | {"dilation": [1]}),
        ("MAX_POOL", [(1, 2, 2)], "within the padded input", WINDOW | {"dilation": [1]}),
        ("AVG_POOL", [(1, 5, 2)], "counted of 2 integers", WINDOW | {"counted": [-1, 0]}),
        (
            "AVG_POOL",
            [(1, 5, 2)],
            "a divisor from",
            WINDOW | {"counted": [0, 0], "divisor": 2**31},
        ),
        ("ADAPTIVE_AVG_POOL", [(1, 5, 2)], "one per spatial dim", {"sizes": [2, 2]}),
        ("ADAPTIVE_MAX_POOL", [(1, 0, 2)], "hold elements", {"sizes": [2]}),
        ("RESAMPLE", [(2, 3)], "a mode of nearest", _resample("area")),
        ("RESAMPLE", [(2, 3)], "at least 1", _resample("linear", sizes=(0,))),
        ("RESAMPLE", [(2, 3)], "a scale of 0 or from", _resample("linear", scales=(1e-9,))),
        ("RESAMPLE", [(2, 3)], "one or two axes", _resample("linear", sizes=(4, 4))),
        ("RESAMPLE", [(2, 3)], "one or two axes", _resample("linear", (), (), ())),
        (
            "RESAMPLE",
            [(2, 3)],
            "axes in increasing order",
            _resample("linear", (1, 0), (4, 4), (0, 0)),
        ),
        ("RESAMPLE", [(2, 3)], "no align_corners", _resample("nearest") | {"align_corners": True}),
        ("ATTENTION", [(2, 4, 8)] * 2 + [(2, 4)], "rank", {"scale": 1.0}),
        ("ATTENTION", [(2, 4, 8), (3, 4, 8), (3, 4, 8)], "expected q", {"scale": 1.0}),
        ("ATTENTION", [(2, 4, 8), (2, 4, 9), (2, 4, 8)], "expected q", {"scale": 1.0}),
        ("ATTENTION", [(2, 4, 8), (2, 4, 8), (2, 5, 8)], "expected q", {"scale": 1.0}),
        ("ATTENTION", [(1, 5, 4, 8), *[(1, 2, 4, 8)] * 2], "multiple", {"scale": 1.0}),
        ("ATTENTION", [(1, 5, 4, 8), *[(1, 0, 4, 8)] * 2], "multiple", {"scale": 1.0}),
        ("ATTENTION", [*[(2, 4, 8)] * 3, (5, 4)], "broadcast", {"scale": 1.0}),
        ("ATTENTION", [*[(2, 4, 8)] * 3, (1, 2, 4, 4)], "broadcasts to", {"scale": 1.0}),
        ("ATTENTION", [*[(2, 4, 8)] * 3, ("int64", (4, 4))], "mask", {"scale": 1.0}),
        ("ATTENTION", [(2, 4, 8)] * 3, "rank 4", {"scale": 1.0, "transpose_output": True}),
        ("SOFTMAX", [(2, 3)], "axis", {"axis": 2}),
        ("SOFTMAX", [()], "axis", {"axis": 0}),
        ("LAYER_NORM", [(2, 3), *[(3,)] * 3], "1 to 3 inputs", {"dims": 1, "eps": 0.0}),
        ("LAYER_NORM", [(2, 3), (3,), (2,)], "weight and bias", {"dims": 1, "eps": 0.0}),
        ("RMS_NORM", [(2, 3)], r"dims in \[1, 2\]", {"dims": 3, "eps": 0.0}),
        ("RMS_NORM", [(2, 3)], r"dims in \[1, 2\]", {"dims": 0, "eps": 0.0}),
        ("SUM", [(2, 3)], "axes in increasing order", {"axes": [1, 0]}),
        ("SUM", [(2, 3)], "axes in increasing order", {"axes": [1, 1]}),
        ("SUM", [(2, 3)], "axis", {"axes": [-1]}),
        ("AMAX", [(0, 3)], "axes that hold elements", {"axes": [0]}),
        ("ARGMAX", [(0, 3)], "axes that hold elements", {"axis": 0}),
        ("ANY", [(2,)], "bool", {"axes": [0]}),
        ("RESHAPE", [(2, 3)], "6 elements", {"shape": [5]}),
        ("RESHAPE", [(2, 3)], "at least 0", {"shape": [-2, -3]}),
        ("RESHAPE", [(0, 3)], "at least 0", {"shape": [0, -3]}),
        ("TRANSPOSE", [(2, 3)], "axis", {"axis0": 0, "axis1": 2}),
        ("PERMUTE", [(2, 3)], "each once", {"axes": [0, 0]}),
        ("PERMUTE", [(2, 3)], "each once", {"axes": [0]}),
        ("SLICE", [(4,)], "start <= stop", {"axis": 0, "start": 3, "stop": 2}),
        ("SLICE", [(4,)], "start <= stop", {"axis": 0, "start": -1, "stop": 2}),
        ("SLICE", [(4,)], "start <= stop", {"axis": 0, "start": 0, "stop": 5}),
        ("SLICE", [(4,)], "step >= 1", {"axis": 0, "start": 0, "stop": 4, "step": 0}),
        ("EXPAND", [(2, 3)], "broadcast", {"shape": [4, 3]}),
        ("EXPAND", [(2, 3)], "expands to", {"shape": [3]}),
        ("EXPAND", [(2, 3)], "expands to", {"shape": [2, 1]}),
        ("FLIP", [(2, 3)], "axes in increasing order", {"axes": [1, 0]}),
        ("CAT", [(2, 3), (2, 4)], "equal except along axis 0", {"axis": 0}),
        ("CAT", [(2, 3), (2,)], "equal except along axis 1", {"axis": 1}),
        ("CAT", [(2,), ("int64", (2,))], "one dtype", {"axis": 0}),
        ("PAD", [(2, 3)], "a mode of reflect", _pad("constant", [1], [1])),
        ("PAD", [(2, 3)], "two widths for each axis", _pad("reflect", [1], [1, 1])),
        ("PAD", [(2, 3)], "at least 0", _pad("replicate", [-1], [1])),
        ("PAD", [(2, 3)], "its 3 elements can fill", _pad("reflect", [3], [0])),
        ("PAD", [(2, 3)], "its 3 elements can fill", _pad("circular", [0], [4])),
        ("PAD", [(2, 0)], "its 0 elements can fill", _pad("replicate", [1], [0])),
        ("EMBEDDING", [(), ("int64", (2,))], "rank 1", {}),
        ("EMBEDDING", [(5, 2), (2,)], "int64 or int32", {}),
        ("GATHER", [(4, 5), ("int64", (4,))], "within", {"axis": 0}),
        ("GATHER", [(4, 5), ("int64", (9, 6))], "within", {"axis": 0}),
        ("SCATTER", [(4,), ("int64", (2,)), (3,)], "src", {"axis": 0}),
        ("SCATTER", [(4,), ("int64", (2,)), (2,)], "reduce", {"axis": 0, "reduce": "mean"}),
        ("WRITE", [(4, 5), ("int64", (2,)), (2, 4)], "src", {"axis": 0}),
        ("WRITE", [(4, 5), ("int64", (2, 1)), (2, 5)], "src", {"axis": 0}),
        ("WRITE", [(4, 5), (2,), (2, 5)], "int64 or int32", {"axis": 0}),
        ("WRITE", [(), ("int64", (1,)), ()], "axis", {"axis": 0}),
    ],
)
def test_what_an_op_does_not_allow_is_refused(op, types, message, attrs):
    """A type is float32 of a shape, or a dtype and a shape."""
    types = [TensorType(*(t if t and t[0] in DTYPES else (F, t))) for t in types]
    with pytest.raises(OpError, match=message):
        REGISTRY[op].infer_type(types, attrs)


def test_refusal_is_short():
    with pytest.raises(OpError) as caught:
        REGISTRY["RESHAPE"].infer_type([TensorType(F, (6,))], {"shape": [1] * 10_000 + [5]})
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("attr", "message"),
    [
        (Attr("int", 0.5), "a: default: expected int, got 0.5"),
        (Attr("float", None), "a: default: expected float, got None"),
        (Attr("ints", [1]), r"a: default: expected ints, got \[1\]"),
        (Attr("integer"), "a: expected a type of .*, got 'integer'"),
    ],
)
def test_wrong_attr_is_not_registered(attr, message):
    op = REGISTRY["ADD"]._replace(name="WRONG", attrs={"a": attr})
    with pytest.raises(OpError, match=message):
        register(op)
    assert "WRONG" not in REGISTRY
