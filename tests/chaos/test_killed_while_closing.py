"""SIGKILL in the middle of a flush: every window is closed, once, as if nothing had happened."""

from __future__ import annotations

import pytest

from benchmarks.running import wait_until
from tests import naive
from tests.chaos.conftest import Breakable
from tests.driving import Record, all_records, caught_up, make_stream, post, some_records

pytestmark = pytest.mark.services

VISITS = {
    "op": "aggregate",
    "name": "visits",
    "window": {"type": "session", "gap_ms": 20_000, "grace_ms": 300_000},
    "aggregates": {"n": {"fn": "count"}},
    "emit": "on_window_close",
}

STAGES = [
    {"op": "select_key", "key": "value->>'id'"},
    VISITS,
    {"op": "select_key", "key": "(value->>'n')::bigint"},
    {
        "op": "aggregate",
        "name": "sizes",
        "window": {"type": "tumbling", "size_ms": 60_000, "grace_ms": 3_600_000},
        "aggregates": {"visits": {"fn": "count"}},
        "emit": "on_window_close",
    },
]


@pytest.mark.parametrize("point", ["segment.after_write", "commit.after", "replay.middle"])
def test_a_kill_in_the_middle_of_a_flush_closes_every_window_once(breakable: Breakable, point: str) -> None:
    records = some_records(3_000)
    running = breakable.running
    make_stream(running, "clicks", 1)
    job = {"name": "visits", "source": "clicks", "operators": [VISITS], "sink": "finals", "commit_interval_ms": 0}
    running.call("POST", "/v1/jobs", json=job)
    post(running, "clicks", records)
    caught_up(running, "visits")
    before = len(all_records(running, "finals", 0))
    breakable.arm(point, 0)
    running.call("POST", "/v1/jobs/visits:flush")
    breakable.wait_for_fault(point)
    if point.startswith("commit"):
        breakable.restart_when_dead()
    wait_until(lambda: running.call("GET", "/v1/jobs/visits?wait=caught_up")["caught_up"], "the flush")
    finals = all_records(running, "finals", 0)
    shown = [{name: final[name] for name in ("key", "window", "value", "timestamp")} for final in finals]
    everything = {"key": "last", "value": {}, "timestamp": 10**15}
    expected = naive.run([VISITS], [*records, everything])
    assert 0 < before < len(finals) == len(expected)
    assert shown == expected
    assert {final["headers"]["millrace-closed-by"] for final in finals} == {"stream_time", "flush"}


def test_kills_between_the_stages_of_a_flush_close_every_window_once(breakable: Breakable) -> None:
    """Before the second stage begins, in the transaction that begins the third, and behind it."""
    partitions, running = 2, breakable.running
    records = [{**each, "partition": naive.partition_of(each["key"], partitions)} for each in some_records(600)]
    expected = running.call(
        "POST", "/v1/jobs:simulate", json={"job": {"operators": STAGES}, "records": records, "advance_to": 10**15}
    )
    make_stream(running, "clicks", partitions)
    post(running, "clicks", records)
    job = {"name": "sizes", "source": "clicks", "operators": STAGES, "sink": "sizes-out", "commit_interval_ms": 0}
    running.call("POST", "/v1/jobs", json=job)
    caught_up(running, "sizes")
    breakable.arm("flush.before_stage", 0)
    breakable.arm("flush.in_stage", 1)
    running.call("POST", "/v1/jobs/sizes:flush")
    for point in ("flush.before_stage", "flush.in_stage", "commit.before"):
        breakable.wait_for_fault(point)
        if point == "flush.in_stage":  # whoever commits next is at the third stage
            breakable.arm("commit.before", 0)
        breakable.restart_when_dead()
    wait_until(lambda: caught_up(running, "sizes")["caught_up"], "the flush")
    finals = [final for partition in range(partitions) for final in all_records(running, "sizes-out", partition)]
    assert sorted(map(shown, finals)) == sorted(map(shown, expected["outputs"]))
    assert finals


def shown(final: Record) -> tuple[str, int, int]:
    return final["key"], final["window"]["start"], final["value"]["visits"]
