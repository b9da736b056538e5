"""Test the report page: its contents, and that nothing a file says becomes markup."""

import base64
import hashlib
import json
import re

import numpy as np
import pytest

from control_plans import counting
from measured_plans import measured_arrays, measured_plan
from plan_files import small_plan
from sized_plans import sized_arrays, sized_plan
from taper_runtime.executor.compiled import CompiledExecutor
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.machine.limits import MachineLimits, Memory
from taper_runtime.reports.pages.report_page import report_page
from taper_runtime.reports.pages.viewer import make_page
from taper_runtime.reports.profile import busy_words, describe_profile, least_ns, profile_plan

LIMITS = MachineLimits("avx2", 1, 100.0, 0.0, (Memory("DRAM", 0, 10.0, 8.0),))
HOSTILE = '</script><img src=x onerror="alert(1)">&lt;\u2028\x1b[31m'


def page_of(plan, feed):
    return report_page("a plan", profile_plan(plan, feed, runs=2, threads=1), LIMITS)


def data_of(page):
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


def sections_of(page):
    return {section["title"]: section for section in data_of(page)["sections"]}


def small_feed(plan):
    return {
        name: np.ones(plan.tensors[name].shape, plan.tensors[name].dtype) for name in plan.inputs
    }


def test_the_page_holds_nodes_times_memory_and_weights():
    plan = small_plan()
    sections = sections_of(page_of(plan, small_feed(plan)))
    executed = [node.output for node in plan.nodes if plan.is_executed(node)]
    graph = {node["id"]: node for node in sections["Graph"]["nodes"]}
    for node in plan.nodes:
        assert graph[node.output]["inputs"] == list(node.inputs)
        assert ["op", node.op] in graph[node.output]["facts"]
    assert [row[1] for row in sections["Time by node"]["rows"]] == executed
    assert len(sections["Memory over the run"]["values"]) == len(executed)
    assert {row[0] for row in sections["Weights"]["rows"]} == set(plan.constants)
    assert [row[0] for row in sections["Inputs and outputs"]["rows"]] == [
        *plan.inputs,
        *plan.outputs,
    ]


def test_memory_is_the_bytes_of_intermediates_that_are_alive():
    plan = small_plan()
    memory = sections_of(page_of(plan, small_feed(plan)))["Memory over the run"]
    assert max(memory["values"]) <= memory_use(plan).arena == memory["total"]
    roots = {plan.placements[node.output].root for node in plan.nodes}
    inner = [name for name in roots if plan.tensors[name].role == "intermediate"]
    assert max(memory["values"]) >= max(plan.tensors[name].nbytes for name in inner)


def test_a_plan_whose_sizes_vary():
    plan = sized_plan()
    arrays = sized_arrays(3, 7)
    feed = dict(zip(plan.inputs, arrays, strict=True)) if not isinstance(arrays, dict) else arrays
    sections = sections_of(page_of(plan, feed))
    assert all("[" in row[3] for row in sections["Inputs and outputs"]["rows"])
    assert max(sections["Memory over the run"]["values"]) > 0


@pytest.mark.parametrize(
    ("source", "group"),
    [
        ("model.py:12 in encoder.0.forward: x = f(y)", ["encoder", "0"]),
        ("model.py:12 in forward: x = g(y)", []),
        ("model.py:12 in encoder.0.forward", ["encoder", "0"]),
    ],
)
def test_nodes_are_grouped_by_module(source, group):
    plan = small_plan()
    first, *others = plan.nodes
    plan = plan._replace(nodes=(first._replace(source=source), *others))
    graph = {n["id"]: n for n in sections_of(page_of(plan, small_feed(plan)))["Graph"]["nodes"]}
    assert graph[first.output]["group"] == group


def test_a_node_without_a_line_belongs_with_the_one_before():
    plan = small_plan()
    first, *others = plan.nodes
    nodes = (
        first._replace(source="m.py:1 in a.forward: x"),
        *(n._replace(source="") for n in others),
    )
    plan = plan._replace(nodes=nodes)
    graph = {n["id"]: n for n in sections_of(page_of(plan, small_feed(plan)))["Graph"]["nodes"]}
    assert all(graph[node.output]["group"] == ["a"] for node in plan.nodes)


