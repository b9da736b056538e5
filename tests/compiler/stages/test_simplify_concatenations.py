"""A concatenation that is cut apart again, or joined to a larger one, is not made."""

import pytest

from graph_checks import Builder, check_fires, check_keeps, only, op_counts
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.stages import simplify_concatenations
from taper_runtime.base.sizes import variable


class Parts(Builder):
    """A concatenation of ``x`` [2, 3], ``y`` [2, 4] and ``z`` [2, 2] along axis 1."""

    def __init__(self):
        super().__init__()
        self.x, self.y, self.z = (
            self.input(name, 2, size) for name, size in {"x": 3, "y": 4, "z": 2}.items()
        )
        self.whole = self.cat(self.x, self.y, self.z)

    def cat(self, *parts, axis=1):
        return self.op("CAT", *parts, axis=axis)

    def cut(self, x, start, stop, step=1):
        return self.op("SLICE", x, axis=1, start=start, stop=stop, step=step)


def simplified(graph):
    check_fires(simplify_concatenations, graph)
    compile_graph(graph, ["eliminate_dead_code", "remove_noops"])
    return graph


def test_parts_are_read_where_they_are():
    b = Parts()
    spans = [(0, 3), (4, 6), (3, 7, 2), (7, 8), (9, 9)]
    graph = simplified(b.done(*(b.op("ABS", b.cut(b.whole, *span)) for span in spans)))
    assert "CAT" not in op_counts(graph)
    cuts = {
        (n.inputs[0], *(n.complete_attrs()[end] for end in ("start", "stop", "step")))
        for n in graph.nodes.values()
        if n.op == "SLICE"
    }
    assert cuts == {("y", 1, 3, 1), ("y", 0, 4, 2), ("z", 0, 1, 1), ("z", 2, 2, 1)}


@pytest.mark.parametrize("where", ["first", "last"])
def test_concatenations_become_one(where):
    b = Parts()
    parts = (b.whole, b.op("NEG", b.x)) if where == "first" else (b.op("NEG", b.x), b.whole)
    graph = simplified(b.done(b.cat(*parts)))
    neg = only(graph, "NEG").output
    want = ["x", "y", "z", neg] if where == "first" else [neg, "x", "y", "z"]
    assert only(graph, "CAT").inputs == want


def test_twice_the_same_concatenation():
    b = Parts()
    graph = simplified(b.done(b.cat(b.whole, b.whole)))
    assert only(graph, "CAT").inputs == ["x", "y", "z"] * 2


class TestStays:
    def test_slice_of_two_parts(self):
        b = Parts()  # and with it the others: the whole is made in any case
        check_keeps(simplify_concatenations, b.done(b.cut(b.whole, 0, 3), b.cut(b.whole, 2, 5)))

    def test_other_axis(self):
        b = Parts()
        rows = b.op("SLICE", b.whole, axis=0, start=0, stop=1)
        check_keeps(simplify_concatenations, b.done(rows))
        b = Parts()
        check_keeps(simplify_concatenations, b.done(b.cat(b.whole, b.whole, axis=0)))

    def test_concatenation_that_others_read(self):
        b = Parts()
        check_keeps(simplify_concatenations, b.done(b.cut(b.whole, 0, 3), b.op("NEG", b.whole)))
        b = Parts()
        check_keeps(simplify_concatenations, b.done(b.cat(b.whole, b.x), b.op("NEG", b.whole)))

    def test_output(self):
        b = Parts()
        check_keeps(simplify_concatenations, b.done(b.cut(b.whole, 0, 3), b.whole))
        b = Parts()
        check_keeps(simplify_concatenations, b.done(b.cat(b.whole, b.x), b.whole))

    def test_sizes_that_vary(self):
        b = Builder()
        n = variable("n", 1, 100)
        b.graph.sizes["n"] = (1, 100)
        x, y = b.input("x", 2, n), b.input("y", 2, 4)
        whole = b.op("CAT", x, y, axis=1)
        graph = b.done(b.op("SLICE", whole, axis=1, start=n, stop=n + 4))
        before = str(graph)
        assert not simplify_concatenations(graph)
        assert str(graph) == before
