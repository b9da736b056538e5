"""Transposes of the last two dimensions and scalar factors move into MATMUL; others do not."""

import pytest

from graph_checks import Builder, check_fires, check_keeps, only, op_counts
from taper_frontend.compiler.stages import absorb_into_matmul


class TestTranspose:
    @pytest.mark.parametrize(
        "swap",
        [
            lambda b, x: b.transpose(x, 2, 3),
            lambda b, x: b.transpose(x, 3, 2),
            lambda b, x: b.op("PERMUTE", x, axes=(0, 1, 3, 2)),
        ],
    )
    def test_of_the_last_two_dimensions(self, swap):
        b = Builder()
        a, x = b.input("a", 2, 3, 4, 5), b.input("b", 2, 3, 6, 5)
        graph = check_fires(absorb_into_matmul, b.done(b.op("MATMUL", a, swap(b, x))))
        assert op_counts(graph) == {"MATMUL": 1}
        assert only(graph, "MATMUL").attrs == {"transpose_b": True}

    def test_of_what_is_transposed_already(self):
        b = Builder()
        a, x = b.input("a", 4, 5), b.input("b", 5, 6)
        swapped = b.transpose(x, 0, 1)
        graph = b.done(b.op("MATMUL", a, swapped, transpose_b=True))
        check_fires(absorb_into_matmul, graph)
        assert only(graph, "MATMUL").attrs == {"transpose_b": False}

    @pytest.mark.parametrize(
        ("shape", "move"),
        [
            ((5, 3, 2, 6), lambda b, x: b.transpose(x, 0, 2)),
            ((2, 5, 3, 6), lambda b, x: b.transpose(x, 1, 2)),
            ((2, 6, 5, 3), lambda b, x: b.transpose(x, 1, 3)),
            ((2, 6, 3, 5), lambda b, x: b.op("PERMUTE", x, axes=(0, 2, 3, 1))),
            ((3, 2, 6, 5), lambda b, x: b.op("PERMUTE", x, axes=(1, 0, 3, 2))),
        ],
    )
    def test_of_other_dimensions_is_not_absorbed(self, shape, move):
        # all of these give b the shape [2, 3, 5, 6] that the product needs
        b = Builder()
        a, x = b.input("a", 2, 3, 4, 5), b.input("b", *shape)
        check_keeps(absorb_into_matmul, b.done(b.op("MATMUL", a, move(b, x))))

    def test_of_other_dimensions_with_equal_sizes_is_not_absorbed(self):
        # with every size equal no shape check can catch a wrong absorption
        b = Builder()
        a, x = b.input("a", 3, 3, 3), b.input("b", 3, 3, 3)
        check_keeps(absorb_into_matmul, b.done(b.op("MATMUL", a, b.transpose(x, 0, 2))))

    def test_of_the_first_operand_stays(self):
        b = Builder()
        a, x = b.input("a", 5, 4), b.input("b", 5, 6)
        check_keeps(absorb_into_matmul, b.done(b.op("MATMUL", b.transpose(a, 0, 1), x)))

    def test_that_others_read_stays_for_them(self):
        b = Builder()
        a, x = b.input("a", 4, 5), b.input("b", 6, 5)
        swapped = b.transpose(x, 0, 1)
        graph = b.done(b.op("MATMUL", a, swapped), b.op("NEG", swapped))
        check_fires(absorb_into_matmul, graph)
        assert op_counts(graph) == {"MATMUL": 1, "NEG": 1, "TRANSPOSE": 1}
        assert only(graph, "MATMUL").inputs == ["a", "b"]

    def test_of_a_constant_is_not_folded_but_absorbed(self):
        b = Builder()
        w = b.weight(6, 5)
        graph = b.done(b.op("MATMUL", b.input("a", 4, 5), b.transpose(w, 0, 1)))
        check_fires(absorb_into_matmul, graph)
        assert only(graph, "MATMUL").inputs == ["a", "w"]
        assert len(graph.constants) == 1


