"""The 9,999 real web requests, deduplicated by (key, path) within an hour: equal to the naive twin, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.running import Running
from tests import web_log
from tests.driving import Record, caught_up, contents, expected, make_stream, post

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

HOUR_MS = 3_600_000
PARTITIONS = 4


@pytest.fixture(scope="module")
def requests() -> list[Record]:
    return web_log.requests()


@pytest.mark.parametrize("batch", [500_000, 137])
def test_real_requests_come_out_once_an_hour_in_the_order_of_the_naive_twin(
    tmp_path: Path, requests: list[Record], batch: int
) -> None:
    once = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'path'", "interval_ms": HOUR_MS}
    job = {"name": "paths", "source": "requests", "operators": [once], "sink": "once", "max_batch_records": batch}
    with Running(tmp_path / "data") as running:
        make_stream(running, "requests", PARTITIONS)
        post(running, "requests", requests)
        running.call("POST", "/v1/jobs", json=job)
        assert caught_up(running, "paths")["state"] == "running"
        found = contents(running, "once", PARTITIONS)
    assert found == expected(requests, PARTITIONS, **once)
    assert sum(map(len, found)) < len(requests)
