"""The page Time: when what is open closes, and which record or silence it waits for, in words and exact."""

from __future__ import annotations

import time
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from benchmarks.running import wait_until
from tests.browsing import NARROW, NOON_MS, WIDE, Open, check_fit, heading, without_events
from tests.naive import partition_of
from tests.serving import Serving

Json = dict[str, Any]
HOUR_MS = 3_600_000
COUNT = {"op": "aggregate", "aggregates": {"n": {"fn": "count"}}}
START_MS = NOON_MS - NOON_MS % 300_000  # 22:10:00
WINDOWS = {**COUNT, "name": "counts", "window": {"type": "tumbling", "size_ms": 300_000, "grace_ms": 10_000}}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes"}
SESSIONS = {**COUNT, "name": "visits", "window": {"type": "session", "gap_ms": 1_800_000}}
ONLY_VALID = {"op": "filter", "name": "only_valid", "where": "value is not null"}


def made(
    board: Serving, name: str, operators: list[Json], records: list[Json], partitions: int = 1, **more: Any
) -> None:
    http = board.client()
    body = {"name": name.replace("_", "-"), "partitions": partitions, "max_future_ms": 48 * HOUR_MS}
    http.post("/v1/streams", json=body).raise_for_status()
    http.post(f"/v1/streams/{body['name']}/records", json={"records": records}).raise_for_status()
    http.post(
        "/v1/jobs", json={"name": name, "source": body["name"], "operators": operators, **more}
    ).raise_for_status()
    assert http.get(f"/v1/jobs/{name}?wait=caught_up&timeout_ms=60000").json()["caught_up"]


def row(key: str, at: int) -> Json:
    return {"key": key, "value": {"n": 1}, "timestamp": at}


@pytest.fixture(scope="module")
def board(working: Serving) -> Serving:
    """Jobs with something open: windows, of which one partition lags; a session; a record of tomorrow."""
    places = {key: partition_of(key, 2) for key in "abcdefghijkl"}
    lagging = [key for key, partition in places.items() if partition == 1][:3]
    ahead = next(key for key, partition in places.items() if partition == 0)
    records = [*(row(key, START_MS + 1_000) for key in lagging), row(ahead, START_MS + 2 * HOUR_MS)]
    made(working, "time_windows", [ONLY_VALID, WINDOWS, FINAL], records, partitions=2, idle_close_after_ms=24 * HOUR_MS)
    made(working, "time_session", [SESSIONS], [row("ann", START_MS + at) for at in (0, 60_000, 120_000)])
    tomorrow = int(time.time() * 1000) + 24 * HOUR_MS
    made(working, "time_ahead", [WINDOWS], [row("a", START_MS), row("a", tomorrow), row("a", START_MS)])
    made(working, "time_table", [{**COUNT, "name": "totals"}], [row("a", START_MS)])
    return working


def said(page: Page, what: str) -> Any:
    return page.get_by_role("list", name="What closes next").get_by_role("listitem").filter(has_text=what)


