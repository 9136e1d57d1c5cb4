"""Jobs are tried over live records: written with the schema at hand, run beside what runs now, then made or changed."""

from __future__ import annotations

import json
import zlib
from base64 import urlsafe_b64decode
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, ViewportSize, expect

from tests.browsing import NARROW, NOON_MS, WIDE, Open, check_fit, heading
from tests.serving import Serving

COUNTED = {
    "op": "aggregate",
    "name": "counted",
    "window": {"type": "tumbling", "size_ms": 10_000},
    "aggregates": {"n": {"fn": "count"}},
}
FINAL = {"op": "suppress", "name": "final", "until": "window_closes"}
COUNTS: dict[str, Any] = {
    "name": "try_counts",
    "source": "try-clicks",
    "operators": [COUNTED, FINAL],
    "sink": "try-counted",
}
FEWER = {**COUNTS, "operators": [{"op": "filter", "where": "value->>'n' not in ('1', '4')"}, COUNTED, FINAL]}


@pytest.fixture(scope="module")
def board(working: Serving) -> Serving:
    """Two keys over half a minute, one identity twice; a job that counts them in spans of 10 s."""
    http = working.client("writer")
    http.post("/v1/streams", json={"name": "try-clicks", "partitions": 1}).raise_for_status()
    seen = [("a", 0), ("a", 1), ("a", 2), ("b", 3), ("a", 12), ("b", 13), ("b", 25)]
    records = [
        {"key": key, "value": {"id": "twice" if n in (1, 2) else f"id-{n}", "n": n}, "timestamp": NOON_MS + 1000 * at}
        for n, (key, at) in enumerate(seen)
    ]
    http.post("/v1/streams/try-clicks/records", json={"records": records}).raise_for_status()
    http.post("/v1/jobs", json=COUNTS).raise_for_status()
    http.get("/v1/jobs/try_counts?wait=caught_up&timeout_ms=60000").raise_for_status()
    return working


def editor(page: Page) -> Locator:
    return page.get_by_role("textbox", name="Specification of the job")


def write(page: Page, spec: Any) -> None:
    """Has the editor hold this, and nothing else."""
    editor(page).click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(spec if isinstance(spec, str) else json.dumps(spec, indent=2))


def written(page: Page) -> Any:
    return json.loads("\n".join(editor(page).locator(".cm-line").all_text_contents()))


def shared(address: str) -> str:
    """The specification that an address holds, as text; empty where it holds none."""
    held = parse_qs(urlsplit(address).fragment).get("spec", [""])[0]
    return zlib.decompress(urlsafe_b64decode(held + "=" * (-len(held) % 4)), -zlib.MAX_WBITS).decode() if held else ""


def run(page: Page) -> Locator:
    """Runs it; the rows of the results."""
    page.get_by_role("button", name="run over the last").click()
    return page.get_by_role("region", name="Results").get_by_role("row")


def figure(page: Page, name: str) -> Locator:
    return page.locator("dl.facts > div").filter(has=page.locator("dt", has_text=name)).locator("dd")


# ---------------------------------------------------------------- a new job


