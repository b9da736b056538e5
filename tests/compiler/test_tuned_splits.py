"""Chains that are split by measured times: found in plans, in exports, and with the same bits."""

import pytest

from graph_checks import Builder, floats, random_inputs, shrink_cache
from random_graphs import random_graph
from taper_frontend.compiler.analysis.chains import chain_key
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.from_plan import to_graph
from taper_frontend.compiler.pass_registry import default_pipeline, with_room
from taper_frontend.compiler.planning import make_plan
from taper_frontend.compiler.planning.join_parts import join_parts
from taper_frontend.compiler.tuned_splits import (
    ROOMS,
    TunedSplits,
    tunable_splits,
    with_tuned_splits,
)
from taper_frontend.errors import ExportError
from taper_runtime import InferenceSession
from taper_runtime.executor.tuned_choice import machine_setting
from taper_runtime.file.measurements import (
    Measurement,
    Quartiles,
    append_measurements,
    read_measurements,
)
from taper_runtime.machine.cost import cache_bytes
from taper_runtime.native import _kernels

HERE = machine_setting(_kernels.active_isa(), 1)


def images():
    """Convolutions over one image, which are split into row tiles."""
    b = Builder()
    y = b.input("x", 1, 24, 16, 4)
    attrs = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    for _ in range(3):
        y = b.op("RELU", b.op("CONV", y, b.constant(floats(3, 3, 4, 4)), **attrs))
    return b.done(b.op("MATMUL", y, b.constant(floats(4, 8))))


def items():
    """Products of a batch, which are split into micro-batches."""
    b = Builder()
    y = b.input("x", 512, 16)
    for _ in range(2):
        y = b.op("RELU", b.op("MATMUL", y, b.constant(floats(16, 64))))
        y = b.op("MATMUL", y, b.constant(floats(64, 16)))
    return b.done(y)


#: The cache's bytes, what makes a graph, the suffix of parts, the number of whole nodes.
CHAINS = {
    "row tiles": (1 << 12, images, ".tile", 4),
    "micro-batches": (1 << 14, items, ".items", 4),
}


@pytest.fixture(params=CHAINS)
def chain(request, monkeypatch):
    """What makes a graph that is split, and what is made of it."""
    nbytes, make, *_ = CHAINS[request.param]
    shrink_cache(monkeypatch, nbytes)
    return make, request.param


def planned(graph, passes=None):
    names = [f"out{i}" for i in range(len(graph.outputs))]
    compile_graph(graph, passes, output_names=names)
    return make_plan(graph)


def run(plan, feeds):
    return [array.tobytes() for array in InferenceSession(plan).run(None, feeds)]


def planted(file, plan, winner):
    """Write times of all chains; ``winner`` chooses one of the names of the ways."""
    for node in tunable_splits(plan):
        names = [each.name for each in node.candidates]
        best = winner(names)
        slow, fast = Quartiles(100.0, 110.0, 120.0), Quartiles(10.0, 11.0, 12.0)
        ns = {name: fast if name == best else slow for name in names}
        append_measurements(file, [Measurement(node.candidates[0].key, HERE, ns)])
    return read_measurements(file, HERE)


@pytest.mark.parametrize("seed", range(6))
def test_what_was_split_is_joined_with_the_same_bits(seed, monkeypatch):
    shrink_cache(monkeypatch, 256)
    graph = random_graph(seed)
    plan = planned(graph)
    feeds = random_inputs(to_graph(plan), seed)
    joined = to_graph(plan)
    if join_parts(joined):
        assert len(joined.nodes) < len(plan.nodes)
    joined.verify()
    assert run(planned(joined, ()), feeds) == run(plan, feeds)


def test_a_chain_is_joined_whole(chain):
    make, about = chain
    *_, part, count = CHAINS[about]
    plan = planned(make())
    assert any(part in name for name in plan.tensors)
    graph = to_graph(plan)
    assert join_parts(graph)
    assert not any(part in name for name in graph.tensors)
    assert len(graph.nodes) == count
    assert graph.outputs == list(plan.outputs)


def test_an_export_asks_for_the_chains_that_tuning_finds(chain):
    make, about = chain
    asked = []

    def listen(about, chain):
        asked.append(chain_key(about, chain()))
        return cache_bytes()

    compile_graph(make(), with_room(default_pipeline(), listen))
    found = {node.candidates[0].key for node in tunable_splits(planned(make()))}
    assert found
    assert found <= set(asked)
    assert {key.op for key in found} == {about}


@pytest.mark.parametrize("way", [1, -1])
def test_the_way_that_won_is_taken_by_a_plan_and_by_an_export(way, chain, tmp_path):
    make, about = chain
    plan = planned(make())
    feeds = random_inputs(make(), 5)
    known = planted(tmp_path / "times", plan, lambda names: names[way])
    splits = TunedSplits(known, required=True)
    tuned = with_tuned_splits(plan, splits)
    assert splits.changes
    assert len(tuned.nodes) != len(plan.nodes)
    assert run(tuned, feeds) == run(plan, feeds)
    assert tuned.outputs == plan.outputs
    lines = [each for each in tuned.metadata["decisions"] if each["reason"] == "measured times"]
    assert {each["about"] for each in lines} == {f"parts of {about}"}
    again = make()
    exported = TunedSplits(known)
    tuned_export = planned(again, with_room(default_pipeline(), exported))
    assert run(tuned_export, feeds) == run(plan, feeds)
    assert exported.changes


def test_default_times_change_nothing(chain, tmp_path):
    plan = planned(chain[0]())
    known = planted(tmp_path / "times", plan, lambda names: next(iter(ROOMS)))
    assert with_tuned_splits(plan, TunedSplits(known, required=True)) is plan


def test_missing_times_are_told_or_refused(chain, tmp_path):
    make, about = chain
    append_measurements(tmp_path / "times", [])
    known = read_measurements(tmp_path / "times", HERE)
    splits = TunedSplits(known)
    plan = planned(make(), with_room(default_pipeline(), splits))
    assert not splits.changes
    assert splits.missing
    assert len(plan.nodes) == len(planned(make()).nodes)
    with pytest.raises(ExportError, match=f"require_tuned: {about} of the chain that ends"):
        planned(make(), with_room(default_pipeline(), TunedSplits(known, required=True)))


def test_a_stranger_with_names_of_parts_stays_as_it_is():
    b = Builder()
    x = b.input("x", 4, 6)
    parts = [
        b.graph.add_node("RELU", [x], name="y.tile"),
        b.graph.add_node("EXP", [x], name="y.tile"),
    ]
    graph = b.done(b.op("CAT", *parts, axis=0))
    before = str(graph)
    assert not join_parts(graph)
    assert str(graph) == before
