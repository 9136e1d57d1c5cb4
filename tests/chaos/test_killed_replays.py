"""SIGKILL in the middle of a replay: each dropped record comes out once, as if nothing had happened."""

from __future__ import annotations

import pytest

from benchmarks.running import wait_until
from tests.chaos.conftest import Breakable
from tests.driving import all_records, caught_up, make_stream, post

pytestmark = pytest.mark.services

MAX, COUNT = 2**63 - 1, 200
TOTAL = {"op": "aggregate", "name": "total", "aggregates": {"sum": {"fn": "sum", "of": "(value->>'v')::bigint"}}}


@pytest.mark.parametrize("point", ["segment.after_write", "commit.before", "commit.after", "replay.middle"])
def test_a_kill_in_the_middle_of_a_replay_feeds_each_record_once(breakable: Breakable, point: str) -> None:
    running = breakable.running
    make_stream(running, "in", 1)
    job = {"name": "sums", "source": "in", "operators": [TOTAL], "sink": "out", "on_error": "dead_letter"}
    running.call("POST", "/v1/jobs", json=job | {"commit_interval_ms": 0, "max_batch_records": 40})
    values = [MAX, *[1] * COUNT, -COUNT]
    post(running, "in", [{"key": "k", "value": {"v": v}, "timestamp": i} for i, v in enumerate(values)])
    caught_up(running, "sums")
    assert len(all_records(running, "out", 0)) == 2
    breakable.arm(point, 1)
    running.call("POST", "/v1/jobs/sums/dropped:replay", json={"reason": ["integer_overflow"]})
    breakable.wait_for_fault(point)
    if point.startswith("commit"):
        breakable.restart_when_dead()
    wait_until(lambda: running.call("GET", "/v1/jobs/sums?wait=caught_up")["caught_up"], "the replay")
    sums = [record["value"]["sum"] for record in all_records(running, "out", 0)]
    assert sums == [MAX, MAX - COUNT, *range(MAX - COUNT + 1, MAX + 1)]
