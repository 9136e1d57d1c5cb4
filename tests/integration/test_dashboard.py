"""The dashboard in a real browser: sign in and out, find what failed and why, change something, see records come.

Every page that a test opens is watched: anything that the content security policy forbids, and any error, fails it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, ViewportSize, expect, sync_playwright

from benchmarks.running import PATIENCE_S
from service.auth import ROLES
from service.catalog import keys
from tests.serving import Serving

AXE = Path(__file__).parents[2] / "dashboard" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]
WIDE, NARROW = ViewportSize(width=1280, height=900), ViewportSize(width=390, height=844)
NOON_MS = 1_700_000_000_000  # 2023-11-14 22:13:20 UTC
LISTEN = """window.refused = [];
addEventListener("securitypolicyviolation", event => refused.push(event.violatedDirective + event.blockedURI));"""
EXPECTED = re.compile("status of 401")  # what browsers say of an answer that a test provokes

expect.set_options(timeout=PATIENCE_S * 1000)

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path="/usr/bin/chromium")
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def board(working: Serving) -> Serving:
    """A service with a job that has read everything and one that failed at a record."""
    http = working.client("writer")
    for name, values in (("board-clicks", [1, 1, 2]), ("board-poison", [1, "x", 3])):
        http.post("/v1/streams", json={"name": name, "partitions": 1}).raise_for_status()
        records = [{"key": str(n), "value": {"n": n}, "timestamp": NOON_MS + 1000 * at} for at, n in enumerate(values)]
        http.post(f"/v1/streams/{name}/records", json={"records": records}).raise_for_status()
    dedup = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000}
    cast = {"op": "map_values", "select": {"n": "(value->>'n')::bigint"}}
    for name, source, operator in (
        ("board_once", "board-clicks", dedup),
        ("board_broken", "board-poison", cast),
    ):
        spec = {"name": name, "source": source, "sink": f"{name}-out", "operators": [operator]}
        http.post("/v1/jobs", json=spec).raise_for_status()
    http.get("/v1/jobs/board_once?wait=caught_up&timeout_ms=60000").raise_for_status()
    assert http.get("/v1/jobs/board_broken?wait=stopped&timeout_ms=60000").json()["state"] == "failed"
    return working


@pytest.fixture
def open_page(board: Serving, browser: Browser) -> Iterator[Open]:
    """Opens a page of the dashboard as who holds the key of a role, or as nobody; times are UTC."""
    contexts: list[BrowserContext] = []
    troubles: list[str] = []

    def opened(path: str, key: str | None = "admin", **how: Any) -> Page:
        context = browser.new_context(base_url=board.url, timezone_id="UTC", **({"viewport": WIDE} | how))
        contexts.append(context)
        if key is not None:
            given = {"key": board.secrets[key] if key in ROLES else key}
            assert context.request.post("/admin/session", data=given, headers={"Origin": board.url}).ok
        page = context.new_page()
        page.add_init_script(LISTEN)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("console", lambda said: troubles.append(said.text) if said.type == "error" else None)
        page.goto(path)
        return page

    yield opened
    for context in contexts:
        for page in context.pages:
            troubles += page.evaluate("refused")
        context.close()
    assert [trouble for trouble in troubles if not EXPECTED.search(trouble)] == []


def heading(page: Page, name: str) -> None:
    expect(page.get_by_role("heading", level=1, name=name, exact=True)).to_be_visible()


def test_a_key_signs_in_where_somebody_wanted_to_go_and_out_again(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/streams", key=None)
    field = page.get_by_label("API key")
    field.fill("wrong")
    field.press("Enter")
    expect(page.get_by_text("the key is not valid, or was revoked")).to_be_visible()
    field.fill(board.secrets["reader"])
    field.press("Enter")
    heading(page, "Streams")
    [cookie] = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert page.evaluate("document.cookie") == ""
    page.get_by_role("button", name="sign out").click()
    expect(page.get_by_label("API key")).to_be_visible()
    assert page.context.cookies() == []


def test_a_link_with_a_code_signs_in_and_leaves_no_code_in_the_address(board: Serving, open_page: Open) -> None:
    link = board.client("writer").post("/admin/codes").json()["url"]
    page = open_page(link, key=None)
    heading(page, "Overview")
    expect(page.get_by_text("writer (writer)")).to_be_visible()
    assert page.url == f"{board.url}/admin"


def test_from_the_overview_to_the_record_that_a_job_failed_at(open_page: Open) -> None:
    page = open_page("/admin")
    failed = page.get_by_role("listitem").filter(has_text="board_broken")
    expect(failed).to_contain_text("expression_failed")
    failed.get_by_role("link").click()
    heading(page, "board_broken")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("It failed")
    expect(alert.locator(".json")).to_contain_text('"n": "x"')
    alert.get_by_role("link", name="board-poison/0, offset 1").click()
    heading(page, "board-poison")
    expect(page.get_by_role("region", name="Records").get_by_role("row")).to_have_count(1 + 2)
    assert page.url.endswith("/admin/streams/board-poison?partition=0&from_offset=1")


def test_the_overview_counts_what_runs_and_what_stands(open_page: Open) -> None:
    page = open_page("/admin")
    row = page.get_by_role("region", name="Jobs").get_by_role("row").filter(has_text="board_once")
    expect(row).to_contain_text("running")
    expect(row).to_contain_text("2023-11-14 22:13:22")
    expect(row.get_by_role("cell").nth(5)).to_have_text("1")  # one repetition was dropped
    silent = page.get_by_role("listitem").filter(has_text="board_once")
    expect(silent).to_contain_text("silent")


def test_the_overview_names_who_is_behind_and_who_waits_for_a_core(board: Serving, open_page: Open) -> None:
    page = open_page("/admin")
    job, metrics = (board.client().get(f"/v1/jobs/board_once{path}").json() for path in ("", "/metrics"))
    late = job | {"name": "late", "positions": [job["positions"][0] | {"end": 5_000, "lag": 4_997}]}
    listed = {"items": [late, job | {"name": "waiting", "shortage": "no_cores"}], "next": None}
    page.route("**/v1/jobs?limit=1000", lambda route: route.fulfill(json=listed))
    page.route("**/v1/jobs/*/metrics", lambda route: route.fulfill(json=metrics))
    found = page.get_by_role("listitem")
    expect(found.filter(has_text="behind")).to_contain_text("4,997 records to read, at 0 a second")
    expect(found.filter(has_text="no cores")).to_contain_text("waiting")
    expect(found.filter(has_text="silent")).to_have_count(1)  # who waits has read all; who is behind is not silent


def test_a_change_says_what_it_does_before_it_is_made(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/board_once")
    actions = page.get_by_role("group", name="Actions")
    for label, meaning, state in (
        ("pause", "It takes in no more records.", "paused"),
        ("resume", "It goes on where it was paused.", "running"),
    ):
        actions.get_by_role("button", name=label).click()
        dialog = page.get_by_role("dialog", name=f"{label} board_once?")
        expect(dialog).to_contain_text(meaning)
        expect(dialog).to_contain_text(f"/v1/jobs/board_once:{label}")
        dialog.get_by_role("button", name="cancel").click()
        expect(dialog).to_be_hidden()
        assert board.client().get("/v1/jobs/board_once").json()["state"] != state
        actions.get_by_role("button", name=label).click()
        page.get_by_role("dialog").get_by_role("button", name=label).click()
        expect(page.locator("main .badge").first).to_have_text(state)


def test_a_reader_sees_no_button_that_changes_anything(open_page: Open) -> None:
    page = open_page("/admin/jobs/board_broken", key="reader")
    expect(page.get_by_role("alert")).to_contain_text("expression_failed")
    assert page.get_by_role("group", name="Actions").count() == 0
    buttons = {button.inner_text() for button in page.locator("main button:not(.sorter)").all()}
    assert buttons == {"copy as curl"}


def test_records_from_a_time_on_by_an_address_that_can_be_shared(open_page: Open) -> None:
    page = open_page("/admin/streams/board-clicks")
    rows = page.get_by_role("region", name="Records").get_by_role("row")
    expect(rows).to_have_count(1 + 3)
    page.get_by_text("UTC", exact=True).click()
    page.get_by_label("From (UTC)").fill("2023-11-14T22:13:21.500")
    page.get_by_role("button", name="jump").click()
    expect(rows).to_have_count(1 + 1)
    expect(rows.nth(1)).to_contain_text('"n": 2')
    assert f"from_timestamp={NOON_MS + 1_500}" in page.url
    page.reload()
    expect(rows).to_have_count(1 + 1)
    page.get_by_role("button", name="copy as curl").click()
    shown = page.get_by_role("dialog", name="copy as curl")
    expect(shown).to_contain_text(f"/v1/streams/board-clicks/records?from_timestamp={NOON_MS + 1_500}")
    assert "Bearer $KEY" in shown.inner_text()


def test_a_record_is_shown_as_it_comes(board: Serving, open_page: Open) -> None:
    board.client().post("/v1/streams", json={"name": "board-live", "partitions": 1}).raise_for_status()
    page = open_page("/admin/streams/board-live?view=tail")
    expect(page.get_by_role("status")).to_have_text("following")
    record = {"key": "k", "value": {"said": "here"}}
    board.client().post("/v1/streams/board-live/records", json={"records": [record]}).raise_for_status()
    expect(page.get_by_role("row").filter(has_text='"said": "here"')).to_be_visible()


def test_where_a_session_ends_people_sign_in_again_and_are_where_they_were(board: Serving, open_page: Open) -> None:
    row, secret = board.catalog.write(keys.create_key, "leaving", "reader")
    page = open_page("/admin/jobs/board_once", key=secret)
    heading(page, "board_once")
    board.client().delete(f"/v1/tokens/{row.id}").raise_for_status()
    page.get_by_label("API key").fill(board.secrets["reader"])  # it appears with the next look at the job
    page.get_by_label("API key").press("Enter")
    heading(page, "board_once")


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_each_page_is_for_everybody_and_fits(open_page: Open, viewport: ViewportSize, scheme: str) -> None:
    page = open_page("/admin/nowhere", viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    for path, landmark in (
        ("/admin", page.get_by_role("region", name="Jobs", exact=True)),
        ("/admin/streams", page.get_by_role("region", name="Streams")),
        ("/admin/streams/board-clicks", page.get_by_role("region", name="Records")),
        ("/admin/jobs/board_broken", page.get_by_role("alert").locator(".json")),
    ):
        page.goto(path)
        expect(landmark.first).to_be_visible()
        assert findings(page) == [], path
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= viewport["width"], path
    page.context.clear_cookies()
    page.reload()
    expect(page.get_by_label("API key")).to_be_visible()
    assert findings(page) == []


def findings(page: Page) -> list[str]:
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
