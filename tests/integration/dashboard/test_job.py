"""The page of a job: its topology as it runs, how far it is, why it failed, and all that can be done about it."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from tests.browsing import NARROW, NOON_MS, WIDE, Open, check_fit, heading
from tests.serving import Serving

COUNT = {"n": {"fn": "count"}}
FLOW = [
    {"op": "filter", "where": "value->>'n' <> '0'"},
    {"op": "deduplicate", "name": "once", "id": "value->>'n'", "interval_ms": 60_000},
    {"op": "aggregate", "name": "sums", "aggregates": COUNT},
]


def posted(working: Serving, stream: str, values: list[Any], partitions: int = 1) -> None:
    http = working.client("writer")
    http.post("/v1/streams", json={"name": stream, "partitions": partitions}).raise_for_status()
    records = [{"key": str(n), "value": {"n": n}, "timestamp": NOON_MS + 1000 * at} for at, n in enumerate(values)]
    http.post(f"/v1/streams/{stream}/records", json={"records": records}).raise_for_status()


def made(working: Serving, name: str, source: str, *operators: dict[str, Any], wait: str = "caught_up") -> None:
    http = working.client("writer")
    spec = {"name": name, "source": source, "sink": f"{name}-out", "operators": list(operators)}
    http.post("/v1/jobs", json=spec).raise_for_status()
    http.get(f"/v1/jobs/{name}?wait={wait}&timeout_ms=60000").raise_for_status()


def state_of(working: Serving, job: str, wait: str = "caught_up") -> str:
    found: str = working.client().get(f"/v1/jobs/{job}?wait={wait}&timeout_ms=60000").raise_for_status().json()["state"]
    return found


def records_of(working: Serving, stream: str) -> int:
    found: int = working.client().get(f"/v1/streams/{stream}").raise_for_status().json()["records"]
    return found


def asked(page: Page, label: str) -> Locator:
    """The question that a button leads to."""
    page.get_by_role("button", name=label, exact=True).first.click()
    return page.get_by_role("dialog")


@pytest.fixture(scope="module")
def jobs(working: Serving) -> Serving:
    """A job in two sub-topologies that has read everything, and one that failed at a record."""
    posted(working, "job-clicks", [0, 1, 2, 1, 3, 4], partitions=2)
    made(working, "job_flow", "job-clicks", *FLOW)
    posted(working, "job-poison", [1, "x", 3])
    cast = {"op": "map_values", "select": {"n": "(value->>'n')::bigint"}}
    made(working, "job_broken", "job-poison", cast, wait="stopped")
    return working


def test_the_topology_shows_what_went_through_each_operator(jobs: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/job_flow")
    graph = page.get_by_role("region", name="Topology", exact=True).last
    source = graph.get_by_role("group", name="source job-clicks")
    expect(source).to_contain_text("lag 0")
    expect(source.get_by_role("link", name="job-clicks")).to_have_attribute("href", "/admin/streams/job-clicks")
    once = graph.get_by_role("group", name="operator once")
    expect(once).to_contain_text("busy 0 %")
    expect(once).to_contain_text("0/s in · 0/s out")
    expect(graph.get_by_role("group", name="sink job_flow-out")).to_contain_text("4 in all")
    expect(graph.get_by_role("group", name="repartition job_flow-once-repartition")).to_be_visible()
    expect(graph.get_by_text("Sub-topology 1 · 2 tasks")).to_be_visible()
    once.get_by_role("link", name="1 dropped").click()
    assert page.url.endswith("/admin/jobs/job_flow/dropped?operator=once")


def test_the_topology_is_a_table_too_and_its_address_says_so(jobs: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/job_flow")
    page.get_by_text("table", exact=True).click()
    rows = page.get_by_role("region", name="Operators and streams").get_by_role("row")
    expect(rows).to_have_count(1 + 7)
    assert page.url.endswith("?topology=table")
    page.reload()
    cells = rows.filter(has=page.get_by_role("cell", name="sums", exact=True)).get_by_role("cell")
    expect(cells.nth(0)).to_have_text("2")
    expect(cells.nth(5)).to_have_text("4")  # gave four counts
    expect(cells.nth(8)).to_have_text("0")
    expect(cells.nth(9).get_by_role("link")).to_have_attribute("href", "/admin/jobs/job_flow/state?store=job_flow-sums")
    cells = rows.filter(has=page.get_by_role("cell", name="filter-0", exact=True)).get_by_role("cell")
    expect(cells.nth(5)).to_have_text("5")  # of six


def test_positions_say_how_far_each_partition_is_and_where_the_records_are(jobs: Serving, open_page: Open) -> None:
    posted(jobs, "job-hot", [7] * 1_500 + list(range(20)), partitions=4)
    made(jobs, "job_hot", "job-hot")
    page = open_page("/admin/jobs/job_hot")
    section = page.get_by_role("region", name="Positions", exact=True).first
    ends = [at["end_offset"] for at in jobs.client().get("/v1/streams/job-hot").json()["partitions"]]
    hot, most = ends.index(max(ends)), max(ends)
    expect(section).to_contain_text(f"{round(100 * most / 1_520)} % of the records of job-hot are in partition {hot}")
    expect(section).to_contain_text("Its newest 1,000 records are of “7” (9")
    cells = section.get_by_role("row").nth(1 + hot).get_by_role("cell")
    expect(cells.nth(2)).to_have_text(f"{most:,}")
    expect(cells.nth(4)).to_have_text("0")
    expect(cells.nth(6)).to_have_text("now")
    page.get_by_role("link", name="the stream's page").click()
    heading(page, "job-hot")
    assert page.url.endswith(f"/admin/streams/job-hot?partition={hot}")
    page.go_back()
    tasks = page.get_by_role("region", name="Tasks").last.get_by_role("row")
    expect(tasks.nth(1 + hot).get_by_role("cell").nth(3)).to_have_text(f"{most:,}")
    expect(tasks.nth(1 + hot).get_by_role("cell").nth(4)).to_have_text(re.compile(r"^[\d.]+ ms$"))


def test_the_record_that_it_failed_at_is_skipped_by_one_click_of_an_admin(jobs: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/job_broken", key="writer")
    alert = page.get_by_role("alert")
    expect(alert.locator(".json")).to_contain_text('"n": "x"')
    expect(page.get_by_text(re.compile("Conversion Error"))).to_have_count(2)  # in the alert, and in what happened
    expect(page.get_by_role("group", name="Actions")).to_contain_text("reset")
    assert page.get_by_role("button", name="skip this record and start").count() == 0
    assert page.get_by_role("button", name="reset time").count() == 0
    page = open_page("/admin/jobs/job_broken")
    dialog = asked(page, "skip this record and start")
    expect(dialog).to_contain_text("skip offset 1 of job-poison/0?")
    expect(dialog).to_contain_text("That can not be undone.")
    expect(dialog).to_contain_text('--json \'{"stream":"job-poison","partition":0,"offset":1}\'')
    dialog.get_by_role("button", name="skip this record and start").click()
    expect(page.locator("main .badge").first).to_have_text("running")
    assert state_of(jobs, "job_broken") == "running"
    assert records_of(jobs, "job_broken-out") == 2


def test_a_full_buffer_says_how_full_it_is_and_may_hold_more(jobs: Serving, open_page: Open) -> None:
    posted(jobs, "job-full-in", list(range(5)))
    buffer = {"max_records": 3, "when_full": "shut_down"}
    held = {"op": "suppress", "name": "held", "until": "time_limit", "time_limit_ms": 60_000, "buffer": buffer}
    made(
        jobs, "job_full", "job-full-in", {"op": "aggregate", "name": "sums", "aggregates": COUNT}, held, wait="stopped"
    )
    page = open_page("/admin/jobs/job_full")
    alert = page.get_by_role("alert")
    expect(alert).to_contain_text("buffer_full")
    expect(alert).to_contain_text("4, and it may hold 3")
    dialog = asked(page, "raise the bound and start")
    expect(dialog).to_contain_text("may hold 6 records from now on")
    expect(dialog).to_contain_text('--json \'{"buffers":{"held":{"max_records":6}}}\'')
    dialog.get_by_role("button", name="raise the bound and start").click()
    expect(page.locator("main .badge").first).to_have_text("running")
    assert state_of(jobs, "job_full") == "running"


def test_a_job_is_set_back_and_reads_again(jobs: Serving, open_page: Open) -> None:
    posted(jobs, "job-again", [1, 2, 1])
    made(jobs, "job_again", "job-again", {"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000})
    page = open_page("/admin/jobs/job_again")
    page.get_by_text("UTC", exact=True).click()
    dialog = asked(page, "stop")
    expect(dialog).to_contain_text("Positions and stores stay")
    dialog.get_by_role("button", name="stop").click()
    expect(page.locator("main .badge").first).to_have_text("stopped")
    dialog = asked(page, "reset")
    expect(dialog).to_contain_text("Lost for good: what is in its store job_again-once, and how far it had read.")
    dialog.get_by_label("To where").select_option("the first record of a time")
    dialog.get_by_label("From (UTC)").fill("2023-11-14T22:13:21")
    expect(dialog).to_contain_text(f'--json \'{{"start":{{"timestamp":{NOON_MS + 1000}}}}}\'')
    dialog.get_by_role("button", name="reset").click()
    expect(dialog).to_be_hidden()
    dialog = asked(page, "start")
    dialog.get_by_role("button", name="start").click()
    expect(page.locator("main .badge").first).to_have_text("running")
    assert state_of(jobs, "job_again") == "running"
    assert records_of(jobs, "job_again-out") == 2 + 2
    expect(page.get_by_role("region", name="What happened").last).to_contain_text("reset")


def test_a_stream_time_far_ahead_is_set_back_once_it_is_said_what_that_means(jobs: Serving, open_page: Open) -> None:
    http = jobs.client("writer")
    http.post("/v1/streams", json={"name": "job-ahead", "partitions": 1}).raise_for_status()
    records = [{"key": "k", "value": {}, "timestamp": at} for at in (NOON_MS, NOON_MS + 3_600_000)]
    http.post("/v1/streams/job-ahead/records", json={"records": records}).raise_for_status()
    made(jobs, "job_ahead", "job-ahead", {"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000})
    http.post("/v1/jobs/job_ahead:stop?wait=stopped&timeout_ms=60000").raise_for_status()
    page = open_page("/admin/jobs/job_ahead")
    page.get_by_text("UTC", exact=True).click()
    dialog = asked(page, "reset time")
    expect(dialog.get_by_role("button", name="reset time")).to_be_disabled()
    dialog.get_by_label("Stream time (UTC)").fill("2023-11-15T00:00:00")
    expect(dialog.get_by_role("status")).to_contain_text("No task is ahead of that")
    dialog.get_by_label("Stream time (UTC)").fill("2023-11-14T22:13:20")
    expect(dialog.get_by_role("status")).to_contain_text("Set back: 0_0 (was 2023-11-14 23:13:20).")
    expect(dialog).to_contain_text("once: entries before")
    dialog.get_by_role("button", name="reset time").click()
    expect(dialog).to_be_hidden()
    assert http.get("/v1/jobs/job_ahead").json()["stream_time"] == NOON_MS


def test_a_job_is_copied_rolled_back_and_deleted(jobs: Serving, open_page: Open) -> None:
    posted(jobs, "job-trial-in", [1, 2])
    made(jobs, "job_trial", "job-trial-in", FLOW[0], {**FLOW[1], "op": "deduplicate_by_key_value"})
    page = open_page("/admin/jobs/job_trial", gone="job_trial_copy")
    dialog = asked(page, "copy")
    expect(dialog).to_contain_text("nothing of it is lost")
    expect(dialog).to_contain_text('--json \'{"name":"job_trial_copy","sink":null,"start_paused":true}\'')
    dialog.get_by_role("button", name="copy").click()
    heading(page, "job_trial_copy")
    expect(page.locator("main .badge").first).to_have_text("paused")

    http = jobs.client("writer")

    def change(interval_ms: int) -> None:
        view = http.get("/v1/jobs/job_trial_copy")
        spec = view.json()["spec"]
        spec["operators"][1]["interval_ms"] = interval_ms
        http.put("/v1/jobs/job_trial_copy", json=spec, headers={"If-Match": view.headers["ETag"]}).raise_for_status()

    change(1_000)
    versions = page.get_by_role("region", name="Versions").last
    page.reload()
    expect(versions.get_by_role("row")).to_have_count(1 + 2)
    dialog = asked(page, "roll back to 1")
    expect(dialog.get_by_role("status")).to_contain_text("It would be version 3.")
    verdicts = dialog.get_by_role("row")
    expect(verdicts.filter(has_text="filter-0")).to_contain_text("unchanged")
    expect(verdicts.filter(has_text="once")).to_contain_text("keeps")
    dialog.get_by_role("checkbox", name="once").check()
    expect(verdicts.filter(has_text="once")).to_contain_text("restarts")
    dialog.get_by_role("checkbox", name="once").uncheck()
    expect(verdicts.filter(has_text="once")).to_contain_text("keeps")
    change(
        2_000
    )  # somebody else's: the table has a row more, and the question is still that of the row it was asked in
    expect(versions.get_by_role("row")).to_have_count(1 + 3)
    expect(dialog).to_contain_text("roll job_trial_copy back to version 1?")
    dialog.get_by_role("button", name="roll back to 1").click()
    expect(versions.get_by_role("row").nth(1)).to_contain_text("4 (now)")
    assert http.get("/v1/jobs/job_trial_copy").json()["spec"]["operators"][1]["interval_ms"] == 60_000

    http.post("/v1/jobs/job_trial_copy:stop?wait=stopped&timeout_ms=60000").raise_for_status()
    dialog = asked(page, "delete")
    expect(dialog).to_contain_text("Lost for good: what is in its store job_trial_copy-once")
    expect(dialog).to_contain_text("-X DELETE")
    expect(dialog.get_by_role("button", name="delete")).to_be_disabled()
    dialog.get_by_label("Type job_trial_copy to delete it").fill("job_trial_copy")
    dialog.get_by_role("button", name="delete").click()
    heading(page, "Overview")
    assert http.get("/v1/jobs/job_trial_copy").status_code == 404


def test_a_reader_sees_the_figures_and_nothing_that_changes_them(jobs: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/job_flow", key="reader")
    expect(page.get_by_role("group", name="operator once")).to_be_visible()
    expect(page.get_by_role("region", name="Versions").last).to_be_visible()
    buttons = {button.inner_text() for button in page.locator("main button:not(.sorter)").all()}
    assert buttons == {"copy as curl"}
    assert page.get_by_role("group", name="Actions").count() == 0


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_the_page_of_a_job_is_for_everybody_and_fits(
    jobs: Serving, open_page: Open, viewport: ViewportSize, scheme: str
) -> None:
    page = open_page("/admin/jobs/job_flow", viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    expect(page.get_by_role("group", name="operator once")).to_contain_text("entries")
    check_fit(page)
    page.goto("/admin/jobs/job_flow?topology=table")
    expect(page.get_by_role("region", name="Operators and streams")).to_be_visible()
    asked(page, "copy")
    expect(page.get_by_role("dialog")).to_have_css("opacity", "1")  # it comes in slowly
    check_fit(page)
