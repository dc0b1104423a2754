"""A real headless browser for tests of pages: the system's Chromium, driven by Playwright."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.parts import PartMissingError, part

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

_NAMES = ("chromium", "chromium-browser", "google-chrome")


def find_chromium() -> Path:
    """The Chromium on PATH. Raises PartMissingError if there is none."""
    for name in _NAMES:
        if found := shutil.which(name):
            return Path(found)
    raise PartMissingError(
        f"no browser was found: none of {', '.join(_NAMES)} is on PATH; install Chromium from your "
        "distribution (Debian: `apt-get install chromium`)."
    )


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless browser a test process. Its pages may not reach beyond this machine."""
    from playwright.sync_api import sync_playwright  # a while that most test processes save

    program = part("chromium", find_chromium)
    # As root Chromium refuses its own sandbox, and /dev/shm is small in containers.
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new page in a context of its own: no cookies, no storage of other tests.

    An error that the page's scripts raise, or write to the console, fails the test.
    """
    context = browser.new_context()
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda message: complaints.append(message.text) if message.type == "error" else None,
    )
    yield page
    context.close()
    assert complaints == []
