"""Test the trace: its steps, applied to the lowered graph, give the last graph."""

import itertools
import json
import re

import numpy as np
import pytest

from graph_checks import Builder, floats
from known_rules import drop_casts, fold_exps
from random_graphs import random_graph
from taper_frontend.compiler.graph import Graph
from taper_frontend.compiler.graph.constants import Parameter, transposed
from taper_frontend.compiler.pipeline import Group, run_pipeline
from taper_frontend.compiler.rules.engine import rewrite
from taper_frontend.compiler.stages import PIPELINE
from taper_frontend.compiler.trace import TraceRecorder, trace_path, tracing, writing
from taper_frontend.compiler.trace.trace_page import trace_page
from taper_frontend.errors import ExportError
from taper_runtime.base.errors import InternalError
from taper_runtime.ops.opdef import TensorType


def listed(graph):
    """What the graph is, told by its own printing methods, without the recorder's help."""
    found = {}
    for name, spec in graph.tensors.items():
        node = graph.producers.get(name)
        shape = ",".join(str(size) for size in spec.shape)
        what = (node.op, list(node.inputs), node.source.line) if node else spec.role
        format = "" if spec.format == "plain" else f" {spec.format}"
        found[name] = (f"{spec.dtype}[{shape}]{format}", what)
    return found


def told(data, tensors):
    """The same of tensors as a recording has them."""
    found = {}
    for name, place in tensors.items():
        record = data["records"][place]
        if "op" in record:
            what = (record["op"], record["inputs"], data["sources"][record["source"]][0])
        else:
            what = record["role"]
        found[name] = (record["type"], what)
    return found


def replayed(data):
    """The tensors after each step, and the outputs after the last."""
    tensors = dict(data["lowered"]["tensors"])
    outputs = data["lowered"]["outputs"]
    yield tensors, outputs
    for step in data["steps"]:
        tensors = dict(tensors)
        for name, place in step["before"].items():
            assert tensors.pop(name) == place, "a step begins where the one before it ended"
        assert not tensors.keys() & step["after"].keys()
        tensors |= step["after"]
        if "outputs" in step:
            before, after = step["outputs"]
            assert before == outputs
            outputs = after
        yield tensors, outputs


def recorded(graph, passes):
    recorder = TraceRecorder(graph)
    run_pipeline(graph, passes)
    return json.loads(json.dumps(recorder.data()))


@pytest.mark.parametrize("seed", range(12))
def test_the_steps_lead_from_the_lowered_graph_to_the_last(seed):
    graph = random_graph(seed)
    lowered = listed(graph)
    recorder = TraceRecorder(graph)
    run_pipeline(graph, PIPELINE)
    graph.name_outputs([f"result{i}" for i in range(len(set(graph.outputs)))])
    data = json.loads(json.dumps(recorder.data()))
    states = list(replayed(data))
    assert told(data, states[0][0]) == lowered
    assert told(data, states[-1][0]) == listed(graph)
    assert states[-1][1] == graph.writes
    assert len(data["steps"]) > 10


@pytest.mark.parametrize("seed", range(3))
def test_every_step_leaves_a_graph_whose_nodes_read_what_is_there(seed):
    data = recorded(random_graph(seed), PIPELINE)
    for tensors, outputs in replayed(data):
        reads = {
            name for place in tensors.values() for name in data["records"][place].get("inputs", ())
        }
        assert reads <= tensors.keys()
        assert set(outputs) <= tensors.keys()


def small():
    """x -> CAST (to what it is) -> NEG y; EXP of a constant -> ADD z (output)."""
    b = Builder()
    x = b.input("x", 3)
    cast = b.graph.add_node(
        "CAST", [x], {"dtype": "float32"}, name="cast", source="m.py:1 in forward"
    )
    y = b.graph.add_node("NEG", [cast], name="y", source="m.py:2 in forward")
    w = b.graph.add_constant("w", floats(3))
    e = b.graph.add_node("EXP", [w], name="e")
    b.graph.set_outputs([b.graph.add_node("ADD", [y, e], name="z")])
    return b.graph


def steps_of(data):
    return [(step["rule"], step["node"]) for step in data["steps"]]


