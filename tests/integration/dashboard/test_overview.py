"""The overview: what needs somebody and since when, what went in and out, what is otherwise than yesterday."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from tests.browsing import NARROW, NOON_MS, WIDE, Open, check_fit, heading, opening, without_events
from tests.serving import Serving, serving

Json = dict[str, Any]

ONCE: Json = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000}
MINUTE_MS, HOUR_MS = 60_000, 3_600_000
CALM: Json = {"records_in": 3_600, "records_out": 3_600, "dropped": 0, "dropped_by": [], "lag": 0, "store_bytes": 4_096}
UNCHANGED: Json = {
    "is_new": False,
    "failures": 0,
    "failed_ms": None,
    "starts": 0,
    "former_version": None,
    "rebalances": 0,
}


@pytest.fixture(scope="module")
def board(working: Serving) -> Serving:
    """A service with a job that has read everything: a repetition among three records was dropped."""
    http = working.client("writer")
    http.post("/v1/streams", json={"name": "overview-clicks", "partitions": 1}).raise_for_status()
    keys = [{"key": key, "value": None, "timestamp": NOON_MS + at} for at, key in enumerate("aab")]
    http.post("/v1/streams/overview-clicks/records", json={"records": keys}).raise_for_status()
    spec = {"name": "overview_once", "source": "overview-clicks", "sink": "overview-out", "operators": [ONCE]}
    http.post("/v1/jobs", json=spec).raise_for_status()
    http.get("/v1/jobs/overview_once?wait=caught_up&timeout_ms=60000").raise_for_status()
    return working


def figures(job: str, **more: Any) -> Json:
    """A job that does what it did yesterday, as the overview has it."""
    return {
        "job": job,
        "records_in_rate": 1.0,
        "records_out_rate": 1.0,
        "dropped_rate": 0.0,
        "busy": 0.25,
        "behind_since_ms": None,
        "ahead_since_ms": None,
        "dropping_since_ms": None,
        "dropped_ms": None,
        "read_ms": None,
        "last_hour": CALM,
        "before": CALM,
        "changes": UNCHANGED,
        **more,
    }


def flow(stream: str, **more: Any) -> Json:
    calm = {"records_rate": 1.0, "bytes_rate": 100.0, "published_ms": None, "usual_pause_ms": None}
    return {"stream": stream, **calm, "last_hour": 3_600, "before": 3_600, **more}


def tell(page: Page, jobs: list[Json], streams: list[Json], listed: list[Json] | None = None) -> None:
    """Have the page hear this of the service."""
    now = round(time.time() * 1000)
    told = {"at_ms": now, "compared_with_ms": now - 24 * HOUR_MS, "jobs": jobs, "streams": streams}
    page.route("**/v1/overview", lambda route: route.fulfill(json=told))
    if listed is not None:
        page.route("**/v1/jobs?limit=1000", lambda route: route.fulfill(json={"items": listed, "next": None}))
    without_events(page)
    page.reload()


def line(page: Page, region: str, *texts: str) -> Locator:
    """The line of a section that has all of these texts."""
    found = page.get_by_role("region", name=region, exact=True).get_by_role("listitem")
    for text in texts:
        found = found.filter(has_text=text)
    return found


def test_what_needs_somebody_says_what_is_wrong_since_when_and_leads_there(board: Serving, open_page: Open) -> None:
    job = board.client().get("/v1/jobs/overview_once").json()
    at = job["positions"][0]
    names = ("late", "slow", "quiet", "waiting", "calm")
    listed = {name: job | {"name": name, "spec": job["spec"] | {"source": f"{name}-in"}} for name in names}
    listed["slow"]["positions"] = [at | {"end": 5_000, "lag": 4_997}]
    listed["waiting"]["shortage"] = "no_cores"
    now = round(time.time() * 1000)
    drops = [
        {"operator": "minutes", "reason": "late", "records": 40},
        {"operator": "once", "reason": "duplicate", "records": 9},
    ]
    jobs = [
        figures("late", last_hour=CALM | {"records_in": 100, "dropped": 49, "dropped_by": drops}),
        figures("slow", behind_since_ms=now - 5 * MINUTE_MS, records_in_rate=11.0),
        figures("quiet"),
        figures("calm", last_hour=CALM | {"dropped": 900, "dropped_by": drops[1:]}),
    ]
    streams = [flow("slow-in", records_rate=1.0), flow("quiet-in", published_ms=now - HOUR_MS, usual_pause_ms=60_000)]
    streams.append(flow("calm-in", published_ms=now - 20 * MINUTE_MS, usual_pause_ms=HOUR_MS))
    page = open_page("/admin")
    tell(page, jobs, streams, list(listed.values()))
    needs = "Needs somebody"
    expect(line(page, needs, "dropping")).to_contain_text(
        "40 of 100 records dropped as late in the last hour, by “minutes”"
    )
    expect(line(page, needs, "dropping").get_by_role("link")).to_have_attribute("href", "/admin/jobs/late/dropped")
    slow = line(page, needs, "behind")
    expect(slow).to_contain_text("4,997 records to read, at 11 a second; caught up in 8 min 20 s")
    expect(slow).to_contain_text("its tasks are busy for 25 % of the time")
    expect(slow).to_contain_text("(5 min")
    quiet = line(page, needs, "silent")
    expect(quiet).to_have_count(1)
    expect(quiet).to_contain_text("nothing has come for 1 h")
    expect(quiet).to_contain_text("usually something comes after 1 min at most")
    expect(line(page, needs, "no cores")).to_contain_text("waiting")
    expect(line(page, needs, "calm")).to_have_count(0)
    expect(slow.get_by_role("link")).to_have_attribute("href", "/admin/jobs/slow")


def test_drops_that_were_as_many_yesterday_are_no_news(open_page: Open) -> None:
    drops = [{"operator": "minutes", "reason": "late", "records": 40}]
    hour = CALM | {"records_in": 10_000, "dropped": 40, "dropped_by": drops}
    page = open_page("/admin")
    tell(page, [figures("overview_once", last_hour=hour, before=hour)], [])
    expect(page.get_by_role("row").filter(has_text="overview_once")).to_contain_text("40")
    expect(line(page, "What changed since yesterday", "overview_once")).to_have_count(0)
    expect(line(page, "Needs somebody", "dropping", "overview_once")).to_have_count(0)
    tell(page, [figures("overview_once", last_hour=hour, before=hour | {"records_in": 100_000})], [])
    worse = line(page, "Needs somebody", "dropping", "overview_once")
    expect(worse).to_contain_text("40 of 10,000 records dropped as late in the last hour, by “minutes”")
    expect(worse).to_contain_text("it was 0.04 % of them the day before")


def test_what_changed_since_yesterday_in_words(open_page: Open) -> None:
    page = open_page("/admin")
    busy = CALM | {"records_in": 36_000, "lag": 5_000, "store_bytes": 90_000_000}
    became = {"failures": 2, "failed_ms": 1, "starts": 1, "former_version": 3, "rebalances": 4}
    jobs = [
        figures(
            "overview_once",
            last_hour=busy,
            before=CALM | {"store_bytes": 20_000_000},
            changes=UNCHANGED | became,
            busy=0.096,
        ),
        figures("overview_new", before=None, changes=UNCHANGED | {"is_new": True}),
    ]
    few = flow("overview-few", last_hour=144, before=0)
    tell(page, jobs, [flow("overview-clicks", before=0), flow("overview-same"), few])
    shown = page.get_by_role("region", name="Jobs", exact=True).get_by_role("row").filter(has_text="overview_once")
    expect(shown.get_by_role("cell").nth(6)).to_have_text("10 %")
    expect(line(page, "What changed since yesterday", "overview-few")).to_contain_text(
        "gets 0.04 records a second, it was nothing"
    )
    for kind, said in (
        ("failed", "failed twice, was started again once"),
        ("version", "version 3 is now 1"),
        ("rate", "reads 10 records a second, it was 1.0"),
        ("lag", "lag is 5,000 records, it was 0"),
        ("store", "its stores take 90.0 MB, it was 20.0 MB"),
        ("moved", "its tasks were given out anew 4 times"),
    ):
        expect(line(page, "What changed since yesterday", kind, "overview_once").filter(has_text=said)).to_have_count(1)
    made = line(page, "What changed since yesterday", "new", "the job was made")
    expect(made.get_by_role("link", name="overview_new")).to_be_visible()
    stream = line(page, "What changed since yesterday", "overview-clicks", "gets 1.0 records a second, it was nothing")
    stream.get_by_role("link").click()
    heading(page, "overview-clicks")


def test_charts_are_read_by_keyboard_and_as_a_table_and_stay_after_a_reload(board: Serving, open_page: Open) -> None:
    page = open_page("/admin")
    row = page.get_by_role("region", name="Jobs", exact=True).get_by_role("row").filter(has_text="overview_once")
    expect(row.get_by_role("cell").nth(5)).to_have_text("1")  # of the sample after the repetition was dropped
    expect(row).to_contain_text("2023-11-14 22:13:20")
    page.get_by_text("6 h", exact=True).click()
    assert page.url.endswith("?span=6h")
    page.reload()
    lag = page.get_by_role("figure", name="Lag of all jobs, records")
    expect(lag.locator("canvas")).to_be_visible()
    expect(page.get_by_role("radio", name="6 h")).to_be_checked()
    slider = lag.get_by_role("slider")
    last = int(slider.get_attribute("aria-valuenow") or 0)
    slider.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuenow", str(last - 1))
    slider.press("End")
    expect(slider).to_have_attribute("aria-valuenow", slider.get_attribute("aria-valuemax") or "")
    lag.get_by_text("as a table").click()
    table = lag.get_by_role("table")
    expect(table.get_by_role("row")).to_have_count(1 + 30)
    expect(table.get_by_role("columnheader").nth(1)).to_have_text("lag")


def test_without_a_job_it_says_how_to_begin(tmp_path: Path, migrated_sqlite: bytes, browser: Browser) -> None:
    """A service that has none: all others share one that has."""
    (tmp_path / "catalog.db").write_bytes(migrated_sqlite)
    with serving(tmp_path, f"sqlite:///{tmp_path}/catalog.db") as empty, opening(empty, browser) as opened:
        page = opened("/admin/streams")
        without_events(page)
        page.reload()
        page.route("**/readyz", lambda route: route.fulfill(json={"status": "ready", "parts": {"instances": "ok"}}))
        refused = {"title": "Refused", "status": 422, "detail": "there are none"}
        page.route("**/v1/overview", lambda route: route.fulfill(status=422, json=refused))
        page.get_by_role("link", name="Overview").click()
        expect(page.get_by_role("alert")).to_contain_text("The figures: Refused")
        expect(page.get_by_role("region", name="Needs somebody")).to_contain_text("Not known yet")
        page.unroute("**/v1/overview")
        page.reload()
        expect(page.get_by_role("region", name="Needs somebody")).to_contain_text("Nothing: no job is failed")
        expect(page.get_by_text("No job was submitted yet")).to_be_visible()
        expect(page.get_by_role("region", name="What changed since yesterday")).to_contain_text("Nothing of note")


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_it_is_for_everybody_and_fits(board: Serving, open_page: Open, viewport: ViewportSize, scheme: str) -> None:
    page = open_page("/admin", viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    expect(page.locator("canvas").first).to_be_visible()
    page.get_by_text("as a table").first.click()
    check_fit(page)
