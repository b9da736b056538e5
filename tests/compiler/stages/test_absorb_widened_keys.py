"""Attention reads keys and values of 16 bits without a copy in float32."""

import pytest

from graph_checks import Builder, check_fires, check_keeps, only, op_counts
from taper_frontend.compiler.stages import absorb_widened_keys


def attention(k_dtype, v_dtype, *, masked=False):
    b = Builder()
    q = b.input("q", 2, 6, 5, 4)
    stored = [
        b.op("CAST", b.input(name, 2, 3, 7, width), dtype=dtype)
        for name, width, dtype in (("k", 4, k_dtype), ("v", 8, v_dtype))
    ]
    names = [b.op("CAST", x, dtype="float32") for x in stored]
    mask = [b.input("mask", 5, 7, dtype="bool")] if masked else []
    return b.done(b.op("ATTENTION", q, *names, *mask, scale=0.5))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_keys_and_values_of_16_bits(dtype, masked):
    graph = check_fires(absorb_widened_keys, attention(dtype, dtype, masked=masked))
    node = only(graph, "ATTENTION")
    assert [graph.tensors[name].dtype for name in node.inputs[:3]] == ["float32", dtype, dtype]
    assert op_counts(graph) == {"CAST": 2, "ATTENTION": 1}


def test_moves_in_between_are_of_16_bits():
    b = Builder()
    stored = [b.op("CAST", b.input(name, 2, 7, 3, 4), dtype="float16") for name in "kv"]
    names = [b.transpose(b.op("CAST", x, dtype="float32"), 1, 2) for x in stored]
    graph = b.done(b.op("ATTENTION", b.input("q", 2, 6, 5, 4), *names, scale=0.5))
    check_fires(absorb_widened_keys, graph)
    assert op_counts(graph) == {"CAST": 2, "TRANSPOSE": 2, "ATTENTION": 1}


def test_other_keys_and_values_stay():
    check_keeps(absorb_widened_keys, attention("float16", "bfloat16"))
    check_keeps(absorb_widened_keys, attention("int8", "int8"))


def scaled(scale=(2, 3, 7, 1), *, masked=True, dtype="int8"):
    b = Builder()
    q = b.input("q", 2, 6, 5, 4)
    names = []
    for name, width in (("k", 4), ("v", 8)):
        numbers = b.op("CAST", b.input(name, 2, 3, 7, width, dtype=dtype), dtype="float32")
        pair = [numbers, b.input(f"{name}_scale", *scale)]
        names.append(b.op("MUL", *(pair if name == "k" else pair[::-1])))
    mask = [b.input("mask", 5, 7, dtype="bool")] if masked else []
    return b.done(b.op("ATTENTION", q, *names, *mask, scale=0.5))


def test_keys_and_values_of_int8_with_scales():
    graph = check_fires(absorb_widened_keys, scaled())
    node = only(graph, "ATTENTION")
    assert [*node.inputs] == ["q", "k", "v", "mask", "k_scale", "v_scale"]
    assert op_counts(graph) == {"ATTENTION": 1}


def test_other_scales_stay():
    for graph in (
        scaled((1, 3, 7, 1)),
        scaled((7, 1)),
        scaled(masked=False),
        scaled(dtype="uint8"),
    ):
        check_keeps(absorb_widened_keys, graph)
