"""Memory against time, as `taper report --memory` measures and draws it."""

import importlib.metadata
import json
import re

import numpy as np
import pytest

from branching_graphs import branching
from measured_plans import measured_arrays, measured_plan
from sized_plans import sized_arrays, sized_plan
from taper_frontend.compiler import budget_search
from taper_frontend.compiler.budget_plans import plans_in_budgets
from taper_frontend.compiler.compile import compile_graph
from taper_frontend.compiler.planning import make_plan
from taper_runtime.base.errors import InputError
from taper_runtime.executor.memory_use import memory_use
from taper_runtime.machine.limits import MachineLimits, Memory
from taper_runtime.reports.memory_points import PERCENT, measure_points
from taper_runtime.reports.pages.report_page import report_page
from taper_runtime.reports.profile import profile_plan

LIMITS = MachineLimits("avx2", 1, 100.0, 0.0, (Memory("DRAM", 0, 10.0, 8.0),))


@pytest.fixture(scope="module")
def plan():
    graph = branching(1, 30)
    compile_graph(graph, (), output_names=["out"])
    return make_plan(graph)


@pytest.fixture(scope="module")
def feed():
    return {"x": np.linspace(-1, 1, 256, dtype=np.float32)[None]}


@pytest.fixture(scope="module")
def points(plan, feed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget_search, "MOST_TRIALS", 2)  # to end soon where nothing helps
        return measure_points(plan, feed, runs=2)


def test_points_are_arenas_of_plans_in_budgets(plan, feed, points):
    natural = memory_use(plan).arena
    assert [each.percent for each in points] == [*PERCENT[: len(points)]]
    assert [each.budget for each in points] == [natural * each.percent // 100 for each in points]
    plans = plans_in_budgets(plan, [each.budget for each in points[:2]], feed)
    assert [each.arena for each in points[:2]] == [memory_use(each).arena for each in plans]
    assert points[0].arena == natural > points[-1].arena
    assert points[1].moves == ["order"]
    assert all(each.arena <= each.budget for each in points[:-1])
    assert points[-1].arena > points[-1].budget  # where the curve ends
    assert all(each.ns > 0 for each in points)


def test_the_page_draws_the_points(plan, feed, points):
    page = report_page("b", profile_plan(plan, feed, runs=1, threads=1), LIMITS, points=points)
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    sections = {section["title"]: section for section in json.loads(text)["sections"]}
    curve = sections["Memory against time"]
    assert curve["kind"] == "curve"
    assert curve["points"] == [[each.ns / 1e6, each.arena] for each in points]
    assert curve["labels"] == [f"budget {each.percent}%" for each in points]
    rows = sections["Memory budgets"]["rows"]
    assert [row[:3] for row in rows] == [[e.percent, e.budget, e.arena] for e in points]
    assert [row[3] for row in rows] == [round(each.ns / 1e3, 1) for each in points]
    assert [row[5].endswith("does not fit") for row in rows] == [
        each.arena > each.budget for each in points
    ]
    assert "function showCurve" in page


def test_a_page_without_points_has_no_curve(plan, feed):
    page = report_page("b", profile_plan(plan, feed, runs=1, threads=1), LIMITS)
    assert "Memory against time" not in page


def test_sizes_are_those_of_the_run():
    plan = sized_plan()
    for length in (4, 32):
        first = measure_points(plan, sized_arrays(2, length), runs=1)[0]
        assert first.budget == memory_use(plan, {"B": 2, "S": length}).arena
        assert 0 < first.arena <= first.budget


def test_sizes_that_nodes_compute_are_refused():
    with pytest.raises(InputError, match="whose inputs decide all sizes, got nodes that do"):
        measure_points(measured_plan(), measured_arrays(np.random.default_rng(0), 5), runs=1)


def test_a_compiler_is_needed(plan, feed, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda **group: ())
    with pytest.raises(
        InputError, match=r"--memory: expected a compiler .* install taper-frontend"
    ):
        measure_points(plan, feed, runs=1)
