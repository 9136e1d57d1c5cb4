"""The 9,999 real web requests, deduplicated by (key, path) within an hour: equal to the naive twin, in order."""

from __future__ import annotations

import pytest

from benchmarks.running import Running
from tests import web_log
from tests.driving import Record, caught_up, contents, expected, make_stream, post

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
PARTITIONS = 4
BATCHES = [500_000, 137]
ONCE = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'path'", "interval_ms": HOUR_MS}


@pytest.fixture(scope="module")
def requests(running: Running) -> list[Record]:
    """The records of the stream `requests`."""
    records = web_log.requests()
    make_stream(running, "requests", PARTITIONS)
    post(running, "requests", records)
    return records


@pytest.mark.parametrize("batch", BATCHES)
def test_real_requests_come_out_once_an_hour_in_the_order_of_the_naive_twin(
    running: Running, requests: list[Record], batch: int
) -> None:
    name, sink = f"paths_{batch}", f"once-{batch}"
    job = {"name": name, "source": "requests", "operators": [ONCE], "sink": sink, "max_batch_records": batch}
    running.call("POST", "/v1/jobs", json=job)
    assert caught_up(running, name)["state"] == "running"
    found = contents(running, sink, PARTITIONS)
    assert found == expected(requests, PARTITIONS, **ONCE)
    assert sum(map(len, found)) < len(requests)
