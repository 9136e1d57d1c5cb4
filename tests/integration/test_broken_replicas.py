"""A replica's file is cut short under a real `millrace up`: a 503 and a restore, and nobody dies of it."""

from __future__ import annotations

import os
from pathlib import Path

import httpx
import psutil
import pytest

from benchmarks.running import Running, wait_until
from tests.driving import caught_up, make_stream, post

pytestmark = [pytest.mark.services, pytest.mark.timeout(300)]

KEYS = [f"user-{n}" for n in range(2_000)]
COUNT = {"op": "aggregate", "name": "k", "aggregates": {"n": {"fn": "count"}}}


def counted(running: Running, key: str) -> httpx.Response:
    return running.client.get(f"/v1/stores/visits-k/keys/{key}")


def is_restored(running: Running) -> bool:
    answers = [counted(running, key) for key in (KEYS[0], KEYS[-1])]
    assert {answer.status_code for answer in answers} <= {200, 503}
    return all(answer.status_code == 200 and answer.json()["items"] for answer in answers)


def alive(running: Running) -> list[psutil.Process]:
    """The service, its instance and the Python workers, none of which may end."""
    process = psutil.Process(running.process.pid)
    return [process, *(each for each in process.children(recursive=True) if each.name() != "java")]


def test_a_file_that_is_cut_short_costs_a_503_and_a_restore(tmp_path: Path) -> None:
    """Once more with nothing to do: no record has to come for its slot to find out."""
    with Running(tmp_path / "data") as running:
        make_stream(running, "clicks", 1)
        running.call("POST", "/v1/jobs", json={"name": "visits", "source": "clicks", "operators": [COUNT]})
        records = [{"key": key, "value": {}, "timestamp": 1_700_000_000_000} for key in KEYS]
        post(running, "clicks", records)
        caught_up(running, "visits", 180)
        wait_until(lambda: is_restored(running), 30, "the first lookup")
        before = alive(running)
        for kept in (0.0, 0.5):
            (data,) = (tmp_path / "data" / "replicas").rglob("data.mdb")
            os.truncate(data, int(kept * data.stat().st_size))
            answer = counted(running, KEYS[-1])
            assert (answer.status_code, answer.json()["code"]) == (503, "store_not_readable")
            assert answer.headers["Retry-After"]
            wait_until(lambda: is_restored(running), 60, "the restore")
        post(running, "clicks", records[:1])
        caught_up(running, "visits", 180)
        wait_until(lambda: counted(running, KEYS[0]).json()["items"][0]["value"] == {"n": 2}, 30, "the last record")
        assert [each for each in before if not each.is_running()] == []
