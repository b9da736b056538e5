"""Test the ops of quantized graphs: every result has torch's bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.ao.quantization.fx import _decomposed  # noqa: F401  (defines quantized_decomposed)

import taper_frontend
from function_module import Function
from marks import thinned
from taper_runtime import InferenceSession
from taper_runtime.ops import REGISTRY
from torchao_ops import ops as torchao

decomposed = torch.ops.quantized_decomposed
int8, uint8 = torch.int8, torch.uint8


def check(function, *inputs):
    """Export a function and compare the bits of its results; return the plan."""
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    plan = taper_frontend.export(Function(function), inputs)
    assert all(REGISTRY[node.op].native for node in plan.nodes)
    session = InferenceSession(plan)
    names = [spec.name for spec in session.get_inputs()]
    results = session.run(None, {n: x.numpy() for n, x in zip(names, inputs, strict=True)})
    for got, want in zip(results, wanted, strict=True):
        assert got.dtype == want.numpy().dtype
        np.testing.assert_array_equal(got, want.numpy())
    return plan


@pytest.fixture
def data():
    """x, scales and zero points of its columns, levels, and those of groups of 4."""
    generator = torch.Generator().manual_seed(0)

    def rand(*shape):
        return torch.rand(shape, generator=generator) + 0.1

    def integers(low, high, *shape):
        return torch.randint(low, high, shape, generator=generator)

    x = torch.randn(6, 8, generator=generator) * 3
    x[0, 0], x[1, 1] = 0.0, 1e6
    return (
        x,
        (rand(8), integers(-5, 5, 8)),
        integers(-128, 128, 6, 8).to(int8),
        (rand(6, 2), integers(-4, 4, 6, 2)),
    )


@pytest.mark.parametrize(("scale", "zero"), thinned(2, [0.05, 0.1, 1 / 3, 0.0078125, 3.7], [0, 3]))
def test_per_tensor_by_numbers(data, scale, zero):
    x, _, q, _ = data
    for limits in ((-128, 127, int8), (0, 255, uint8), (-127, 127, int8)):
        check(lambda x, to=limits: decomposed.quantize_per_tensor(x, scale, zero, *to), x)
    check(lambda q: decomposed.dequantize_per_tensor(q, scale, zero, -128, 127, int8), q)
    halves = {"out_dtype": torch.float16}
    check(lambda q: decomposed.dequantize_per_tensor(q, scale, 0, -128, 127, int8, **halves), q)


def test_reciprocals_of_scales_are_those_of_torch(data):
    """torch divides in float64; numbers that float32 does not have may have another reciprocal."""
    halves = torch.arange(-40, 40) * 0.5
    rng = np.random.default_rng(0)
    odd = [s for s in rng.uniform(0.01, 4, 400) if 1 / np.float32(s) != np.float32(1 / s)][:5]
    assert odd
    for scale in odd:
        x = halves * scale
        check(lambda x, s=scale: decomposed.quantize_per_tensor(x, s, 1, -128, 127, int8), x)


def test_per_tensor_by_tensors(data):
    x, _, q, _ = data
    scale, zero = torch.tensor([0.03]), torch.tensor([4])
    quantize, decode = decomposed.quantize_per_tensor, decomposed.dequantize_per_tensor
    check(lambda x, s, z: quantize.tensor(x, s, z, -128, 127, int8), x, scale, zero)
    check(lambda q, s, z: decode.tensor(q, s, z, -128, 127, int8), q, scale, zero)
    low, high = torch.tensor(-100), torch.tensor(99)
    check(lambda x, s, z: quantize.tensor2(x, s, z, low, high, int8), x, scale, zero)
    check(lambda q, s, z: decode.tensor2(q, s, z, low, high, int8), q, scale, zero)


def test_per_channel(data):
    x, (scales, zeros), q, _ = data
    quantize, decode = decomposed.quantize_per_channel, decomposed.dequantize_per_channel
    check(lambda x, s, z: quantize(x, s, z, 1, -128, 127, int8), x, scales, zeros)
    check(lambda q, s, z: decode(q, s, z, 1, -128, 127, int8), q, scales, zeros)
    check(lambda q, s: decode(q, s, None, 1, -128, 127, int8), q, scales)
    check(lambda q, s, z: decode(q, s, z, 1, -128, 127, int8), q, scales, zeros.to(int8))
    fake = decomposed.fake_quant_per_channel
    check(lambda x, s, z: fake(x, s, z, 1, -128, 127), x, scales, zeros)


def test_per_token(data):
    def chosen(x):
        scale, zero = decomposed.choose_qparams_per_token_asymmetric(x, int8)
        q = decomposed.quantize_per_token(x, scale, zero, -128, 127, int8)
        y = decomposed.dequantize_per_token(q, scale, zero, -128, 127, int8, torch.float32)
        return scale, zero, q, y

    x, _, _, _ = data
    check(chosen, x)
    check(chosen, x.abs())
    check(chosen, -x.abs())


def test_per_group(data):
    x, _, q, (scales, zeros) = data
    quantize = decomposed.quantize_per_channel_group
    decode = decomposed.dequantize_per_channel_group
    check(lambda x, s, z: quantize(x, s, z, -8, 7, int8, 4), x, scales, zeros)
    for each in (zeros, zeros.to(int8)):
        check(lambda q, s, z: decode(q, s, z, -8, 7, int8, 4, torch.float32), q, scales, each)
    check(lambda q, s: decode(q, s, None, -8, 7, int8, 4, torch.float32), q, scales)


def test_chosen_parameters(data):
    def dynamic(x):
        scale, zero = decomposed.choose_qparams.tensor(x, 0, 255, 2**-12, uint8)
        q = decomposed.quantize_per_tensor.tensor(x, scale, zero, 0, 255, uint8)
        y = decomposed.dequantize_per_tensor.tensor(q, scale, zero, 0, 255, uint8)
        return scale, zero, q, y

    x, _, _, _ = data
    for values in (x, x.abs() + 1, -x.abs(), x * 0):
        check(dynamic, values)
        for limits in ((-127, 127, 1e-5, int8), (0, 255, 1e-5, uint8)):
            choose = decomposed.choose_qparams_symmetric.tensor
            check(lambda x, to=limits, choose=choose: choose(x, *to), values)


@pytest.mark.parametrize(
    ("block", "mapping", "keepdim"),
    thinned(
        2,
        [[1, 8], [1, 4], [6, 8], [3, 2]],
        ["SYMMETRIC", "ASYMMETRIC", "SYMMETRIC_NO_CLIPPING_ERR"],
        [False, True],
    ),
    ids=str,
)
def test_affine(data, block, mapping, keepdim):
    def chosen(x):
        choose = torchao.choose_qparams_affine
        scale, zero = choose(x, mapping, block, int8, -128, 127, None, None, int8, keepdim)
        q = torchao.quantize_affine(x, block, scale, zero, int8, -128, 127)
        return scale, zero, q, torchao.dequantize_affine(q, block, scale, zero, int8, -128, 127)

    check(chosen, data[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("mapping", ["SYMMETRIC", "ASYMMETRIC"])
def test_each_step_on_16_bit_floats_is_rounded(dtype, mapping):
    def chosen(x):
        choose = torchao.choose_qparams_affine
        scale, zero = choose(x, mapping, [1, 64], int8, -128, 127, None, None, int8)
        q = torchao.quantize_affine(x, [1, 64], scale, zero, int8, -128, 127)
        y = decomposed.choose_qparams_per_token_asymmetric(x, int8)
        return scale.float(), zero, q, *y

    x = torch.randn(40, 64, generator=torch.Generator().manual_seed(1)) * 3
    x[0] = 0  # whose scale is the least one
    check(lambda x: chosen(x.to(dtype)), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_affine_decodes_to_the_dtype_asked_for(data, dtype):
    _, _, q, (scales, zeros) = data
    decode = torchao.dequantize_affine
    check(
        lambda q, s, z: decode(q, [1, 4], s, z, int8, -8, 7, dtype),
        q,
        scales.to(dtype),
        zeros.to(int8),
    )


def test_int_mm():
    a, b = (torch.randint(-128, 128, shape, dtype=int8) for shape in ((32, 64), (64, 16)))
    check(torch._int_mm, a, b)


def test_what_is_refused(data):
    x, _, q, (scales, zeros) = data
    cases = {
        "a scale above 0, got 0": lambda: decomposed.dequantize_per_tensor(
            q, 0.0, 0, -128, 127, int8
        ),
        "a zero point of 32 bits, got 2147483648": lambda: decomposed.dequantize_per_tensor(
            q, 0.1, 2**31, -128, 127, int8
        ),
        "zero points of an integer dtype": lambda: torchao.dequantize_affine(
            q, [1, 4], scales, zeros.float(), int8, -8, 7
        ),
    }
    for message, function in cases.items():
        with pytest.raises(taper_frontend.UnsupportedNodesError, match=message):
            taper_frontend.export(Function(lambda x, f=function: x + f()), (x,))


@pytest.mark.parametrize("bad", [0.0, -0.5, float("nan"), float("inf")])
def test_scales_that_quantize_nothing_are_refused_by_name(data, bad):
    """Those of a tensor, as those that are numbers."""
    x, (scales, zeros), q, _ = data
    scales[3] = bad
    none = torch.zeros(8, dtype=torch.int64)
    for function, of in (
        (lambda x: decomposed.quantize_per_channel(x, scales, zeros, 1, -128, 127, int8), x),
        (lambda q: decomposed.dequantize_per_channel(q, scales, none, 1, -128, 127, int8), q),
        (lambda x: decomposed.quantize_per_tensor(x, bad, 0, -128, 127, int8), x),
    ):
        with pytest.raises(taper_frontend.UnsupportedNodesError, match=r"scale.* above 0.*got"):
            taper_frontend.export(Function(function), (of,))


def test_zero_points_out_of_range_are_refused_by_name(data):
    x, (scales, zeros), _, _ = data
    zeros[3] = 2**31
    for function in (
        lambda x: decomposed.quantize_per_channel(x, scales, zeros, 1, -128, 127, int8),
        lambda x: decomposed.quantize_per_tensor(x, 0.5, 2**31, -128, 127, int8),
    ):
        with pytest.raises(taper_frontend.UnsupportedNodesError, match=r"zero point.*32 bits.*got"):
            taper_frontend.export(Function(function), (x,))
