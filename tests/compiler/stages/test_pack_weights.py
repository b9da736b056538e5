"""Constant matrices are packed, once each, from either layout."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.graph.constants import Parameter
from taper_frontend.compiler.stages import fold_packing, keep_quantized, pack_weights
from taper_runtime.formats import decode
from taper_runtime.ops.convert import cast
from taper_runtime.ops.opdef import TensorType


def pack(graph):
    """Pack and fold; whether anything was packed."""
    changed = pack_weights(graph)
    assert fold_packing(graph) == changed
    return changed


def unpacked(graph, name):
    return decode(graph.constants[name].value(), graph.tensors[name].type)


@pytest.mark.parametrize("columns", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("transposed", [False, True])
def test_layouts(columns, transposed):
    b = Builder()
    w = b.constant(floats(*((columns, 6) if transposed else (6, columns))), "w")
    y = b.op("MATMUL", b.input("a", 4, 6), w, transpose_b=transposed, alpha=0.5)
    graph = check_fires(pack, b.done(y))
    node = only(graph, "MATMUL")
    assert node.attrs.items() <= {"alpha": 0.5, "transpose_b": False}.items()
    assert list(graph.constants) == ["w.packed"]
    assert graph.tensors["w.packed"].type == ("float32", (6, columns), "panels.1")
    assert graph.constants["w.packed"].value().shape == (-(-columns // 16), 6, 16)
    matrix = floats(columns, 6).T if transposed else floats(6, columns)
    np.testing.assert_array_equal(unpacked(graph, "w.packed"), matrix)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8"])
@pytest.mark.parametrize("transposed", [False, True])
def test_narrow_weights_stay_narrow(dtype, transposed):
    b = Builder()
    matrix = cast(floats(*((20, 6) if transposed else (6, 20))), dtype)
    w = b.op("CAST", b.graph.add_constant("w", matrix, dtype), dtype="float32")
    graph = b.done(b.op("MATMUL", b.input("a", 4, 6), w, transpose_b=transposed))
    check_fires(pack, graph)
    assert op_counts(graph) == {"MATMUL": 1}
    assert list(graph.constants) == ["w.packed"]
    assert graph.tensors["w.packed"].dtype == dtype
    np.testing.assert_array_equal(unpacked(graph, "w.packed"), matrix.T if transposed else matrix)


def test_halves_that_others_read_widened():
    b = Builder()
    w = b.op("CAST", b.constant(floats(6, 6).astype(np.float16), "w"), dtype="float32")
    x = b.op("ADD", b.input("a", 4, 6), b.op("SUM", w, axes=(0,)))
    graph = check_fires(pack, b.done(b.op("MATMUL", x, w)))
    assert op_counts(graph)["CAST"] == 1
    assert list(graph.constants) == ["w", "w.packed"]


def test_table_of_halves():
    b = Builder()
    table = b.constant(floats(40, 6).astype(np.float16), "table")
    rows = b.op("EMBEDDING", table, b.input("ids", 3, dtype="int64"))
    x = b.op("CAST", rows, dtype="float32")
    widened = b.op("CAST", table, dtype="float32")
    graph = check_fires(pack, b.done(b.op("MATMUL", x, widened, transpose_b=True)))
    assert list(graph.constants) == ["table.packed"]
    assert op_counts(graph) == {"EMBEDDING": 1, "CAST": 1, "MATMUL": 1}


def test_epilogue_and_extras_stay():
    b = Builder()
    inputs = [b.input("a", 4, 6), b.weight(6, 7), b.input("bias", 7)]
    graph = b.done(b.op("MATMUL", *inputs, code=("ADD", "RELU"), args=(0, 1, 2)))
    check_fires(pack, graph)
    assert only(graph, "MATMUL").inputs == ["a", "w.packed", "bias"]


def test_shared_weight_is_packed_once():
    b = Builder()
    w = b.weight(6, 6)
    x = b.input("x", 4, 6)
    graph = b.done(b.op("MATMUL", b.op("MATMUL", x, w), w))
    check_fires(pack, graph)
    assert list(graph.constants) == ["w.packed"]


def test_weight_in_both_directions_is_packed_twice():
    b = Builder()
    w = b.weight(6, 6)
    y = b.op("MATMUL", b.op("MATMUL", b.input("x", 4, 6), w), w, transpose_b=True)
    graph = check_fires(pack, b.done(y))
    assert list(graph.constants) == ["w.packed", "w.packed_1"]


def test_table_that_is_a_weight_too_is_kept_once():
    b = Builder()
    table = b.weight(20, 6, name="table")
    ids = b.input("ids", 3, dtype="int64")
    x = b.op(
        "ADD",
        b.op("EMBEDDING", table, ids),
        b.op("EMBEDDING", table, b.op("NEG", b.op("NEG", ids))),
    )
    graph = check_fires(pack, b.done(b.op("MATMUL", x, table, transpose_b=True)))
    assert list(graph.constants) == ["table.packed"]
    assert graph.tensors["table.packed"].type == ("float32", (20, 6), "panels.0")
    assert only(graph, "MATMUL").attrs["transpose_b"]


@pytest.mark.parametrize("transposed", [False, True])
def test_original_that_others_read_stays(transposed):
    b = Builder()
    table = b.weight(6, 6, name="table")
    x = b.op("EMBEDDING", table, b.input("ids", 3, dtype="int64"))
    if transposed:
        x = b.op("ADD", x, b.op("SUM", table, axes=(0,)))
    graph = check_fires(pack, b.done(b.op("MATMUL", x, table, transpose_b=transposed)))
    assert list(graph.constants) == ["table", "table.packed"]


def conv(b, x, weight, op="CONV", **attrs):
    plain = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    return b.op(op, x, weight, **plain, **attrs)


@pytest.mark.parametrize("op", ["CONV", "CONV_TRANSPOSE"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(op, groups):
    b = Builder()
    weight = floats(3, 3, 6 // groups, 20)
    x = b.input("x", 1, 5, 5, 6)
    graph = b.done(conv(b, x, b.constant(weight, "w"), op, groups=groups))
    check_fires(pack, graph)
    node = only(graph, op)
    assert graph.tensors[node.inputs[1]].format == f"grouped_panels.{groups}"
    packed = graph.constants["w.packed"].value()
    assert packed.shape == (groups, 2 // groups, 9 * 6 // groups, 16)
    np.testing.assert_array_equal(unpacked(graph, "w.packed"), weight)


def test_convolution_of_one_channel_is_packed():
    b = Builder()
    graph = b.done(conv(b, b.input("x", 1, 5, 5, 1), b.weight(3, 3, 1, 1)))
    check_fires(pack, graph)


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_convolution_in_small_groups_stays(width):
    b = Builder()
    x, weight = b.input("x", 1, 5, 5, 6 * width), b.weight(3, 3, width, 6 * width)
    check_keeps(pack, b.done(conv(b, x, weight, groups=6)))


@pytest.mark.parametrize(("inputs", "outputs"), [(4, 8), (3, 3), (16, 16)])
def test_convolution_in_other_groups_is_packed(inputs, outputs):
    b = Builder()
    x, weight = b.input("x", 1, 5, 5, 3 * inputs), b.weight(3, 3, inputs, 3 * outputs)
    check_fires(pack, b.done(conv(b, x, weight, groups=3)))


def test_vector_times_matrix():
    b = Builder()
    check_fires(pack, b.done(b.op("MATMUL", b.input("a", 6), b.weight(6, 7))))


@pytest.mark.parametrize(
    "make",
    [
        lambda b: b.op("MATMUL", b.input("a", 4, 6), b.input("b", 6, 7)),
        lambda b: b.op("MATMUL", b.input("a", 2, 4, 6), b.weight(2, 6, 7)),
        lambda b: b.op("MATMUL", b.input("a", 4, 6), b.weight(6)),
        lambda b: b.op("MATMUL", b.weight(4, 6), b.input("b", 6, 7)),
        lambda b: b.op("MATMUL", b.input("a", 4, 6, dtype="float64"), b.constant(np.zeros((6, 7)))),
        lambda b: b.op(
            "MATMUL",
            b.input("a", 4, 6),
            b.op("CAST", b.constant(np.zeros((6, 7))), dtype="float32"),
        ),
        lambda b: b.op(
            "MATMUL",
            b.input("a", 4, 6),
            b.op("CAST", b.input("b", 6, 7, dtype="float16"), dtype="float32"),
        ),
    ],
)
def test_what_has_no_packed_form_stays(make):
    b = Builder()
    check_keeps(pack, b.done(make(b)))


@pytest.mark.parametrize("shape", [(6, 0), (0, 6)])
def test_empty_matrix_is_packed(shape):
    b = Builder()
    w = b.constant(np.zeros(shape, np.float32))
    check_fires(pack, b.done(b.op("MATMUL", b.input("a", 4, shape[0]), w)))


def test_packing_is_a_node_until_it_is_folded():
    b = Builder()
    graph = b.done(b.op("MATMUL", b.input("a", 4, 6), b.weight(7, 6), transpose_b=True))
    check_fires(pack_weights, graph)
    assert op_counts(graph) == {"TRANSPOSE": 1, "PACK": 1, "MATMUL": 1}
    assert list(graph.constants) == ["w"]
    check_fires(fold_packing, graph)
    assert op_counts(graph) == {"MATMUL": 1}


def test_packing_of_what_inputs_decide_is_computed_by_a_run():
    b = Builder()
    packed = b.op("PACK", b.input("w", 6, 20), format="panels.1")
    check_keeps(fold_packing, b.done(b.op("MATMUL", b.input("a", 4, 6), packed)))


def test_packed_stays():
    b = Builder()
    graph = b.done(b.op("MATMUL", b.input("a", 4, 6), b.weight(6, 7)))
    check_fires(pack, graph)
    check_keeps(pack, graph)
    assert op_counts(graph) == {"MATMUL": 1}


LEVELS = np.random.default_rng(1).integers(-100, 100, (96, 256), np.int8)


def quantized(b, way, group=32):
    """A weight [96, 256] of LEVELS with a factor for each block, computed in some way."""
    factors, zeros = floats(96, 256 // group, seed=2), floats(96, 256 // group, 1, seed=3)
    if way == "zero first":
        zeros = np.rint(zeros * 4)
    q = b.op("CAST", b.graph.add_constant("q", LEVELS, "int8"), dtype="float32")
    if way == "repeated":  # what belongs to a block is written out for each element
        scaled = b.op("MUL", q, b.constant(np.repeat(factors, group, 1)))
        return b.op("SUB", scaled, b.constant(np.repeat(zeros[..., 0], group, 1)))
    q = b.op("RESHAPE", q, shape=(96, 256 // group, group))
    factors = b.constant(factors[..., None])
    if way == "zero first":
        q = b.op("MUL", b.op("SUB", q, b.constant(zeros)), factors)
    else:
        q = b.op("ADD", b.op("MUL", q, factors), b.constant(zeros))
    return b.op("RESHAPE", q, shape=(96, 256))


@pytest.mark.parametrize("way", ["zero first", "zero last", "repeated"])
@pytest.mark.parametrize("group", [32, 128, 256])
def test_quantized_weights_stay_quantized(way, group):
    b = Builder()
    weight = quantized(b, way, group)
    graph = b.done(b.op("MATMUL", b.input("a", 4, 256), weight, transpose_b=True))
    check_fires(keep_quantized, graph)
    (stored,) = [name for name in graph.constants if graph.tensors[name].format != "plain"]
    shift = "zeros" if way == "zero first" else "offsets"
    format = f"blocks.8.{group}.float32.{shift}"
    assert graph.tensors[stored].type == ("float32", (256, 96), format)
    assert only(graph, "MATMUL").inputs[1] == stored


def test_weights_that_are_no_levels_stay():
    b = Builder()
    weight = b.op("SIN", quantized(b, "repeated"))
    plain = b.op("CAST", b.graph.add_constant("r", LEVELS, "int8"), dtype="float32")
    moving = b.op("MUL", plain, b.input("scale"))
    products = [
        b.op("MATMUL", b.input("a", 4, 256), w, transpose_b=True) for w in (weight, plain, moving)
    ]
    check_keeps(keep_quantized, b.done(*products))


def test_weights_that_a_session_may_replace_stay():
    b = Builder()
    q = Parameter(TensorType("int8", LEVELS.shape), ("q",), lambda: LEVELS, is_replaceable=True)
    weight = b.op("MUL", b.op("CAST", b.graph.add_constant("q", q), dtype="float32"), 0.5)
    graph = b.done(b.op("MATMUL", b.input("a", 4, 96), weight))
    check_keeps(keep_quantized, graph)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_halves_scaled_stay(dtype):
    b = Builder()
    levels = np.random.default_rng(1).integers(0, 16, (256, 96)).astype(np.float32)
    h = b.op("CAST", b.graph.add_constant("h", cast(levels, dtype), dtype), dtype="float32")
    graph = b.done(b.op("MATMUL", b.input("a", 4, 256), b.op("MUL", h, 0.5)))
    check_keeps(keep_quantized, graph)
