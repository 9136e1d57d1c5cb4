"""Twelve things that go wrong: from the overview to the cause of each in three clicks at most, by the words and figures
that somebody needs who has to do something about it.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from benchmarks import incidents
from tests.browsing import Open, heading, opening
from tests.forkserver import ForkServer
from tests.incidents import lagging_copy, lost_executor, lost_instance, no_cores
from tests.serving import Serving

CLICKS = 3


class Way:
    """A way from the overview, by clicks that are counted."""

    def __init__(self, open_page: Open) -> None:
        self.page: Page = open_page("/admin")
        self.main = self.page.locator("main")
        self._left = CLICKS

    def finding(self, kind: str, name: str) -> Locator:
        """What the overview says of something that needs somebody; a click where others need somebody more."""
        needs = self.page.get_by_role("region", name="Needs somebody")
        of_kind = needs.get_by_role("listitem").filter(has=self.page.locator(".badge", has_text=kind))
        found = of_kind.filter(has=self.page.get_by_role("link", name=name, exact=True))
        others = needs.get_by_role("button", name=re.compile("more findings"))
        expect(found.or_(others).first).to_be_visible()
        if not found.is_visible():
            self.click(others)
        return found

    def click(self, place: Locator) -> None:
        """One click more; there are not many."""
        assert self._left > 0, f"a click more than {CLICKS}"
        self._left -= 1
        place.click()

    def follow(self, place: Locator, page: str) -> None:
        """Click on the link in a place, which leads to a page."""
        self.click(place.get_by_role("link").first if place.get_attribute("href") is None else place)
        expect(self.page).to_have_url(re.compile(re.escape(f"/admin{page}") + "$"))

    def says(self, *words: str) -> None:
        """The page does, in these words."""
        for each in words:
            expect(self.main).to_contain_text(each)


@pytest.fixture(scope="module")
def seeded(working: Serving) -> Serving:
    """Nine of them are made of data alone: they share the service that all do."""
    api = working.client("writer")
    incidents.seed(api)
    incidents.settle(api)
    return working


@pytest.fixture
def way(seeded: Serving, open_page: Open) -> Way:
    return Way(open_page)


def test_timestamps_of_the_future(way: Way) -> None:
    found = way.finding("ahead", "inc_clock")
    expect(found).to_contain_text("ahead of the clock: what comes now is late")
    way.follow(found, "/jobs/inc_clock/time")
    alert = way.page.get_by_role("alert")
    expect(alert).to_contain_text("Task 0_0: stream time is")
    expect(alert).to_contain_text("It is at 2099-01-01 00:00:00, since ")
    expect(alert).to_contain_text("All that comes now is late for minutes: windows of now are closed.")
    place = alert.get_by_role("link", name="inc-clock/0, offset 3")
    way.follow(place, "/streams/inc-clock?partition=0&from_offset=3")
    rows = way.page.get_by_role("region", name="Records").get_by_role("row")
    expect(rows).to_have_count(1 + 4)
    expect(rows.nth(1)).to_contain_text("2099-01-01 00:00:00")


def test_an_idle_partition(way: Way) -> None:
    found = way.finding("silent", "inc_idle")
    expect(found).to_contain_text("task 0_1 is 1 h 59 min behind the others: no record comes that would close")
    way.follow(found, "/jobs/inc_idle/time")
    alert = way.page.get_by_role("alert").filter(has_text="Task 0_1 stands still, 1 h 59 min behind task 0_0")
    expect(alert).to_contain_text("It is at 2023-11-14 22:14:01, 0_0 at 2023-11-15 00:14:00.")
    closing = (
        way.page.get_by_role("list", name="What closes next")
        .get_by_role("listitem")
        .filter(has_text="partition 1 of inc-idle")
    )
    expect(closing.first).to_contain_text(
        "when a record of 2023-11-14 22:15:00 or later arrives in partition 1 of inc-idle"
    )


def test_a_poisoned_record(way: Way) -> None:
    found = way.finding("failed", "inc_poison")
    expect(found).to_contain_text("expression_failed: n: Conversion Error: Could not convert string 'x' to INT64")
    way.follow(found, "/jobs/inc_poison")
    alert = way.page.get_by_role("alert")
    expect(alert.locator(".json")).to_contain_text('"n": "x"')
    expect(alert.get_by_role("button", name="skip this record and start")).to_be_visible()
    way.follow(
        alert.get_by_role("link", name="inc-poison/0, offset 1"), "/streams/inc-poison?partition=0&from_offset=1"
    )
    heading(way.page, "inc-poison")
    expect(way.page.get_by_role("region", name="Records").get_by_role("row")).to_have_count(1 + 2)


def test_a_hot_key(way: Way) -> None:
    found = way.finding("skewed", "inc_hot")
    expect(found).to_contain_text("950 of 1,000 records are in one of 4 partitions of inc-hot")
    way.follow(found, "/jobs/inc_hot")
    way.says("95 % of the records of inc-hot are in partition 2", "Its newest 950 records are of “bot” (100 %).")
    way.follow(way.main.get_by_role("link", name="the stream's page"), "/streams/inc-hot?partition=2")
    way.says("Most frequent keys of those shown: bot 100 %")


def test_a_full_buffer(way: Way) -> None:
    found = way.finding("failed", "inc_full")
    expect(found).to_contain_text("buffer_full: the buffer holds 3 records (at most 2) and 78 bytes")
    way.follow(found, "/jobs/inc_full")
    alert = way.page.get_by_role("alert")
    expect(alert).to_contain_text("final")
    expect(alert).to_contain_text("3, and it may hold 2")
    expect(alert.get_by_role("button", name="raise the bound and start")).to_be_visible()


def test_a_late_burst(way: Way) -> None:
    found = way.finding("dropping", "inc_burst")
    expect(found).to_contain_text("40 of 100 records dropped as late in the last hour, by “minutes”")
    way.follow(found, "/jobs/inc_burst/dropped")
    way.says("40 records were dropped", "Grace is 0 ms now. By 1 min 45 s on average, by 5 min 30 s at most.")
    expect(way.page.get_by_role("status").first).to_have_text("1 min more grace would have kept 30 of 40.")
    expect(way.page.get_by_role("button", name="replay")).to_be_visible()


def test_a_failed_sink(seeded: Serving, way: Way) -> None:
    shop = seeded.client("reader").get("/v1/streams/inc-orders/subscriptions/shop").json()
    [failure] = shop["push"]["failures"]
    found = way.finding("webhook", "inc-orders: shop")
    expect(found).to_contain_text("its target does not take a record, after")
    expect(found).to_contain_text(failure["detail"])
    way.follow(found, "/streams/inc-orders")
    row = way.page.get_by_role("region", name="Who reads it").get_by_role("row").nth(1)
    expect(row).to_contain_text(f"{incidents.TARGET} does not take the next record: {failure['detail']}")
    expect(row.get_by_role("cell").nth(3)).to_have_text("2")


def test_a_session_that_never_closes(way: Way) -> None:
    found = way.finding("silent", "inc_session")
    expect(found).to_contain_text("what is open stays open: idle close is off")
    way.follow(found, "/jobs/inc_session/time")
    way.says("off: silence closes nothing")
    [session] = way.page.get_by_role("list", name="What closes next").get_by_role("listitem").all()
    expect(session).to_contain_text("1 session with the last record at 2023-11-14 22:34:00 of visits closes")
    expect(session).to_contain_text(
        "when a record of 2023-11-14 23:05:00.001 or later arrives in partition 0 of inc-session"
    )
    expect(way.page.get_by_role("group", name="Close now").get_by_role("button")).to_have_text(
        ["flush", "close after 5 min of silence"]
    )


def test_duplicates_that_get_through(way: Way) -> None:
    """No figure says that it should have been a repetition: whoever wonders asks for the key."""
    job = way.page.get_by_role("region", name="Jobs").get_by_role("row").filter(has_text="inc_twice")
    way.follow(job, "/jobs/inc_twice")
    way.follow(way.main.get_by_role("link", name="why", exact=True), "/jobs/inc_twice/why")
    way.page.get_by_label("Key", exact=True).fill("order-7")
    way.page.get_by_label("Key", exact=True).press("Enter")
    verdict = way.page.get_by_role("status", name="Verdict")
    expect(verdict).to_contain_text("It came out")
    expect(verdict).to_contain_text(
        "Record 0 of partition 0 (22:14:00) has the same key, came out too, and is 1 min 30 s older: "
        "30 s more than “once” (1 min) takes for a repetition."
    )
    fates = way.page.get_by_role("region", name="Records that were asked for").get_by_role("row")
    expect(fates).to_have_count(1 + 3)
    expect(fates.nth(2)).to_contain_text("30 s")


# ---------------------------------------------------------------- of instances: each on a service of its own


def test_no_cores(tmp_path: Path, migrated_sqlite: bytes, browser: Browser) -> None:
    """The one core of its service has to stay with another job: nobody else's may start there."""
    with no_cores(tmp_path / "cores", migrated_sqlite) as service, opening(service, browser) as open_page:
        way = Way(open_page)
        found = way.finding("no cores", "inc_cores")
        expect(found).to_contain_text("waits for a core: other jobs have all there are")
        way.follow(found, "/jobs/inc_cores")
        way.says("It waits for a core")
        way.follow(way.page.get_by_role("navigation").get_by_role("link", name="Instances"), "/instances")
        way.says("A job waits for a core", "inc_cores: other jobs have all 1")