def test_a_job_begins_with_a_template_that_fits_the_records_of_a_stream(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/streams/try-clicks")
    page.get_by_role("link", name="try a job").click()
    heading(page, "Try a job")
    expect(page.get_by_text("Fitted to the newest 7 records: identity id, number n")).to_be_visible()
    expect(editor(page)).to_contain_text("try-clicks_once")
    expect(page.get_by_text("The service would take it.")).to_be_visible()
    assert written(page) == {
        "name": "try-clicks_once",
        "source": "try-clicks",
        "operators": [{"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 30_000}],
        "sink": "try-clicks-once",
    }
    expect(run(page)).to_have_count(1 + 6)
    expect(figure(page, "results")).to_have_text("6")
    dropped = page.get_by_role("region", name="Dropped records").get_by_role("row")
    expect(dropped).to_have_count(1 + 1)
    expect(dropped.nth(1)).to_contain_text("2023-11-14 22:13:22")
    expect(dropped.nth(1)).to_contain_text("duplicate")
    for template, results in (("sessions", 12), ("final counts", 4), ("alerts", 1)):
        page.get_by_role("button", name=template, exact=True).click()
        expect(page.get_by_text("The specification has changed since")).to_be_visible()
        expect(page.get_by_text("The service would take it.")).to_be_visible()
        page.get_by_role("button", name="run over the last").click()
        expect(figure(page, "results")).to_have_text(str(results))
    page.get_by_label("then close what is open").check()
    page.get_by_role("button", name="final counts", exact=True).click()
    page.get_by_role("button", name="run over the last").click()
    expect(figure(page, "results")).to_have_text("5")  # the last window too


def test_the_address_holds_the_specification_and_nobody_else_is_sent_it(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/try?stream=try-clicks&records=3")
    expect(editor(page)).to_be_visible()
    write(page, COUNTS | {"name": "try_shared"})
    page.wait_for_url(lambda address: "try_shared" in shared(address))  # not that of the template any more
    asked: list[str] = []
    other = open_page("/admin", key="reader")
    other.on("request", lambda request: asked.append(request.url))
    other.goto(page.url)
    expect(editor(other)).to_contain_text("try_shared")
    assert written(other) == COUNTS | {"name": "try_shared"}
    expect(other.get_by_role("button", name="run over the last 3 of try-clicks")).to_be_visible()
    assert not [url for url in asked if "spec" in url]


def test_the_editor_says_what_may_stand_where_and_what_it_means(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/try?stream=try-clicks")
    expect(page.get_by_text("The service would take it.")).to_be_visible()
    page.locator(".tok-propertyName", has_text="interval_ms").hover()
    expect(page.locator(".try-saying")).to_contain_text(
        "How long, in stream time, a repeated record counts as a duplicate."
    )
    editor(page).click()
    page.keyboard.press("Control+A")
    page.keyboard.press("Delete")
    options = page.get_by_role("listbox").get_by_role("option")
    for begun in ('{"so', "ur"):  # the closing quote goes with it, also where more was typed since there was a choice
        page.keyboard.type(begun)
        expect(options.filter(has_text='"source"')).to_be_visible()
    page.keyboard.press("Enter")
    expect(editor(page)).to_have_text('{"source": ""}')
    for begun in ("t", "ry-cl"):
        page.keyboard.type(begun)
        expect(options.filter(has_text="try-clicks")).to_be_visible()
    page.keyboard.press("Enter")
    expect(editor(page)).to_have_text('{"source": "try-clicks"}')
    page.keyboard.type(', "operators": [')
    expect(editor(page)).to_have_text('{"source": "try-clicks", "operators": []}')
    page.keyboard.press("Control+Space")
    expect(options.filter(has_text='"deduplicate_by_key_value"')).to_be_visible()
    page.keyboard.type('"filter')
    expect(options.first).to_contain_text('"filter"')
    page.keyboard.press("Enter")
    assert written(page) == {"source": "try-clicks", "operators": [{"op": "filter", "where": ""}]}


def test_what_is_wrong_is_marked_where_it_is(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/try?stream=try-clicks")
    expect(page.get_by_text("The service would take it.")).to_be_visible()
    wrong = page.get_by_role("status", name="What is wrong")
    marks = page.locator(".cm-lintRange-error")
    make = page.get_by_role("button", name="make the job")
    write(page, COUNTS | {"name": "try_wrong", "operators": [{"op": "filter", "where": "value->>'n' >"}]})
    expect(wrong).to_contain_text("/operators/0/where")  # as the service says: an expression
    expect(marks).to_have_text("\"value->>'n' >\"")
    expect(make).to_be_disabled()
    write(page, COUNTS | {"name": "try_wrong", "gap": 1})
    expect(wrong).to_contain_text("/gap")
    expect(marks).to_have_text("1")
    wrong.get_by_role("button", name="/gap").click()
    expect(editor(page)).to_be_focused()
    page.keyboard.type("2")
    assert written(page)["gap"] == 2
    write(page, '{"name": ')
    expect(wrong).to_contain_text("is not JSON here")
    write(page, COUNTS | {"sink": "try-elsewhere"})
    expect(wrong).to_contain_text("/name")  # a job is called so, and is another
    write(page, COUNTS | {"name": "try_right"})
    expect(wrong).to_have_text("The service would take it.")
    expect(make).to_be_enabled()
    busy = {"title": "Unavailable", "status": 503}
    page.route("**/v1/jobs:validate", lambda route: route.fulfill(status=503, json=busy))
    write(page, COUNTS | {"name": "try_unseen"})
    expect(wrong).to_have_text("The service has not looked at it.")
    expect(make).to_be_enabled()  # it looks at what it is to make


def test_a_job_is_made_when_that_was_confirmed(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/try?stream=try-clicks")
    expect(page.get_by_text("The service would take it.")).to_be_visible()
    write(page, COUNTS | {"name": "try_made", "sink": "try-made"})
    expect(page.get_by_role("button", name="make the job")).to_be_enabled()
    page.get_by_role("button", name="make the job").click()
    dialog = page.get_by_role("dialog", name="make try_made?")
    expect(dialog).to_contain_text("It begins to read where its start says")
    expect(dialog).to_contain_text('"name":"try_made"')
    dialog.get_by_role("button", name="cancel").click()
    expect(dialog).to_be_hidden()
    assert board.client().get("/v1/jobs/try_made").status_code == 404
    page.get_by_role("button", name="make the job").click()
    dialog.get_by_role("button", name="make the job").click()
    page.get_by_role("link", name="Its page").click()
    heading(page, "try_made")
    made = board.client().get("/v1/jobs/try_made?wait=caught_up&timeout_ms=60000").json()
    assert [operator["name"] for operator in made["spec"]["operators"]] == ["counted", "final"]
    assert len(board.client().get("/v1/streams/try-made/records").json()["records"]) == 4


# ---------------------------------------------------------------- a change of one that runs


def test_another_version_is_seen_beside_the_one_that_runs(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/try_counts/try")
    expect(page.get_by_text("Nothing: this is what runs.")).to_be_visible()
    assert written(page) == COUNTS  # without what holds anyway
    expect(run(page)).to_have_count(1 + 4)
    expect(figure(page, "same")).to_have_text("4")
    write(page, FEWER)
    rows = run(page)
    expect(figure(page, "results")).to_have_text("3, running 4")
    expect(rows).to_have_count(1 + 4)
    assert [cells.split("\t")[0] for cells in rows.all_inner_texts()[1:]] == ["changed", "same", "only running", "same"]
    changed = rows.nth(1).get_by_role("cell")
    assert changed.all_inner_texts() == [
        "changed",
        "2023-11-14 22:13:22",
        "a",
        "2023-11-14 22:13:20 – 2023-11-14 22:13:30",
        "try-counted",
        '{ "n": 2 }',
        '{ "n": 3 }',
    ]
    expect(rows.nth(3).get_by_role("cell").nth(5)).to_have_text("–")
    for name, number in (("same", 2), ("changed", 1), ("only yours", 0), ("only running", 1)):
        expect(figure(page, name)).to_have_text(str(number))
    page.get_by_text("differences (2)").click()
    expect(rows).to_have_count(1 + 2)
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 5_000}
    write(page, {**COUNTS, "operators": [once, COUNTED, FINAL]})
    run(page)
    drops = page.get_by_role("region", name="Dropped by operator and reason").get_by_role("row")
    expect(drops).to_have_count(1 + 1)
    assert drops.nth(1).get_by_role("cell").all_inner_texts() == ["once", "duplicate", "2", "0"]


def test_a_change_says_what_it_means_for_each_operator_before_it_is_made(board: Serving, open_page: Open) -> None:
    http = board.client()
    http.post("/v1/jobs", json={**COUNTS, "name": "try_change", "sink": "try-changed"}).raise_for_status()
    http.get("/v1/jobs/try_change?wait=caught_up&timeout_ms=60000").raise_for_status()
    page = open_page("/admin/jobs/try_change/try")
    button = page.get_by_role("button", name="change the job")
    expect(page.get_by_text("Nothing: this is what runs.")).to_be_visible()
    expect(button).to_be_disabled()
    write(page, {**COUNTS, "name": "try_other"})
    expect(page.get_by_role("status", name="What is wrong")).to_contain_text("/name stays try_change")
    window = {"type": "tumbling", "size_ms": 20_000}
    wider = {**COUNTS, "name": "try_change", "sink": "try-changed", "operators": [COUNTED | {"window": window}, FINAL]}
    write(page, wider)
    expect(page.get_by_role("status", name="What is wrong")).to_contain_text("restart")  # the service's way out
    expect(button).to_be_disabled()
    write(page, wider | {"restart": ["counted", "final"]})
    verdicts = page.get_by_role("region", name="Verdicts").get_by_role("row")
    expect(verdicts.filter(has_text="counted")).to_contain_text("begins again with an empty store")
    assert http.get("/v1/jobs/try_change").json()["spec_version"] == 1
    button.click()
    dialog = page.get_by_role("dialog", name="change try_change to version 2?")
    expect(dialog).to_contain_text("nothing is read or written twice")
    expect(dialog).to_contain_text("counted begins again with an empty store")
    expect(dialog).to_contain_text("curl -sS -X PUT")
    dialog.get_by_role("button", name="change the job").click()
    expect(dialog).to_be_hidden()
    settled = http.get("/v1/jobs/try_change?wait=caught_up&timeout_ms=60000").json()
    assert (settled["spec_version"], settled["spec"]["operators"][0]["window"]["size_ms"]) == (2, 20_000)


def test_a_change_of_what_somebody_else_has_changed_meanwhile_is_judged_anew(board: Serving, open_page: Open) -> None:
    http = board.client()
    http.post("/v1/jobs", json={**COUNTS, "name": "try_raced", "sink": "try-raced-out"}).raise_for_status()
    http.get("/v1/jobs/try_raced?wait=caught_up&timeout_ms=60000").raise_for_status()
    page = open_page("/admin/jobs/try_raced/try")
    write(page, {**FEWER, "name": "try_raced", "sink": "try-raced-out"})
    button = page.get_by_role("button", name="change the job")
    expect(button).to_be_enabled()
    button.click()
    dialog = page.get_by_role("dialog")
    page.route(
        "**/v1/jobs/try_raced",
        lambda route: route.continue_(headers={**route.request.headers, "if-match": '"other-1"'}),
    )
    dialog.get_by_role("button", name="change the job").click()
    expect(dialog.get_by_role("alert")).to_contain_text("It was not done")
    assert http.get("/v1/jobs/try_raced").json()["spec_version"] == 1


# ---------------------------------------------------------------- for everybody


def test_a_reader_tries_and_changes_nothing(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/jobs/try_counts/try", key="reader")
    expect(page.get_by_text("To change the job takes the role writer.")).to_be_visible()
    write(page, FEWER)
    expect(run(page)).to_have_count(1 + 4)
    assert page.get_by_role("button", name="change the job").count() == 0
    page.goto("/admin/try?stream=try-clicks")
    expect(page.get_by_text("To make the job takes the role writer.")).to_be_visible()
    assert page.get_by_role("button", name="make the job").count() == 0


def test_a_reader_is_given_as_many_records_as_readers_may_ask_for(board: Serving, open_page: Open) -> None:
    http = board.client()
    http.post("/v1/streams", json={"name": "try-large", "partitions": 1}).raise_for_status()
    records = [{"key": f"k{n}", "value": "x" * 10_000, "timestamp": NOON_MS + n} for n in range(40)]
    http.post("/v1/streams/try-large/records", json={"records": records}).raise_for_status()
    page = open_page("/admin/try?stream=try-large", key="reader")
    expect(run(page)).to_have_count(1 + 25)
    expect(page.get_by_text("The oldest 15 were left out")).to_be_visible()


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_each_page_is_for_everybody_and_fits(
    board: Serving, open_page: Open, viewport: ViewportSize, scheme: str
) -> None:
    page = open_page("/admin/jobs/try_counts/try", viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    write(page, FEWER)
    expect(page.get_by_role("region", name="Verdicts")).to_be_visible()
    expect(run(page)).to_have_count(1 + 4)
    check_fit(page)
    page.goto("/admin/try?stream=try-clicks")
    expect(run(page)).to_have_count(1 + 6)
    check_fit(page)
    page.goto("/admin/try")
    expect(page.get_by_text("Choose a stream")).to_be_visible()
    check_fit(page)


def test_a_stream_that_is_not_there_says_so(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/try?stream=try-nowhere", gone="try-nowhere")
    expect(page.get_by_role("alert")).to_contain_text("The records of try-nowhere: Not Found")
