"""`:explain` of a job whose slots run on Spark: what was run again is what they committed, by records of the source."""

from __future__ import annotations

import pytest

from benchmarks.running import Running
from service.streams.partitioner import partition_of_key
from tests import naive_explain
from tests.driving import Record, all_records, caught_up, make_stream, post

pytestmark = pytest.mark.spark

ONCE = {"op": "deduplicate", "name": "once", "id": "value->>'id'", "interval_ms": 30}
PARTITIONS = 2


def test_what_slots_on_spark_let_go_behind_a_repartition_is_what_the_naive_twin_says(running: Running) -> None:
    """Rounds of records, each taken before the next; a round of an earlier time is taken behind what came before."""
    make_stream(running, "explained-in", PARTITIONS)
    job = {"name": "explained", "source": "explained-in", "operators": [ONCE], "sink": "explained-out"}
    running.call("POST", "/v1/jobs", json=job | {"commit_interval_ms": 0})
    writers: list[list[Record]] = [[] for _ in range(PARTITIONS)]
    rounds = []
    for start in (100, 120, 90, 170):
        records = [
            {"key": "ad"[number % 2], "timestamp": start + 3 * number, "value": {"id": f"e{number % 5}"}}
            for number in range(10)
        ]
        post(running, "explained-in", records)
        caught_up(running, "explained")
        for record in records:
            writers[partition_of_key(record["key"].encode(), PARTITIONS)].append(record)
        rounds.append([len(each) for each in writers])
    came = 0
    for target in range(PARTITIONS):
        parts = naive_explain.taken_behind(writers, rounds, _target_of, target)
        taken = [place for part in parts for place in part]
        verdicts = naive_explain.deduplicate(ONCE, [writers[writer][offset] for writer, offset in taken])
        came += sum(each["verdict"] == "in" for each in verdicts)
        for (writer, offset), each in zip(taken, verdicts, strict=True):
            asked = {"partition": writer, "offset": offset}
            found = running.call("GET", "/v1/jobs/explained:explain", params=asked)
            cause = each["cause"]
            if cause is not None:
                place = dict(zip(("partition", "offset"), taken[cause["offset"]], strict=True))
                cause = {**cause, "stream": "explained-in", **place}
            assert {name: found[name] for name in each} == each | {"cause": cause}, asked
    assert came == sum(len(all_records(running, "explained-out", partition)) for partition in range(PARTITIONS))
    assert 0 < came < sum(map(len, writers))


def _target_of(record: Record) -> int:
    return partition_of_key(record["value"]["id"].encode(), PARTITIONS)
