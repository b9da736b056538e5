"""Test the report page in a browser: what a reader sees, clicks, types and hears.

Needs Debian's chromium and chromium-driver; run by `nox -s pages`.
"""

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from browser import HOSTILE, errors, open_browser, violations
from taper_runtime.machine.limits import MachineLimits, Memory
from taper_runtime.plan.plan import Placement, Plan, PlanNode, TensorSpec
from taper_runtime.reports.pages.report_page import report_page
from taper_runtime.reports.profile import profile_plan

LIMITS = MachineLimits("avx2", 1, 100.0, 0.0, (Memory("DRAM", 0, 10.0, 8.0),))
LAYERS, DEPTH = 12, 6


def layered_plan() -> Plan:
    """Return layers of elementwise nodes, each layer a module; one name is hostile."""
    ops = ("RELU", "TANH", "SIGMOID", "EXP", "NEG", "ABS")
    names = [f"layer{i}.{op.lower()}" for i in range(LAYERS) for op in ops]
    names[3], names[-1] = HOSTILE, "y"
    tensors = {"x": TensorSpec("x", "float32", (4, 8), "input")}
    placements = {"x": Placement("x", 0, (8, 1))}
    nodes, before = [], "x"
    for index, name in enumerate(names):
        role = "output" if name == "y" else "intermediate"
        tensors[name] = TensorSpec(name, "float32", (4, 8), role)
        placements[name] = Placement(name, 0, (8, 1))
        layer = index // DEPTH
        source = f"model.py:{layer} in blocks.{layer}.inner.forward: {HOSTILE}"
        nodes.append(PlanNode(ops[index % DEPTH], (before,), (name,), source=source))
        before = name
    metadata = {"warnings": [{"kind": "numpy", "text": f"be careful {HOSTILE}"}]}
    return Plan(tuple(nodes), tensors, placements, ("x",), ("y",), {}, metadata=metadata)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    plan = layered_plan()
    feed = {"x": np.ones((4, 8), np.float32)}
    path = tmp_path_factory.mktemp("page") / "report.html"
    profile = profile_plan(plan, feed, runs=2, threads=1)
    path.write_text(report_page("layers.taper", profile, LIMITS))
    return path


def background(driver):
    style = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    return [int(part) for part in style.strip("rgba()").split(",")[:3]]


def nodes_shown(driver):
    return driver.find_elements(By.CSS_SELECTOR, ".graph g.node")


def test_the_page_is_drawn_without_errors(browser):
    assert errors(browser) == []
    titles = [heading.text for heading in browser.find_elements(By.TAG_NAME, "h2")]
    for title in (
        "Summary",
        "Warnings",
        "Graph",
        "Time by node",
        "Time by op",
        "Trace",
        "Memory over the run",
        "Weights",
    ):
        assert title in titles
    assert browser.find_element(By.TAG_NAME, "h1").text == "layers.taper"


def test_names_stay_text(browser):
    assert browser.title == "layers.taper"
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert HOSTILE in browser.find_element(By.CSS_SELECTOR, ".warning").text


def test_the_page_follows_the_colour_scheme(page):
    shades = {}
    for scheme in ("light", "dark"):
        driver = open_browser(page, scheme)
        shades[scheme] = sum(background(driver))
        driver.quit()
    assert shades["dark"] < 150 < 600 < shades["light"]


def test_a_module_opens_and_closes(browser):
    before = len(nodes_shown(browser))
    browser.find_element(By.XPATH, "//button[text()='Open modules']").click()
    opened = nodes_shown(browser)
    assert len(opened) == LAYERS * DEPTH + 2 > before, "every node, the input and the output"
    browser.find_element(By.XPATH, "//button[text()='Close modules']").click()
    closed = browser.find_elements(By.CSS_SELECTOR, ".graph g.group")
    assert [group.get_attribute("aria-label") for group in closed] == [
        "open module blocks, 72 nodes"
    ]
    closed[0].send_keys(Keys.ENTER)
    labels = [g.get_attribute("aria-label") for g in nodes_shown(browser)]
    assert "open module blocks.3, 6 nodes" in labels


def test_search_selects_and_describes_a_node(browser):
    browser.find_element(By.XPATH, "//button[text()='Close modules']").click()
    search = browser.find_element(By.CSS_SELECTOR, "input[type=search]")
    search.send_keys("layer7.tanh")
    assert browser.find_element(By.CSS_SELECTOR, "[role=status]").text.startswith("1 found")
    search.send_keys(Keys.ENTER)
    details = browser.find_element(By.CSS_SELECTOR, ".details")
    assert "layer7.tanh" in details.text
    assert "blocks.7.inner" in details.text
    assert len(browser.find_elements(By.CSS_SELECTOR, ".node.selected")) == 1
    links = details.find_elements(By.TAG_NAME, "button")
    assert [link.text for link in links] == ["layer7.relu", "layer7.sigmoid"]
    links[1].click()
    assert browser.find_element(By.CSS_SELECTOR, ".details h3").text == "layer7.sigmoid"


