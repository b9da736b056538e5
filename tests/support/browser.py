"""A headless Chromium for the tests of pages."""

from axe_core_python.selenium import Axe
from selenium import webdriver

#: A name that would become markup, and run, where a page does not show it as text.
HOSTILE = "</script><img src=x onerror=\"document.title='pwned'\">"


def open_browser(page, scheme):
    """Open a page, with `light` or `dark` as the preferred colours."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-sync"
    quiet = "disable-background-networking disable-component-update hide-scrollbars"
    for flag in f"{flags} {quiet} window-size=1400,1300".split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService("/usr/bin/chromedriver"))
    driver.get(page.as_uri())
    return driver


def errors(driver):
    """What went wrong while the page's script ran; what is right is an empty list."""
    ready = driver.execute_script("return document.documentElement.dataset.ready") == "yes"
    severe = [entry["message"] for entry in driver.get_log("browser") if entry["level"] == "SEVERE"]
    return severe if ready else ["the script did not reach its end", *severe]


def violations(driver):
    """Each of axe's rules that the page breaks, with the first place."""
    found = Axe().run(driver)
    if len(found["passes"]) <= 10:
        return ["axe has not applied its rules"]
    return [(rule["id"], rule["nodes"][0]["html"][:200]) for rule in found["violations"]]
