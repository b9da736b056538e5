"""Test reports of a plan: in words, in a notebook, and with any metadata."""

import html.parser
import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from measured_plans import measured_plan
from plan_files import small_plan
from plan_strategies import plain, plans
from sized_plans import sized_plan
from taper_runtime.base.text import printable, printable_lines
from taper_runtime.file.fields import features
from taper_runtime.file.reader import load
from taper_runtime.plan.plan import PlanNode
from taper_runtime.reports.report import describe_plan, plan_data

#: What exports have written into metadata, each of a form that a report shows.
REPORT = {
    "producer": "an exporter",
    "passes": [{"name": "fuse", "before": 9, "after": 7}],
    "warnings": [{"kind": "numpy", "text": "1 node is computed by numpy"}],
    "verified": {
        "trials": 3,
        "max_error": 1e-7,
        "relative_error": 2e-7,
        "refused": 2,
        "reason": "IndexError",
        "uncertain": {"y": "a tie"},
    },
    "fallbacks": [{"node": "t", "op": "WHERE", "source": "model.py:9"}],
}

SHOWN = {
    "producer": "exported by an exporter",
    "passes": "fuse: 9 -> 7 nodes",
    "warnings": "warning (numpy): 1 node is computed by numpy",
    "verified": "verified on 3 inputs: differs from the module by at most 1e-07, relative 2e-07\n"
    "  2 random inputs that the module refuses: IndexError\n"
    "  output 'y' differs as float32 allows: a tie\n",
    "fallbacks": "  t = WHERE  model.py:9",
}


@pytest.mark.parametrize("key", REPORT)
def test_the_report_of_the_export_is_shown(key):
    plan = small_plan()._replace(metadata={key: REPORT[key]})
    assert SHOWN[key] in describe_plan(plan)
    assert SHOWN[key] not in describe_plan(small_plan())


@pytest.mark.parametrize("key", REPORT)
@pytest.mark.parametrize(
    "value",
    [None, 5, -1.5, True, "text", [], {}, [1], [[1]], [{}], [{"name": 1, "text": [], "node": {}}]],
)
def test_metadata_of_another_form_is_passed_over(key, value):
    for plan in (small_plan(), sized_plan()):
        plan = plan._replace(metadata={**REPORT, key: value})
        assert describe_plan(plan)
        assert plan._repr_html_()
        assert len(repr(plan).splitlines()) <= 10
        plan_data(plan)


@settings(max_examples=150, derandomize=True)
@given(key=st.sampled_from(sorted(REPORT)), value=plain)
def test_metadata_of_any_form(key, value):
    plan = sized_plan()._replace(metadata={key: value})
    assert all(line.isprintable() for line in describe_plan(plan).split("\n"))


def test_a_native_plan_is_called_so_only_by_its_report():
    plan = small_plan()
    assert "every node has a native kernel" in describe_plan(
        plan._replace(metadata={"fallbacks": []})
    )
    assert "native" not in describe_plan(plan._replace(metadata={"fallbacks": 3}))


def test_copies_whose_sizes_vary_are_described():
    text = describe_plan(sized_plan())
    assert "z = RESHAPE, MUL to output, 24*B*S bytes" in text
    assert "size    B: 1 to 8" in text


@settings(max_examples=30, derandomize=True)
@given(plan=plans())
def test_any_plan_is_described(plan):
    assert str(plan) == describe_plan(plan)
    lines = repr(plan).splitlines()
    assert len(lines) <= 10
    assert max(map(len, lines)) <= 110
    assert all(line.isprintable() for line in lines)


