"""The 9,999 real web requests, within their partitions and across them: equal to the naive twins."""

from __future__ import annotations

import json
from itertools import chain

import pytest

from benchmarks.running import Running
from tests import naive, naive_repartition, web_log
from tests.driving import Record, caught_up, contents, expected, make_stream, post

pytestmark = pytest.mark.spark

HOUR_MS = 3_600_000
PARTITIONS = 4
BATCHES = [500_000, 137]
ANYWHERE = {"op": "deduplicate", "name": "anywhere", "id": "value->>'path'", "interval_ms": HOUR_MS}
VISITS = {"type": "session", "gap_ms": 600_000, "grace_ms": 0}
COUNT = {"n": {"fn": "count"}}
THREE_STAGES = [
    {"op": "select_key", "key": "value->>'path'"},
    {"op": "aggregate", "name": "visits", "window": VISITS, "aggregates": COUNT},
    {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}},
    {"op": "select_key", "key": "(value->>'n')::bigint"},
    {"op": "aggregate", "name": "sizes", "window": {"type": "tumbling", "size_ms": HOUR_MS}, "aggregates": COUNT},
]
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


@pytest.mark.parametrize(("operators", "count"), [([ANYWHERE], 5_479), (THREE_STAGES, None)], ids=["once", "stages"])
@pytest.mark.parametrize("batch", BATCHES)
def test_records_that_meet_in_other_tasks_do_so_in_the_order_of_time(
    running: Running, requests: list[Record], batch: int, operators: list[Record], count: int | None
) -> None:
    name = f"across-{len(operators)}-{batch}"
    job = {"name": name, "source": "requests", "operators": operators, "sink": name, "max_batch_records": batch}
    running.call("POST", "/v1/jobs", json=job)
    assert caught_up(running, name)["state"] == "running"
    found = sorted(chain.from_iterable(contents(running, name, PARTITIONS)))
    source = [[(None, record) for record in part] for part in naive.partitions_of(requests, PARTITIONS)]
    results = [each.record for each in naive_repartition.run(operators, [source], PARTITIONS)]
    assert found == sorted((str(each["key"]), json.dumps(each["value"]), each["timestamp"]) for each in results)
    assert count in {None, len(found)}
