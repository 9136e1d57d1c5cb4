"""The page State: stores and their sizes, what is in them by key, sessions on a line of time, where copies lie."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browsing import NARROW, NOON_MS, WIDE, Open, check_fit, heading
from tests.serving import Serving

MINUTE_MS = 60_000
START_MS = NOON_MS - NOON_MS % MINUTE_MS  # 22:13:00
COUNT = {"op": "aggregate", "aggregates": {"n": {"fn": "count"}}}
SESSIONS = {**COUNT, "name": "visits", "window": {"type": "session", "gap_ms": MINUTE_MS}}
TOTALS = {**COUNT, "name": "totals", "after": "source"}
MINUTES = {**COUNT, "name": "minutes", "after": "source", "window": {"type": "tumbling", "size_ms": MINUTE_MS}}


@pytest.fixture(scope="module")
def board(working: Serving) -> Serving:
    """A job with a store of each type; `ann` has three sessions, of which the last is open."""
    http = working.client()
    http.post("/v1/streams", json={"name": "state-clicks", "partitions": 1}).raise_for_status()
    times = {"ann": [0, 30, 60, 300, 600, 610], "bob": [5], "anton": [6]}
    records = [
        {"key": key, "value": {}, "timestamp": START_MS + 1000 * at} for key, all_of in times.items() for at in all_of
    ]
    http.post(
        "/v1/streams/state-clicks/records", json={"records": sorted(records, key=lambda each: each["timestamp"])}
    ).raise_for_status()
    spec = {"name": "state_visits", "source": "state-clicks", "operators": [SESSIONS, TOTALS, MINUTES]}
    http.post("/v1/jobs", json=spec).raise_for_status()
    assert http.get("/v1/jobs/state_visits?wait=caught_up&timeout_ms=60000").json()["caught_up"]
    http.post("/v1/streams", json={"name": "state-plain", "partitions": 1}).raise_for_status()
    keeps_nothing = {"name": "state_plain", "source": "state-plain", "operators": [{"op": "filter", "where": "true"}]}
    http.post("/v1/jobs", json=keeps_nothing).raise_for_status()
    return working


def test_sessions_of_a_key_lie_on_a_line_and_in_a_table(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/state_visits/state?store=state_visits-visits")
    heading(page, "state_visits")
    page.get_by_label("Key", exact=True).fill("ann")
    page.get_by_role("button", name="look up").click()
    rows = page.get_by_role("region", name="Entries").get_by_role("row")
    expect(rows).to_have_count(1 + 3)
    for at, (start, end, state, number) in enumerate(
        (
            ("22:13:00", "22:14:00", "closed", 3),
            ("22:18:00", "22:18:00", "closed", 1),
            ("22:23:00", "22:23:10", "open", 2),
        )
    ):
        cells = rows.nth(at + 1).get_by_role("cell")
        expect(cells.nth(0)).to_have_text(f"2023-11-14 {start}")
        expect(cells.nth(1)).to_have_text(f"2023-11-14 {end}")
        expect(cells.nth(3)).to_have_text(state)
        expect(cells.nth(5)).to_have_text(f'{{ "n": {number} }}')
    line = page.get_by_role("figure", name="Sessions of the key from first to last")
    expect(line.locator("rect")).to_have_count(3)
    expect(line.locator("rect.state-open")).to_have_count(1)
    expect(line).to_contain_text("2023-11-14 22:13:00 to 2023-11-14 22:23:10 (10 min 10 s)")
    expect(page.get_by_text("as of stream time 2023-11-14 22:23:10, up to date")).to_be_visible()
    expect(page.get_by_role("link", name="why they are in it or not")).to_have_attribute(
        "href", "/admin/jobs/state_visits/why?key=ann"
    )
    assert page.url.endswith("store=state_visits-visits&key=ann")


def test_keys_are_browsed_by_how_they_begin_in_every_type_of_store(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/state_visits/state?store=state_visits-totals")
    rows = page.get_by_role("region", name="Entries").get_by_role("row")
    expect(rows).to_have_count(1 + 3)
    page.get_by_label("Keys that begin with").fill("an")
    page.get_by_role("button", name="browse").click()
    expect(rows).to_have_count(1 + 2)
    expect(rows.nth(1)).to_contain_text('{ "n": 6 }')
    page.get_by_role("button", name="anton").click()
    expect(rows).to_have_count(1 + 1)
    assert page.url.endswith("store=state_visits-totals&prefix=an&key=anton")
    page.get_by_label("Key", exact=True).fill("nobody")
    page.get_by_role("button", name="look up").click()
    expect(page.get_by_text("Nothing is stored for this key")).to_be_visible()
    page.get_by_role("radiogroup", name="Store").get_by_text("state_visits-minutes").click()
    expect(page.get_by_role("region", name="Entries").get_by_role("row")).to_have_count(1 + 6)


def test_partitions_and_copies_say_where_they_are_and_that_all_is_replayed(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/state_visits/state?store=state_visits-visits")
    part = page.get_by_role("region", name="Partitions").get_by_role("row").nth(1).get_by_role("cell")
    store = board.client().get("/v1/stores/state_visits-visits").json()
    expect(part.nth(0)).to_have_text("0_0")
    expect(part.nth(1)).to_have_text(store["partitions"][0]["instance"])
    expect(part.nth(2)).to_have_text(str(store["entries"]))
    expect(part.nth(4)).to_have_text("all")
    copies = page.get_by_role("region", name="Copies").get_by_role("row")
    expect(copies).to_have_count(1 + 1)
    expect(copies.nth(1)).to_contain_text("active")
    expect(copies.nth(1)).to_contain_text("caught up")
    expect(page.get_by_role("figure", name="Size of all stores")).to_be_visible()


def test_a_job_without_stores_says_so(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/state_plain/state", key="reader")
    expect(page.get_by_text("This job keeps nothing")).to_be_visible()


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_state_fits(board: Serving, open_page: Open, size: Any, scheme: str) -> None:
    page = open_page(
        "/admin/jobs/state_visits/state?store=state_visits-visits&key=ann", viewport=size, color_scheme=scheme
    )
    expect(page.get_by_role("region", name="Entries").get_by_role("row")).to_have_count(1 + 3)
    check_fit(page)
