"""Test the layout of a session's arena: places of tensors and scratch, and shared memory."""

import json

import pytest

import taper_runtime
from graph_checks import Builder, floats
from sized_plans import sized_arrays, sized_plan
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.planning import make_plan
from taper_runtime.cli import main
from taper_runtime.executor.memory_use import memory_layout, memory_use


@pytest.fixture
def plan():
    """Products with scratch, a softmax that may run in place, a view and a concatenation."""
    b = Builder()
    x = b.input("x", 64, 256)
    first = b.op("MATMUL", x, b.weight(256, 128))
    second = b.op("MATMUL", x, b.weight(256, 128))
    soft = b.op("SOFTMAX", b.op("TANH", first), axis=1)
    flat = b.op("RESHAPE", soft, shape=(128, 64))
    turned = b.op("SOFTMAX", b.op("RESHAPE", second, shape=(128, 64)), axis=0)
    both = b.op("CAT", flat, turned, axis=0)
    graph = b.done(b.op("SUM", both, axes=(0,)))
    compile_graph(graph, (), output_names=["y"])
    return make_plan(graph)


def check(plan, layout):
    """Compare a layout with what the plan's nodes need."""
    for piece in layout.pieces:
        assert 0 <= piece.offset <= piece.offset + piece.bytes <= layout.arena_bytes
        if piece.kind == "tensor":
            assert piece.bytes == plan.tensors[piece.name].nbytes
    for i, a in enumerate(layout.pieces):
        for b in layout.pieces[i + 1 :]:
            together = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
            assert not together or apart, (a, b)
    owners = {piece.name for piece in layout.pieces if piece.kind == "tensor"}
    inside = {name for piece in layout.pieces for name, _ in piece.shared}
    computed = {name for node in plan.nodes for name in node.outputs}
    roots = {name: plan.placements[name].root for name in computed}
    in_arena = {name for name in computed if plan.tensors[roots[name]].role == "intermediate"}
    assert owners | inside == in_arena
    assert owners == {roots[name] for name in in_arena}


def test_a_session_tells_where_its_memory_lies(plan):
    session = taper_runtime.InferenceSession(plan)
    session.run(None, {"x": floats(64, 256)})
    layout = session.stats().layout
    check(plan, layout)
    assert layout == memory_layout(plan)
    assert layout.arena_bytes == memory_use(plan).arena
    counts = layout.counts()
    assert counts["views"] == sum(not plan.is_executed(node) for node in plan.nodes)
    how = {name: how for piece in layout.pieces for name, how in piece.shared}
    assert set(how.values()) >= {"in place", "slice"}
    for node in plan.nodes:
        kind = how.get(node.output)
        same = plan.placements[node.output].root == plan.placements[node.reads[0]].root
        assert (kind in ("in place", "view")) == same
    assert counts["scratch_bytes"] == max(
        (piece.bytes for piece in layout.pieces if piece.kind == "scratch"), default=0
    )


def test_without_kernels_there_is_no_scratch(plan):
    layout = memory_layout(plan, kernels=False)
    check(plan, layout)
    assert layout.scratch_bytes == 0
    assert layout.arena_bytes == memory_use(plan, kernels=False).arena


def test_sizes_that_vary_have_the_layout_of_the_last_run():
    plan = sized_plan()
    session = taper_runtime.InferenceSession(plan)
    for b, s in ((2, 5), (3, 20)):
        arrays = sized_arrays(b, s)
        session.run(None, {name: arrays[name] for name in plan.inputs})
        sizes = {p.name: p.bytes for p in session.stats().layout.pieces if p.kind == "tensor"}
        assert sizes["h"] == b * s * 6 * 4
        assert sizes["c"] == b * 2 * s * 3 * 4


def test_an_executor_without_an_arena_has_no_layout(plan):
    options = taper_runtime.SessionOptions()
    options.executor = "interpreted"
    assert taper_runtime.InferenceSession(plan, options).stats().layout is None


def test_inspect_prints_the_layout(plan, tmp_path, capsys):
    plan.save(tmp_path / "plan.taper")
    assert main(["inspect", str(tmp_path / "plan.taper"), "--layout", "--kernels", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["layout"] == memory_layout(plan).data()
    assert main(["inspect", str(tmp_path / "plan.taper"), "--layout"]) == 0
    text = capsys.readouterr().out
    for piece in memory_layout(plan, kernels=False).pieces:
        assert any(
            line.split()[:2] == [str(piece.offset), str(piece.bytes)] and piece.name in line
            for line in text.splitlines()
        )
    assert main(["inspect", str(tmp_path / "plan.taper"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["layout"] is None
