"""SIGKILL around the commits of a job across partitions: each record goes on once, in the order of time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from tests import naive, naive_repartition, web_log
from tests.chaos.conftest import Breakable
from tests.driving import all_records, caught_up, make_stream, post

pytestmark = pytest.mark.services

PARTITIONS = 4
BY_PATH = {"op": "deduplicate", "name": "once", "id": "value->>'path'", "interval_ms": 3_600_000}
IN_A_SLOT = {"segment.before_write": 3, "segment.after_write": 9, "replay.middle": 6}
IN_THE_API = {"commit.before": 8, "commit.after": 12}


def test_kills_at_every_point_change_nothing_of_what_comes_out_of_a_repartition(breakable: Breakable) -> None:
    records, running = web_log.requests()[:4_000], breakable.running
    make_stream(running, "requests", PARTITIONS)
    make_stream(running, "paths", PARTITIONS)
    post(running, "requests", records)
    job = {"name": "paths", "source": "requests", "operators": [BY_PATH], "sink": "paths", "max_batch_records": 50}
    for point, passes in {**IN_A_SLOT, **IN_THE_API}.items():
        breakable.arm(point, passes)
    running.call("POST", "/v1/jobs", json=job)
    for point in IN_THE_API:
        breakable.wait_for_fault(point)
        breakable.restart_when_dead()
    for point in IN_A_SLOT:
        breakable.wait_for_fault(point)
    assert caught_up(running, "paths")["state"] == "running"
    found: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for partition in range(PARTITIONS):
        for record in all_records(running, "paths", partition):
            task = naive.partition_of(record["value"]["path"], PARTITIONS)
            found[task, partition].append((record["key"], record["value"], record["timestamp"]))
    expected: dict[tuple[int, int], list[Any]] = defaultdict(list)
    logs = [list(enumerate(log)) for log in naive.partitions_of(records, PARTITIONS)]
    for task, partition, _, record in naive_repartition.run([BY_PATH], [logs], PARTITIONS):
        expected[task, partition].append((record["key"], record["value"], record["timestamp"]))
    assert found == expected