class TestFactor:
    def matmul(self, b, a=None, x=None, **attrs):
        return b.op("MATMUL", a or b.input("a", 4, 5), x or b.input("b", 5, 6), **attrs)

    @pytest.mark.parametrize(
        ("scale", "alpha"),
        [
            (lambda b, x: b.op("MUL", x, 0.5), 0.5),
            (lambda b, x: b.op("MUL", 0.5, x), 0.5),
            (lambda b, x: b.op("DIV", x, 8.0), 0.125),
        ],
    )
    @pytest.mark.parametrize("place", ["output", "a", "b"])
    def test_of_output_or_operands(self, scale, alpha, place):
        b = Builder()
        operands = {"a": b.input("a", 4, 5), "x": b.input("b", 5, 6)}
        if place == "output":
            y = scale(b, self.matmul(b, **operands))
        else:
            key = "a" if place == "a" else "x"
            operands[key] = scale(b, operands[key])
            y = self.matmul(b, **operands)
        graph = check_fires(absorb_into_matmul, b.done(y))
        assert op_counts(graph) == {"MATMUL": 1}
        assert only(graph, "MATMUL").attrs == {"alpha": alpha}

    def test_factors_multiply_up(self):
        b = Builder()
        y = self.matmul(b, a=b.op("MUL", b.input("a", 4, 5), 0.5), alpha=3.0)
        graph = b.done(b.op("DIV", b.op("MUL", y, 7.0), 2.0))
        while absorb_into_matmul(graph):
            pass
        assert only(graph, "MATMUL").attrs == {"alpha": 3.0 * 0.5 * 7.0 / 2.0}

    def test_moves_through_views(self):
        b = Builder()
        scaled = b.op("MUL", b.input("a", 2, 4, 5), 0.5)
        a = b.reshape(b.transpose(scaled, 0, 1), 8, 5)
        graph = check_fires(absorb_into_matmul, b.done(self.matmul(b, a=a)))
        assert op_counts(graph) == {"MATMUL": 1, "RESHAPE": 1, "TRANSPOSE": 1}

    @pytest.mark.parametrize("between", [None, "TRANSPOSE"])
    def test_of_an_operand_that_others_read_stays(self, between):
        b = Builder()
        scaled = b.op("MUL", b.input("a", 5, 5), 0.5)
        operand = b.transpose(scaled, 0, 1) if between else scaled
        check_keeps(absorb_into_matmul, b.done(self.matmul(b, a=operand), b.op("NEG", scaled)))

    def test_of_an_operand_that_is_an_output_stays(self):
        b = Builder()
        scaled = b.op("MUL", b.input("a", 4, 5), 0.5)
        check_keeps(absorb_into_matmul, b.done(self.matmul(b, a=scaled), scaled))

    def test_of_a_product_that_others_read_stays(self):
        b = Builder()
        product = self.matmul(b)
        check_keeps(absorb_into_matmul, b.done(b.op("MUL", product, 0.5), b.op("NEG", product)))

    def test_of_a_square_counts_twice(self):
        # a and b are one tensor: the factor goes in once for each
        b = Builder()
        x = b.op("MUL", b.input("x", 3, 3), 0.5)
        check_keeps(absorb_into_matmul, b.done(b.op("MATMUL", x, x)))

    @pytest.mark.parametrize(
        "other",
        [
            lambda b, x: b.op("DIV", 2.0, x),
            lambda b, x: b.op("ADD", x, 2.0),
            lambda b, x: b.op("MUL", x, b.input("scale", 6)),
            lambda b, x: b.op("MUL", x, float("inf")),
            lambda b, x: b.op("DIV", x, 0.0),
        ],
    )
    def test_what_is_no_number_of_use_stays(self, other):
        b = Builder()
        check_keeps(absorb_into_matmul, b.done(other(b, self.matmul(b))))

    def test_after_an_epilogue_stays(self):
        b = Builder()
        y = b.op("MATMUL", b.input("a", 4, 5), b.input("b", 5, 6), code=("RELU",), args=(0,))
        check_keeps(absorb_into_matmul, b.done(b.op("MUL", y, -1.0)))

    def test_of_integers_stays(self):
        b = Builder()
        a, x = b.input("a", 4, 5, dtype="int64"), b.input("b", 5, 6, dtype="int64")
        check_keeps(absorb_into_matmul, b.done(b.op("MUL", b.op("MATMUL", a, x), 2)))
