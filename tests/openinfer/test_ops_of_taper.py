"""Ops of Taper's that programs call by their own names."""

import numpy as np
import pytest

from op_samples import SAMPLED, sample_types, samples_of
from taper_openinfer.dtypes import from_taper_name
from taper_openinfer.errors import NoKernelError
from taper_openinfer.ops import evaluate, native_node, output_type
from taper_runtime.base.errors import OpError
from taper_runtime.formats import PLAIN
from taper_runtime.ops import REGISTRY


def written(value):
    """An attr as programs write it: lists of words and of numbers that are no integers as text."""
    if isinstance(value, (list, tuple)) and any(type(item) is not int for item in value):
        return ", ".join(str(float(item) if isinstance(item, bool) else item) for item in value)
    return value


@pytest.mark.parametrize("op", SAMPLED, ids=lambda op: op.name)
def test_every_op_gives_what_it_gives_elsewhere(op):
    called = 0
    for number, sample in enumerate(samples_of(op.name)):
        types = sample_types(sample)
        if None in types or sample.formats or (number > 30 and number % 7):
            continue
        outputs = op.infer_types(types, sample.attrs)
        if any(type_.format != PLAIN for type_ in outputs):
            continue
        if any(type(value) is bool for value in sample.attrs.get("scalars", ())):
            continue
        want = op.evaluate_all(sample.inputs, op.complete(sample.attrs))
        name, inputs = f"taper.{op.name}", [(from_taper_name(t.dtype), t.shape) for t in types]
        settings = {key: written(value) for key, value in sample.attrs.items()}
        for index, (type_, array) in enumerate(zip(outputs, want, strict=True)):
            chosen = {**settings, "output": index} if index else settings
            dtype, shape = output_type(name, inputs, chosen)
            assert (dtype, shape) == (from_taper_name(type_.dtype), type_.shape)
            got = evaluate(name, sample.inputs, [each for each, _ in inputs], chosen, dtype)
            np.testing.assert_array_equal(got, array)
            assert got.dtype == array.dtype
        called += 1
    assert called or op.name in ("PACK", "UNPACK")


def test_results_are_new_arrays():
    x = np.arange(6, dtype=np.float32)
    got = evaluate("taper.RESHAPE", [x], ["f32"], {"shape": [2, 3]}, "f32")
    assert got.shape == (2, 3)
    assert not np.shares_memory(got, x)


def test_the_native_node_is_the_op_itself():
    node = native_node("taper.SOFTMAX", ["f32"], [(2, 3)], {"axis": 1}, ("f32", (2, 3)))
    assert node == ("SOFTMAX", {"axis": 1, "log": False})
    assert native_node("taper.LU", ["f32"], [(2, 2)], {"output": 1}, ("i64", (2,))) is None


def test_dtypes_are_spelled_as_programs_spell_them():
    assert output_type("taper.CAST", [("f32", (2,))], {"dtype": "i64"}) == ("i64", (2,))
    assert output_type("taper.CAST", [("f32", (2,))], {"dtype": "bf16"}) == ("bf16", (2,))
    x = np.array([1.5, -2.5], np.float32)
    np.testing.assert_array_equal(
        evaluate("taper.CAST", [x], ["f32"], {"dtype": "i64"}, "i64"), [1, -2]
    )


@pytest.mark.parametrize(
    ("op", "dtypes", "settings", "message"),
    [
        ("taper.SOFTMAXX", ["f32"], {}, "no op 'taper.SOFTMAXX'; do you mean 'taper.SOFTMAX'?"),
        ("taper.softmax", ["f32"], {}, "do you mean 'taper.SOFTMAX'?"),
        (
            "taper.IF",
            ["bool"],
            {},
            "taper.IF: expected an op without blocks, because .* got one with",
        ),
        ("taper.SOFTMAX", ["f32"], {}, r"SOFTMAX.axis: expected int, got none"),
        ("taper.SOFTMAX", ["f32"], {"axis": 1.5}, "SOFTMAX.axis: expected int, got 1.5"),
        (
            "taper.SOFTMAX",
            ["f32"],
            {"axis": 1, "axes": 1},
            "SOFTMAX: expected attrs of .*, got 'axes'",
        ),
        ("taper.SOFTMAX", ["i64"], {"axis": 1}, "SOFTMAX: expected x of float32 or float64"),
        ("taper.SOFTMAX", ["f32"], {"axis": 2}, r"SOFTMAX: expected an axis in \[0, 2\), got 2"),
        ("taper.SOFTMAX", ["f32"], {"axis": 1, "output": 1}, r"output in \[0, 1\), got 1"),
        ("taper.PERMUTE", ["f32"], {"axes": "0, 1"}, "PERMUTE.axes: expected ints, got '0, 1'"),
        ("taper.MAP", ["f32"], {"code": "ADD", "args": [0, -1], "scalars": "x"}, "numbers with"),
        ("taper.PACK", ["f32"], {"format": "panels.0"}, "an output in format plain"),
    ],
)
def test_calls_that_are_wrong(op, dtypes, settings, message):
    with pytest.raises(OpError, match=message):
        output_type(op, [(dtype, (4, 32)) for dtype in dtypes], settings)


def test_element_types_that_taper_lacks():
    with pytest.raises(NoKernelError, match=r"no kernel computes 'taper.NEG' of \(u16\) -> any on"):
        output_type("taper.NEG", [("u16", (2,))], {})
    with pytest.raises(NoKernelError, match=r"of \(f32\) -> i32 on Cpu; there are: \(f32\) -> f32"):
        output_type("taper.NEG", [("f32", (2,))], {}, "i32")


def test_every_op_without_blocks_has_samples():
    assert {op.name for op in SAMPLED} == {name for name, op in REGISTRY.items() if not op.blocks}
