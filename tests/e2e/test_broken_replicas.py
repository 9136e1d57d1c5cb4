"""A replica's file is cut short under a real `millrace up`: a 503 and a restore, and nobody dies of it."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.running import Running, wait_until
from tests.attached import are_gone
from tests.driving import caught_up, make_stream, post

pytestmark = pytest.mark.spark

KEYS = [f"user-{n}" for n in range(2_000)]
COUNT = {"op": "aggregate", "name": "k", "aggregates": {"n": {"fn": "count"}}}


def counted(running: Running, key: str) -> httpx.Response:
    return running.client.get(f"/v1/stores/counted-k/keys/{key}")


def is_restored(running: Running) -> bool:
    answers = [counted(running, key) for key in (KEYS[0], KEYS[-1])]
    assert {answer.status_code for answer in answers} <= {200, 503}
    return all(answer.status_code == 200 and answer.json()["items"] for answer in answers)


def those_with(running: Running, replica: Path) -> list[psutil.Process]:
    """The service, its instance and the Python worker that has the replica open, none of which may end."""
    service = psutil.Process(running.process.pid)
    workers = [each for each in service.children(recursive=True) if each.name().startswith("python")]  # no ended shells
    slots = [each for each in workers if str(replica) in {file.path for file in each.memory_maps()}]
    assert slots
    return [service, *service.children(), *slots]


def test_a_file_that_is_cut_short_costs_a_503_and_a_restore(running: Running, replicas: Path) -> None:
    """Its slot finds out with the next record; and once more with nothing to do, when its poll ends (after 10 s)."""
    others = set(replicas.rglob("data.mdb"))
    make_stream(running, "visited", 1)
    running.call("POST", "/v1/jobs", json={"name": "counted", "source": "visited", "operators": [COUNT]})
    records = [{"key": key, "value": {}, "timestamp": 1_700_000_000_000} for key in KEYS]
    post(running, "visited", records)
    caught_up(running, "counted")
    wait_until(lambda: is_restored(running), "the first lookup")
    (replica,) = set(replicas.rglob("data.mdb")) - others
    before = those_with(running, replica)
    for kept, next_records in ((0.0, records[:1]), (0.5, [])):
        (replica,) = set(replicas.rglob("data.mdb")) - others
        os.truncate(replica, int(kept * replica.stat().st_size))
        answer = counted(running, KEYS[-1])
        assert (answer.status_code, answer.json()["code"]) == (503, "store_not_readable")
        assert answer.headers["Retry-After"]
        if next_records:
            post(running, "visited", next_records)
        wait_until(lambda: is_restored(running), "the restore")
    post(running, "visited", records[:1])
    caught_up(running, "counted")
    wait_until(lambda: counted(running, KEYS[0]).json()["items"][0]["value"] == {"n": 3}, "the last record")
    assert [each for each in before if are_gone([each])] == []
