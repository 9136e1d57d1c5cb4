"""What pages show comes as it changes: by one stream a tab, as long as the tab is seen; else it is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterator
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from benchmarks.running import wait_until
from service import live
from service.catalog import keys
from tests.browsing import LISTEN, Open, heading, without_events
from tests.integration.test_events import figure
from tests.serving import Serving

WATCH = """() => {
  window.shown = {};
  new MutationObserver(() => {
    const state = document.querySelector("main .badge")?.textContent;
    if (state !== window.last) shown[window.last = state] = Date.now();
  }).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""
HIDE = """isHidden => {
  Object.defineProperty(document, "hidden", {value: isHidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""


@pytest.fixture(scope="module")
def service(working: Serving) -> Serving:
    http = working.client("writer")
    http.post("/v1/streams", json={"name": "events-clicks", "partitions": 1}).raise_for_status()
    spec = {"name": "events_count", "source": "events-clicks", "operators": []}
    http.post("/v1/jobs?wait=running&timeout_ms=60000", json=spec).raise_for_status()
    return working


@pytest.fixture
def asked(service: Serving) -> Iterator[None]:
    """A running job, also behind the test."""
    yield
    service.client("writer").post("/v1/jobs/events_count:resume")
    service.client().get("/v1/jobs/events_count?wait=running&timeout_ms=60000").raise_for_status()


def streams(service: Serving) -> int:
    return figure(service, "event_streams")


def is_shown(page: Page, state: str) -> None:
    expect(page.locator("main .badge").first).to_have_text(state)


@pytest.mark.usefixtures("asked")
def test_a_change_is_shown_within_a_second_and_nothing_is_asked_for(service: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/events_count")
    is_shown(page, "running")
    wait_until(lambda: streams(service) == 1, "the stream")
    page.evaluate(WATCH)
    late_ms = []
    requests: list[str] = []
    for n, (verb, state) in enumerate([("pause", "paused"), ("resume", "running")] * 3):
        if n == 2:  # what was asked for before there were events has come
            page.on("request", lambda request: requests.append(request.url))
        service.client("writer").post(f"/v1/jobs/events_count:{verb}").raise_for_status()
        changed_ms = time.time() * 1_000
        is_shown(page, state)
        late_ms.append(page.evaluate("state => shown[state]", state) - changed_ms)
    assert min(late_ms[::2]) < 1_000  # that it is paused; others wait for its instance, and all for this machine
    # parts of the page itself may come late
    assert [url for url in requests if "/admin/assets/" not in url] == []


@pytest.mark.usefixtures("asked")
def test_a_tab_that_nobody_sees_has_no_stream_and_is_right_when_it_is_seen(service: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/events_count")
    is_shown(page, "running")
    wait_until(lambda: streams(service) == 1, "the stream")
    page.evaluate(HIDE, True)
    wait_until(lambda: streams(service) == 0, "the end of the stream")
    service.client("writer").post("/v1/jobs/events_count:pause").raise_for_status()
    page.evaluate(HIDE, False)
    is_shown(page, "paused")
    wait_until(lambda: streams(service) == 1, "the stream again")


@pytest.mark.usefixtures("asked")
def test_eight_tabs_of_a_browser_leave_connections_for_requests(service: Serving, open_page: Open) -> None:
    """It has six for a host: three tabs are told, the others ask."""
    first = open_page("/admin/jobs/events_count")
    first.context.add_init_script(LISTEN)
    tabs = [first, *(first.context.new_page() for _ in range(7))]
    for tab in tabs[1:]:
        tab.goto("/admin/jobs/events_count")
    for tab in tabs:
        is_shown(tab, "running")
    wait_until(lambda: streams(service) == 3, "three streams")
    service.client("writer").post("/v1/jobs/events_count:pause").raise_for_status()
    for tab in tabs:
        is_shown(tab, "paused")
    assert streams(service) == 3
    for tab in tabs:
        tab.evaluate(HIDE, True)
    wait_until(lambda: streams(service) == 0, "their end")
    tabs[-1].evaluate(HIDE, False)
    wait_until(lambda: streams(service) == 1, "the stream of the one that is seen")


@pytest.mark.usefixtures("asked")
def test_where_no_events_come_pages_ask(service: Serving, open_page: Open) -> None:
    page = open_page("/admin")
    without_events(page)
    page.goto("/admin/jobs/events_count")
    is_shown(page, "running")
    service.client("writer").post("/v1/jobs/events_count:pause").raise_for_status()
    is_shown(page, "paused")
    wait_until(lambda: streams(service) == 0, "the end of the first page's")


def test_what_was_refused_says_so_and_is_shown_once_it_is_there(service: Serving, open_page: Open) -> None:
    page = open_page("/admin", gone="events_later")
    followed: list[str] = []
    is_of_job = lambda url: "/v1/events" in url and "events_later" in url  # noqa: E731  the overview's may come late
    page.on("request", lambda request: followed.append(request.url) if is_of_job(request.url) else None)
    left = quote("/v1/jobs/events_later", safe="") + "," + quote("/v1/jobs/events_later/metrics", safe="")
    with page.expect_request(lambda request: request.url.endswith(f"/v1/events?topics={left}")):
        page.goto("/admin/jobs/events_later")
    expect(page.get_by_text("No job has this name (any more)")).to_be_visible()
    spec = {"name": "events_later", "source": "events-clicks", "operators": []}
    service.client("writer").post("/v1/jobs", json=spec).raise_for_status()
    is_shown(page, "running")
    # all of the page, that it is not there, all of it again; and nothing in between
    assert len(followed) <= 4, followed


def test_topics_follow_the_page(service: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/events_count")
    is_shown(page, "running")
    with page.expect_request(
        lambda request: "/v1/events" in request.url and "%2Fv1%2Fstreams%3F" in request.url
    ) as asked:
        page.get_by_role("navigation", name="Pages").get_by_role("link", name="Streams").click()
    heading(page, "Streams")
    assert "events_count" not in asked.value.url
    rows = page.get_by_role("region", name="Streams").get_by_role("row").filter(has_text="events-clicks")
    records = [{"key": "k", "value": 1}] * 4_321
    service.client("writer").post("/v1/streams/events-clicks/records", json={"records": records}).raise_for_status()
    expect(rows).to_contain_text("4,321")


def test_a_session_that_ends_is_noticed_by_its_stream(
    service: Serving, open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "CHECK_S", 0.1)
    row, secret = service.catalog.write(keys.create_key, "leaving", "reader")
    page = open_page("/admin/jobs/events_count", key=secret)
    is_shown(page, "running")
    wait_until(lambda: streams(service) == 1, "the stream")
    service.client().delete(f"/v1/tokens/{row.id}").raise_for_status()
    expect(page.get_by_label("API key")).to_be_visible()
