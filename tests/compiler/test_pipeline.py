"""Passes in a row: whole pipelines, groups, records, and any graph through all of them."""

import copy

import numpy as np
import pytest

from graph_checks import (
    Builder,
    assert_same_values,
    check_fires,
    op_counts,
    random_inputs,
    shrink_cache,
)
from random_graphs import random_graph
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.stages import (
    PIPELINE,
    Group,
    eliminate_dead_code,
    fuse_elementwise,
    remove_noops,
    run_pipeline,
    run_until_stable,
)
from taper_runtime.errors import InternalError


@pytest.fixture
def small_cache(monkeypatch):
    shrink_cache(monkeypatch, 256)


def flat(passes):
    for pass_ in passes:
        yield from pass_.passes if isinstance(pass_, Group) else [pass_]


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("seed", range(60))
def test_random_graphs_keep_their_values(seed):
    graph = random_graph(seed)
    graph.verify()
    inputs = random_inputs(graph, seed)
    expected = evaluate(graph, inputs)
    names = list(graph.outputs)
    run_pipeline(graph, PIPELINE, verify=True)
    values = evaluate(graph, inputs)
    assert graph.outputs == names
    assert_same_values(values, expected)


@pytest.mark.usefixtures("small_cache")
def test_random_graphs_give_every_pass_something_to_do():
    changing = set()
    for seed in range(60):
        records = run_pipeline(random_graph(seed), PIPELINE)
        changing.update(record.name for record in records if record.changed)
    assert changing == {pass_.__name__ for pass_ in flat(PIPELINE)}


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("seed", range(8))
def test_random_graphs_through_passes_in_any_order(seed):
    rng = np.random.default_rng(seed)
    graph = random_graph(100 + seed)
    inputs = random_inputs(graph, seed)
    expected = evaluate(graph, inputs)
    names = list(graph.outputs)
    passes = list(dict.fromkeys(flat(PIPELINE)))
    for index in rng.integers(len(passes), size=2 * len(passes)):
        passes[index](graph)
        graph.verify()
    assert graph.outputs == names
    assert_same_values(evaluate(graph, inputs), expected)


@pytest.mark.parametrize("seed", range(60))
def test_every_step_settles(seed):
    graph = random_graph(200 + seed)
    for step in PIPELINE:
        step(graph)
        before = str(graph)
        assert not step(graph), [p.__name__ for p in flat([step])]
        assert str(graph) == before


@pytest.mark.parametrize("seed", [*range(200, 260), 267, 293, 388, 470])
def test_second_run_finds_nothing_to_save(seed):
    # it may turn a permutation and back: what the last passes do is not for the first to see
    graph = random_graph(seed)
    run_pipeline(graph, PIPELINE)
    before = len(graph.nodes)
    run_pipeline(graph, PIPELINE)
    assert len(graph.nodes) == before


class TestRunning:
    def graph(self):
        b = Builder()
        y = b.reshape(b.op("EXP", b.input("x", 2, 3)), 2, 3)
        return b.done(b.op("NEG", b.reshape(y, 2, 3)))

    def test_records(self):
        records = run_pipeline(self.graph(), [remove_noops, fuse_elementwise, fuse_elementwise])
        assert [(r.name, r.before, r.after, r.changed) for r in records] == [
            ("remove_noops", 4, 2, True),
            ("fuse_elementwise", 2, 1, True),
            ("fuse_elementwise", 1, 1, False),
        ]
        assert records[0].ops == {"RESHAPE": -2}
        assert records[1].ops == {"EXP": -1, "MAP": 1, "NEG": -1}
        assert records[2].ops == {}

    def test_group_runs_until_stable(self):
        records = run_pipeline(self.graph(), [Group(remove_noops, eliminate_dead_code)])
        assert [r.changed for r in records] == [True, False, False]

    def test_group_is_a_pass_itself(self):
        graph = self.graph()
        group = Group(remove_noops, fuse_elementwise)
        assert group(graph)
        assert op_counts(graph) == {"MAP": 1}
        assert not group(graph)

    def test_run_until_stable_says_whether_anything_changed(self):
        graph = self.graph()
        assert run_until_stable(graph, [remove_noops])
        assert not run_until_stable(graph, [remove_noops])
        assert not run_until_stable(graph, [])

    def test_passes_that_never_settle_are_named(self):
        def say_changed(graph):
            return True

        with pytest.raises(InternalError, match="say_changed"):
            run_pipeline(self.graph(), [Group(remove_noops, say_changed)])

    def test_pass_that_breaks_the_graph_is_named(self):
        def break_graph(graph):
            graph.nodes["exp"].attrs["nonsense"] = 1
            return True

        with pytest.raises(InternalError, match="break_graph"):
            run_pipeline(self.graph(), [break_graph], verify=True)

    def test_users_pass_of_any_kind(self):
        class Renamed:
            def __call__(self, graph):
                return False

        records = run_pipeline(self.graph(), [Renamed(), lambda graph: False])
        assert [r.name for r in records] == ["Renamed", "<lambda>"]

    def test_pipeline_is_a_list_to_copy(self):
        passes = copy.copy(PIPELINE)
        passes.remove(fuse_elementwise)
        graph = self.graph()
        run_pipeline(graph, passes)
        assert op_counts(graph) == {"EXP": 1, "NEG": 1}


def test_check_fires_notices_a_wrong_pass():
    # the tests' own tool: a pass that changes a value must not get through
    def drop_negation(graph):
        (neg,) = (n for n in graph.nodes.values() if n.op == "NEG")
        return graph.bypass(neg, neg.inputs[0])

    b = Builder()
    graph = b.done(b.op("EXP", b.op("NEG", b.input("x", 3))))
    with pytest.raises(AssertionError):
        check_fires(drop_negation, graph)
