"""Cases of every conformance family as jobs on Spark, over HTTP: the outputs of the real Kafka Streams, whole and cut.

All jobs of one way run side by side: a stream of one partition for each case, a slot for each job. Every part is cut.
Of each family one is whole: one batch asks nothing of a slot that many do not; tests/conformance has each both ways.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from benchmarks.running import Running
from tests.conformance.given import FAMILIES, promised, sample
from tests.driving import Record, caught_up, in_state, make_stream, outputs, post

pytestmark = pytest.mark.spark

MAX_RECORDS = 100  # of a case: each batch costs a commit
WAYS: dict[str, Record] = {"whole": {}, "cut": {"max_batch_records": 7, "commit_interval_ms": 0}}
POSTS = 5  # of a case that is cut

Outputs = dict[tuple[str, str], list[Record]]


CASES = sample(MAX_RECORDS)
PARTS = {
    "whole": [[part for part in CASES if part.startswith(family)][-1] for family in FAMILIES],
    "cut": list(CASES),
}


@pytest.fixture(scope="module")
def results(running: Running) -> Outputs:
    """(part, way) → what came out."""
    found: Outputs = {}
    with ThreadPoolExecutor(8) as clients:
        list(clients.map(lambda part: make_stream(running, part, 1), CASES))
        _start(running, "cut")
        list(clients.map(lambda part: _post_in_parts(running, part), CASES))
        found |= _finished(running, "cut")
        _start(running, "whole")
        found |= _finished(running, "whole")
    return found


def _post_in_parts(running: Running, part: str) -> None:
    for records in parts_of(CASES[part]["records"], POSTS):
        post(running, part, records)


def parts_of(records: list[Record], count: int) -> Iterator[list[Record]]:
    size = -(-len(records) // count)
    return (records[start : start + size] for start in range(0, len(records), size))


def _start(running: Running, way: str) -> None:
    for part in PARTS[way]:
        name = _job(part, way)
        where = {"name": name, "source": part, "sink": f"{name}-out", "parallelism": 1}
        body = {**CASES[part]["job"], **WAYS[way], **where}
        running.call("POST", "/v1/jobs", json=body)


def _finished(running: Running, way: str) -> Outputs:
    """What every job of this way gave, once it has read all; their slots are given back."""
    found = {}
    for part in PARTS[way]:
        name = _job(part, way)
        assert caught_up(running, name)["state"] == "running"
        found[part, way] = outputs(running, f"{name}-out")
        running.call("POST", f"/v1/jobs/{name}:stop")
    for part in PARTS[way]:
        in_state(running, _job(part, way), "stopped")
    return found


def _job(part: str, way: str) -> str:
    return f"{way}_{part.replace('-', '_')}"


@pytest.mark.parametrize(("part", "way"), [(part, way) for way in WAYS for part in PARTS[way]])
def test_a_job_on_spark_gives_the_outputs(results: Outputs, part: str, way: str) -> None:
    assert results[part, way] == promised(CASES[part])


def test_the_sample_has_every_family_and_is_not_trivial() -> None:
    assert {family for family in FAMILIES if any(part.startswith(family) for part in CASES)} == set(FAMILIES)
    assert all(promised(case) for case in CASES.values())
    assert sum(len(case["records"]) > 50 for case in CASES.values()) > len(CASES) // 2