def test_repr_fits_into_a_cell():
    assert re.fullmatch(
        r"<Plan: 6 nodes, 4 executed\n"
        r"  input   x: float32\[2, 4\]\n"
        r"  output  y: float32\[8\]\n"
        r"  memory  weights 0.2 kB, arena \S+ kB without scratch "
        r"\(lower bound \S+ kB, intermediates 0.2 kB\)>",
        repr(small_plan()),
    )
    plan = sized_plan()
    many = {f"n{i}": (1, 9) for i in range(50)}
    lines = repr(plan._replace(sizes=plan.sizes | many)).splitlines()
    assert "  size    and 51 more" in lines
    assert len(lines) == 9


def test_a_plan_that_is_not_valid_is_shown_and_not_prepared():
    nodes = (PlanNode("MATMUL", ("x",), ("h",)), *small_plan().nodes[1:])
    plan = small_plan()._replace(nodes=nodes)
    assert "memory  unknown, because the plan is not valid: plan.nodes[0]: " in repr(plan)
    assert "not valid: plan.nodes[0]: " in describe_plan(plan)


class Page(html.parser.HTMLParser):
    """Text and tags, as a browser reads them."""

    def __init__(self):
        super().__init__()
        self.tags, self.text = [], []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, attrs))

    def handle_data(self, data):
        self.text.append(data)


def read(plan):
    page = Page()
    page.feed(plan._repr_html_())
    page.close()
    return page


def test_a_notebook_shows_nodes_sizes_and_memory():
    text = read(sized_plan()).text
    for words in ("x", "float32[B, S, 4]", "1 to 8", "8"):
        assert words in text
    assert any(re.fullmatch("weights 0.1 kB, arena .* at B = 2, S = 3", words) for words in text)
    assert any("MATMUL 1" in words for words in text)


def test_a_notebook_runs_nothing_of_a_plan(tmp_path):
    name = "<script>alert(1)</script>\"'&\x1b"
    plan = small_plan()
    plan = plan._replace(
        tensors={**plan.tensors, name: plan.tensors["x"]._replace(name=name)},
        inputs=(name, *[f"<img src=x onerror=alert({i})>" for i in range(40)]),
    )
    tensors = {n: plan.tensors["x"]._replace(name=n) for n in plan.inputs}
    page = read(plan._replace(tensors={**plan.tensors, **tensors}))
    assert {tag for tag, _ in page.tags} == {"table", "caption", "tbody", "tr", "th", "td"}
    assert all(attrs == [] for _, attrs in page.tags)
    assert printable(name) in page.text
    assert "and 34 more" in page.text


def test_a_loaded_plan_is_described_alike(tmp_path):
    plan = small_plan()._replace(metadata=REPORT)
    plan.save(tmp_path / "m.taper")
    again = load(tmp_path / "m.taper")
    assert repr(again) == repr(plan)
    assert again._repr_html_() == plan._repr_html_()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("größe 猫", "größe 猫"),
        ("\x1b[31m\x07\x7f\x9b", r"\x1b[31m\x07\x7f\x9b"),
        ("a\nb\r\t\u2028\u2029\x85", r"a\nb\r\t\u2028\u2029\x85"),
        ("\u202eevil\u2066\u200b\ufeff", r"\u202eevil\u2066\u200b\ufeff"),
        ("\ud800\U000e0001", r"\ud800\U000e0001"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text, shown):
    assert printable(text) == shown
    assert printable_lines(f"{text}\n{text}".replace("a\nb", "ab")).count("\n") == 1


def test_sizes_that_nodes_compute_are_told():
    plan = measured_plan()
    text = describe_plan(plan)
    assert "size    positive: 0 to n, computed: count\n" in text
    data = json.loads(json.dumps(plan_data(plan)))
    origin = {"tensor": "count_2", "element": 0}
    assert data["sizes"]["large"] == {"least": 0, "largest": "positive", "origin": origin}


def test_complex_numbers_are_a_feature():
    plan = small_plan()
    assert "complex" not in features(plan)
    name = plan.outputs[0]
    tensors = {**plan.tensors, name: plan.tensors[name]._replace(is_complex=True)}
    assert "complex" in features(plan._replace(tensors=tensors))
