"""Test the trace page in a browser: stepping, searching, following a tensor.

Needs Debian's chromium and chromium-driver; run by `nox -s pages`.
"""

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

from browser import HOSTILE, errors, violations
from graph_checks import Builder, floats
from known_rules import cancel_negations, drop_casts, fold_exps
from taper_frontend.compiler.pipeline import Group, run_pipeline
from taper_frontend.compiler.trace import tracing

#: The steps of the graph below: what fires, where, and how many nodes there are after it.
STEPS = [
    ("drop_cast", "cast", 5),
    ("negation_of_negation", "back", 3),
    ("fold_exp", "e", 2),
]


def traced_graph():
    """x -> CAST to its type -> SQUARE -> NEG -> NEG; plus EXP of a constant; hostile sources."""
    b = Builder()
    graph = b.graph
    x = b.input("x", 2, 3)

    def add(op, inputs, attrs, name, module):
        source = f"model.py:7 in {module}.forward: {HOSTILE}"
        return graph.add_node(op, inputs, attrs, name=name, source=source)

    cast = add("CAST", [x], {"dtype": "float32"}, "cast", "body.first")
    y = add("SQUARE", [cast], {}, HOSTILE, "body.first")
    there = add("NEG", [y], {}, "there", "body.second")
    back = add("NEG", [there], {}, "back", "body.second")
    e = add("EXP", [graph.add_constant("w", floats(3))], {}, "e", "head")
    graph.set_outputs([add("ADD", [back, e], {}, "z", "head")])
    return graph


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "trace.html"
    graph = traced_graph()
    with tracing(graph, path, f"a graph {HOSTILE}"):
        run_pipeline(graph, [Group(drop_casts, cancel_negations), fold_exps])
    return path


def press(driver, name):
    driver.find_element(By.XPATH, f"//button[text()='{name}']").click()


def card(driver):
    """The title of the step that is shown; signs and words of its nodes, before and after."""
    step = driver.find_element(By.CSS_SELECTOR, ".step")
    sides = [
        [line.text for line in side.find_elements(By.TAG_NAME, "li")]
        for side in step.find_elements(By.CSS_SELECTOR, ".side")
    ]
    return step.find_element(By.TAG_NAME, "h3").text, sides


def test_the_page_is_drawn_without_errors_and_names_stay_text(browser):
    assert errors(browser) == []
    assert browser.title == f"a graph {HOSTILE}"
    for _ in STEPS:
        press(browser, "Next")
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert HOSTILE in browser.find_element(By.CSS_SELECTOR, ".step").text
    assert browser.title == f"a graph {HOSTILE}"


def test_stepping_shows_what_each_rule_changed(browser):
    assert card(browser)[0] == "The graph as lowered"
    press(browser, "Next")
    title, (before, after) = card(browser)
    assert title == "drop_cast"
    assert before[0].startswith("\u2212 cast = CAST(x, dtype=float32)")
    assert before[1].startswith(f"~ {HOSTILE} = SQUARE(cast)")
    assert len(after) == 1
    assert after[0].startswith(f"~ {HOSTILE} = SQUARE(x)")
    marks = browser.find_elements(By.CSS_SELECTOR, ".side li mark")
    assert [mark.text for mark in marks] == ["cast", "x"], "what differs is marked"
    press(browser, "Last")
    assert card(browser)[0] == STEPS[-1][0]
    press(browser, "Previous")
    assert card(browser)[0] == STEPS[-2][0]
    press(browser, "First")
    assert card(browser)[0] == "The graph as lowered"


def test_the_arrow_keys_step(browser):
    body = browser.find_element(By.TAG_NAME, "body")
    for rule, _, _ in STEPS:
        body.send_keys(Keys.ARROW_RIGHT)
        assert card(browser)[0] == rule
    body.send_keys(Keys.ARROW_RIGHT)
    assert card(browser)[0] == STEPS[-1][0], "there is no step after the last"
    body.send_keys(Keys.ARROW_LEFT)
    assert card(browser)[0] == STEPS[-2][0]


def test_the_list_of_steps_is_walked_with_the_keyboard(browser):
    steps = browser.find_element(By.CSS_SELECTOR, "select.steps")
    assert [o.text.split()[0] for o in steps.find_elements(By.TAG_NAME, "option")] == [
        "as",
        *(str(number + 1) for number in range(len(STEPS))),
    ]
    steps.send_keys(Keys.ARROW_DOWN)
    assert card(browser)[0] == STEPS[0][0]
    steps.send_keys(Keys.ARROW_DOWN)
    assert card(browser)[0] == STEPS[1][0]
    where = browser.find_element(By.CSS_SELECTOR, ".where")
    assert where.text == f"step 2 of {len(STEPS)}"


def test_the_whole_graph_follows_the_steps(browser):
    for _, _, nodes in STEPS:
        press(browser, "Next")
        press(browser, "Open modules")
        shown = browser.find_elements(By.CSS_SELECTOR, ".graph g.node:not(.end):not(.group)")
        assert len(shown) == nodes
    note = browser.find_element(By.CSS_SELECTOR, ".chart ~ [aria-live]").text
    assert note == f"step {len(STEPS)}, fold_exp e: {STEPS[-1][2]} nodes"
    press(browser, "First")
    press(browser, "Next")
    changed = browser.find_elements(By.CSS_SELECTOR, ".graph g.node.changed")
    assert [node.get_attribute("aria-label") for node in changed] == [
        "changed: SQUARE float32[2,3]"
    ]


