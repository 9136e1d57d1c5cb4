"""SIGKILL in the middle of a flush: every window is closed, once, as if nothing had happened."""

from __future__ import annotations

import pytest

from benchmarks.running import PATIENCE_S, wait_until
from tests import naive
from tests.chaos.conftest import Breakable
from tests.driving import all_records, caught_up, make_stream, post, some_records

pytestmark = pytest.mark.services

VISITS = {
    "op": "aggregate",
    "name": "visits",
    "window": {"type": "session", "gap_ms": 20_000, "grace_ms": 300_000},
    "aggregates": {"n": {"fn": "count"}},
    "emit": "on_window_close",
}


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
    wait_until(lambda: running.call("GET", "/v1/jobs/visits?wait=caught_up")["caught_up"], PATIENCE_S, "the flush")
    finals = all_records(running, "finals", 0)
    shown = [{name: final[name] for name in ("key", "window", "value", "timestamp")} for final in finals]
    everything = {"key": "last", "value": {}, "timestamp": 10**15}
    expected = naive.run([VISITS], [*records, everything])
    assert 0 < before < len(finals) == len(expected)
    assert shown == expected
    assert {final["headers"]["millrace-closed-by"] for final in finals} == {"stream_time", "flush"}
