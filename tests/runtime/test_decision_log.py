"""Choices of a session and its export: the same lines everywhere, with the numbers behind them."""

import json
import os
import subprocess
import sys

import pytest

from graph_checks import Builder, floats
from node_plans import plan_of
from plan_files import small_plan
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.from_plan import run_passes
from taper_frontend.compiler.planning import make_plan
from taper_runtime import InferenceSession, PlanFormatError, SessionOptions, load
from taper_runtime.base.decisions import Decision, read_decisions
from taper_runtime.base.sizes import variable
from taper_runtime.cli import main
from taper_runtime.executor.node_trials import tunable_nodes
from taper_runtime.executor.tuned_choice import machine_setting
from taper_runtime.file.measurements import Measurement, Quartiles, append_measurements
from taper_runtime.native import _kernels
from taper_runtime.plan.specialize import specialize

ISA = _kernels.active_isa()


@pytest.fixture(scope="module")
def conv_plan():
    """A convolution that Winograd's form suits, one of stride 2, and a product."""
    b = Builder()
    x = b.input("x", 1, 20, 20, 32)
    kinds = {"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1, 1, 1), "dilation": (1, 1)}
    y = b.op("CONV", x, b.weight(3, 3, 32, 32, name="first"), **kinds)
    y = b.op("RELU", y)
    y = b.op("CONV", y, b.weight(3, 3, 32, 8, name="second"), **{**kinds, "stride": (2, 2)})
    b.graph.outputs = [b.op("MATMUL", y, b.weight(8, 4, name="third"))]
    compile_graph(b.graph, output_names=["y"])
    return make_plan(b.graph)


def log_of(plan, **fields):
    options = SessionOptions()
    options.intra_op_num_threads = 1
    for name, value in fields.items():
        setattr(options, name, value)
    return InferenceSession(plan, options).decision_log()


def only(lines, start):
    (line,) = [line for line in lines if line.startswith(start)]
    return line


def test_a_line_has_the_candidates_sorted_by_name():
    told = Decision("form", "w", "b", {"b": 2, "a": 31, "c": None}, "least")
    assert str(told) == "form w: b, among a (31 ns), b (2 ns), c; least"
    assert str(Decision("threads", "", "2")) == "threads: 2"
    assert str(Decision("a", "x\x1b[2J", "b")) == r"a x\x1b[2J: b"


def test_passes_tell_what_they_considered(conv_plan):
    found = {(each.about, each.name): each for each in read_decisions(conv_plan.metadata)}
    form = found["form", "first.tiles4"]
    assert set(form.among) == {"direct sums", "F(2x2)", "F(4x4)"}
    assert form.chosen == min(form.among, key=form.among.get) == "F(4x4)"
    assert found["format", "third.packed"].chosen == conv_plan.tensors["third.packed"].format
    tiles = found["row tiles", "y"]
    assert tiles.among["as chosen"] <= tiles.among["no tiles"]
    assert {each.name for each in found.values()} <= conv_plan.tensors.keys()


def test_the_file_keeps_the_lines(conv_plan, tmp_path):
    conv_plan.save(tmp_path / "m.taper")
    assert log_of(tmp_path / "m.taper") == log_of(conv_plan)


def test_lines_are_the_same_in_processes_with_other_hash_seeds(conv_plan, tmp_path):
    conv_plan.save(tmp_path / "m.taper")
    program = (
        "import sys, taper_runtime\n"
        "print('\\n'.join(taper_runtime.InferenceSession(sys.argv[1]).decision_log()))"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program, tmp_path / "m.taper"],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "12345")
    }
    (text,) = printed
    assert len(text.splitlines()) > len(conv_plan.nodes)


def test_a_run_changes_no_line(conv_plan):
    session = InferenceSession(conv_plan)
    before = session.decision_log()
    session.run(None, {"x": floats(1, 20, 20, 32)})
    assert session.decision_log() == before


def test_levels_and_threads_name_who_chose_them(monkeypatch):
    monkeypatch.setenv("TAPER_NUM_THREADS", "3")
    lines = InferenceSession(small_plan()).decision_log()
    assert only(lines, "threads") == "threads: 3; TAPER_NUM_THREADS"
    lines = log_of(small_plan(), isa="baseline")
    assert only(lines, "threads") == "threads: 1; SessionOptions.intra_op_num_threads"
    assert only(lines, "isa").startswith("isa: baseline, among ")
    assert only(lines, "isa").endswith("; SessionOptions.isa")


def test_every_computed_node_has_a_line(conv_plan):
    session = InferenceSession(conv_plan)
    lines = [line for line in session.decision_log() if line.startswith("kernel ")]
    kernels = {site.node.output: str(kernel) for site, kernel in session._default.executor.steps}
    assert len(lines) == len(kernels)
    for line in lines:
        name, chosen = line.removeprefix("kernel ").split(": ")[:2]
        assert chosen.startswith(kernels[name])


def test_a_plan_from_a_cache_says_so():
    for cache, line in (
        ({"hit": True, "saved_s": 0.5}, "cache: taken, among made, taken"),
        ({"hit": False, "reason": "empty"}, "cache: made, among made, taken; empty"),
        ({"reason": ["x\x1b"]}, "cache: made, among made, taken; ['x\\x1b']"),
    ):
        lines = log_of(small_plan()._replace(metadata={"cache": cache}))
        assert only(lines, "cache") == line
    for damaged in (None, [], "hit"):
        lines = log_of(small_plan()._replace(metadata={"cache": damaged}))
        assert not any(line.startswith("cache") for line in lines)


