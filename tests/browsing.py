"""A real browser for tests of the dashboard. Whatever the content security policy forbids, and any error, is kept as a
trouble of the page."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Error, Page, ViewportSize, expect

from benchmarks.running import PATIENCE_S
from service.auth import ROLES
from tests.serving import Serving

AXE = Path(__file__).parents[1] / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=390, height=844)
NOON_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC

LISTEN = """window.refused = [];
addEventListener("securitypolicyviolation", event => refused.push(event.violatedDirective + event.blockedURI));"""
EXPECTED = re.compile("status of (401|409|412|422|429|503)")  # what browsers say of answers that tests provoke

expect.set_options(timeout=PATIENCE_S * 1000)

Open = Callable[..., Page]


@contextmanager
def opening(service: Serving, browser: Browser, kept: list[BrowserContext] | None = None) -> Iterator[Open]:
    """What opens a page of a service's dashboard as who holds the key of a role, or as nobody; times are UTC. `gone`
    is part of the addresses of what is not there, as the test knows.

    A context of `kept` is taken where there is one, and left there as nobody's with an empty storage: its renderer
    has the scripts compiled, so that a page takes half of the CPU (0.75 instead of 1.6 s, 0.35 instead of 0.6 for axe).
    """
    contexts: list[BrowserContext] = []
    troubles: list[str] = []

    def fresh() -> BrowserContext:
        made = browser.new_context(base_url=service.url, timezone_id="UTC", viewport=WIDE)
        made.new_page().goto("/healthz")  # nobody closes it: with its last page a renderer would end
        return made

    def opened(
        path: str,
        key: str | None = "admin",
        *,
        gone: str | None = None,
        viewport: ViewportSize = WIDE,
        **media: Any,
    ) -> Page:
        def note(said: ConsoleMessage) -> None:
            address = said.location["url"]
            is_gone = gone is not None and gone in address and "status of 404" in said.text
            if said.type == "error" and not is_gone and not EXPECTED.search(said.text):
                troubles.append(f"{said.text} {address}")

        context = kept.pop() if kept else fresh()
        contexts.append(context)
        if key is not None:
            given = {"key": service.secrets[key] if key in ROLES else key}
            assert context.request.post("/admin/session", data=given, headers={"Origin": service.url}).ok
        page = context.new_page()
        page.set_viewport_size(viewport)
        page.emulate_media(**media)
        page.add_init_script(LISTEN)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", note)
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        first, *pages = context.pages
        for page in pages:
            troubles += page.evaluate("refused")
            page.close()
        if kept is None:
            context.close()
            continue
        context.clear_cookies()
        first.evaluate("localStorage.clear()")
        kept.append(context)
    assert troubles == []


def heading(page: Page, name: str) -> None:
    """Waits until the page of this name is there."""
    expect(page.get_by_role("heading", level=1, name=name, exact=True)).to_be_visible()


def without_events(page: Page) -> None:
    """From the next page on it polls: then it shows what a test answers for the service (`page.route`)."""
    nothing = "retry: 600000\n\n"
    page.route("**/v1/events?*", lambda route: route.fulfill(content_type="text/event-stream", body=nothing))


def check_fit(page: Page) -> None:
    """Nothing on the page keeps anybody out, nothing is wider than the window."""
    found = barriers(page)
    assert found == [], (page.url, found)
    viewport = page.viewport_size
    assert viewport is not None
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"], page.url


def barriers(page: Page) -> list[str]:
    """What keeps people out who use a page in another way, as far as axe finds it and takes it for serious."""
    try:
        page.evaluate("axe.version")
    except Error:
        page.evaluate(AXE.read_text() + ";0")
    found = page.evaluate(f"axe.run(document, {{runOnly: {RULES}, resultTypes: ['violations'], iframes: false}})")
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary'][:300]}"
        for each in found["violations"]
        for node in each["nodes"]
        if each["impact"] in ("serious", "critical")
    ]
