"""Norms by hand, as models write them."""

import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.graph.node import ABSENT
from taper_frontend.compiler.stages import recognize_norms, simplify_arithmetic


def prepared(graph):
    """Spelled as the pipeline has it when it looks for norms."""
    while simplify_arithmetic(graph):
        pass
    return graph


def layer_norm(b, x, axes, variance="mean", root="sqrt", eps=1e-5):
    centred = b.op("SUB", x, b.op("MEAN", x, axes=axes, keepdim=True))
    if variance == "mean":
        square = b.op("POW", centred, 2.0)
        variance = b.op("MEAN", square, axes=axes, keepdim=True)
    elif variance == "product":
        variance = b.op("MEAN", b.op("MUL", centred, centred), axes=axes, keepdim=True)
    else:
        variance = b.op("VAR", x, axes=axes, keepdim=True, correction=variance)
    shifted = b.op("ADD", variance, eps)
    if root == "sqrt":
        return b.op("DIV", centred, b.op("SQRT", shifted))
    return b.op("MUL", b.op("RSQRT", shifted), centred)


def rms_norm(b, x, eps=1e-6, axes=(2,)):
    mean = b.op("MEAN", b.op("POW", x, 2.0), axes=axes, keepdim=True)
    return b.op("MUL", x, b.op("RSQRT", b.op("ADD", mean, eps)))


@pytest.mark.parametrize("variance", ["mean", "product", 0.0])
@pytest.mark.parametrize("root", ["sqrt", "rsqrt"])
@pytest.mark.parametrize("axes", [(2,), (1, 2)])
def test_layer_norm(variance, root, axes):
    b = Builder()
    graph = prepared(b.done(layer_norm(b, b.input("x", 2, 3, 4), axes, variance, root)))
    check_fires(recognize_norms, graph)
    assert op_counts(graph) == {"LAYER_NORM": 1}
    assert only(graph, "LAYER_NORM").attrs == {"dims": len(axes), "eps": 1e-5}


def test_layer_norm_with_weight_and_bias():
    b = Builder()
    y = layer_norm(b, b.input("x", 2, 3, 4), (2,))
    y = b.op("MUL", b.constant(floats(4), "weight"), y)
    graph = prepared(b.done(b.op("ADD", y, b.constant(floats(4), "bias"))))
    check_fires(recognize_norms, graph)
    assert op_counts(graph) == {"LAYER_NORM": 1}
    assert only(graph, "LAYER_NORM").inputs == ["x", "weight", "bias"]


def test_layer_norm_with_bias_only():
    b = Builder()
    y = layer_norm(b, b.input("x", 2, 3, 4), (1, 2))
    graph = prepared(b.done(b.op("ADD", y, b.constant(floats(3, 4), "bias"))))
    check_fires(recognize_norms, graph)
    assert only(graph, "LAYER_NORM").inputs == ["x", ABSENT, "bias"]


def test_weight_after_bias_is_no_weight_of_the_norm():
    b = Builder()
    y = b.op("ADD", layer_norm(b, b.input("x", 2, 3, 4), (2,)), b.constant(floats(4)))
    graph = prepared(b.done(b.op("MUL", y, b.constant(floats(4)))))
    check_fires(recognize_norms, graph)
    assert op_counts(graph) == {"LAYER_NORM": 1, "MUL": 1}


def test_rms_norm_as_llama_writes_it():
    b = Builder()
    y = rms_norm(b, b.input("x", 2, 3, 4))
    graph = prepared(b.done(b.op("MUL", b.constant(floats(4), "weight"), y)))
    check_fires(recognize_norms, graph)
    assert op_counts(graph) == {"RMS_NORM": 1}
    assert only(graph, "RMS_NORM").attrs == {"dims": 1, "eps": 1e-6}
    assert only(graph, "RMS_NORM").inputs == ["x", "weight"]


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: layer_norm(b, x, (1,)),  # not the last dimensions
        lambda b, x: layer_norm(b, x, (0, 2)),
        lambda b, x: layer_norm(b, x, (2,), variance=1.0),  # n - 1
        lambda b, x: rms_norm(b, x, axes=(1,)),
    ],
)
def test_other_statistics_stay(make):
    b = Builder()
    check_keeps(recognize_norms, prepared(b.done(make(b, b.input("x", 2, 3, 4)))))


def test_mean_and_variance_over_different_axes_are_no_layer_norm():
    b = Builder()
    x = b.input("x", 3, 4)
    centred = b.op("SUB", x, b.op("MEAN", x, axes=(1,), keepdim=True))
    variance = b.op("MEAN", b.op("SQUARE", centred), axes=(0, 1), keepdim=True)
    graph = b.done(b.op("MUL", centred, b.op("RSQRT", b.op("ADD", variance, 1e-5))))
    check_fires(recognize_norms, graph)
    assert op_counts(graph) == {"MEAN": 1, "SUB": 1, "RMS_NORM": 1}  # of the centred values


def test_square_of_another_tensor_stays():
    b = Builder()
    x, other = b.input("x", 3, 4), b.input("other", 3, 4)
    mean = b.op("MEAN", b.op("SQUARE", other), axes=(1,), keepdim=True)
    graph = b.done(b.op("MUL", x, b.op("RSQRT", b.op("ADD", mean, 1e-5))))
    check_keeps(recognize_norms, graph)


def test_scale_that_others_read_stays():
    b = Builder()
    x = b.input("x", 3, 4)
    mean = b.op("MEAN", b.op("SQUARE", x), axes=(1,), keepdim=True)
    scale = b.op("RSQRT", b.op("ADD", mean, 1e-5))
    check_keeps(recognize_norms, b.done(b.op("MUL", x, scale), b.op("NEG", scale)))


@pytest.mark.parametrize("shape", [(3, 4), (1, 4), (1,), (2, 3, 4)])
def test_factor_of_another_shape_is_no_weight(shape):
    b = Builder()
    y = b.op("RMS_NORM", b.input("x", 2, 3, 4), dims=1, eps=1e-5)
    check_keeps(recognize_norms, b.done(b.op("MUL", y, b.input("w", *shape))))


def test_norm_that_others_read_takes_no_weight():
    b = Builder()
    y = b.op("RMS_NORM", b.input("x", 2, 3, 4), dims=1, eps=1e-5)
    check_keeps(recognize_norms, b.done(b.op("MUL", y, b.input("w", 4)), b.op("NEG", y)))


def test_norm_has_one_weight_only():
    b = Builder()
    y = b.op("RMS_NORM", b.input("x", 3, 4), b.input("v", 4), dims=1, eps=1e-5)
    check_keeps(recognize_norms, b.done(b.op("MUL", y, b.input("w", 4))))


def test_float64_stays():
    b = Builder()
    x = b.input("x", 2, 3, 4, dtype="float64")
    check_keeps(recognize_norms, prepared(b.done(rms_norm(b, x))))