def test_numpy_has_a_reason():
    plan = plan_of("LAYER_NORM", {"dims": 1, "eps": 0.0}, (2, 3), dtype="float64")
    (line,) = [line for line in log_of(plan) if line.startswith("numpy ")]
    assert "numpy; LAYER_NORM: " in line
    told = only(log_of(plan), "native kernels")
    assert told == f"native kernels: 0 of 1 node; first without: {plan.outputs[0]}"
    assert "it takes tensors of other dtypes or formats" in line
    stats = InferenceSession(plan).stats().compilability
    assert (stats.score, stats.breaks, stats.classes) == (0.0, 1, {"LAYER_NORM": 1})
    assert stats.first_break == plan.outputs[0]


def test_measured_times_stand_in_the_line(tmp_path):
    plan = plan_of("MATMUL", {"transpose_b": True}, (20, 300), (33, 300))
    file, here = tmp_path / "times", machine_setting(ISA, 1)
    (node,) = tunable_nodes(plan, ISA, other_bits=True)
    times = {
        each.name: Quartiles(10.0 + i, 11.0 + i, 12.0 + i) for i, each in enumerate(node.candidates)
    }
    append_measurements(file, [Measurement(node.candidates[0].key, here, times)])
    lines = log_of(plan, tuned=file, kernel_choice="measured")
    assert only(lines, "kernel").endswith("MATMUL: measured times")
    assert "(11 ns)" in only(lines, "kernel")
    assert (
        only(lines, "tuned") == "tuned: 1 used, 0 missing; 0 nodes differ from the default kernel"
    )


def test_candidates_follow_the_sizes_of_the_last_run():
    """Plans of varying sizes tell the lines of a plan of the last run's sizes."""
    b = Builder()
    b.graph.sizes["rows"], b.graph.examples["rows"] = (1, 64), 4
    x = b.input("x", variable("rows", 1, 64), 300)
    b.graph.outputs = [b.op("MATMUL", x, b.constant(floats(33, 300)), transpose_b=True)]
    compile_graph(b.graph, (), output_names=["y"])
    plan = make_plan(b.graph)
    options = SessionOptions()
    options.intra_op_num_threads = 1
    session = InferenceSession(plan, options)
    first = only(session.decision_log(), "kernel ")
    for count in (4, 20):
        session.run(None, {"x": floats(count, 300)})
        line = only(session.decision_log(), "kernel ")
        fixed = InferenceSession(specialize(plan, {"rows": count}), options)
        assert line == only(fixed.decision_log(), "kernel ")
        assert " ns)" in line
        assert (line == first) == (count == 4)


@pytest.mark.parametrize(
    ("choice", "why"),
    [
        ({"kernels": {"MATMUL": "dot"}}, "SessionOptions.kernels"),
        ({"kernel_choice": "cost"}, "least estimated time, if at most 0.95 of the default's"),
        ({}, "the kernel's own rule"),
    ],
)
def test_each_way_of_choosing_a_kernel_is_named(choice, why):
    plan = plan_of("MATMUL", {"transpose_b": True}, (20, 300), (33, 300))
    assert only(log_of(plan, **choice), "kernel").endswith(f"MATMUL: {why}")


def test_formats_chosen_at_open_are_listed():
    b = Builder()
    b.graph.outputs = [b.op("MATMUL", b.input("x", 4, 64), b.weight(64, 32, name="w"))]
    compile_graph(b.graph, output_names=["y"])
    plan = make_plan(b.graph, packed_at_open=True)
    line = only(log_of(plan, packing="at_open"), "packed as")
    assert line.startswith("packed as w.packed: ")
    assert " ns)" in line


def test_why_tells_of_a_node_and_its_weights(conv_plan, tmp_path, capsys):
    file = tmp_path / "m.taper"
    conv_plan.save(file)
    (node,) = [n for n in conv_plan.nodes if "first.tiles4" in n.reads]
    assert main(["inspect", str(file), "--why", node.output]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["form", "kernel"]
    assert main(["inspect", str(file), "--why", node.output, "--json"]) == 0
    form, _ = json.loads(capsys.readouterr().out)["decisions"]
    assert form["among"]["F(4x4)"] > 0
    assert main(["inspect", str(file), "--why", "yy"]) == 1
    assert "unknown node 'yy'" in capsys.readouterr().err


GOOD = Decision("form", "w", "a").data()


@pytest.mark.parametrize(
    "rows",
    [
        {"a": 1},
        "text",
        [1],
        [{}],
        [{**GOOD, "more": 1}],
        [{**GOOD, "name": 3}],
        [{**GOOD, "among": [1]}],
        [{**GOOD, "among": {"a": 1.5}}],
        [{**GOOD, "among": {"a": True}}],
        [{**GOOD, "among": {str(i): None for i in range(1001)}}],
    ],
)
def test_damaged_decisions_of_a_file_are_refused(rows, tmp_path):
    plan = small_plan()
    plan._replace(metadata={"decisions": rows}).save(tmp_path / "m.taper")
    session = InferenceSession(load(tmp_path / "m.taper"))
    with pytest.raises(PlanFormatError, match="metadata"):
        session.decision_log()


def test_passes_run_on_a_plan_keep_what_was_chosen(conv_plan):
    again = run_passes(conv_plan, ["eliminate_dead_code"])
    before = {(each.about, each.name) for each in read_decisions(conv_plan.metadata)}
    after = {(each.about, each.name) for each in read_decisions(again.metadata)}
    assert ("form", "first.tiles4") in after <= before
