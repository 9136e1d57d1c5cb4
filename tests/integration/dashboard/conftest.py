"""A browser, and the service whose dashboard it opens."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.browsing import Open, opening
from tests.serving import Serving


@pytest.fixture(scope="module")  # no longer: its driver leaves a running event loop in the thread
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        # Pages of a context share a renderer, and what it has compiled.
        chromium = driver.chromium.launch(
            executable_path="/usr/bin/chromium-headless-shell", args=["--renderer-process-limit=1"]
        )
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def contexts(browser: Browser) -> list[BrowserContext]:
    """Those of the tests before, which have nothing open."""
    return []


@pytest.fixture
def open_page(working: Serving, browser: Browser, contexts: list[BrowserContext]) -> Iterator[Open]:
    """Opens a page of the dashboard as who holds the key of a role, or as nobody; times are UTC."""
    with opening(working, browser, contexts) as opened:
        yield opened
