"""Single posts over HTTP: how many a second, how long each waits, and how many chunk rows they leave.

Each request carries one record of one key; each answer comes after fsync and commit. Of several short runs the best
counts: what else a machine does makes a run worse, never better. `python -m benchmarks.posts` prints the figures.
"""

from __future__ import annotations

import json
import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from benchmarks.load import Load, LoadFigures, measure
from benchmarks.running import Running

CLIENTS = (64, 8, 1)
RUNS = 3
KEYS = 5_000
START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Posted:
    """What so many clients found in the best run, with or without a job that reads the stream; the processor's time
    that the API took for a post, and the chunk rows that 1,000 of them left.
    """

    clients: int
    with_job: bool
    found: LoadFigures
    cpu_ms: float
    chunk_rows: float


def posted(running: Running, *, seconds: float, clients: Sequence[int] = CLIENTS) -> Iterator[Posted]:
    """Measure against a service, RUNS times `seconds` each; it takes an instance for the half with a job."""
    for with_job in (False, True) if running.instances else (False,):
        stream = f"posts-{'job' if with_job else 'alone'}"
        running.call("POST", "/v1/streams", json={"name": stream, "partitions": 4})
        if with_job:
            _start_job(running, stream)
        load = _load(running, stream)
        measure(replace(load, seconds=1.0))  # what runs for the first time is slower
        for number in clients:
            runs = [_run(running, stream, replace(load, clients=number, seconds=seconds)) for _ in range(RUNS)]
            found, cpu_ms, chunk_rows = max(runs, key=lambda run: run[0].per_second)
            yield Posted(number, with_job, found, cpu_ms, chunk_rows)


def _run(running: Running, stream: str, load: Load) -> tuple[LoadFigures, float, float]:
    """What one run found, the API's processor time a post in ms, and chunk rows for 1,000 posts."""
    rows, cpu_s = _chunk_rows(running, stream), _cpu_s(running)
    found = measure(load)
    rows, cpu_s = _chunk_rows(running, stream) - rows, _cpu_s(running) - cpu_s
    thousands = found.per_second * load.seconds / 1000
    return found, cpu_s / thousands, rows / thousands


def _start_job(running: Running, stream: str) -> None:
    operator = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1}
    body = {"name": "posts_dedup", "source": stream, "operators": [operator], "sink": f"{stream}-out"}
    running.call("POST", "/v1/jobs", json=body)
    running.wait_until_caught_up("posts_dedup")


def _load(running: Running, stream: str) -> Load:
    headers = {"Authorization": running.client.headers["Authorization"], "Content-Type": "application/json"}
    records = [
        {"key": f"user-{n}", "value": {"page": f"/item/{n % 97}", "amount": n % 13}, "timestamp": START_MS + n}
        for n in range(KEYS)
    ]
    bodies = [json.dumps({"records": [record]}) for record in records]
    return Load(running.url, headers, [f"/v1/streams/{stream}/records"] * KEYS, bodies, clients=64)


def _cpu_s(running: Running) -> float:
    """Processor time of the API's process so far."""
    times = psutil.Process(running.process.pid).cpu_times()
    return times.user + times.system


def _chunk_rows(running: Running, stream: str) -> int:
    query = "SELECT count(*) FROM chunks JOIN streams ON streams.id = chunks.stream_id WHERE streams.name = ?"
    with closing(sqlite3.connect(running.data_dir / "catalog.db")) as catalog:
        return int(catalog.execute(query, (stream,)).fetchone()[0])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millrace-posts-") as scratch, Running(Path(scratch) / "data") as service:
        service.wait_for_instances()
        for each in posted(service, seconds=3.0):
            print(each)
