"""Ops as programs call them: text in, values out, on every device this CPU has."""

import re

import numpy as np
import pytest

import openinfer_reference as reference
from openinfer_ops_page import PAGE
from simulated import executor, step
from taper_openinfer import ProgramError
from taper_openinfer.dtypes import DTYPES
from taper_openinfer.simulator.devices import available_devices

EXAMPLES = re.findall(r"```text\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)

CALLS = """
dynamic { x: f32[2, B, 4]; w: f32[4]; }
volatile { h: f32[B, 4]; s: f32[B, 1]; n: i32[B, 1]; p: f32[B, 4]; m: f32[4, 4]; t: f32[2, 4, B];
           heads: f32[B, 2, 4]; b: bf16[2, B, 4]; y: f32[2, B, 4]; r: f32[2, 4, 4];
           a: i8[3, 4]; c: i8[4, 2]; k: i32[3, 2]; }
constant { slope: f32 @init(0.01); }
block entry {
    op taper.SLICE(x, axis=0, start=0, stop=1, step=1) >> first;
    op taper.RESHAPE(first, shape=[B, 4]) >> rows;
    op matmul(rows, m) >> h;
    op relu(h, negative_slope=slope) >> h;
    op sum_axis(h, axes=[-1], keepdims=true) >> s;
    op cast(s, to=i32, rounding_mode=nearest) >> n;
    op taper.SOFTMAX(h, axis=1) >> p;
    op taper.PERMUTE(x, axes=[0, 2, 1]) >> t;
    op taper.RESHAPE(x, shape=[B, 2, 4]) >> heads;
    op taper.CAST(x, dtype=bf16) >> b;
    op taper.RMS_NORM(x, w, dims=1, eps=1e-5) >> y;
    op taper.QR(x, mode="reduced", output=1) >> r;
    op matmul(a, c, acc=i32) >> k;
    return;
}
"""


def calls(device):
    rng = np.random.default_rng(1)
    a, c = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 4), (4, 2)))
    x = rng.standard_normal((2, 5, 4)).astype(np.float32)
    w, m = (rng.standard_normal(shape).astype(np.float32) for shape in ((4,), (4, 4)))
    made = step(executor(CALLS, {"B": 5}, device=device, a=a, c=c, m=m), x=x, w=w)
    return {"a": a, "c": c, "x": x, "w": w, "m": m}, made


@pytest.mark.parametrize("device", available_devices())
def test_calls(device):
    given, made = calls(device)
    x, w = given["x"].astype(np.float64), given["w"]
    h = x[0] @ given["m"]
    h = np.where(h < 0, 0.01 * h, h)
    close = {"rtol": 1e-4, "atol": 1e-4}
    np.testing.assert_allclose(made.fetch("h"), h, **close)
    np.testing.assert_allclose(made.fetch("s"), h.sum(1, keepdims=True), **close)
    np.testing.assert_array_equal(made.fetch("n"), np.round(made.fetch("s")))
    e = np.exp(h - h.max(1, keepdims=True))
    np.testing.assert_allclose(made.fetch("p"), e / e.sum(1, keepdims=True), **close)
    np.testing.assert_array_equal(made.fetch("t"), given["x"].transpose(0, 2, 1))
    np.testing.assert_array_equal(made.fetch("heads"), given["x"].reshape(5, 2, 4))
    np.testing.assert_allclose(
        reference.to_python(made.fetch("b"), "bf16"), x.reshape(-1), rtol=2**-8
    )
    norm = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-5) * w
    np.testing.assert_allclose(made.fetch("y"), norm, **close)
    np.testing.assert_allclose(abs(made.fetch("r")), abs(np.linalg.qr(x)[1]), **close)
    np.testing.assert_array_equal(
        made.fetch("k"), given["a"].astype(np.int64) @ given["c"].astype(np.int64)
    )


def test_devices_agree():
    """Integers to the bit, floats within the tolerances of their types."""
    results = {device: calls(device)[1] for device in available_devices()}
    first, *others = results.values()
    for name, dtype in {"h": "f32", "s": "f32", "p": "f32", "y": "f32", "b": "bf16", "n": "i32",
                        "k": "i32"}.items():  # fmt: skip
        for other in others:
            got, want = (reference.to_python(made.fetch(name), dtype) for made in (other, first))
            atol, rtol = reference.TOLERANCES.get(dtype, (0, 0))
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize("example", EXAMPLES)
def test_examples_of_the_page_run(example):
    made = executor(example, {"B": 8})
    step(made, x=np.ones((2, 8, 4) if "[2, B, 4]" in example else (8, 4), np.float32))
    for name in re.findall(r"(\w+): \w+\[", example):
        assert made.fetch(name).size


@pytest.mark.parametrize("device", available_devices())
def test_a_missing_kernel_names_the_device_and_what_there_is(device):
    text = "dynamic { a: f32[2]; b: f64[2]; } volatile { y: f32[2]; } block entry {\n"
    with pytest.raises(ProgramError) as error:
        executor(text + "op add(a, b) >> y;\nreturn; }", device=device)
    assert str(error.value).startswith(
        f"<program>:2:1: no kernel computes 'add' of (f32, f64) -> f32 on {device}; there are: "
        "(T, T) -> T with T of f8 bf16"
    )


@pytest.mark.parametrize("dtype", ["i4", "u2", "f8", "bf16", "u16", "u64", "i1"])
def test_types_that_plans_lack(dtype):
    """A program computes in them as :mod:`openinfer_reference` does."""
    text = (
        f"dynamic {{ a: {dtype}[3]; b: {dtype}[3]; }} volatile {{ y: {dtype}[3]; }}"
        "block entry { op add(a, b) >> y; op mul(y, b) >> y; return; }"
    )
    storage = DTYPES[dtype].storage
    low, high = (0x3C, 0x44) if dtype in reference.FLOATS else reference.limits(dtype)
    a, b = np.array([low, high, high], storage), np.array([high, high, low], storage)
    if dtype == "bf16":
        a, b = a << 8, b << 8
    made = step(executor(text), a=a, b=b)
    want = [
        reference.as_stored(reference.as_stored(x + y, dtype) * y, dtype)
        for x, y in zip(reference.to_python(a, dtype), reference.to_python(b, dtype), strict=True)
    ]
    assert reference.to_python(made.fetch("y"), dtype) == want