def test_what_a_file_says_stays_text():
    plan = small_plan()
    nodes = tuple(node._replace(source=HOSTILE) for node in plan.nodes)
    warning = {"kind": "numpy", "text": HOSTILE}
    metadata = {"producer": HOSTILE, "warnings": [warning], "verified": {"x": HOSTILE}}
    plan = plan._replace(nodes=nodes, metadata=metadata)
    profile = profile_plan(plan, small_feed(plan), runs=1, threads=1)
    page = report_page(HOSTILE, profile, LIMITS)
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert data_of(page)["title"] == HOSTILE
    assert sections_of(page)["Warnings"]["items"] == [HOSTILE]


@pytest.mark.parametrize(
    "metadata",
    [
        {"warnings": 5, "fallbacks": "no", "verified": 3, "producer": [1]},
        {"warnings": [None, 3], "fallbacks": [1, {"op": 2}], "verified": {"a": [1]}},
    ],
)
def test_metadata_of_another_form_is_shown_or_left_out(metadata):
    plan = small_plan()._replace(metadata=metadata)
    assert "Summary" in sections_of(page_of(plan, small_feed(plan)))


def test_the_policy_allows_the_one_script_and_no_request():
    page = make_page("t", "s", [])
    script = page.rsplit("<script>", 1)[1].rsplit("</script>", 1)[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in page
    assert "default-src 'none'" in page
    assert not re.search(r'(src|href)="', page)
    assert "innerHTML" not in script


def test_what_is_in_a_loop_is_drawn_with_where_its_values_go():
    feed = {"i0": np.array(0), "x0": np.ones(2, np.float32), "top": np.array(4)}
    sections = sections_of(page_of(counting(), feed))
    graph = {node["id"]: node for node in sections["Graph"]["nodes"]}
    assert graph["more"]["group"] == ["io condition"]
    assert graph["more"]["inputs"] == ["i0", "top"], "operands, which the loop begins with"
    assert graph["x1"]["group"] == ["io body"]
    assert graph["x1"]["inputs"] == ["x0", "g"]
    assert {"more", "i1", "x1"} <= set(graph["io"]["inputs"])
    assert graph["xo (output)"]["inputs"] == ["io"]
    ids = [node["id"] for node in sections["Graph"]["nodes"]]
    for name, node in graph.items():
        assert all(ids.index(each) < ids.index(name) for each in node["inputs"] if each in graph)
    times = {row[1]: row[4] for row in sections["Time by node"]["rows"]}
    assert times == {"io": 1, "more": 5, "i1": 4, "row": 4, "g": 4, "x1": 4}


def test_a_plan_whose_nodes_compute_sizes():
    rng = np.random.default_rng(0)
    feed = measured_arrays(rng, 20)
    rows = sections_of(page_of(measured_plan(), feed))["Inputs and outputs"]["rows"]
    assert ["rows", "output", "float32", f"[{feed['first'].sum()}, 3]"] in [row[:4] for row in rows]


def profile_of(plan, ns, medians):
    """A profile with these times."""
    return profile_plan(plan, small_feed(plan), runs=2, threads=1)._replace(ns=ns, medians=medians)


def test_a_node_has_its_least_time_of_all_runs(monkeypatch):
    plan = small_plan()
    taken = iter([[30, 5, 7, 9], [10, 50, 8, 90], [20, 6, 9, 10]])

    def timed(executor, inputs):
        return executor.run(inputs), [[(100, 100 + ns, 1)] for ns in next(taken)]

    monkeypatch.setattr(CompiledExecutor, "profile", timed)
    profile = profile_plan(plan, small_feed(plan), runs=3, threads=1)
    assert profile.ns == [10, 5, 7, 9]
    assert profile.medians == [20, 6, 8, 10]
    assert profile.spread == 44 / 31


def test_a_busy_machine_is_said_in_words():
    plan = small_plan()
    calm = profile_of(plan, [1e6] * 4, [1.1e6] * 4)
    assert busy_words(calm, least_ns(plan, LIMITS)) == []
    sections = sections_of(report_page("calm", calm, LIMITS))
    assert "Warnings" not in sections
    assert all(0 <= row[6] <= 100 for row in sections["Time by node"]["rows"])
    late = profile_of(plan, [1e6] * 4, [4e6] * 4)
    assert "4.0 times" in sections_of(report_page("late", late, LIMITS))["Warnings"]["items"][0]
    fast = profile_of(plan, [0.5] * 4, [0.5] * 4)
    page = report_page("fast", fast, LIMITS)
    sections = sections_of(page)
    assert "faster than the machine's limit" in sections["Warnings"]["items"][0]
    assert None in [row[6] for row in sections["Time by node"]["rows"]]
    shares = [int(share) for share in re.findall(r"(\d+)% of the machine's limit", page)]
    assert all(share <= 100 for share in shares)
    assert "faster than" in describe_profile(fast, LIMITS)


def test_totals_by_op_and_by_module():
    plan = small_plan()
    places = [
        *(f"a.py:1 in {path}.forward: x" for path in ("encoder.first", "encoder.second", "head")),
        "",
    ]
    executed = [node.output for node in plan.nodes if plan.is_executed(node)]
    lines = dict(zip(executed, places, strict=True))
    nodes = [node._replace(source=lines.get(node.output, "")) for node in plan.nodes]
    plan = plan._replace(nodes=tuple(nodes))
    sections = sections_of(
        report_page("p", profile_of(plan, [1e3, 2e3, 4e3, 8e3], [1e3] * 4), LIMITS)
    )
    ops = {row[0]: row[1:3] for row in sections["Time by op"]["rows"]}
    assert sum(us for _, us in ops.values()) == 15
    assert sum(count for count, _ in ops.values()) == 4
    modules = {row[0]: row[1:4] for row in sections["Time by module"]["rows"]}
    assert modules == {
        "encoder": [2, 3.0, 20.0],
        "encoder.first": [1, 1.0, 6.7],
        "encoder.second": [1, 2.0, 13.3],
        "head": [1, 4.0, 26.7],
    }


def test_the_trace_is_in_the_page():
    plan = small_plan()
    profile = profile_plan(plan, small_feed(plan), runs=2, threads=1)
    section = sections_of(report_page("p", profile, LIMITS))["Trace"]
    events = json.loads(section["text"])["traceEvents"]
    assert [e["name"].split()[0] for e in events] == [site.node.output for site in profile.sites]


def test_weights_have_histograms():
    plan = small_plan()
    rows = sections_of(page_of(plan, small_feed(plan)))["Weights"]["rows"]
    for name, *_, least, largest, counts in rows:
        array = plan.constants[name].astype(float)
        assert least == pytest.approx(array.min(), rel=1e-2)
        assert largest == pytest.approx(array.max(), rel=1e-2)
        expected, _ = np.histogram(array, 32, (array.min(), array.max()))
        assert counts == expected.tolist()


def test_what_metadata_say_of_quantization_is_not_trusted():
    layer = {"name": HOSTILE, "op": "MATMUL", "scheme": "int8", "arithmetic": "float32"}
    layer |= {"before": 8, "after": 2, "error": 0.25}
    times = {"name": HOSTILE, "computes": "int8", "int8_us": 2.0, "float32_us": 3.0}
    for report in (7, {"layers": 7}, {"layers": [7, {"name": "w"}, {**layer, "error": "much"}]},
                   {"distance": 7}, {"distance": {"y": 7, "z": {"cosine": "good"}}},
                   {"predictions": 7}, {"predictions": [7, {"name": "w"}, {**times, "int8_us": 0.0},
                    {**times, "float32_us": "much"}, {**times, "int8_us": np.inf}]}):  # fmt: skip
        plan = small_plan()._replace(metadata={"quantized": report})
        sections = sections_of(page_of(plan, small_feed(plan)))
        assert not any(name.startswith(("Quantized", "Predicted")) for name in sections)
        assert not any(name.startswith("distance") for name, _ in sections["Summary"]["rows"])
    plan = small_plan()._replace(metadata={"quantized": {"layers": [layer]}})
    profile = profile_plan(plan, small_feed(plan), runs=2, threads=1)
    page = report_page("p", profile, LIMITS, profile)
    assert "<img" not in page
    (row,) = sections_of(page)["Quantized weights"]["rows"]
    assert row == [HOSTILE, "MATMUL", "int8", 8, 2, 25.0, [0.25], [], []]


def test_predicted_times_of_layers_have_a_row_each():
    predictions = [
        {"name": "first", "computes": "int8", "int8_us": 2.0, "float32_us": 3.0},
        {"name": "second", "computes": "float32", "int8_us": 4.0, "float32_us": 1.0},
    ]
    plan = small_plan()._replace(metadata={"quantized": {"predictions": predictions}})
    rows = sections_of(page_of(plan, small_feed(plan)))["Predicted times of quantized layers"]
    assert rows["rows"] == [
        ["first", "int8", 2.0, 3.0, 1.5, [2.0, 3.0]],
        ["second", "float32", 4.0, 1.0, 0.25, [4.0, 1.0]],
    ]