class TestSteps:
    def test_known_firings(self):
        data = recorded(small(), [Group(drop_casts, fold_exps)])
        assert steps_of(data) == [("drop_cast", "cast"), ("fold_exp", "e")]
        bypass, fold = data["steps"]
        assert bypass["became"] == {"cast": "x"}
        assert told(data, bypass["before"]) == {
            "cast": ("float32[3]", ("CAST", ["x"], "m.py:1 in forward")),
            "y": ("float32[3]", ("NEG", ["cast"], "m.py:2 in forward")),
        }
        assert told(data, bypass["after"]) == {
            "y": ("float32[3]", ("NEG", ["x"], "m.py:2 in forward"))
        }
        assert told(data, fold["before"]) == {
            "e": ("float32[3]", ("EXP", ["w"], "")),
            "w": ("float32[3]", "constant"),
        }
        assert told(data, fold["after"]) == {"e": ("float32[3]", "constant")}

    def test_every_pass_that_ran_is_told_with_its_steps(self):
        data = recorded(small(), [Group(drop_casts, fold_exps), drop_casts])
        assert [(p["stage"], p["name"], p["steps"], p["nodes"]) for p in data["passes"]] == [
            ("", "drop_casts", [0, 1], 3),
            ("", "fold_exps", [1, 2], 2),
            ("", "drop_casts", [2, 2], 2),
            ("", "fold_exps", [2, 2], 2),
            ("", "drop_casts", [2, 2], 2),
        ]

    def test_changes_that_no_rule_claims_are_a_step_of_their_pass(self):
        def negate_again(graph):
            graph.set_outputs([graph.add_node("NEG", [graph.outputs[0]], name="again")])
            return True

        data = recorded(small(), [negate_again])
        assert steps_of(data) == [("negate_again", "")]
        assert data["steps"][0]["outputs"] == [["z"], ["again"]]
        assert list(data["steps"][0]["after"]) == ["again"]

    def test_changes_outside_of_a_pass_are_steps_too(self):
        graph = small()
        recorder = TraceRecorder(graph)
        graph.rename({"y": "better", "x": "image"})
        graph.listener.fired("naming", "y")
        data = recorder.data()
        (step,) = data["steps"]
        assert step["became"] == {"y": "better", "x": "image"}
        assert step["inputs"] == [["x"], ["image"]]
        assert step["before"].keys() == {"x", "y", "cast", "z"}
        assert told(data, step["after"])["z"] == ("float32[3]", ("ADD", ["better", "e"], ""))

    def test_a_value_that_takes_over_an_outputs_name_can_be_followed(self):
        b = Builder()
        a = b.op("NEG", b.input("x", 3))
        y = b.op("CAST", a, dtype="float32")
        data = recorded(b.done(y), [drop_casts])
        (step,) = data["steps"]
        assert step["became"] == {a: y}
        assert told(data, step["after"]) == {y: ("float32[3]", ("NEG", ["x"], ""))}

    def test_states_are_told_with_their_next_values(self):
        graph = Graph()
        x = graph.add_input("x", "float32", (3,))
        state = graph.add_state("s", floats(3))
        total = graph.add_node("ADD", [state, x], name="total")
        graph.set_outputs([graph.add_node("NEG", [total], name="y")])
        graph.set_next(state, graph.add_node("CAST", [total], {"dtype": "float32"}, name="n"))
        data = recorded(graph, [drop_casts])
        assert data["lowered"]["inputs"] == ["x", "s"]
        assert data["lowered"]["outputs"] == ["y", "n"]
        record = data["records"][data["lowered"]["tensors"]["s"]]
        assert record == {"type": "float32[3]", "role": "state"}
        *_, (tensors, outputs) = replayed(data)
        assert told(data, tensors) == listed(graph)
        assert outputs == graph.writes
        assert steps_of(data) == [("drop_cast", "n")]

    def test_a_rule_that_changes_nothing_leaves_no_step(self):
        graph = small()
        left = [3]

        def idle(graph, node):
            left[0] -= 1
            return left[0] >= 0

        recorder = TraceRecorder(graph)
        assert rewrite(graph, idle)
        assert recorder.data()["steps"] == []


class TestRecords:
    def test_what_passes_considered_is_told(self, tmp_path):
        b = Builder()
        b.done(b.op("MATMUL", b.input("x", 4, 8), b.weight(8, 4)))
        with tracing(b.graph, tmp_path / "t.json"):
            run_pipeline(b.graph, PIPELINE)
        data = json.loads((tmp_path / "t.json").read_text())
        told = data["decisions"]
        (packed,) = [each for each in told if each["about"] == "format"]
        assert (packed["pass"], packed["name"]) == ("pack_weights", "w.packed")
        assert set(packed["among"]) == {"plain", packed["chosen"]}
        assert b.graph.listener.decisions["format", "w.packed"].chosen == packed["chosen"]
        assert '"title":"Choices"' in trace_page(data).replace(": ", ":")

    def test_only_small_constants_show_their_values(self):
        graph = Graph()
        graph.add_constant("few", np.arange(8))
        graph.add_constant("many", np.arange(9))
        graph.add_constant("odd", np.array([np.nan, -np.inf], np.float32))
        data = TraceRecorder(graph).data()
        records = {n: data["records"][place] for n, place in data["lowered"]["tensors"].items()}
        assert records["few"] == {"type": "int64[8]", "role": "constant", "value": list(range(8))}
        assert records["many"] == {"type": "int64[9]", "role": "constant"}
        assert records["odd"]["value"] == ["nan", "-inf"]
        json.dumps(data, allow_nan=False)

    def test_constants_made_of_others_name_what_they_are_made_of(self):
        def read():
            raise AssertionError("a trace reads no parameter")

        graph = Graph()
        parameter = Parameter(TensorType("float32", (2, 3)), ("body.weight",), read)
        graph.add_constant("w", parameter)
        graph.add_constant("w.turned", transposed(parameter))
        data = TraceRecorder(graph).data()
        records = {n: data["records"][place] for n, place in data["lowered"]["tensors"].items()}
        assert records["w"]["parameters"] == ["body.weight"]
        assert records["w"]["ops"] == []
        assert records["w.turned"]["parameters"] == ["body.weight"]
        assert records["w.turned"]["ops"] == ["TRANSPOSE"]

    def test_long_attrs_are_cut(self):
        b = Builder()
        b.done(b.op("EXPAND", b.input("x", 1), shape=(2,) * 100))
        data = TraceRecorder(b.graph).data()
        (attrs,) = [r["attrs"] for r in data["records"] if r.get("op")]
        assert attrs["shape"] == [2] * 64 + ["... 100 in all"]

    def test_a_graph_that_nobody_records_is_the_same(self):
        graphs = [random_graph(3), random_graph(3)]
        TraceRecorder(graphs[0])
        for graph in graphs:
            run_pipeline(graph, PIPELINE)
        assert str(graphs[0]) == str(graphs[1])