def test_search_finds_steps_by_what_they_changed(browser):
    search = browser.find_element(By.CSS_SELECTOR, "[aria-label='Search steps']")
    search.send_keys("exp")
    assert browser.find_element(By.CSS_SELECTOR, "[role=status]").text.startswith("1 steps")
    search.send_keys(Keys.ENTER)
    assert card(browser)[0] == "fold_exp"
    options = browser.find_elements(By.CSS_SELECTOR, "select.steps option")
    assert [option.text.split()[:3] for option in options] == [["3", "fold_exp", "e"]]


def test_a_tensor_is_followed_through_its_replacement(browser):
    press(browser, "Next")
    browser.find_element(
        By.XPATH, "//*[@class='side'][1]//li[1]//*[@role='button'][text()='cast']"
    ).click()
    history = browser.find_element(By.CSS_SELECTOR, ".history")
    assert history.find_element(By.TAG_NAME, "h4").text == "cast"
    lines = [" ".join(item.text.split()) for item in history.find_elements(By.TAG_NAME, "li")]
    assert lines == [
        "as lowered cast = CAST(x, dtype=float32) float32[2,3]",
        "step 1 drop_cast removed cast; its readers read x",
    ]
    assert "It is in the final graph." in history.text, "as x"
    history.find_element(By.XPATH, ".//li[2]//*[@role='button'][text()='x']").click()
    lines = [" ".join(item.text.split()) for item in history.find_elements(By.TAG_NAME, "li")]
    assert lines == [
        "as lowered x = input float32[2,3]",
        "step 1 drop_cast put it in the place of cast",
    ]


def test_a_tensor_is_followed_by_name_to_the_step_that_folded_it(browser):
    search = browser.find_element(By.CSS_SELECTOR, "[aria-label='Follow a tensor']")
    search.send_keys("e" + Keys.TAB)
    items = browser.find_elements(By.CSS_SELECTOR, ".history li")
    assert items[0].text.startswith("as lowered e = EXP(w)")
    assert "fold_exp changed it" in items[1].text
    items[1].find_element(By.TAG_NAME, "button").click()
    assert card(browser)[0] == "fold_exp"
    search.clear()
    search.send_keys("nothing of that name" + Keys.TAB)
    assert "No tensor is called" in browser.find_element(By.CSS_SELECTOR, ".history").text


def test_what_a_step_made_is_shown_in_the_whole_graph(browser):
    press(browser, "Next")
    press(browser, "Close modules")
    press(browser, "Show in the whole graph")
    (selected,) = browser.find_elements(By.CSS_SELECTOR, ".graph g.node.selected")
    assert selected.get_attribute("aria-label") == "changed: SQUARE float32[2,3]"
    details = browser.find_element(By.CSS_SELECTOR, ".details").text
    assert HOSTILE in details
    assert "body.first" in details


def test_nothing_is_loaded_from_anywhere(browser):
    press(browser, "Next")
    entries = "return performance.getEntriesByType('resource').map(({ name }) => name)"
    assert browser.execute_script(entries) == []


def test_the_tables_lead_to_steps(browser):
    table = browser.find_element(By.CSS_SELECTOR, "table[aria-label='Rules']")
    row = table.find_element(By.XPATH, ".//tr[td[text()='fold_exp']]")
    row.find_element(By.TAG_NAME, "button").click()
    assert card(browser)[0] == "fold_exp"


def test_the_address_names_a_step(page, browser):
    browser.get("about:blank")
    browser.get(f"{page.as_uri()}#step-2")
    assert card(browser)[0] == STEPS[1][0]
    press(browser, "Next")
    assert browser.current_url.endswith("#step-3")


def test_accessibility(browser):
    assert violations(browser) == []
    press(browser, "Next")
    browser.find_element(By.CSS_SELECTOR, ".side li .name").click()
    assert violations(browser) == []


@pytest.fixture(scope="module")
def large_page(tmp_path_factory):
    """420 nodes in no module; one is dropped, and then all others change in one step."""

    def all_at_once(graph):
        for node in graph.order():
            graph.replace_node(node, "SIGMOID", node.inputs)
        return True

    b = Builder()
    x = b.op("CAST", b.input("x", 3), dtype="float32")
    for _ in range(420):
        x = b.op("TANH", x)
    graph = b.done(x)
    path = tmp_path_factory.mktemp("page") / "large.html"
    with tracing(graph, path, "large"):
        run_pipeline(graph, [drop_casts, all_at_once])
    return path


def test_large_graphs_and_steps(browser, large_page):
    browser.get(large_page.as_uri())
    assert errors(browser) == []

    def count(selector):
        return browser.execute_script(
            "return document.querySelectorAll(arguments[0]).length", selector
        )

    def shown(label):
        return count(f".graph g.node[aria-label*='{label} float32']")

    assert shown("TANH") == 420
    press(browser, "Last")
    assert browser.find_element(By.CSS_SELECTOR, ".step h3").text == "all_at_once"
    assert count(".side li.changed") == 2 * 420
    assert count(".side .picture") == 0
    assert "420 tensors: too many to draw" in browser.find_element(By.CSS_SELECTOR, ".step").text
    WebDriverWait(browser, 30).until(lambda _: shown("changed: SIGMOID") == 420)
    assert shown("TANH") == 0
