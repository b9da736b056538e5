"""Chains and DAGs of elementwise nodes become MAP; whatever else needs a value stops it there."""

import numpy as np
import pytest

from graph_checks import Builder, check_fires, check_keeps, floats, only, op_counts
from taper_frontend.compiler.stages import fuse_elementwise


def test_chain():
    b = Builder()
    y = b.op("ADD", b.input("x", 3, 4), b.input("bias", 4))
    graph = check_fires(fuse_elementwise, b.done(b.op("MUL", b.op("TANH", y), 2.0)))
    node = only(graph, "MAP")
    assert node.inputs == ["x", "bias"]
    assert node.attrs == {
        "code": ("ADD", "TANH", "MUL"),
        "args": (0, 1, 2, 3, -1),
        "scalars": (2.0,),
    }
    assert graph.outputs == ["mul"]


def test_diamond():
    b = Builder()
    x = b.input("x", 3, 4)
    y = b.op("EXP", x)
    graph = b.done(b.op("SUB", b.op("SIN", y), b.op("COS", y)))
    check_fires(fuse_elementwise, graph)
    assert op_counts(graph) == {"MAP": 1}
    assert only(graph, "MAP").attrs["code"].count("EXP") == 1  # computed once


def test_value_read_twice_by_one_node():
    b = Builder()
    y = b.op("EXP", b.input("x", 4))
    graph = check_fires(fuse_elementwise, b.done(b.op("MUL", y, y)))
    assert only(graph, "MAP").attrs["args"] == (0, 1, 1)


def test_every_kind_of_node():
    b = Builder()
    x, ids = b.input("x", 3, 4), b.input("ids", 3, 4, dtype="int64")
    keep = b.op("LOGICAL_AND", b.op("GT", ids, 1), b.op("CAST", x, dtype="bool"))
    y = b.op("WHERE", keep, b.op("SUB", 1.0, x), b.op("CAST", ids, dtype="float32"))
    graph = check_fires(fuse_elementwise, b.done(y))
    assert op_counts(graph) == {"MAP": 1}
    assert set(only(graph, "MAP").attrs["code"]) == {
        "GT", "CAST:bool", "LOGICAL_AND", "SUB", "CAST:float32", "WHERE",
    }  # fmt: skip


def test_scalars_that_print_alike_are_not_one():
    b = Builder()
    x = b.input("x", 4)
    y = b.op("DIV", 1.0, b.op("MAXIMUM", b.op("MUL", x, 0.0), -0.0))
    z = b.op("ADD", b.op("MUL", y, 0.0), 1.0)
    graph = check_fires(fuse_elementwise, b.done(b.op("MINIMUM", z, 1.0)))
    assert [repr(s) for s in only(graph, "MAP").attrs["scalars"]] == ["0.0", "-0.0", "1.0"]


def test_map_nodes_fuse_too():
    b = Builder()
    x = b.input("x", 4)
    first = b.op("MAP", x, code=("MUL", "EXP"), args=(0, -1, 1), scalars=(0.5,))
    second = b.op("MAP", first, x, code=("ADD", "MUL"), args=(0, 1, 2, -1), scalars=(0.5,))
    graph = check_fires(fuse_elementwise, b.done(b.op("NEG", second)))
    assert only(graph, "MAP").attrs == {
        "code": ("MUL", "EXP", "ADD", "MUL", "NEG"),
        "args": (0, -1, 1, 2, 0, 3, -1, 4),
        "scalars": (0.5,),
    }
    check_keeps(fuse_elementwise, graph)


