"""The page of dropped records: why, by how much, what more grace would have kept; the records, and replaying them."""

from __future__ import annotations

import pytest
from playwright.sync_api import ViewportSize, expect

from tests.browsing import NARROW, NOON_MS, WIDE, Open, check_fit, heading, without_events
from tests.serving import Serving

MINUTE_MS = 60_000
LATE_BY = [0, 0, 0, 1, 1, 4]  # minutes that lie between the end of the window of each and the time that closed it


@pytest.fixture(scope="module")
def drops(working: Serving) -> Serving:
    """A job that kept what it dropped as late, as repeated, and for want of a key; one that dropped nothing."""
    http = working.client("writer")
    http.post("/v1/streams", json={"name": "dropped-in", "partitions": 1}).raise_for_status()
    now = NOON_MS // MINUTE_MS * MINUTE_MS
    records = [{"key": "k", "value": {"n": 0}, "timestamp": now}]
    late = [
        {"key": "k", "value": {"n": 1 + i}, "timestamp": now - each * MINUTE_MS - 1} for i, each in enumerate(LATE_BY)
    ]
    repeated = [{"key": "k", "value": {"n": 0}, "timestamp": now + 1_000}]
    nobody = [{"key": None, "value": {"n": 99}, "timestamp": now}]
    http.post("/v1/streams/dropped-in/records", json={"records": records + late + repeated + nobody}).raise_for_status()
    once = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'n'", "interval_ms": 3_600_000}
    window = {"type": "tumbling", "size_ms": MINUTE_MS, "grace_ms": 0}
    minutes = {"op": "aggregate", "name": "minutes", "window": window, "aggregates": {"n": {"fn": "count"}}}
    spec = {"name": "dropped_late", "source": "dropped-in", "sink": "dropped-out", "keep_dropped": True}
    http.post("/v1/jobs", json={**spec, "operators": [once, minutes]}).raise_for_status()
    http.post("/v1/jobs", json={"name": "dropped_none", "source": "dropped-in", "operators": []}).raise_for_status()
    for job in ("dropped_late", "dropped_none"):
        http.get(f"/v1/jobs/{job}?wait=caught_up&timeout_ms=60000").raise_for_status()
    return working


def test_the_api_says_by_how_much_they_missed(drops: Serving) -> None:
    found = drops.client().get("/v1/jobs/dropped_late/dropped").json()
    counts = {(each["operator"], each["reason"]): each for each in found["items"]}
    assert {name: each["records"] for name, each in counts.items()} == {
        ("minutes", "late"): 6,
        ("minutes", "null_key"): 1,
        ("once", "duplicate"): 1,
    }
    late = counts["minutes", "late"]["missed"]
    assert (late["records"], late["max_ms"]) == (6, 240_000)
    assert late["below"] == [{"ms": 1, "records": 3}, {"ms": 120_000, "records": 2}, {"ms": 300_000, "records": 1}]
    assert counts["once", "duplicate"]["missed"] == {
        "records": 1,
        "max_ms": 3_599_000,
        "average_ms": 3_599_000,
        "below": [{"ms": 3_600_000, "records": 1}],
    }
    assert counts["minutes", "null_key"]["missed"] is None


def test_how_much_more_grace_would_have_kept_how_many(drops: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/dropped_late/dropped")
    rows = page.get_by_role("region", name="Dropped by operator and reason").get_by_role("row")
    expect(rows).to_have_count(1 + 3)
    late = rows.filter(has_text="late").get_by_role("cell")
    expect(late.nth(2)).to_have_text("6")
    expect(late.nth(4)).to_have_text("75 %")
    expect(late.nth(6)).to_have_text("4 min")
    expect(page.get_by_text("2 min more grace would have kept 5 of 6.")).to_be_visible()
    expect(page.get_by_text("Grace is 0 ms now.")).to_contain_text("4 min and 1 ms more would have kept them all.")
    page.get_by_label("More grace").select_option("5 min")
    expect(page.get_by_text("5 min more grace would have kept 6 of 6.")).to_be_visible()
    assert page.url.endswith("more=300000")
    steps = page.get_by_role("region", name="How far they missed").get_by_role("row")
    expect(steps.nth(2)).to_contain_text("less than 2 min")
    expect(steps.nth(2).get_by_role("cell").nth(3)).to_have_text("5 of 6")


def test_half_seconds_are_said_as_they_are(drops: Serving, open_page: Open) -> None:
    found = drops.client().get("/v1/jobs/dropped_late/dropped").json()
    [late] = [each for each in found["items"] if each["reason"] == "late"]
    late["missed"] |= {"max_ms": 1_600, "average_ms": 999.6}
    page = open_page("/admin/nowhere")
    without_events(page)
    page.route("**/v1/jobs/dropped_late/dropped?*", lambda route: route.fulfill(json=found))
    page.goto("/admin/jobs/dropped_late/dropped")
    expect(page.get_by_text("By 1 s on average, by 1 s and 600 ms at most.")).to_be_visible()


def test_a_reason_has_an_address_and_its_records_lead_on(drops: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/dropped_late/dropped")
    page.get_by_role("link", name="duplicate").click()
    assert page.url.endswith("?operator=once&reason=duplicate")
    expect(page.get_by_text("With an interval 1 h shorter, 1 of 1 would have come out.")).to_be_visible()
    kept = page.get_by_role("region", name="Dropped records").get_by_role("row")
    expect(kept).to_have_count(1 + 1)
    expect(kept.nth(1)).to_contain_text('"n": 0')
    why = kept.nth(1).get_by_role("link", name="why")
    expect(why).to_have_attribute(
        "href", f"/admin/jobs/dropped_late/why?key=k&timestamp={NOON_MS // MINUTE_MS * MINUTE_MS + 1_000}"
    )
    kept.nth(1).get_by_role("link", name="0, offset 6").click()
    heading(page, "dropped_late-dropped")


def test_dropped_records_are_replayed_behind_a_confirmation(drops: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/dropped_late/dropped?operator=minutes&reason=late")
    kept = page.get_by_role("region", name="Dropped records").get_by_role("row")
    expect(kept).to_have_count(1 + 6)
    page.get_by_role("button", name="replay", exact=True).click()
    dialog = page.get_by_role("dialog", name="replay dropped records of dropped_late?")
    expect(dialog).to_contain_text("late ones stay late unless grace is longer now")
    expect(dialog).to_contain_text('--json \'{"reason":["late"],"operator":"minutes"}\'')
    dialog.get_by_role("button", name="replay", exact=True).click()
    expect(kept).to_have_count(1 + 12)  # each was late again
    replays = page.get_by_role("region", name="Replays and skips").last
    expect(replays).to_contain_text("minutes: late")
    expect(page.get_by_text("It never failed.")).to_be_visible()


def test_a_job_that_drops_nothing_says_so_and_a_reader_replays_nothing(drops: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/dropped_none/dropped", key="reader")
    expect(page.get_by_text("Nothing was dropped since the job was made")).to_be_visible()
    page.goto("/admin/jobs/dropped_late/dropped")
    expect(page.get_by_role("region", name="Dropped records")).to_be_visible()
    assert page.get_by_role("button", name="replay").count() == 0


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_the_page_of_dropped_records_is_for_everybody_and_fits(
    drops: Serving, open_page: Open, viewport: ViewportSize, scheme: str
) -> None:
    path = "/admin/jobs/dropped_late/dropped"
    page = open_page(path, viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    expect(page.get_by_role("region", name="Dropped records")).to_be_visible()
    expect(page.get_by_role("region", name="How far they missed")).to_be_visible()
    check_fit(page)
