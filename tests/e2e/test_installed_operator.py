"""An operator that is installed beside Millrace, that of docs/installed-operators.md, runs on Spark as others do:
service, instance and workers find the package, for each is started with the same path.
"""

from __future__ import annotations

import pytest

from benchmarks.running import Running
from tests.driving import Record, caught_up, make_stream, outputs, post

pytestmark = pytest.mark.spark

OPERATORS = [
    {"op": "sample", "name": "third", "every": 3},
    {"op": "aggregate", "name": "total", "aggregates": {"n": {"fn": "count"}}},
]
RECORDS: list[Record] = [{"key": f"k{at % 4}", "value": {"n": at}, "timestamp": at} for at in range(40)]


def test_a_job_runs_it_and_lookups_and_metrics_know_it(running: Running) -> None:
    make_stream(running, "in", 1)
    body = {"name": "toy", "source": "in", "operators": OPERATORS, "sink": "out", "max_batch_records": 7}
    running.call("POST", "/v1/jobs", json=body)
    for at in range(0, len(RECORDS), 10):
        post(running, "in", RECORDS[at : at + 10])
    assert caught_up(running, "toy")["state"] == "running"
    simulated = running.call("POST", "/v1/jobs:simulate", json={"job": body, "records": RECORDS})
    expected = [{name: each[name] for name in ("key", "window", "value", "timestamp")} for each in simulated["outputs"]]
    assert len(expected) == 4 * 3
    assert outputs(running, "out") == expected
    found = running.call("GET", "/v1/stores/toy-third/keys/k1")["items"]
    assert [(item["key"], item["value"]) for item in found] == [("k1", {"seen": 10})]
    measured = running.call("GET", "/v1/jobs/toy/metrics")
    assert measured["operators"]["third"]["sample_let_through_total"] == 12
    assert measured["dropped"]["third"] == {"not_sampled": 28}