class TestStops:
    def test_at_a_value_that_others_read(self):
        b = Builder()
        y = b.op("EXP", b.input("x", 4))
        graph = b.done(b.op("SUM", y, axes=(0,)), b.op("NEG", b.op("TANH", y)))
        check_fires(fuse_elementwise, graph)
        assert op_counts(graph) == {"EXP": 1, "SUM": 1, "MAP": 1}

    def test_at_an_output(self):
        b = Builder()
        y = b.op("EXP", b.input("x", 4))
        check_keeps(fuse_elementwise, b.done(y, b.op("NEG", y)))

    def test_at_one_node(self):
        b = Builder()
        check_keeps(fuse_elementwise, b.done(b.op("EXP", b.input("x", 4))))

    def test_where_only_one_of_two_readers_joins(self):
        b = Builder()
        y = b.op("EXP", b.input("x", 4))
        other = b.op("CUMSUM", y, axis=0)
        graph = b.done(b.op("ADD", b.op("NEG", y), other))
        check_fires(fuse_elementwise, graph)
        assert op_counts(graph) == {"EXP": 1, "CUMSUM": 1, "MAP": 1}

    def test_not_at_a_cast_from_or_to_such_a_dtype(self):
        b = Builder()
        y = b.op("CAST", b.input("x", 4, dtype="uint8"), dtype="float32")
        y = b.op("CAST", b.op("SQRT", y), dtype="int16")
        graph = b.done(y)
        check_fires(fuse_elementwise, graph)
        assert op_counts(graph) == {"MAP": 1}

    def test_at_a_cast_of_a_half_to_anything_but_float32(self):
        b = Builder()
        y = b.op("CAST", b.input("x", 4, dtype="float16"), dtype="int64")
        check_keeps(fuse_elementwise, b.done(b.op("NEG", y)))

    @pytest.mark.parametrize("shape", [(4,), (1, 4), (2, 1, 4)])
    def test_at_a_smaller_value_that_would_be_computed_again(self, shape):
        b = Builder()
        y = b.op("EXP", b.input("small", *shape))
        check_keeps(fuse_elementwise, b.done(b.op("ADD", b.input("x", 2, 3, 4), y)))

    def test_at_a_column_that_is_repeated_over_more_than_rows(self):
        b = Builder()
        y = b.op("EXP", b.input("small", 3, 1))
        check_keeps(fuse_elementwise, b.done(b.op("ADD", b.input("x", 2, 3, 4), y)))


@pytest.mark.parametrize("shape", [(2, 3, 1), (), (1,), (1, 1, 1)])
def test_smaller_value_that_is_computed_once_all_the_same(shape):
    b = Builder()
    y = b.op("EXP", b.input("small", *shape))
    graph = check_fires(fuse_elementwise, b.done(b.op("ADD", b.input("x", 2, 3, 4), y)))
    assert op_counts(graph) == {"MAP": 1}


def test_at_most_sixteen_inputs():
    b = Builder()
    y = b.input("x0", 4)
    for i in range(1, 24):
        y = b.op("ADD", y, b.input(f"x{i}", 4))
    graph = check_fires(fuse_elementwise, b.done(y))
    maps = [n for n in graph.order() if n.op == "MAP"]
    assert op_counts(graph) == {"MAP": 2}
    assert [len(n.inputs) for n in maps] == [9, 16]
    assert sum(len(n.attrs["code"]) for n in maps) == 23


def test_an_input_that_the_program_makes_itself_does_not_count():
    # the sixteenth input is the node that is about to join
    b = Builder()
    y = b.op("EXP", b.input("x0", 4))
    z = y
    for i in range(1, 16):
        z = b.op("ADD", z, b.input(f"x{i}", 4))
    graph = check_fires(fuse_elementwise, b.done(z))
    assert op_counts(graph) == {"MAP": 1}


def test_at_most_sixty_four_instructions():
    b = Builder()
    y = b.input("x", 4)
    for _ in range(150):
        y = b.op("SIN", y)
    graph = check_fires(fuse_elementwise, b.done(y))
    assert [len(n.attrs["code"]) for n in graph.order()] == [22, 64, 64]


def test_unrelated_chains_stay_apart():
    b = Builder()
    results = [b.op("NEG", b.op("EXP", b.input(f"x{i}", 4))) for i in range(2)]
    graph = check_fires(fuse_elementwise, b.done(*results))
    assert op_counts(graph) == {"MAP": 2}


def test_mask_arithmetic_on_integers():
    b = Builder()
    ids = b.input("ids", 2, 6, dtype="int64")
    bias = b.op("MUL", b.op("SUB", 1.0, b.op("CAST", b.op("NE", ids, 0), dtype="float32")), -1e4)
    graph = check_fires(fuse_elementwise, b.done(bias))
    assert op_counts(graph) == {"MAP": 1}
    assert graph.tensors["mul"].dtype == "float32"


def test_constants_are_inputs():
    b = Builder()
    y = b.op(
        "ADD", b.op("MUL", b.input("x", 3, 4), b.constant(floats(4))), b.constant(np.float32(1))
    )
    graph = check_fires(fuse_elementwise, b.done(y))
    assert len(only(graph, "MAP").inputs) == 3