class TestWriting:
    def test_json_is_the_recording_with_its_title(self, tmp_path):
        path = tmp_path / "trace.json"
        graph = small()
        with tracing(graph, path, "small"):
            run_pipeline(graph, [drop_casts])
        data = json.loads(path.read_text())
        assert (data["title"], data["error"]) == ("small", "")
        assert steps_of(data) == [("drop_cast", "cast")]
        run_pipeline(graph, [fold_exps])
        assert json.loads(path.read_text()) == data, "the graph is recorded in the context alone"

    def test_the_page_holds_what_the_json_holds(self, tmp_path):
        for suffix in ("html", "json"):
            graph = small()
            with tracing(graph, tmp_path / f"trace.{suffix}", "small"):
                run_pipeline(graph, [Group(drop_casts, fold_exps)])
        data = json.loads((tmp_path / "trace.json").read_text())
        text = (tmp_path / "trace.html").read_text()
        (page,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', text)
        page = json.loads(page)
        assert page["subtitle"] == "4 nodes as lowered, 2 after 2 steps of the compiler"
        sections = {section["title"]: section for section in page["sections"]}
        for key in ("sources", "records", "lowered", "passes", "steps"):
            assert sections["Steps"][key] == data[key]
        assert sections["Rules"]["rows"] == [
            ["drop_cast", "drop_casts", 1, -1, 1],
            ["fold_exp", "fold_exps", 1, -1, 2],
        ]
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")

    def test_an_exception_ends_the_trace_and_is_told_in_it(self, tmp_path):
        def broken(graph):
            graph.add_node("NEG", ["z"], name="half done")
            raise InternalError("<b>no</b>")

        for suffix in ("html", "json"):
            graph = small()
            with (
                pytest.raises(InternalError),
                tracing(graph, tmp_path / f"t.{suffix}"),
            ):
                run_pipeline(graph, [drop_casts, broken])
        data = json.loads((tmp_path / "t.json").read_text())
        assert data["error"] == "InternalError: <b>no</b>"
        assert steps_of(data) == [("drop_cast", "cast"), ("broken", "")]
        text = (tmp_path / "t.html").read_text()
        assert "<b>" not in text
        assert "InternalError: \\u003cb\\u003eno" in text

    @pytest.mark.parametrize(
        ("path", "message"),
        [
            ("trace.txt", "expected a path that ends in .html or .json, got '.*trace.txt'"),
            ("trace", "expected a path that ends in"),
            ("none/trace.html", "no directory '.*none' to write 'trace.html' to"),
            ("folder.html", "'.*folder.html' cannot be written"),
        ],
    )
    def test_bad_paths_are_refused_first(self, path, message, tmp_path):
        (tmp_path / "folder.html").mkdir()
        with pytest.raises(ExportError, match=f"^trace: {message}"):
            tracing(small(), tmp_path / path)


class TestVariable:
    @pytest.fixture(autouse=True)
    def anew(self, monkeypatch):
        monkeypatch.setattr(writing, "_numbers", itertools.count(1))

    def test_exports_of_a_process_write_beside_each_other(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TAPER_TRACE", str(tmp_path / "out.html"))
        names = [trace_path(None).name for _ in range(3)]
        assert names == ["out.html", "out-2.html", "out-3.html"]

    def test_a_path_that_is_given_counts_more(self, tmp_path, monkeypatch):
        monkeypatch.setenv("TAPER_TRACE", str(tmp_path / "out.html"))
        assert trace_path(str(tmp_path / "mine.json")).name == "mine.json"
        assert trace_path(None).name == "out.html"

    @pytest.mark.parametrize("value", [None, ""])
    def test_without_it_nothing_is_traced(self, value, monkeypatch):
        monkeypatch.delenv("TAPER_TRACE", raising=False)
        if value is not None:
            monkeypatch.setenv("TAPER_TRACE", value)
        assert trace_path(None) is None

    def test_a_bad_one_is_an_error_that_names_it(self, monkeypatch):
        monkeypatch.setenv("TAPER_TRACE", "out.pdf")
        with pytest.raises(ExportError, match=r"^TAPER_TRACE: expected .* got 'out.pdf'"):
            trace_path(None)
