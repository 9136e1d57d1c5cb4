"""`make demo`, with fewer records: what it prints is what the naive twin finds in the same events."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from benchmarks import sample
from tests import naive

pytestmark = pytest.mark.spark

RECORDS = 20_000
PARTITIONS = 4
Record = dict[str, Any]


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """The lines of a run, with single spaces between words."""
    command = [sys.executable, "-m", "benchmarks.demo", "--records", str(RECORDS)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return [" ".join(line.split()) for line in ended.stdout.splitlines()]


@pytest.fixture(scope="module")
def given() -> sample.Sample:
    return sample.sample(RECORDS)


@pytest.fixture(scope="module")
def unique(given: sample.Sample) -> list[list[Record]]:
    """What the first job leaves of each partition."""
    events = [record | {"value": json.loads(record["value"])} for record in given.events.to_pylist()]
    (once,) = sample.jobs(given.rate_per_s)[0]["operators"]
    return [naive.run([once], partition) for partition in naive.partitions_of(events, PARTITIONS)]


@pytest.fixture(scope="module")
def sessions(given: sample.Sample, unique: list[list[Record]]) -> list[Record]:
    naive.EXPRESSIONS.setdefault("(value->>'price')::bigint", naive.field_integer("price"))
    (operator,) = sample.jobs(given.rate_per_s)[1]["operators"]
    return list(last_of_each(naive.run([operator | {"emit": "on_update"}], part) for part in unique))


@pytest.fixture(scope="module")
def minutes(given: sample.Sample, unique: list[list[Record]]) -> list[Record]:
    """Every minute of every market maker, with its last count."""
    _, per_minute, _, _ = sample.jobs(given.rate_per_s)[2]["operators"]
    makers = [[record for record in part if record["key"] in sample.MAKERS] for part in unique]
    return list(last_of_each(naive.run([per_minute], part) for part in makers))


def last_of_each(updates: Iterable[list[Record]]) -> Iterator[Record]:
    """The last update of each window of each key, unless that removes it."""
    last = {
        (update["key"], update["window"]["start"], update["window"]["end"]): update
        for part in updates
        for update in part
    }
    return (update for update in last.values() if update["value"] is not None)


def clock(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%H:%M:%S}"


def row_of(record: Record, *, has_key: bool = True) -> str:
    """A session or a minute as the tables show it."""
    window, value = record["window"], record["value"]
    cells = [record["key"]] if has_key else []
    cells += [clock(window["start"]), clock(window["end"]), f"{value['bids']:,}"]
    return " ".join([*cells, f"{value['highest'] / 100:,.2f}"] if "highest" in value else cells)


def test_repeated_deliveries_are_left_out(printed: list[str], given: sample.Sample, unique: list[list[Record]]) -> None:
    left = sum(map(len, unique))
    repeated = given.events.num_rows - left
    assert repeated > RECORDS * 0.05
    assert f"unique left {left:,} bids; {repeated:,} deliveries were repetitions." in printed


def test_sessions_are_those_of_the_naive_twin(printed: list[str], sessions: list[Record]) -> None:
    bidders = len({session["key"] for session in sessions})
    assert f"bidders found {len(sessions):,} sessions of {bidders:,} bidders. The busiest:" in printed
    busiest = sorted(sessions, key=lambda session: -session["value"]["bids"])[:5]
    first = printed.index("bidder first bid last bid bids highest price") + 1
    assert sorted(printed[first : first + 5]) == sorted(map(row_of, busiest))


def test_an_alert_comes_out_for_each_minute_that_has_too_few_bids_and_no_other(
    printed: list[str], given: sample.Sample, minutes: list[Record]
) -> None:
    too_few = [minute for minute in minutes if minute["value"]["bids"] < given.rate_per_s]
    assert {minute["key"] for minute in too_few} == {sample.SILENT}
    first = printed.index("maker from to bids") + 1
    assert printed[first : first + len(too_few)] == [row_of(minute) for minute in too_few]
    assert printed[first + len(too_few)] == "The minutes around them:"


def test_lookups_show_a_session_first_open_and_others_final(printed: list[str], sessions: list[Record]) -> None:
    of_bidder: dict[str, list[Record]] = {}
    for session in sessions:
        of_bidder.setdefault(session["key"], []).append(session)
    assert f"{row_of(of_bidder[sample.MAKERS[0]][-1], has_key=False)} false" in printed
    call = next(line for line in reversed(printed) if "/v1/stores/bidders-sessions/sessions/" in line)
    shown = sorted(of_bidder[call.rpartition("/")[2]], key=lambda session: session["window"]["end"])
    assert len(shown) == 3
    first = printed.index(call) + 2
    assert printed[first : first + 3] == [f"{row_of(session, has_key=False)} true" for session in shown]


def test_lookups_show_the_minutes_around_the_alerts(printed: list[str], minutes: list[Record]) -> None:
    begins = sample.SILENCE_MS - sample.MINUTE_MS
    around = [minute for minute in minutes if minute["key"] == sample.SILENT and minute["window"]["start"] >= begins]
    first = printed.index("from to bids is_final") + 1
    assert printed[first : first + 4] == [f"{row_of(minute, has_key=False)} true" for minute in around[:4]]


def test_the_demo_compares_its_results_with_a_plain_count(
    printed: list[str], unique: list[list[Record]], sessions: list[Record]
) -> None:
    assert f"{sum(map(len, unique)):,} bids equal" in printed
    assert f"{len(sessions):,} sessions equal" in printed
