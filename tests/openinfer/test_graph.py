"""Graphs built by hand: what calls make, refuse and describe."""

import pytest

from taper_openinfer.errors import OpenInferError, Problem, ProgramError, TextPosition, shown
from taper_openinfer.language.graph import (
    Access,
    Assign,
    Await,
    Barrier,
    Branch,
    CacheDecrement,
    CacheIncrement,
    CacheRead,
    CacheReset,
    CacheWrite,
    Dep,
    Graph,
    Loop,
    Name,
    Op,
    Return,
    Single,
    Slice,
    Transfer,
    Yield,
    describe,
)  # fmt: skip


def test_nodes_have_rising_indices_and_uuids_of_their_own():
    graph = Graph()
    graph.add_block("entry")
    nodes = [graph.add_node("entry", Return()) for _ in range(3)]
    assert [node.index for node in nodes] == [0, 1, 2]
    assert graph.next_index == 3
    assert len({node.uuid for node in nodes}) == 3
    assert graph.blocks["entry"].nodes == nodes


def test_a_loop_comes_after_its_body():
    graph = Graph()
    graph.add_block("entry")
    body = [graph.make_node(Op("add", ["x", "x"], output="x")) for _ in range(2)]
    loop = graph.add_prebuilt_node("entry", graph.make_loop_node("l", "i", 0, "N", body))
    assert [node.index for node in graph.nodes()] == [2, 0, 1]
    assert loop.kind == Loop("l", "i", 0, "N", body)


def test_graphs_are_compared_without_uuids_and_places():
    def make(place, kind):
        graph = Graph(name=str(place))
        graph.add_var("x", "dynamic", "f32", ["B", 4], place=place)
        graph.add_block("entry", place)
        graph.add_node("entry", kind, place)
        return graph

    assert make(None, Return()) == make(TextPosition(3, 4), Return())
    assert make(None, Return()) != make(None, Barrier())


def test_refused_calls():
    graph = Graph()
    graph.add_var("x", "dynamic", "f32")
    graph.add_block("entry")
    with pytest.raises(OpenInferError, match=r"^variable 'x' is declared already$"):
        graph.add_var("x", "volatile", "f32")
    expected = r"^variable 'y': expected one of dynamic, .*, got 'stack'$"
    with pytest.raises(OpenInferError, match=expected):
        graph.add_var("y", "stack", "f32")
    with pytest.raises(OpenInferError, match=r"^block 'entry' exists already$"):
        graph.add_block("entry")
    for call in (graph.add_node, graph.add_prebuilt_node):
        with pytest.raises(OpenInferError, match=r"expected a block .*\('entry'\), got 'other'$"):
            call("other", Return())
    assert graph.next_index == 0


K = Access("K", (Single("l"), Slice(None, "step")), bracketed=True)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Assign("t0", "f32", ["B"]), "assign t0"),
        (Op("add", ["x", "a"], output="t0"), "op add(x,a) >> t0"),
        (
            Op(
                "relu",
                [K],
                {"alpha": 0.5, "to": Name("f32"), "m": "a", "k": [1, 2], "b": True},
                "y",
            ),
            "op relu(K[l,..step]) >> y",
        ),
        (CacheRead(K, "k"), "cache.read K[l,..step] >> k"),
        (CacheWrite("k", Access("K", bracketed=True)), "cache.write k >> K[]"),
        (CacheIncrement("rows", 3), "cache.increment 3 rows"),
        (CacheDecrement("rows"), "cache.decrement rows"),
        (CacheReset("K"), "cache.reset K"),
        (Loop("layers", "l", 0, 10), "loop layers (l in 0..10)"),
        (Branch(None, "then"), "branch then"),
        (Branch("c", "a", "b"), "branch c a b"),
        (Barrier(), "barrier"),
        (Dep("x", "y"), "dep after(x) before(y)"),
        (Transfer("x", "y"), "transfer x >> y"),
        (Yield(["x", "y"]), "yield x, y"),
        (Await(["x"]), "await x"),
        (Return(), "return"),
    ],
)
def test_descriptions(kind, text):
    assert describe(kind) == text


def test_errors_of_programs_are_short_lines_that_steer_no_terminal():
    problems = [Problem("bad \x1b[2J\n" + "x" * 1000, TextPosition(3, 7), "x")] * 60
    text = str(ProgramError(problems, "a\nb.oi"))
    assert text.splitlines()[0].startswith(r"a\nb.oi:3:7: bad \x1b[2J\nxxx")
    assert text.splitlines()[-1] == "and 10 more problems"
    assert max(map(len, text.splitlines())) < 600
    assert text.replace("\n", "").isprintable()
    assert shown("x" * 100) == f"'{'x' * 60}...'"
    assert shown(10**5000) == "an integer of 16610 bits"
