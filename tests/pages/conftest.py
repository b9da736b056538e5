"""A browser for each scheme of colours and module of tests; each test gets its page anew."""

import pytest

from browser import open_browser


@pytest.fixture(scope="module", params=["light", "dark"])
def opened(request, page):
    driver = open_browser(page, request.param)
    yield driver
    driver.quit()


@pytest.fixture
def browser(opened, page):
    opened.get("about:blank")
    opened.get(page.as_uri())
    return opened
