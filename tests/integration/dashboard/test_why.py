"""The page Why: from a key to the verdict in words, with the record that it is because of; what closed the windows."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Route, ViewportSize, expect

from benchmarks.running import wait_until
from tests.browsing import NARROW, NOON_MS, WIDE, Open, check_fit, heading
from tests.serving import Serving

Json = dict[str, Any]
ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 10_000}
POSITIVE = {"op": "filter", "name": "positive", "where": "(value->>'n')::bigint > 0"}
COUNT = {"n": {"fn": "count"}}
VISITS = {"op": "aggregate", "name": "visits", "window": {"type": "session", "gap_ms": 5_000}, "aggregates": COUNT}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}}
CAUGHT_UP = {"wait": "caught_up", "timeout_ms": 60_000}


def posted(service: Serving, stream: str, *records: tuple[str, int, Json]) -> None:
    """Keys, times after noon in ms, values."""
    body = [{"key": key, "timestamp": NOON_MS + at, "value": value} for key, at, value in records]
    service.client().post(f"/v1/streams/{stream}/records", json={"records": body}).raise_for_status()


@pytest.fixture(scope="module")
def asked(working: Serving) -> Serving:
    """A job that lets each record through once, and one of sessions."""
    http = working.client("writer")
    for name, operators in (("why_once", [POSITIVE, ONCE]), ("why_visits", [VISITS, FINAL])):
        http.post("/v1/streams", json={"name": f"{name}-in", "partitions": 1}).raise_for_status()
        spec = {"name": name, "source": f"{name}-in", "sink": f"{name}-out", "operators": operators}
        http.post("/v1/jobs", json=spec | {"commit_interval_ms": 0}).raise_for_status()
    events = (("a", 0, {"id": "x", "n": 1}), ("b", 1_250, {"id": "x", "n": 1}), ("a", 3_200, {"id": "x", "n": 1}))
    posted(working, "why_once-in", *events, ("c", 4_000, {"id": "y", "n": 0}))
    visits = (("a", 0, {}), ("a", 2_000, {}), ("b", 9_500, {}), ("a", 1_000, {}))
    posted(working, "why_visits-in", *visits)
    for name in ("why_once", "why_visits"):
        http.get(f"/v1/jobs/{name}", params=CAUGHT_UP).raise_for_status()
    return working


@pytest.mark.usefixtures("asked")
def test_from_a_key_to_the_record_that_it_repeats(open_page: Open) -> None:
    page = open_page("/admin/jobs/why_once/why", key="reader")
    heading(page, "why_once")
    page.get_by_role("link", name="a", exact=True).click()
    verdict = page.get_by_role("status", name="Verdict")
    expect(verdict).to_contain_text("It did not come out")
    expect(verdict).to_contain_text(
        "“once” dropped it, because record 0 of partition 0 (22:13:20) has the same key and id and is 3.2 s older; "
        "the interval is 10 s. More than 6.8 s later it would have come out."
    )
    way = page.get_by_role("list", name="Its way").get_by_role("listitem")
    expect(way).to_have_text(
        ["why_once-in", "positive filter passed", "once deduplicate_by_key_value droppedduplicate"]
    )
    shown = page.locator(".why-records .json")
    expect(shown.nth(0)).to_contain_text('"offset": 2')
    expect(shown.nth(1)).to_contain_text('"offset": 0')
    rows = page.get_by_role("region", name="Records that were asked for").get_by_role("row")
    expect(rows).to_have_count(1 + 2)
    expect(rows.nth(2)).to_contain_text("6.8 s")
    page.get_by_role("button", name="copy as curl").click()
    expect(page.get_by_role("dialog", name="copy as curl")).to_contain_text("/v1/jobs/why_once:explain?key=a")
    page.keyboard.press("Escape")
    page.get_by_role("link", name="why_once-in/0, offset 0").click()
    heading(page, "why_once-in")
    assert page.url.endswith("/admin/streams/why_once-in?partition=0&from_offset=0")


@pytest.mark.usefixtures("asked")
def test_what_came_out_is_shown_and_an_id_and_a_time_choose_the_record(open_page: Open) -> None:
    page = open_page("/admin/jobs/why_once/why")
    page.get_by_text("UTC", exact=True).click()
    page.get_by_label("Key", exact=True).fill("a")
    page.get_by_label("Id (any)").fill("x")
    page.get_by_label("Of this time or earlier").fill("2023-11-14T22:13:21")
    page.get_by_role("button", name="why?").click()
    verdict = page.get_by_role("status", name="Verdict")
    expect(verdict).to_contain_text("It came out")
    expect(verdict).to_contain_text("As one record in why_once-out.")
    assert page.url.endswith(f"/why?key=a&id=x&timestamp={NOON_MS + 1_000}")
    out = page.get_by_role("region", name="What came out because of it").get_by_role("row")
    expect(out.nth(1)).to_contain_text('"n": 1')
    out.nth(1).get_by_role("link", name="why_once-out").click()
    heading(page, "why_once-out")
    assert page.url.endswith(f"/admin/streams/why_once-out?from_timestamp={NOON_MS}")


def test_what_became_of_a_record_behind_a_repartition_is_on_its_way(working: Serving, open_page: Open) -> None:
    http = working.client("writer")
    http.post("/v1/streams", json={"name": "why_across-in", "partitions": 2}).raise_for_status()
    anywhere = {"op": "deduplicate", "name": "anywhere", "id": "value->>'id'", "interval_ms": 10_000}
    spec = {
        "name": "why_across",
        "source": "why_across-in",
        "sink": "why_across-out",
        "operators": [POSITIVE, anywhere],
    }
    http.post("/v1/jobs", json=spec | {"commit_interval_ms": 0}).raise_for_status()
    for key, at in (("a", 0), ("d", 3_200)):  # which lie in two partitions
        posted(working, "why_across-in", (key, at, {"id": "x", "n": 1}))
        http.get("/v1/jobs/why_across", params=CAUGHT_UP).raise_for_status()
    page = open_page("/admin/jobs/why_across/why?key=d")
    expect(page.get_by_role("status", name="Verdict")).to_contain_text(
        "“anywhere” dropped it, because record 0 of partition 0 (22:13:20) has the same id and is 3.2 s older"
    )
    way = page.get_by_role("list", name="Its way").get_by_role("listitem")
    expect(way).to_have_text(["why_across-in", "positive filter passed", "anywhere deduplicate droppedduplicate"])
    expect(page.get_by_role("link", name="why_across-in/0, offset 0")).to_be_visible()


@pytest.mark.usefixtures("asked")
def test_a_place_is_asked_for_too_and_a_condition_is_named(open_page: Open) -> None:
    page = open_page("/admin/jobs/why_once/why")
    page.get_by_text("by its place").click()
    page.get_by_label("Partition").fill("0")
    page.get_by_label("Offset").fill("3")
    page.get_by_label("Offset").press("Enter")
    expect(page.get_by_role("status", name="Verdict")).to_contain_text(
        "“positive” let it go: its condition ((value->>'n')::bigint > 0) is not true of it."
    )
    expect(page.get_by_role("list", name="Its way").get_by_role("listitem").nth(2)).to_contain_text("not reached")


@pytest.mark.usefixtures("asked")
def test_a_late_record_says_who_closed_its_session_and_an_open_one_what_it_waits_for(open_page: Open) -> None:
    page = open_page("/admin/jobs/why_visits/why?key=a")
    verdict = page.get_by_role("status", name="Verdict")
    expect(verdict).to_contain_text(
        "“visits” dropped it: it was late. Record 2 of partition 0 had taken stream time to 22:13:29.500, 3.5 s past "
        "the end of the session that it would be, the gap (5 s) and the grace (0 ms). With 3.5 s more grace it would "
        "have been in time."
    )
    window = page.get_by_role("article")
    expect(window).to_contain_text("Record 2 of partition 0 (22:13:29.500) closed it.")
    expect(window).to_contain_text("Final at “final”, by record 2 of partition 0:")
    expect(window.locator(".json")).to_have_text('{ "n": 2 }')
    window.get_by_text("2 records are in it").click()
    expect(window.get_by_role("row")).to_have_count(1 + 2)
    page.goto("/admin/jobs/why_visits/why?key=b")
    expect(page.get_by_role("status", name="Verdict")).to_contain_text("It is in “visits”")
    expect(page.get_by_role("article")).to_contain_text(
        "It is open. A record of 22:13:34.501 or later, of any key in this partition, closes it; stream time is "
        "22:13:29.500, 5.001 s before that; so does a flush."
    )
    page.get_by_role("link", name="what is open, and what closes next").click()
    assert page.url.endswith("/admin/jobs/why_visits/time")


def test_what_is_not_read_yet_is_looked_at_again_once_it_is(asked: Serving, open_page: Open) -> None:
    http = asked.client("writer")
    http.post("/v1/jobs/why_once:pause").raise_for_status()
    posted(asked, "why_once-in", ("late", 5_000, {"id": "z", "n": 1}))
    page = open_page("/admin/jobs/why_once/why?key=late")
    verdict = page.get_by_role("status", name="Verdict")
    expect(verdict).to_contain_text("It was not read yet")
    http.post("/v1/jobs/why_once:resume").raise_for_status()
    wait_until(lambda: http.get("/v1/jobs/why_once").json()["positions"][0]["lag"] == 0, "the record")
    expect(verdict).to_contain_text("It came out")


@pytest.mark.usefixtures("asked")
def test_nobody_knows_says_what_can_be_done_and_who_is_busy_is_waited_for(open_page: Open) -> None:
    page = open_page("/admin/jobs/why_once/why?key=nobody")
    verdict = page.get_by_role("status", name="Verdict")
    expect(verdict).to_contain_text("There is no such record")
    expect(verdict).to_contain_text("keys are compared letter by letter")
    busy = {"code": "simulations_busy", "status": 429, "title": "Too many", "detail": "two run"}
    turned_away: list[str] = []

    def turn_away(route: Route) -> None:
        if turned_away:
            route.continue_()
        else:
            turned_away.append(route.request.url)
            route.fulfill(status=429, json=busy, content_type="application/problem+json")

    page.route("**/v1/jobs/why_once:explain?*", turn_away)
    page.goto("/admin/jobs/why_once/why?key=b")
    expect(page.get_by_role("status", name="Waiting")).to_contain_text(
        "Two other explanations or simulations are running"
    )
    expect(verdict).to_contain_text("It came out")


@pytest.mark.usefixtures("asked")
def test_a_question_that_is_refused_says_what_is_wrong(open_page: Open) -> None:
    page = open_page("/admin/jobs/why_once/why?partition=9&offset=0")
    expect(page.get_by_role("alert")).to_contain_text("the stream has 1 partitions")


def test_an_empty_stream_says_what_to_post(asked: Serving, open_page: Open) -> None:
    http = asked.client("writer")
    spec = {"name": "why_empty", "source": "why_empty-in", "sink": "why_empty-out", "operators": [ONCE]}
    http.post("/v1/streams", json={"name": "why_empty-in", "partitions": 1}).raise_for_status()
    http.post("/v1/jobs", json=spec).raise_for_status()
    page = open_page("/admin/jobs/why_empty/why")
    expect(page.get_by_text("No record is in why_empty-in yet.")).to_be_visible()
    expect(page.get_by_text("/v1/streams/why_empty-in/records")).to_be_visible()


@pytest.mark.usefixtures("asked")
@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_the_page_is_for_everybody_and_fits(open_page: Open, viewport: ViewportSize, scheme: str) -> None:
    page = open_page("/admin/jobs/why_once/why", viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    expect(page.get_by_role("heading", name="Ask about a record")).to_be_visible()
    check_fit(page)
    for path, landmark in (
        ("why_once/why?key=a", page.get_by_role("region", name="Records that were asked for", exact=True)),
        ("why_visits/why?key=b", page.get_by_role("article")),
        ("why_once/why?key=nobody", page.get_by_role("status", name="Verdict")),
    ):
        page.goto(f"/admin/jobs/{path}")
        expect(landmark.first).to_be_visible()
        check_fit(page)
