"""QUANTIZE moves beside what makes the parts of a CAT; constants are quantized with the model."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, op_counts
from taper_frontend.compiler.stages import absorb_padding, quantize_before_joining


def padded(b, fill=0.0, zero=None, both=False):
    x = b.op("NEG", b.input("x", 1, 5, 6, 4))
    border = b.constant(np.full((1, 1, 6, 4), fill, "float32"), "fill")
    parts = [border, x, border] if both else [x, border]
    y = b.op("MUL", b.op("CAT", *parts, axis=1), b.constant(np.float32(10), "s"))
    y = b.op("ROUND", y)
    if zero is not None:
        y = b.op(
            "ADD", y, b.constant(np.float32(zero), "zero") if zero != "input" else b.input("z")
        )
    y = b.op("MAXIMUM", y, scalar=0.0, scalar_index=1)
    y = b.op("MINIMUM", y, scalar=255.0, scalar_index=1)
    return b.op("CAST", y, dtype="uint8")


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize(("fill", "zero"), [(0.0, None), (0.0, 7), (1.5, 3), (1e9, 0)])
def test_border(fill, zero, both):
    b = Builder()
    graph = check_fires(quantize_before_joining, b.done(padded(b, fill, zero, both=both)))
    (output,) = graph.outputs
    assert graph.producers[output].op == "CAT"
    assert op_counts(graph)["ROUND"] == 1


def test_bytes_of_another_scale():
    b = Builder()
    parts = [b.op("NEG", b.input("x", 1, 5, 6, 4))]
    for name, scale in (("q", 0.02), ("r", 0.3)):
        q = b.input(name, 1, 5, 6, 4, dtype="uint8")
        parts.append(b.op("DEQUANTIZE", q, b.constant(np.float32(scale), f"{name}.scale")))
    scale, zero = b.constant(np.float32(0.1), "s"), b.constant(np.int32(9), "z")
    y = b.op("QUANTIZE", b.op("CAT", *parts, axis=3), scale, zero, low=0, high=255, dtype="uint8")
    graph = check_fires(quantize_before_joining, b.done(y))
    (output,) = graph.outputs
    assert graph.producers[output].op == "CAT"
    assert op_counts(graph)["QUANTIZE"] == 3


def test_convolution_then_pads_itself():
    b = Builder()
    weight = b.constant(np.ones((3, 3, 4, 8), "int8"), "w")
    attrs = {"kernel": (3, 3), "stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)}
    y = b.op("CONV", padded(b), weight, groups=1, accumulate="int32", **attrs)
    graph = check_fires(quantize_before_joining, b.done(y))
    assert absorb_padding(graph)
    assert op_counts(graph).get("CAT", 0) == 0


def test_zero_points_that_vary_stay():
    b = Builder()
    check_keeps(quantize_before_joining, b.done(padded(b, zero="input")))
