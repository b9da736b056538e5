"""Test that the only reader of a product becomes its epilogue, if it has the product's type."""

import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import Group, fuse_elementwise, fuse_epilogues

fuse = Group(fuse_elementwise, fuse_epilogues)


class Product(Builder):
    def __init__(self, *shape, **attrs):
        super().__init__()
        shape = shape or (2, 5, 6)
        self.shape = (*shape[:-1], 7)
        self.y = self.op("MATMUL", self.input("a", *shape), self.weight(shape[-1], 7), **attrs)


def test_bias_activation_residual():
    b = Product(alpha=0.5)
    y = b.op("GELU", b.op("ADD", b.y, b.constant(floats(7), "bias")))
    graph = check_fires(fuse, b.done(b.op("ADD", b.input("residual", *b.shape), y)))
    assert op_counts(graph) == {"MATMUL": 1}
    node = only(graph, "MATMUL")
    assert sorted(node.inputs) == ["a", "bias", "residual", "w"]
    assert node.inputs[:2] == ["a", "w"]
    assert node.attrs["alpha"] == 0.5
    assert node.attrs["code"] == ("ADD", "GELU", "ADD")
    assert graph.outputs == ["add_1"]


def test_residual_is_no_bias():
    # of two additions only their shapes tell which is which: both are extras that broadcast
    for shape in ((7,), (2, 5, 7), (5, 1), (1, 5, 7), ()):
        b = Product()
        graph = check_fires(fuse, b.done(b.op("ADD", b.y, b.input("extra", *shape))))
        assert only(graph, "MATMUL").inputs == ["a", "w", "extra"]


def test_square_residual_with_equal_sizes():
    # rows and columns alike: a residual taken for a bias would still have a legal shape
    b = Builder()
    y = b.op("MATMUL", b.input("a", 6, 6), b.weight(6, 6))
    y = b.op("ADD", b.op("ADD", y, b.input("residual", 6, 6)), b.input("column", 6, 1))
    graph = check_fires(fuse, b.done(y))
    assert op_counts(graph) == {"MATMUL": 1}


def test_subtraction_from_another():
    b = Product()
    graph = check_fires(fuse, b.done(b.op("SUB", b.input("x", *b.shape), b.y)))
    assert only(graph, "MATMUL").attrs["args"] == (1, 0)  # the product is value 0


@pytest.mark.parametrize("dtype", ["float64", "int64", "int32"])
def test_product_of_another_dtype(dtype):
    b = Builder()
    y = b.op("MATMUL", b.input("a", 4, 5, dtype=dtype), b.input("b", 5, 6, dtype=dtype))
    graph = check_fires(fuse, b.done(b.op("NEG", y)))
    assert only(graph, "MATMUL").attrs["code"] == ("NEG",)


def test_product_used_several_times():
    b = Product()
    gate = b.op("SIGMOID", b.op("MUL", b.y, 1.702))
    graph = check_fires(fuse, b.done(b.op("MUL", b.y, gate)))
    assert op_counts(graph) == {"MATMUL": 1}


def test_product_squared():
    b = Product()
    graph = check_fires(fuse_epilogues, b.done(b.op("MUL", b.y, b.y)))
    assert only(graph, "MATMUL").attrs["args"] == (0, 0)


def test_mask_among_the_extras():
    b = Product()
    keep = b.input("keep", 7, dtype="bool")
    graph = check_fires(fuse, b.done(b.op("WHERE", keep, b.y, -1.0)))
    assert op_counts(graph) == {"MATMUL": 1}


def test_gated_products():
    b = Product()
    up = b.op("MATMUL", "a", b.weight(6, 7, seed=2))
    graph = check_fires(fuse, b.done(b.op("MUL", b.op("SILU", b.y), up)))
    assert op_counts(graph) == {"MATMUL": 2}
    plain, fused = (n.attrs.get("code") for n in graph.order())
    assert plain is None
    assert fused == ("SILU", "MUL")


def test_products_in_a_row():
    b = Product()
    y = b.op("RELU", b.y)
    y = b.op("RELU", b.op("MATMUL", y, b.weight(7, 7)))
    graph = check_fires(fuse, b.done(y))
    assert op_counts(graph) == {"MATMUL": 2}


def test_residual_stream_without_cycles():
    # x + f(x), where f reads what the first product gives, twice over
    b = Builder()
    x = b.input("x", 4, 6)
    for seed in range(2):
        h = b.op("RELU", b.op("MATMUL", x, b.weight(6, 6, seed=seed)))
        y = b.op("MATMUL", h, b.weight(6, 6, seed=seed + 9))
        x = b.op("ADD", b.op("ADD", x, y), b.op("MUL", h, 0.5))
    graph = check_fires(fuse, b.done(x))
    assert op_counts(graph) == {"MATMUL": 4}


class TestStays:
    def test_product_that_others_read(self):
        b = Product()
        check_keeps(fuse, b.done(b.op("RELU", b.y), b.op("SUM", b.y, axes=(0,))))

    def test_product_that_is_an_output(self):
        b = Product()
        check_keeps(fuse, b.done(b.op("RELU", b.y), b.y))

    @pytest.mark.parametrize("shape", [(3, 2, 5, 7), (4, 1, 1, 1)])
    def test_extra_that_makes_the_result_larger(self, shape):
        b = Product()
        check_keeps(fuse, b.done(b.op("ADD", b.y, b.input("extra", *shape))))

    def test_extra_that_makes_a_dimension_larger(self):
        b = Product(1, 5, 6)
        check_keeps(fuse, b.done(b.op("ADD", b.y, b.input("extra", 3, 5, 7))))

    def test_result_of_another_dtype(self):
        b = Product()
        check_keeps(fuse, b.done(b.op("GT", b.y, 0.0)))

    def test_reader_that_is_not_elementwise(self):
        b = Product()
        check_keeps(fuse, b.done(b.op("SOFTMAX", b.y, axis=2)))

    def test_second_epilogue(self):
        b = Product(code=("RELU",), args=(0,))
        check_keeps(fuse_epilogues, b.done(b.op("NEG", b.y)))


def test_elementwise_result_that_several_read():
    b = Product()
    y = b.op("RELU", b.y)
    graph = check_fires(fuse, b.done(b.op("SUM", y, axes=(0,)), b.op("SOFTMAX", y, axis=2)))
    assert op_counts(graph) == {"MATMUL": 1, "SUM": 1, "SOFTMAX": 1}


def test_at_most_fifteen_extras():
    b = Product()
    y = b.y
    for i in range(30):
        y = b.op("ADD", y, b.input(f"x{i}", 7))
    graph = check_fires(fuse, b.done(y))
    assert all(len(n.inputs) <= 17 for n in graph.nodes.values())
    graph.verify()
