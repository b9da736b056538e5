"""Bytes are pooled and joined as they are, and not quantized again."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, op_counts
from taper_frontend.compiler.stages import sink_dequantization

POOL = {"kernel": (3, 3), "stride": (2, 2), "dilation": (1, 1), "padding": (1, 1, 1, 1)}


def decoded(b, name="q", scale=0.1, zero=None, dtype="uint8", shape=(1, 7, 6, 4)):
    zeros = [] if zero is None else [b.constant(np.int32(zero), f"{name}.zero")]
    scale = b.constant(np.float32(scale), f"{name}.scale")
    return b.op("DEQUANTIZE", b.input(name, *shape, dtype=dtype), scale, *zeros)


def quantized(b, x, scale=0.1, zero=None, low=0, high=255, dtype="uint8"):
    zeros = [] if zero is None else [b.constant(np.int32(zero), "zero")]
    scale = b.constant(np.float32(scale), "scale")
    return b.op("QUANTIZE", x, scale, *zeros, dtype=dtype, low=low, high=high)


@pytest.mark.parametrize("zero", [None, 7, 255])
def test_pools_and_joins(zero):
    b = Builder()
    parts = [b.op("MAX_POOL", decoded(b, name, zero=zero), **POOL) for name in "qr"]
    graph = check_fires(sink_dequantization, b.done(b.op("CAT", *parts, axis=3)))
    (output,) = graph.outputs
    last = graph.producers[output]
    assert last.op == "DEQUANTIZE"
    assert graph.producers[last.inputs[0]].op == "CAT"
    assert {graph.tensors[node.output].dtype for node in graph.order() if node is not last} == {
        "uint8"
    }


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("high", [127, 255])
@pytest.mark.parametrize("scale", [1e-30, 0.1, 3e4, 1 / 3])
def test_bytes_are_not_quantized_again(scale, high, pooled):
    b = Builder()
    first = quantized(b, b.input("x", 1, 7, 6, 4), scale, 9, high=high)
    y = b.op("DEQUANTIZE", first, b.constant(np.float32(scale), "s"), b.constant(np.int32(9), "z"))
    y = b.op("MAX_POOL", y, **POOL) if pooled else y
    graph = check_fires(sink_dequantization, b.done(quantized(b, y, scale, 9, high=high)))
    assert op_counts(graph)["QUANTIZE"] == 1
    assert graph.producers[graph.outputs[0]].op == ("MAX_POOL" if pooled else "QUANTIZE")


def test_others_stay():
    for fields in ({"dtype": "int8"}, {"scale": -0.1}, {"scale": np.nan}, {"scale": np.zeros(4)}):
        b = Builder()
        check_keeps(sink_dequantization, b.done(b.op("MAX_POOL", decoded(b, **fields), **POOL)))
    for fields in ({"scale": 0.2}, {"zero": 3}, {"dtype": "int8"}):
        b = Builder()
        parts = decoded(b, "q"), decoded(b, "r", **fields)
        check_keeps(sink_dequantization, b.done(b.op("CAT", *parts, axis=1)))
    b = Builder()
    check_keeps(
        sink_dequantization, b.done(b.op("CAT", decoded(b), b.input("x", 1, 7, 6, 4), axis=1))
    )
    for fields in ({"scale": 0.2}, {"zero": 1}, {"high": 254}, {"dtype": "int8", "high": 127}):
        b = Builder()
        check_keeps(sink_dequantization, b.done(quantized(b, decoded(b), **fields)))
