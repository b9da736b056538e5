"""Each rule keeps the value; similar nodes that are not equal stay."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import simplify_arithmetic
from taper_runtime.ops.elementwise import DIVISIONS


def build(make, *shape, dtype="float32"):
    b = Builder()
    x = b.input("x", *(shape or (3, 4)), dtype=dtype)
    if dtype == "float32":  # roots and powers of what is positive
        x = b.op("ADD", b.op("ABS", x), 0.5)
    return b.done(b.op("COPY", make(b, x)))


@pytest.mark.parametrize("value", [np.float32(2.5), floats(1), floats(1, 1)])
def test_one_element_constant_becomes_the_scalar(value):
    graph = build(lambda b, x: b.op("SUB", b.constant(value), x))
    check_fires(simplify_arithmetic, graph)
    node = only(graph, "SUB")
    assert node.attrs == {"scalar": np.asarray(value).item(), "scalar_index": 0}
    assert node.inputs == ["add"]


def test_both_values_of_where():
    b = Builder()
    x, keep = b.input("x", 3), b.input("keep", 3, dtype="bool")
    graph = b.done(b.op("WHERE", keep, x, b.constant(-1.0)))
    check_fires(simplify_arithmetic, graph)
    assert only(graph, "WHERE").attrs == {"scalar": -1.0, "scalar_index": 2}


def test_where_of_two_constants_keeps_one_to_say_the_dtype():
    b = Builder()
    keep = b.input("keep", 3, dtype="bool")
    graph = b.done(b.op("WHERE", keep, b.constant(1.0), b.constant(0.0)))
    check_fires(simplify_arithmetic, graph)
    assert len(only(graph, "WHERE").inputs) == 2
    check_keeps(simplify_arithmetic, graph)


def test_constant_that_adds_a_dimension_stays():
    check_keeps(
        simplify_arithmetic, build(lambda b, x: b.op("ADD", x, b.constant(floats(1, 1, 1))))
    )


def test_constant_of_several_elements_stays():
    check_keeps(simplify_arithmetic, build(lambda b, x: b.op("ADD", x, b.constant(floats(4)))))


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.op("MUL", x, 1.0),
        lambda b, x: b.op("MUL", 1.0, x),
        lambda b, x: b.op("DIV", x, 1.0),
        lambda b, x: b.op("SUB", x, 0.0),
        lambda b, x: b.op("POW", x, 1.0),
        lambda b, x: b.op("NEG", b.op("NEG", x)),
    ],
)
def test_neutral_op_is_dropped(make):
    graph = check_fires(simplify_arithmetic, build(make))
    assert op_counts(graph) == {"ABS": 1, "ADD": 1, "COPY": 1}


@pytest.mark.parametrize("op", DIVISIONS)
def test_division_by_what_is_never_zero_needs_no_check(op):
    def by(*divisor):
        def make(b, x):
            return b.op(op, x, b.constant(np.array(divisor)), by_zero=False)

        return build(make, dtype="int64")

    assert only(check_fires(simplify_arithmetic, by(1, -2, 3, 4)), op).attrs == {}
    check_keeps(simplify_arithmetic, by(1, -2, 0, 4))


@pytest.mark.parametrize("op", ["FLOOR_DIV", "TRUNC_DIV"])
def test_integers_divided_by_one(op):
    def make(b, x):
        return b.op(op, x, 1)

    assert op_counts(check_fires(simplify_arithmetic, build(make, dtype="int64"))) == {"COPY": 1}
    check_keeps(simplify_arithmetic, build(make))  # 2.5 // 1 is 2.0


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.op("SUB", 0.0, x),
        lambda b, x: b.op("DIV", 1.0, x),
        lambda b, x: b.op("POW", 1.0, x),
        lambda b, x: b.op("MUL", x, 2.0),
        lambda b, x: b.op("ADD", x, 0.0),  # -0.0 + 0.0 is 0.0
        lambda b, x: b.op("POW", x, 4.0),
        lambda b, x: b.op("LOGICAL_NOT", b.op("LOGICAL_NOT", x)),  # not not 2.5 is true
    ],
)
def test_op_that_does_something_stays(make):
    check_keeps(simplify_arithmetic, build(make))


@pytest.mark.parametrize(
    ("exponent", "op"), [(2.0, "SQUARE"), (0.5, "SQRT"), (-0.5, "RSQRT"), (-1.0, "RECIPROCAL")]
)
def test_power_with_an_op_of_its_own(exponent, op):
    graph = check_fires(simplify_arithmetic, build(lambda b, x: b.op("POW", x, exponent)))
    assert op_counts(graph) == {"ABS": 1, "ADD": 1, op: 1, "COPY": 1}


def test_cube():
    graph = check_fires(simplify_arithmetic, build(lambda b, x: b.op("POW", x, 3.0)))
    assert op_counts(graph) == {"ABS": 1, "ADD": 1, "SQUARE": 1, "MUL": 1, "COPY": 1}


def test_integer_powers():
    graph = build(lambda b, x: b.op("POW", x, 2), 4, dtype="int64")
    check_fires(simplify_arithmetic, graph)
    assert op_counts(graph) == {"SQUARE": 1, "COPY": 1}
    check_keeps(simplify_arithmetic, build(lambda b, x: b.op("POW", x, -1), 4, dtype="int64"))


def test_product_with_itself():
    graph = check_fires(simplify_arithmetic, build(lambda b, x: b.op("MUL", x, x)))
    assert only(graph, "SQUARE").inputs == ["add"]


def test_and_of_a_bool_with_itself_stays():
    check_keeps(simplify_arithmetic, build(lambda b, x: b.op("MUL", x, x), 4, dtype="bool"))


def test_reciprocal_root():
    for make in (
        lambda b, x: b.op("RECIPROCAL", b.op("SQRT", x)),
        lambda b, x: b.op("DIV", 1.0, b.op("SQRT", x)),
    ):
        graph = check_fires(simplify_arithmetic, build(make))
        assert op_counts(graph) == {"ABS": 1, "ADD": 1, "RSQRT": 1, "COPY": 1}


def test_division_of_many_by_one_root():
    def rows(b, x):
        return b.op("DIV", x, b.op("SQRT", b.op("SUM", x, axes=(1,), keepdim=True)))

    graph = check_fires(simplify_arithmetic, build(rows))
    assert "RSQRT" in op_counts(graph)
    assert "DIV" not in op_counts(graph)


def test_division_by_as_many_roots_stays():
    check_keeps(simplify_arithmetic, build(lambda b, x: b.op("DIV", x, b.op("SQRT", x))))


def test_division_by_a_root_that_others_read_stays():
    b = Builder()
    x = b.input("x", 3, 4)
    root = b.op("SQRT", b.op("SUM", b.op("SQUARE", x), axes=(1,), keepdim=True))
    check_keeps(simplify_arithmetic, b.done(b.op("DIV", x, root), root))


@pytest.mark.parametrize(("op", "neutral"), [("LOGICAL_AND", True), ("BITWISE_OR", False)])
def test_mask_that_masks_nothing(op, neutral):
    b = Builder()
    keep = b.input("keep", 1, 4, dtype="bool")
    graph = b.done(b.op(op, b.constant(np.full((3, 4), neutral)), keep))
    check_fires(simplify_arithmetic, graph)
    assert op_counts(graph) == {"EXPAND": 1}


def test_mask_that_masks_something_stays():
    b = Builder()
    keep = b.input("keep", 1, 4, dtype="bool")
    check_keeps(
        simplify_arithmetic, b.done(b.op("LOGICAL_AND", b.constant(np.tri(3, 4) > 0), keep))
    )
    b = Builder()
    number = b.input("number", 4, dtype="int64")  # 6 & 1 is 0
    check_keeps(
        simplify_arithmetic, b.done(b.op("BITWISE_AND", b.constant(np.ones(4, int)), number))
    )
