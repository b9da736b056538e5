"""Passes by name: registered ones run where they say, in every compilation, and are told of."""

import logging

import pytest

from graph_checks import Builder
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.planning import make_plan
from taper_frontend.compiler.stages import PIPELINE, STAGES
from taper_frontend.errors import ExportError
from taper_frontend.passes import default_pipeline, pass_names, register_pass, unregister_pass
from taper_runtime.base.errors import InternalError


def small_graph():
    b = Builder()
    return b.done(b.op("SUM", b.op("NEG", b.input("x", 4)), axes=(0,)))


@pytest.fixture
def registered():
    """Register passes that do not outlive the test."""
    names = []

    def register(name, fn, **place):
        register_pass(name, fn, **place)
        names.append(name)

    yield register
    for name in names:
        unregister_pass(name)


def neg_to_abs(graph):
    found = [node for node in graph.order() if node.op == "NEG"]
    for node in found:
        graph.replace_node(node, "ABS", node.inputs)
    return bool(found)


def ops(graph):
    return {node.op for node in graph.nodes.values()}


@pytest.mark.parametrize(
    "place",
    [
        {"before": "canonical form"},
        {"after": "canonical form"},
        {"after": "remove_noops"},  # in a group
        {"before": "pack_weights"},
    ],
)
def test_a_pass_with_a_place_runs_in_every_compilation(registered, place):
    registered("neg_to_abs", neg_to_abs, **place)
    records = compile_graph(small_graph(), verify=True)
    (other,) = place.values()
    names = [record.name for record in records]
    changed = next(i for i, r in enumerate(records) if r.name == "neg_to_abs")
    assert records[changed].changed
    assert records[changed].ops == {"ABS": 1, "NEG": -1}
    if other in names:
        assert (changed < names.index(other)) == ("before" in place)


def test_without_a_place_a_pass_runs_where_it_is_named(registered):
    registered("neg_to_abs", neg_to_abs)
    graph = small_graph()
    assert "neg_to_abs" not in {record.name for record in compile_graph(graph)}
    graph = small_graph()
    compile_graph(graph, ["remove_noops", "neg_to_abs", lambda graph: False])
    assert ops(graph) == {"ABS", "SUM"}


def test_names_of_stages_and_passes_stand_for_them():
    whole, named, steps = small_graph(), small_graph(), small_graph()
    compile_graph(whole)
    compile_graph(named, [stage.name for stage in STAGES])
    compile_graph(steps, PIPELINE)
    assert str(whole) == str(named) == str(steps)
    assert default_pipeline() == STAGES
    assert {"recognition", "fold_constants", "split_into_row_tiles"} <= {*pass_names()}


def test_unknown_names_list_what_there_is(registered):
    with pytest.raises(ExportError, match=r"did you mean 'fold_constants'.*'remove_noops'"):
        compile_graph(small_graph(), ["fold_constant"])
    with pytest.raises(ExportError, match=r"unknown pass 'nowhere'.*'canonical form'"):
        register_pass("mine", neg_to_abs, before="nowhere")
    assert "mine" not in pass_names()
    with pytest.raises(ExportError, match="unknown pass 'mine'; expected one of none"):
        unregister_pass("mine")
    registered("mine", neg_to_abs)
    for name in ("mine", "fold_scales", "weights"):
        with pytest.raises(ValueError, match="registered already"):
            register_pass(name, neg_to_abs)
    with pytest.raises(ValueError, match="got both"):
        register_pass("other", neg_to_abs, before="mine", after="weights")


def test_the_log_tells_of_each_pass(registered, caplog):
    registered("neg_to_abs", neg_to_abs, after="remove_noops")
    with caplog.at_level(logging.DEBUG, "taper_frontend.passes"):
        compile_graph(small_graph())
    texts = [record.getMessage() for record in caplog.records]
    assert "neg_to_abs: changed: 2 -> 2 nodes (+1 ABS, -1 NEG)" in texts
    assert "fold_scales: no change" in texts
    before, after = (
        next(text for text in texts if text.startswith(start))
        for start in ("before all passes:", "after neg_to_abs:")
    )
    assert "NEG(" in before
    assert "ABS(" in after
    caplog.clear()
    with caplog.at_level(logging.WARNING, "taper_frontend.passes"):
        compile_graph(small_graph())
    assert not caplog.records


def test_once_it_is_planned_a_graph_does_not_change():
    graph = small_graph()
    compile_graph(graph, output_names=["y"])
    assert graph.outputs == ["y"]
    make_plan(graph)
    (node,) = (node for node in graph.order() if node.output == "y")
    before = str(graph)
    for change in (
        lambda: graph.add_node("NEG", ["y"]),
        lambda: graph.replace_node(node, "NEG", node.inputs),
        lambda: graph.bypass(graph.producers.get("neg"), "x"),
        lambda: graph.set_outputs([]),
        lambda: graph.rename({"y": "z"}),
        lambda: graph.add_input("w", "float32", (1,)),
    ):
        with pytest.raises(InternalError, match="frozen"):
            change()
    assert str(graph) == before
    copy = graph.copy()
    copy.add_node("NEG", ["y"])