def test_what_closes_next_names_the_record_the_partition_and_the_silence(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/time_windows/time")
    heading(page, "time_windows")
    expect(said(page, "1 update held back")).to_contain_text("when a record of 2023-11-15 00:15:10 or later")
    windows = said(page, "3 windows")
    expect(windows).to_contain_text("[2023-11-14 22:10:00, 2023-11-14 22:15:00) of counts close")
    expect(windows).to_contain_text(
        "when a record of 2023-11-14 22:15:10 or later arrives in partition 1 of time-windows (any key)"
    )
    expect(windows).to_contain_text("and passes only_valid (5 min 9 s after stream time)")
    expect(windows).to_contain_text("by idle close (idle_close_after_ms 86400000)")
    expect(said(page, "3 updates held back")).to_contain_text("and passes only_valid and counts")


def test_a_task_that_stands_still_is_named_with_what_the_others_are_at(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/time_windows/time?task=0_1")
    alert = page.get_by_role("alert").filter(has_text="stands still")
    expect(alert).to_contain_text("Task 0_1 stands still, 1 h 59 min behind task 0_0")
    expect(alert).to_contain_text("It is at 2023-11-14 22:10:01, 0_0 at 2023-11-15 00:10:00")
    tasks = page.get_by_role("region", name="Stream time of the tasks")
    expect(tasks.get_by_role("row").filter(has_text="0_0")).to_contain_text("furthest")
    expect(tasks.get_by_role("row").filter(has_text="0_1").get_by_role("cell").nth(5)).to_have_text("6")  # 3 + 3 held
    inputs = page.get_by_role("region", name="Inputs of 0_1")
    expect(inputs.get_by_role("link", name="time-windows/1")).to_have_attribute(
        "href", "/admin/streams/time-windows?partition=1&from_offset=0"
    )
    expect(inputs).to_contain_text("all is read")
    counts = page.get_by_role("region", name="counts in 0_1")
    expect(counts).to_contain_text("closes when stream time is 10 s past its end; then it takes no more records")
    final = page.get_by_role("region", name="final in 0_1")
    expect(final).to_contain_text(f"{3 * (1 + 7 + 16)} B, no bound")
    tasks.get_by_role("button", name="0_0").click()
    expect(page.get_by_role("region", name="Inputs of 0_0")).to_be_visible()
    assert page.url.endswith("/admin/jobs/time_windows/time?task=0_0")


def test_a_session_that_never_closes_says_so_and_what_to_do(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/time_session/time")
    session = said(page, "1 session")
    expect(session).to_contain_text("with the last record at 2023-11-14 22:12:00 of visits closes")
    expect(session).to_contain_text("when a record of 2023-11-14 22:42:00.001 or later arrives in partition 0")
    expect(page.get_by_text("off: silence closes nothing")).to_be_visible()
    page.get_by_role("button", name="which ones").click()
    open_now = page.get_by_role("region", name="What is open")
    expect(open_now.get_by_role("row").nth(1)).to_contain_text("2023-11-14 22:10:00")
    expect(open_now.get_by_role("row").nth(1)).to_contain_text('{ "n": 3 }')
    actions = page.get_by_role("group", name="Close now")
    actions.get_by_role("button", name="close after 5 min of silence").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("closed_idle")
    expect(dialog).to_contain_text("-X PATCH -H 'If-Match: $ETAG'")
    expect(dialog).to_contain_text("--json '{\"idle_close_after_ms\":300000}'")
    dialog.get_by_role("button", name="close after 5 min of silence").click()
    expect(page.get_by_text("off: silence closes nothing")).to_be_hidden()
    job = board.client().get("/v1/jobs/time_session").json()
    assert job["spec"]["idle_close_after_ms"] == 300_000
    actions.get_by_role("button", name="flush").click()
    dialog = page.get_by_role("dialog", name="flush time_session?")
    expect(dialog).to_contain_text("1 session of visits in task 0_0, up to 2023-11-14 22:42:00.001")
    dialog.get_by_role("button", name="flush").click()
    expect(page.get_by_text("Nothing is open: no window, no session, no update held back.")).to_be_visible()
    expect(page.get_by_role("note")).to_contain_text("Task 0_0 was closed by a flush")


def test_silence_that_closes_nothing_is_said_before_all_else(board: Serving, open_page: Open) -> None:
    """Two minutes of it, which the service does not have to wait for here."""
    found = board.client().get("/v1/jobs/time_windows/time?limit=1000").json() | {"idle_close": None}
    for task in found["items"]:
        for each in task["inputs"]:
            each["silent_ms"] = 120_000
    page = open_page("/admin/nowhere")
    without_events(page)
    page.route("**/v1/jobs/time_windows/time?*", lambda route: route.fulfill(json=found))
    page.goto("/admin/jobs/time_windows/time")
    alert = page.get_by_role("alert").filter(has_text="Nothing comes, and silence closes nothing")
    expect(alert).to_contain_text("8 open, nothing has come for 2 min, and idle close is off (idle_close_after_ms)")


def test_of_many_tasks_that_stand_still_the_first_are_named(board: Serving, open_page: Open) -> None:
    found = board.client().get("/v1/jobs/time_windows/time?limit=1000").json()
    [still] = [task for task in found["items"] if task["task"] == "0_1"]
    found["items"] += [still | {"task": f"0_{n}"} for n in range(2, 9)]
    page = open_page("/admin/nowhere")
    without_events(page)
    page.route("**/v1/jobs/time_windows/time?*", lambda route: route.fulfill(json=found))
    page.goto("/admin/jobs/time_windows/time")
    expect(page.get_by_text("5 more tasks are like these: they are below.")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="stands still")).to_have_count(3)


def test_a_stream_time_ahead_of_the_clock_names_the_record_and_the_way_back(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/time_ahead/time")
    alert = page.get_by_role("alert").filter(has_text="ahead of the clock")
    expect(alert).to_contain_text("Task 0_0: stream time is 23 h 59 min ahead of the clock")
    expect(alert).to_contain_text("All that comes now is late for counts")
    expect(alert).to_contain_text(":reset-time")
    expect(alert.get_by_role("button")).to_have_count(0)  # it runs
    http = board.client()
    http.post("/v1/jobs/time_ahead:stop").raise_for_status()
    wait_until(lambda: http.get("/v1/jobs/time_ahead").json()["state"] == "stopped", "it stopped")
    alert.get_by_role("button", name="set stream time back").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("/v1/jobs/time_ahead:reset-time")
    expect(dialog).to_contain_text('--json \'{"stream_time":')
    dialog.get_by_role("button", name="set stream time back").click()
    expect(alert).to_have_count(0)
    alert = page.get_by_role("alert").filter(has_text="ahead of the clock")
    expect(alert).to_have_count(0)


def test_the_record_that_moved_time_is_a_link_to_it(board: Serving, open_page: Open) -> None:
    far = int(time.time() * 1000) + 24 * HOUR_MS
    made(board, "time_far", [WINDOWS], [row("x", START_MS), row("y", far)])
    page = open_page("/admin/jobs/time_far/time")
    page.get_by_role("alert").get_by_role("link", name="time-far/0, offset 1").click()
    heading(page, "time-far")
    assert page.url.endswith("/admin/streams/time-far?partition=0&from_offset=1")


def test_what_never_closes_is_said_and_a_reader_has_no_button(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/time_table/time", key="reader")
    expect(page.get_by_text("Nothing of this job ever closes")).to_be_visible()
    page = open_page("/admin/jobs/time_windows/time", key="reader")
    expect(said(page, "3 windows")).to_be_visible()
    assert page.get_by_role("group", name="Close now").count() == 0


@pytest.mark.parametrize(("size", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_time_fits(board: Serving, open_page: Open, size: Any, scheme: str) -> None:
    page = open_page("/admin/jobs/time_windows/time?task=0_1", viewport=size, color_scheme=scheme)
    expect(said(page, "3 windows")).to_be_visible()
    page.get_by_role("region", name="counts in 0_1").get_by_role("button", name="which ones").click()
    expect(page.get_by_role("region", name="What is open").get_by_role("row")).to_have_count(1 + 4)  # of all tasks
    check_fit(page)
