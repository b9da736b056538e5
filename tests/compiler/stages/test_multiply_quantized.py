"""Products of dequantized tensors are computed from the bytes."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import multiply_quantized

RNG = np.random.default_rng(3)


def levels(*shape, dtype="int8"):
    limits = np.iinfo(dtype)
    return RNG.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def factors(*shape):
    return np.abs(floats(*shape)) + np.float32(0.1)


def product(b, a, w, scale=(), weight_scale=(1, 20), zero=None, weight_zero=None, **attrs):
    """MATMUL of a [4, 6] and a weight [6, 20], both dequantized."""
    zeros = [] if zero is None else [b.constant(zero, "zero")]
    x = b.op("DEQUANTIZE", a, b.constant(factors(*scale), "s"), *zeros)
    zeros = [] if weight_zero is None else [b.constant(weight_zero, "weight_zero")]
    w = b.op("DEQUANTIZE", b.constant(w, "w"), b.constant(factors(*weight_scale), "t"), *zeros)
    return b.op("MATMUL", x, w, **attrs)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("zero", [None, 0, 3, 130])
@pytest.mark.parametrize("scale", [(), (1,), (1, 1), (4, 1)])
def test_matmul(dtype, zero, scale):
    b = Builder()
    if zero is not None:
        zero = np.full(scale, zero, "int32")
    y = product(b, b.input("a", 4, 6, dtype=dtype), levels(6, 20), scale, zero=zero)
    graph = check_fires(multiply_quantized, b.done(y))
    node = only(graph, "MATMUL")
    assert node.attrs["accumulate"] == "int32"
    assert [graph.tensors[name].dtype for name in node.inputs] == [dtype, "int8"]
    assert graph.tensors[node.output].dtype == "int32"
    assert op_counts(graph).get("SUB", 0) == (zero is not None and bool(zero.any()))


def test_transposed_weight_and_one_factor():
    b = Builder()
    y = product(b, b.input("a", 4, 6, dtype="int8"), levels(20, 6), (), (20, 1), transpose_b=True)
    check_fires(multiply_quantized, b.done(y))
    b = Builder()
    y = product(b, b.input("a", 4, 6, dtype="int8"), levels(6, 20), (), ())
    check_fires(multiply_quantized, b.done(y))


def test_scale_that_is_computed():
    b = Builder()
    x = b.op("DEQUANTIZE", b.input("a", 2, 4, 6, dtype="int8"), b.input("s", 2, 4, 1))
    w = b.op("DEQUANTIZE", b.constant(levels(6, 20), "w"), b.constant(factors(1, 20), "t"))
    graph = check_fires(multiply_quantized, b.done(b.op("MATMUL", x, w)))
    assert op_counts(graph)["MUL"] == 2


def convolution(b, zero=None, padding=(0, 0, 0, 0), groups=1, permuted=False, op="CONV"):
    shape = (1, 4, 7, 6) if permuted else (1, 7, 6, 4)
    zeros = [] if zero is None else [b.constant(np.int32(zero), "zero")]
    a = b.input("a", *shape, dtype="uint8")
    x = b.op("DEQUANTIZE", a, b.constant(np.float32(0.1), "s"), *zeros)
    if permuted:
        x = b.op("PERMUTE", x, axes=(0, 2, 3, 1))
    weight = b.constant(levels(8, 4 // groups, 3, 3), "w")
    w = b.op("DEQUANTIZE", weight, b.constant(factors(8, 1, 1, 1), "t"))
    w = b.op("PERMUTE", w, axes=(2, 3, 1, 0))
    plain = {"kernel": (3, 3), "stride": (1, 1), "dilation": (1, 1)}
    return b.op(op, x, w, padding=padding, groups=groups, **plain)


@pytest.mark.parametrize("zero", [None, 0, 7])
@pytest.mark.parametrize("padding", [(0, 0, 0, 0), (1, 1, 1, 1), (0, 2, 1, 0)])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_convolution(zero, padding, groups):
    for permuted in (False, True):
        b = Builder()
        graph = b.done(convolution(b, zero, padding, groups, permuted))
        check_fires(multiply_quantized, graph)
        node = only(graph, "CONV")
        assert graph.tensors[node.output].dtype == "int32"
        assert node.attrs.get("border", 0) == (zero if zero and any(padding) else 0)


def test_others_stay():
    a = {"dtype": "int8"}
    for scale, weight_scale, more in [
        ((1, 6), (1, 20), {}),  # a scale for each k
        ((4, 3), (1, 20), {}),  # for each group of them
        ((), (6, 1), {}),
        ((), (3, 20), {}),
        ((), (1, 20), {"weight_zero": np.full((1, 20), 2, "int32")}),
        ((), (1, 20), {"alpha": 0.5}),
    ]:
        b = Builder()
        y = product(b, b.input("a", 4, 6, **a), levels(6, 20), scale, weight_scale, **more)
        check_keeps(multiply_quantized, b.done(y))
    b = Builder()
    check_keeps(multiply_quantized, b.done(convolution(b, op="CONV_TRANSPOSE")))
    b = Builder()  # no byte pads
    check_keeps(multiply_quantized, b.done(convolution(b, 300, (1, 1, 1, 1))))
    b = Builder()  # the weight has other levels
    y = product(b, b.input("a", 4, 6, **a), levels(6, 20, dtype="uint8"))
    check_keeps(multiply_quantized, b.done(y))
    b = Builder()  # the weight is no constant
    x = b.op("DEQUANTIZE", b.input("a", 4, 6, **a), b.constant(factors(), "s"))
    w = b.op("DEQUANTIZE", b.input("w", 6, 20, **a), b.constant(factors(1, 20), "t"))
    check_keeps(multiply_quantized, b.done(b.op("MATMUL", x, w)))


def test_sums_that_could_overflow_stay():
    for rows, fires in ((65793, True), (65794, False)):
        b = Builder()
        x = b.op("DEQUANTIZE", b.input("a", 1, rows, dtype="int8"), b.constant(factors(), "s"))
        w = b.op("DEQUANTIZE", b.constant(levels(rows, 1), "w"), b.constant(factors(), "t"))
        graph = b.done(b.op("MATMUL", x, w))
        (check_fires if fires else check_keeps)(multiply_quantized, graph)
