"""Lookups over HTTP: how many a second, how long each waits, and how soon a record that was posted can be looked up.

Starts a service that looks into replicas on disk, then one that looks into Redis, and puts both under the same load.
`python -m benchmarks.lookups` prints the figures.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from benchmarks.load import Load, LoadFigures, measure
from benchmarks.running import NDJSON, Running
from tests.services import redis_server

CLIENTS = 32
RATE = 4_000.0  # a second: half of what must be possible
KEYS = 5_000
START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
PARTITIONS = 4

Where = Literal["lmdb", "redis"]


@dataclass(frozen=True)
class Figures:
    """Of one kind of store: lookups by key as fast as they go and at RATE, and POST acknowledged to lookup visible."""

    where: Where
    fastest: LoadFigures
    steady: LoadFigures
    visible_ms: list[float]

    @property
    def visible_p50_ms(self) -> float:
        return statistics.median(self.visible_ms)


def figures(where: Where, *, seconds: float = 5.0, rounds: int = 100) -> Figures:
    """Start a service whose lookups go there, fill a session store, and measure.

    Raises:
        tests.services.RedisMissing: Redis is not installed.
    """
    with ExitStack() as opened:
        scratch = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="millrace-lookups-")))
        environment = {}
        if where == "redis":
            environment["MILLRACE_REDIS_URL"] = opened.enter_context(redis_server())
        running = opened.enter_context(Running(scratch / "data", environment=environment))
        paths = _filled(running)
        headers = {"Authorization": running.client.headers["Authorization"]}
        load = Load(running.url, headers, paths, clients=CLIENTS, seconds=seconds)
        measure(replace(load, seconds=1.0))  # what runs for the first time is slower
        return Figures(
            where,
            fastest=measure(load),
            steady=measure(replace(load, rate=RATE)),
            visible_ms=list(_visible_ms(running, rounds)),
        )


# ---------------------------------------------------------------- what is looked into


def _filled(running: Running) -> list[str]:
    """The paths of all keys of a session store: three sessions each."""
    for name in ("visits", "seen"):
        running.call("POST", "/v1/streams", json={"name": name, "partitions": PARTITIONS})
        running.call("POST", "/v1/jobs", json={"name": name, "source": name, "operators": [_sessions()]})
    records = [_record(f"user-{n}", START_MS + visit * 5 * MINUTE_MS) for visit in range(3) for n in range(KEYS)]
    body = "".join(json.dumps(record) + "\n" for record in records)
    position = running.call(
        "POST", "/v1/streams/visits/records", content=body.encode(), headers={"Content-Type": NDJSON}
    )["position"]
    path = "/v1/stores/visits-s/sessions"
    running.call("GET", path, params={"min_position": position, "timeout_ms": 60_000, "limit": 1})
    assert len(running.call("GET", f"{path}/user-0")["items"]) == 3
    return [f"{path}/user-{n}" for n in range(KEYS)]


def _sessions() -> dict[str, Any]:
    window = {"type": "session", "gap_ms": MINUTE_MS, "grace_ms": MINUTE_MS}
    aggregates = {"n": {"fn": "count"}, "spent": {"fn": "sum", "of": "(value->>'amount')::bigint"}}
    return {"op": "aggregate", "name": "s", "window": window, "aggregates": aggregates}


def _record(key: str, timestamp: int) -> dict[str, Any]:
    return {"key": key, "value": {"amount": 3}, "timestamp": timestamp}


def _visible_ms(running: Running, rounds: int) -> Iterator[float]:
    """From the answer of a POST to the moment its session is found, one record at a time on an idle system."""
    for number in range(rounds + 10):
        key = f"one-{number}"
        records = [_record(key, START_MS + number)]
        running.call("POST", "/v1/streams/seen/records", json={"records": records})
        started = time.perf_counter()
        while not running.call("GET", f"/v1/stores/seen-s/sessions/{key}")["items"]:
            if time.perf_counter() - started > 30:
                raise TimeoutError(f"record {number} was never seen")
        waited = time.perf_counter() - started
        if number >= 10:
            yield 1000 * waited
        time.sleep(0.15)  # idle again: longer than the commit interval


if __name__ == "__main__":
    for where in ("lmdb", "redis"):
        print(figures(where, seconds=3.0, rounds=30))