def test_a_lagging_copy(tmp_path: Path, migrated_sqlite: bytes, forks: ForkServer, browser: Browser) -> None:
    """Of a slot that is stopped, under a lease that outlasts it."""
    with lagging_copy(tmp_path / "copy", migrated_sqlite, forks) as service, opening(service, browser) as open_page:
        way = Way(open_page)
        found = way.finding("copy", "inc_copy")
        expect(found).to_contain_text("the copy of task 0_0 is 401 changes behind")
        way.follow(found, "/jobs/inc_copy/assignment")
        row = way.page.get_by_role("region", name="Tasks by nodes").get_by_role("row").filter(has_text="0_0")
        expect(row).to_contain_text("401 behind")


def test_a_lost_instance(tmp_path: Path, migrated_sqlite: bytes, forks: ForkServer, browser: Browser) -> None:
    """It is killed, under a lease that is short."""
    with lost_instance(tmp_path / "lost", migrated_sqlite, forks) as service, opening(service, browser) as open_page:
        way = Way(open_page)
        found = way.finding("lost", "two")
        expect(found).to_contain_text("the instance was lost")
        way.follow(found, "/instances")
        gone = way.page.get_by_role("region", name="Gone within a day").get_by_role("listitem")
        expect(gone).to_contain_text("two")
        expect(gone).to_contain_text(
            "an instance was lost: it was not heard of for a lease; 1 of its tasks went to others"
        )
        way.click(gone.get_by_role("link", name="inc_lost, round"))
        moved = way.page.get_by_role("list", name="What moved and why").get_by_role("listitem").first
        expect(moved).to_contain_text(re.compile("to one"))


def test_a_lost_executor(tmp_path: Path, migrated_sqlite: bytes, browser: Browser) -> None:
    """Within an instance that goes on: two of its three slots ended, and one of them runs again."""
    with lost_executor(tmp_path / "executor", migrated_sqlite) as service, opening(service, browser) as open_page:
        way = Way(open_page)
        found = way.finding("executor", "one")
        expect(found).to_contain_text("its executor 7 was lost with 2 slots: 1 of them is back")
        way.follow(found, "/instances")
        section = way.page.get_by_role("region", name="one", exact=True)
        said = section.get_by_role("status").filter(has_text="Executor 7 was lost")
        expect(said).to_contain_text("with 2 slots: 1 of them is back. Their tasks are others' until Spark has started")
