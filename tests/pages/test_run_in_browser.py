"""Test the page of `taper sim --html` in a browser: stepping, searching, following a variable.

Needs Debian's chromium and chromium-driver; run by `nox -s pages`.
"""

import numpy as np
import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from browser import HOSTILE, errors, violations
from simulated import simulator
from taper_openinfer.simulator.page import run_page
from taper_openinfer.simulator.recording import Recorder

PROGRAM = """
dynamic { x: f32[2]; }
volatile { y: f32[2] @init(5.0); all: f32[1, 2]; }
persistent { A(i): f32[2] @table; n: i32; }
block entry {
    assign t: f32[2];
    loop twice (l in 0..2) { op add(t, x) >> t; }
    cache.write t >> A[n];
    cache.increment n;
    op mul(y, t) >> y;
    branch more;
}
block more { cache.read A[] >> all; }
"""
TITLES = [
    "step 1 begins",
    "assign t",
    "op add(t,x) >> t",
    "op add(t,x) >> t",
    "cache.write t >> A[n]",
    "cache.increment n",
    "op mul(y,t) >> y",
    "branch more",
    "cache.read A[] >> all",
]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "run.html"
    made = simulator(PROGRAM).with_trace().with_timer()
    executor = made.make_executor()
    recorder = Recorder(made.program, executor)
    for number in (1, 2):
        executor.insert_dynamic("x", np.full(2, number, np.float32))
        for _ in recorder.step():
            pass
    facts = [("program", HOSTILE)]
    path.write_text(run_page(f"run {HOSTILE}", facts, recorder, executor.trace()), "utf-8")
    return path


def press(driver, name):
    driver.find_element(By.XPATH, f"//button[text()='{name}']").click()


def title(driver):
    return driver.find_element(By.CSS_SELECTOR, ".step h3").text


def rows(driver):
    """Each variable's row, as words."""
    found = driver.find_elements(By.CSS_SELECTOR, ".variables tbody tr")
    return {row.find_element(By.CSS_SELECTOR, ".name").text: row for row in found}


def value(driver, name):
    return " ".join(rows(driver)[name].find_elements(By.TAG_NAME, "td")[3].text.split())


def changed(driver):
    return {name for name, row in rows(driver).items() if row.get_attribute("class") == "changed"}


def test_the_page_is_drawn_without_errors_and_names_stay_text(browser):
    assert errors(browser) == []
    assert browser.title == f"run {HOSTILE}"
    assert browser.find_elements(By.TAG_NAME, "img") == []
    assert HOSTILE in browser.find_element(By.CSS_SELECTOR, "#section-0").text


def test_stepping_shows_what_each_node_changed(browser):
    assert title(browser) == "Before the first step"
    for expected in TITLES:
        press(browser, "Next")
        assert title(browser) == expected
    assert changed(browser) == {"all"}
    assert value(browser, "all") == "[1, 2] {2.00, 2.00}"
    press(browser, "Last")
    assert value(browser, "A") == "[2, 2] [0] {2.00, 2.00} [1] {4.00, 4.00}"
    assert value(browser, "y") == "[2] {20.00, 20.00}"
    press(browser, "First")
    assert value(browser, "y") == "not loaded"


def test_caches_and_volatile_variables_are_as_they_were_after_a_node(browser):
    Select(browser.find_element(By.CSS_SELECTOR, "select.steps")).select_by_value("5")
    assert title(browser) == "cache.write t >> A[n]"
    assert changed(browser) == {"A", "n"}, "n is needed for the first time"
    assert value(browser, "A") == "[1, 2] [0] {2.00, 2.00}"
    assert value(browser, "n") == "[] {0}"
    Select(browser.find_element(By.CSS_SELECTOR, "select.steps")).select_by_value("10")
    assert title(browser) == "step 2 begins"
    assert {"x", "y", "t"} <= changed(browser)
    assert value(browser, "A") == "[1, 2] [0] {2.00, 2.00}", "it survives the step"


def test_a_loops_variable_and_an_ops_time_are_told(browser):
    Select(browser.find_element(By.CSS_SELECTOR, "select.steps")).select_by_value("4")
    facts = browser.find_element(By.CSS_SELECTOR, ".step .facts").text.split("\n")
    assert facts[facts.index("loops") + 1] == "l = 1"
    assert facts[facts.index("time") + 1].endswith("ns")
    assert facts[facts.index("line") + 1] == "7"


def test_the_arrow_keys_and_the_slider_step(browser):
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.ARROW_RIGHT)
    body.send_keys(Keys.ARROW_RIGHT)
    assert title(browser) == TITLES[1]
    body.send_keys(Keys.ARROW_LEFT)
    assert title(browser) == TITLES[0]
    slider = browser.find_element(By.CSS_SELECTOR, "input[type=range]")
    slider.send_keys(Keys.END)
    assert browser.find_element(By.CSS_SELECTOR, ".where").text == "event 18 of 18"
    assert title(browser) == TITLES[-1]


def test_search_finds_nodes_by_what_they_changed(browser):
    search = browser.find_element(By.CSS_SELECTOR, "[aria-label='Search steps']")
    search.send_keys("increment")
    assert browser.find_element(By.CSS_SELECTOR, "[role=status]").text.startswith("2 events")
    search.send_keys(Keys.ENTER)
    search.send_keys(Keys.ENTER)
    assert browser.find_element(By.CSS_SELECTOR, ".where").text == "event 15 of 18"


def test_a_variable_is_followed_to_the_nodes_that_wrote_it(browser):
    press(browser, "Last")
    rows(browser)["A"].find_element(By.CSS_SELECTOR, ".name").click()
    items = browser.find_elements(By.CSS_SELECTOR, ".history li")
    assert [item.find_element(By.TAG_NAME, "button").text for item in items] == [
        "event 5",
        "event 14",
    ]
    items[0].find_element(By.TAG_NAME, "button").click()
    assert title(browser) == "cache.write t >> A[n]"
    search = browser.find_element(By.CSS_SELECTOR, "[aria-label='Follow a variable']")
    search.send_keys("nothing" + Keys.TAB)
    assert "No variable is called" in browser.find_element(By.CSS_SELECTOR, ".history").text


def test_the_page_can_be_used_by_everybody(browser):
    press(browser, "Last")
    rows(browser)["A"].find_element(By.CSS_SELECTOR, ".name").click()
    assert violations(browser) == []


def test_nothing_is_loaded_from_anywhere(browser):
    press(browser, "Next")
    entries = "return performance.getEntriesByType('resource').map(({ name }) => name)"
    assert browser.execute_script(entries) == []
