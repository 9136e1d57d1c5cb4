"""Streams: who writes and reads them and how far behind; records from any place, posted, kept for a time, deleted."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, ViewportSize, expect

from tests.browsing import NARROW, NOON_MS, WIDE, Open, check_fit, heading, without_events
from tests.serving import Serving

ORDERS = "/admin/streams/streams-orders"


@pytest.fixture(scope="module")
def board(working: Serving) -> Serving:
    """Six orders in one partition and two in the other; a job, a subscription and a webhook read them."""
    http = working.client("writer")
    http.post("/v1/streams", json={"name": "streams-orders", "partitions": 2}).raise_for_status()
    for partition, numbers in ((0, range(6)), (1, range(6, 8))):
        records = [order(n) | {"partition": partition} for n in numbers]
        http.post("/v1/streams/streams-orders/records", json={"records": records}).raise_for_status()
    dedup = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1}
    spec = {"name": "streams_once", "source": "streams-orders", "sink": "streams-once", "operators": [dedup]}
    http.post("/v1/jobs", json={**spec, "trust_partitions": True}).raise_for_status()
    http.get("/v1/jobs/streams_once?wait=caught_up&timeout_ms=60000").raise_for_status()
    push = {"url": "https://shop.invalid/hook", "secret": "whsec_" + "A" * 32}
    for settings in ({"name": "bills"}, {"name": "shop", "push": push}):
        path = "/v1/streams/streams-orders/subscriptions"
        http.post(path, json={"start": "earliest", **settings}).raise_for_status()
    return working


def order(n: int) -> dict[str, Any]:
    return {"key": "bot" if n < 4 else f"user-{n}", "value": {"n": n}, "timestamp": NOON_MS + 1000 * n}


def rows(page: Page, region: str) -> Locator:
    return page.get_by_role("region", name=region, exact=True).get_by_role("row")


def numbers(page: Page, count: int) -> list[int]:
    """The numbers of the orders that are shown, when there are so many."""
    expect(rows(page, "Records")).to_have_count(1 + count)
    texts = rows(page, "Records").locator(".json").all_inner_texts()
    return [int(text.removeprefix('{ "n": ').removesuffix(" }")) for text in texts]


# ---------------------------------------------------------------- the list


def test_the_list_names_who_writes_and_reads_each_stream_with_their_lag(board: Serving, open_page: Open) -> None:
    page = open_page("/admin/streams?q=streams")
    expect(rows(page, "Streams")).to_have_count(1 + 2)
    orders = rows(page, "Streams").filter(has_text="streams-orders").get_by_role("cell")
    expect(orders.nth(3)).to_have_text("8")
    expect(orders.nth(5)).to_have_text("2")
    expect(orders.nth(6)).to_have_text("for ever")
    expect(orders.nth(8)).to_contain_text("streams_once, 0")
    expect(orders.nth(8)).to_contain_text("subscription bills, 8")
    expect(orders.nth(8)).to_contain_text("webhook shop, 8 · fails")
    written = rows(page, "Streams").filter(has=page.get_by_role("link", name="streams-once", exact=True))
    expect(written.get_by_role("cell").nth(7)).to_have_text("streams_once")
    assert page.get_by_text("streams_once-once-changelog").count() == 0
    page.get_by_label("those that jobs keep for themselves").check()
    page.wait_for_url("**/admin/streams?q=streams&internal=true")
    changelog = rows(page, "Streams").filter(has_text="streams_once-once-changelog").get_by_role("cell")
    expect(changelog.nth(1)).to_have_text("changelog")
    expect(changelog.nth(7)).to_have_text("streams_once")


def test_whoever_reads_a_stream_behind_the_first_page_is_named_too(board: Serving, open_page: Open) -> None:
    page = open_page("/admin")
    without_events(page)
    whole = board.client().get("/v1/streams:usage?limit=1000").json()

    def cut(route: Route) -> None:
        is_first = "cursor=" not in route.request.url
        route.fulfill(json={"items": [], "next": "further"} if is_first else whole)

    page.route("**/v1/streams:usage?*", cut)
    page.goto("/admin/streams?q=streams-orders")
    expect(rows(page, "Streams").nth(1)).to_contain_text("streams_once, 0")


def test_a_stream_is_made_and_deleted_with_what_that_takes_along(board: Serving, open_page: Open) -> None:
    http = board.client()
    page = open_page("/admin/streams", gone="streams-doomed")
    page.get_by_role("button", name="make a stream").click()
    dialog = page.get_by_role("dialog", name="make a stream")
    dialog.get_by_label("Name").fill("Streams")
    dialog.get_by_role("button", name="make it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("It was not made")
    dialog.get_by_label("Name").fill("streams-doomed")
    dialog.get_by_label("Partitions").fill("3")
    dialog.get_by_role("button", name="make it").click()
    heading(page, "streams-doomed")
    assert len(http.get("/v1/streams/streams-doomed").json()["partitions"]) == 3
    http.post("/v1/streams/streams-doomed/subscriptions", json={"name": "last"}).raise_for_status()
    page.goto("/admin/streams/streams-doomed?view=settings")
    expect(rows(page, "Who reads it").filter(has_text="last")).to_be_visible()
    page.get_by_role("button", name="delete the stream").click()
    doom = page.get_by_role("dialog", name="delete streams-doomed?")
    expect(doom).to_contain_text("Its 0 record(s) go and do not come back; with them subscription last")
    doom.get_by_role("button", name="cancel").click()
    expect(doom).to_be_hidden()
    assert http.get("/v1/streams/streams-doomed").status_code == 200
    page.get_by_role("button", name="delete the stream").click()
    doom.get_by_role("button", name="delete the stream").click()
    heading(page, "Streams")
    expect(rows(page, "Streams").filter(has_text="streams-orders")).to_be_visible()
    expect(rows(page, "Streams").filter(has_text="streams-doomed")).to_have_count(0)
    assert http.get("/v1/streams/streams-doomed").status_code == 404


# ---------------------------------------------------------------- records


def test_records_onward_and_newest_first_by_an_address_that_can_be_shared(board: Serving, open_page: Open) -> None:
    page = open_page(f"{ORDERS}?partition=0")
    assert numbers(page, 6) == [0, 1, 2, 3, 4, 5]
    expect(page.get_by_text("Most frequent keys of those shown:")).to_contain_text("bot 67 %")
    page.get_by_text("newest first").click()
    page.wait_for_url(f"**{ORDERS}?partition=0&reverse=true")
    expect(rows(page, "Records").nth(1)).to_contain_text('"n": 5')
    assert numbers(page, 6) == [5, 4, 3, 2, 1, 0]
    expect(page.get_by_role("button", name="this is the start")).to_be_disabled()
    page.get_by_label("From offset").fill("2")
    page.get_by_role("button", name="jump").click()
    assert numbers(page, 2) == [1, 0]
    page.reload()
    assert numbers(page, 2) == [1, 0]
    page.get_by_role("button", name="copy as curl").first.click()
    asked = "/v1/streams/streams-orders/records?partition=0&from_offset=2&reverse=true&limit=100"
    expect(page.get_by_role("dialog", name="copy as curl")).to_contain_text(asked)


def test_records_of_a_key_and_by_a_condition(board: Serving, open_page: Open) -> None:
    page = open_page(ORDERS)
    assert numbers(page, 8) == [*range(8)]
    page.get_by_label("Key").fill("bot")
    page.get_by_role("button", name="jump").click()
    assert numbers(page, 4) == [0, 1, 2, 3]
    page.get_by_label("Condition (SQL)").fill("(value->>'n')::bigint >= 2")
    page.get_by_label("Condition (SQL)").press("Enter")
    assert numbers(page, 2) == [2, 3]
    page.get_by_label("Key").fill("nobody")
    page.get_by_role("button", name="jump").click()
    expect(page.get_by_text("No record is like that, from this place on.")).to_be_visible()
    page.get_by_label("Condition (SQL)").fill("value->>'n'")
    page.get_by_role("button", name="jump").click()
    expect(page.get_by_role("alert")).to_contain_text("must be a condition (true or false)")


def test_a_tail_shows_those_alone_that_were_chosen(board: Serving, open_page: Open) -> None:
    http = board.client()
    http.post("/v1/streams", json={"name": "streams-live", "partitions": 1}).raise_for_status()
    page = open_page("/admin/streams/streams-live?view=tail&where=(value->>'n')::bigint%20%3E%201")
    expect(page.get_by_role("status")).to_have_text("following")
    records = [{"key": "k", "value": {"n": n}} for n in range(4)]
    http.post("/v1/streams/streams-live/records", json={"records": records}).raise_for_status()
    shown = rows(page, "Records as they come, latest first")
    expect(shown).to_have_count(1 + 2)
    assert shown.locator(".json").all_inner_texts() == ['{ "n": 3 }', '{ "n": 2 }']
    page.get_by_label("Key").fill("nobody")
    page.get_by_role("button", name="follow these").click()
    expect(page.get_by_text("Nothing has come since this was opened. Post a record:")).to_be_visible()


def test_the_page_of_a_stream_that_is_not_there_says_how_one_is_made(open_page: Open) -> None:
    page = open_page("/admin/streams/streams-nowhere", gone="streams-nowhere")
    heading(page, "streams-nowhere")
    main = page.locator("main")
    expect(main).to_contain_text("No stream has this name (any more)")
    expect(main.get_by_role("link", name="the streams")).to_be_visible()
    expect(main.locator("pre")).to_contain_text('--json \'{"name":"streams-nowhere","partitions":4}\'')


def test_a_record_is_posted_and_its_answer_shown(board: Serving, open_page: Open) -> None:
    http = board.client()
    http.post("/v1/streams", json={"name": "streams-posted", "partitions": 1}).raise_for_status()
    page = open_page("/admin/streams/streams-posted?view=post")
    page.get_by_text("UTC", exact=True).click()
    page.get_by_label("Key").fill("by-hand")
    page.get_by_label("Value").fill("{")
    expect(page.get_by_text("is not JSON")).to_be_visible()
    expect(page.get_by_role("button", name="post the record")).to_be_disabled()
    page.get_by_label("Value").fill('{"n": 7}')
    page.get_by_label("Time (UTC)").fill("2099-01-01T00:00:00.000")
    page.get_by_role("button", name="post the record").click()
    expect(page.get_by_role("alert")).to_contain_text("It was not posted")
    expect(page.get_by_text("/records/0/timestamp is more than 3600000 ms ahead")).to_be_visible()
    page.get_by_label("Time (UTC)").fill("2023-11-14T22:13:20.000")
    page.get_by_role("button", name="post the record").click()
    page.get_by_role("link", name="partition 0, offset 0").click()
    assert numbers(page, 1) == [7]
    [record] = http.get("/v1/streams/streams-posted/records").json()["records"]
    assert (record["key"], record["value"], record["timestamp"]) == ("by-hand", {"n": 7}, NOON_MS)


# ---------------------------------------------------------------- who uses it, and what it holds


def test_who_reads_it_is_said_with_why_one_does_not_go_on(board: Serving, open_page: Open) -> None:
    page = open_page(ORDERS)
    job = rows(page, "Who reads it").filter(has_text="streams_once").get_by_role("cell")
    expect(job.nth(3)).to_have_text("0")
    assert job.all_inner_texts()[:4] == ["job", "streams_once", "running", "0"]
    bills = rows(page, "Who reads it").filter(has_text="bills").get_by_role("cell")
    expect(bills.nth(3)).to_have_text("8")
    assert bills.all_inner_texts()[:4] == ["subscription", "bills", "idle", "8"]
    expect(bills.nth(5)).to_have_text("nobody pulls")
    shop = rows(page, "Who reads it").filter(has_text="shop").get_by_role("cell")
    expect(shop.nth(5)).to_contain_text("https://shop.invalid/hook does not take the next record")
    expect(shop.nth(5)).to_have_text(re.compile(r"; [\d,]+ attempts? since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d$"))
    expect(shop.nth(3)).to_have_text("8")
    page.get_by_role("link", name="streams_once").click()
    heading(page, "streams_once")


def test_each_partition_is_shown_with_its_offsets_times_and_files(board: Serving, open_page: Open) -> None:
    page = open_page(f"{ORDERS}?view=partitions")
    page.get_by_text("UTC", exact=True).click()
    first = rows(page, "Partitions").nth(1).get_by_role("cell")
    expect(first.nth(8)).to_have_text("1")
    assert first.all_inner_texts()[:7] == ["0", "6", "75 %", "0", "6", "2023-11-14 22:13:20", "2023-11-14 22:13:25"]
    rows(page, "Partitions").nth(2).get_by_role("link", name="1", exact=True).click()
    assert numbers(page, 2) == [7, 6]


def test_how_long_records_are_kept_changes_when_that_was_confirmed(board: Serving, open_page: Open) -> None:
    http = board.client()
    http.post(
        "/v1/streams", json={"name": "streams-kept", "partitions": 1, "retention_ms": 3_600_000}
    ).raise_for_status()
    page = open_page("/admin/streams/streams-kept?view=settings")
    expect(page.get_by_text("1 h after they arrived, file by file.")).to_be_visible()
    button = page.get_by_role("button", name="change retention")
    expect(button).to_be_disabled()
    page.get_by_label("Keep for").fill("30")
    page.get_by_role("combobox", name="Unit").click()
    page.get_by_role("option", name="minutes").click()
    button.click()
    dialog = page.get_by_role("dialog", name="keep records of streams-kept for 30 min?")
    expect(dialog).to_contain_text(
        "Files whose records all arrived longer ago are removed. No file is older than that now."
    )
    expect(dialog).to_contain_text('{"retention_ms":1800000}')
    expect(dialog).to_contain_text("-H 'If-Match: $ETAG'")
    dialog.get_by_role("button", name="change retention").click()
    expect(page.get_by_text("30 min after they arrived, file by file.")).to_be_visible()
    assert http.get("/v1/streams/streams-kept").json()["retention_ms"] == 1_800_000


def test_what_a_job_uses_is_not_deleted_and_readers_change_nothing(board: Serving, open_page: Open) -> None:
    page = open_page(f"{ORDERS}?view=settings")
    expect(
        page.get_by_text("It can not be deleted while a job reads or writes it: delete streams_once first.")
    ).to_be_visible()
    page = open_page(f"{ORDERS}?view=settings", key="reader")
    expect(page.get_by_text("For ever.")).to_be_visible()
    page.goto(f"{ORDERS}?view=post")
    expect(page.get_by_text("To post records takes the role writer.")).to_be_visible()
    page.goto("/admin/streams")
    expect(rows(page, "Streams").nth(1)).to_be_visible()
    names = {"make a stream", "post the record", "change retention", "delete the stream"}
    assert not names & set(page.get_by_role("button").all_inner_texts())


@pytest.mark.parametrize(("viewport", "scheme"), [(WIDE, "light"), (NARROW, "dark")])
def test_each_page_is_for_everybody_and_fits(
    board: Serving, open_page: Open, viewport: ViewportSize, scheme: str
) -> None:
    page = open_page("/admin/streams", viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    for path, landmark in (
        ("/admin/streams", rows(page, "Streams").nth(1)),
        (f"{ORDERS}?reverse=true", rows(page, "Records").nth(1)),
        (f"{ORDERS}?view=tail", page.get_by_role("button", name="follow these")),
        (f"{ORDERS}?view=post", page.get_by_role("button", name="post the record")),
        (f"{ORDERS}?view=partitions", rows(page, "Partitions").nth(2)),
        (f"{ORDERS}?view=settings", page.get_by_role("button", name="change retention")),
    ):
        page.goto(path)
        expect(landmark).to_be_visible()
        check_fit(page)