def test_zoom_keeps_the_centre(browser):
    view = (
        "return document.querySelector('.graph svg').getAttribute('viewBox').split(' ').map(Number)"
    )
    x, y, width, height = browser.execute_script(view)
    browser.find_element(By.XPATH, "//button[text()='Zoom in']").click()
    u, v, wide, high = browser.execute_script(view)
    assert (wide, high) == pytest.approx((0.7 * width, 0.7 * height))
    assert (u + wide / 2, v + high / 2) == pytest.approx((x + width / 2, y + height / 2))
    browser.find_element(By.XPATH, "//button[text()='Fit']").click()
    assert browser.execute_script(view) == pytest.approx([x, y, width, height])


def test_a_table_sorts_by_a_column(browser):
    table = browser.find_element(By.CSS_SELECTOR, "table[aria-label='Time by node']")

    def times():
        return [float(c.text) for c in table.find_elements(By.CSS_SELECTOR, "td:nth-child(5)")]

    header = table.find_element(By.XPATH, ".//th[5]")
    header.find_element(By.TAG_NAME, "button").click()
    assert times() == sorted(times(), reverse=True)
    assert header.get_attribute("aria-sort") == "descending"
    header.find_element(By.TAG_NAME, "button").click()
    assert times() == sorted(times())


def test_the_graph_is_painted(browser):
    picture = browser.find_element(By.CSS_SELECTOR, ".graph svg").screenshot_as_png
    assert len(picture) > 5000, "an empty frame compresses to less"


def test_accessibility(browser):
    assert violations(browser) == []


def branching_plan() -> Plan:
    """Return two modules and nodes of neither, which run beside each other."""
    chains = {
        "encoder.first": ("RELU", "TANH", "EXP"),
        "encoder.second": ("SIGMOID", "ERF", "GELU"),
        "tower": ("SIN", "COS", "ABS"),
        "": ("NEG", "SQRT", "LOG", "FLOOR"),
    }
    names = ["x", *(op.lower() for ops in chains.values() for op in ops)]
    tensors = {
        n: TensorSpec(n, "float32", (4,), "intermediate" if n != "x" else "input") for n in names
    }
    nodes = []
    for module, ops in chains.items():
        path = f"{module}.forward" if module else "forward"
        before = "relu" if module == "encoder.second" else "x"
        for op in ops:
            source = f"model.py:1 in {path}: y"
            nodes.append(PlanNode(op, (before,), (op.lower(),), source=source))
            before = op.lower()
    nodes.append(PlanNode("ADD", ("floor", "abs"), ("sum",), source="model.py:2 in forward: y"))
    nodes.append(PlanNode("MUL", ("gelu", "sum"), ("z",), source="model.py:2 in forward: y"))
    nodes.append(PlanNode("MUL", ("exp", "z"), ("y",), source="model.py:2 in forward: y"))
    for name, role in (("sum", "intermediate"), ("z", "intermediate"), ("y", "output")):
        tensors[name] = TensorSpec(name, "float32", (4,), role)
    placements = {name: Placement(name, 0, (1,)) for name in tensors}
    return Plan(tuple(nodes), tensors, placements, ("x",), ("y",), {})


def test_a_frame_covers_only_what_its_module_holds(tmp_path):
    profile = profile_plan(branching_plan(), {"x": np.ones(4, np.float32)}, runs=2, threads=1)
    (tmp_path / "page.html").write_text(report_page("branches", profile, LIMITS))
    driver = open_browser(tmp_path / "page.html", "light")
    try:
        nodes, frames = driver.execute_script("""
            const names = ["x", "y", "width", "height"];
            const area = (rect) => names.map((name) => Number(rect.getAttribute(name)));
            const all = (what, label) => [...document.querySelectorAll(what)].map((shape) => [
              label(shape).getAttribute("aria-label"), area(shape.querySelector("rect")),
            ]);
            return [
              all(".graph g.node", (g) => g),
              all(".graph .frame", (g) => g.querySelector("text")),
            ];
        """)
    finally:
        driver.quit()
    held = {
        label.removeprefix("close module "): {
            node.split()[0]
            for node, (u, v, wide, high) in nodes
            if u < x + width and x < u + wide and v < y + height and y < v + high
        }
        for label, (x, y, width, height) in frames
    }
    first, second = {"RELU", "TANH", "EXP"}, {"SIGMOID", "ERF", "GELU"}
    assert held == {
        "encoder": first | second,
        "encoder.first": first,
        "encoder.second": second,
        "tower": {"SIN", "COS", "ABS"},
    }
