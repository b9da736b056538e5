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
from marks import thinned
from random_graphs import random_graph
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.graph import evaluate
from taper_frontend.compiler.rules.engine import Rule, RuleSet
from taper_frontend.compiler.rules.pattern import op, tensor
from taper_frontend.compiler.stages import (
    PIPELINE,
    STAGES,
    Form,
    Group,
    Stage,
    eliminate_dead_code,
    fuse_elementwise,
    remove_noops,
    run_pipeline,
    run_until_stable,
)
from taper_runtime.base.errors import InternalError

#: Passes of control flow, which random graphs have none of: see stages/test_control_flow.py.
OF_BLOCKS = {"simplify_blocks", "inline_blocks", "hoist_invariants", "prune_operands"}


@pytest.fixture
def small_cache(monkeypatch):
    shrink_cache(monkeypatch, 256)


def flat(passes):
    for pass_ in passes:
        yield from pass_.passes if isinstance(pass_, Group) else [pass_]


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize("seed", thinned(3, range(60)))
def test_random_graphs_keep_their_values(seed):
    graph = random_graph(seed)
    graph.verify()
    inputs = random_inputs(graph, seed)
    expected = evaluate(graph, inputs)
    names = list(graph.outputs)
    run_pipeline(graph, STAGES, verify=True)
    values = evaluate(graph, inputs)
    assert graph.outputs == names
    assert_same_values(values, expected)


@pytest.mark.usefixtures("small_cache")
def test_random_graphs_give_every_pass_something_to_do():
    idle = {pass_.__name__ for pass_ in flat(PIPELINE)} - OF_BLOCKS
    for seed in range(60):
        records = run_pipeline(random_graph(seed), PIPELINE)
        idle -= {record.name for record in records if record.changed}
        if not idle:
            return
    pytest.fail(f"no graph gave work to {sorted(idle)}")


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


@pytest.mark.parametrize("seed", range(30))
def test_every_step_settles(seed):
    graph = random_graph(200 + seed)
    for step in PIPELINE:
        step(graph)
        before = str(graph)
        assert not step(graph), [p.__name__ for p in flat([step])]
        assert str(graph) == before


@pytest.mark.parametrize("seed", [*range(200, 230), 267, 293, 388, 470])
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


class TestStages:
    def graph(self):
        b = Builder()
        y = b.reshape(b.op("EXP", b.input("x", 2, 3)), 2, 3)
        return b.done(b.op("NEG", b.reshape(y, 2, 3)))

    def test_pipeline_is_the_steps_of_the_stages(self):
        names = ["canonical form", "recognition", "movement", "weights", "schedule"]
        assert [stage.name for stage in STAGES] == names
        steps = [pass_ for stage in STAGES for pass_ in stage.steps if not isinstance(pass_, Group)]
        assert [pass_ for pass_ in PIPELINE if not isinstance(pass_, Group)] == steps

    @pytest.mark.parametrize("seed", range(12))
    def test_stages_make_what_their_steps_make(self, seed):
        whole, steps, called = (random_graph(seed) for _ in range(3))
        run_pipeline(whole, STAGES)
        run_pipeline(steps, PIPELINE)
        for stage in STAGES:
            stage(called)
        assert str(whole) == str(steps) == str(called)

    def test_stage_is_a_pass(self):
        graph = self.graph()
        stage = Stage("tidy", steps=(Group(remove_noops),), form=())
        assert stage(graph)
        assert op_counts(graph) == {"EXP": 1, "NEG": 1}
        assert not stage(graph)

    def test_stage_keeps_a_form(self):
        def expand_negation(graph):
            (neg,) = (n for n in graph.nodes.values() if n.op == "NEG")
            if len(graph.nodes) > 2:
                return False
            copy = graph.add_node("COPY", neg.inputs)
            graph.replace_node(neg, "NEG", [copy])
            return True

        graph = self.graph()
        stage = Stage("s", steps=(expand_negation,), form=(), keeps=(remove_noops,))
        run_pipeline(graph, [Stage("tidy", (Group(remove_noops),), ()), stage])
        assert op_counts(graph) == {"EXP": 1, "NEG": 1}

    def test_form_is_checked(self):
        stage = Stage(
            "lazy", steps=(), form=(Form("no movement that moves nothing", remove_noops),)
        )
        graph = self.graph()
        before = str(graph)
        with pytest.raises(
            InternalError,
            match=r"after stage 'lazy': node 'reshape' \(RESHAPE\): expected no movement that "
            r"moves nothing, but rule 'movement that moves nothing' of remove_noops would change",
        ):
            run_pipeline(graph, [stage], verify=True)
        assert str(graph) == before  # it is looked for in a copy
        run_pipeline(graph, [stage])

    def test_every_form_can_be_missed(self):
        # attention and its mask are recognized in one stage
        waiting = {
            form
            for stage in STAGES
            for form in stage.form
            if form.found_by.__name__ not in OF_BLOCKS
            and form.absent != "no mask of attention that is causal"
        }
        for seed in range(60):
            graph = random_graph(seed)
            for stage in STAGES:
                waiting -= {form for form in waiting if form.found_by(graph.copy())}
                stage(graph)
            if not waiting:
                return
        pytest.fail(f"no graph had what these forms exclude: {[form.absent for form in waiting]}")


class TestCompileGraph:
    def graph(self):
        b = Builder()
        x = b.input("x", 2, 3)
        return b.done(b.reshape(b.op("EXP", x), 2, 3), x)

    def test_stages_and_outputs(self):
        graph = self.graph()
        records = compile_graph(graph, verify=True)
        assert op_counts(graph) == {"EXP": 1, "COPY": 1}
        assert records[-1].name == "materialize_outputs"

    def test_no_passes(self):
        graph = self.graph()
        compile_graph(graph, ())
        assert op_counts(graph) == {"EXP": 1, "RESHAPE": 1, "COPY": 1}

    def test_users_passes_among_stages(self):
        seen = []

        def count(graph):
            seen.append(len(graph.nodes))
            return False

        compile_graph(self.graph(), [count, *STAGES, count])
        assert seen == [2, 1]


def test_rule_that_breaks_the_graph_is_named():
    x = tensor()
    wrong = RuleSet("wrong", Rule("sum for exp", op("EXP", x), op("SUM", x, axes=(1,))))
    b = Builder()
    graph = b.done(b.op("EXP", b.input("x", 2, 3)))
    with pytest.raises(
        InternalError, match=r"rule 'sum for exp' at node 'exp' \(EXP\): .*expected .*got"
    ):
        compile_graph(graph, [wrong, *STAGES])


def test_copy_changes_apart():
    graph = random_graph(3)
    before, twin = str(graph), graph.copy()
    twin.verify()
    assert str(twin) == before
    run_pipeline(twin, STAGES)
    twin.verify()
    graph.verify()
    assert str(graph) == before
