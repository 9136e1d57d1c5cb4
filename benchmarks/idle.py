"""What jobs that have nothing to do cost: processor time of the API, and statements to its catalog.

`python -m benchmarks.idle [JOBS]` starts a service on SQLite with one embedded instance and so many jobs of PARTITIONS
tasks, waits until they are idle, and measures for SECONDS. Statements are counted where SQLite gets them, in the API's
process: every query, and what begins and ends transactions.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.report import Measurement
from benchmarks.running import NDJSON, Running

JOBS: Final = 20
PARTITIONS: Final = 4
CALM_S, SECONDS = 20.0, 30.0
OPERATOR: Final[dict[str, Any]] = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}
# Python runs it when it starts. The file says how many there were so far; reading the counter adds one.
COUNTING: Final = """
import itertools, os, pathlib, sqlite3, sys, threading, time

if {"service.cli", "up"} <= set(sys.orig_argv):
    numbers, connect = itertools.count(), sqlite3.connect
    file = pathlib.Path(os.environ["STATEMENTS_FILE"])

    def counted(*arguments, **named):
        connection = connect(*arguments, **named)
        connection.set_trace_callback(lambda _statement: next(numbers))
        return connection

    def note():
        while True:
            file.with_suffix(".new").write_text(f"{next(numbers)}")
            file.with_suffix(".new").replace(file)
            time.sleep(0.5)

    sqlite3.connect = sqlite3.dbapi2.connect = counted
    threading.Thread(target=note, daemon=True).start()
"""


def main() -> None:
    """Measure, and print."""
    for row in rows(int(sys.argv[1]) if len(sys.argv) > 1 else JOBS):
        print(f"{row.measure}: {row.figure:.1f} {row.unit} (bar: {row.bar}; {row.conditions})")


def rows(jobs: int = JOBS) -> Iterator[Measurement]:
    """Start the jobs, wait until they are idle, measure."""
    with tempfile.TemporaryDirectory() as scratch:
        counted = Path(scratch, "statements")
        with Running(Path(scratch, "data"), environment=_counting(Path(scratch), counted)) as running:
            slots = _start(running, jobs)
            time.sleep(CALM_S)  # leases are renewed, what was answered is looked at again: as it goes on from here
            began_s, cpu_s, before = time.monotonic(), _cpu_s(running), int(counted.read_text())
            time.sleep(SECONDS)
            took_s, cpu_s = time.monotonic() - began_s, _cpu_s(running) - cpu_s
            statements = int(counted.read_text()) - before
    conditions = f"{jobs} jobs of {PARTITIONS} tasks, {slots} slots on one instance, {took_s:.0f} s; "
    conditions += f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    yield Measurement(f"processor of the API with {jobs} idle jobs", 100 * cpu_s / took_s, "%", conditions, bar="≤ 5")
    measure = f"statements to the catalog with {jobs} idle jobs"
    yield Measurement(measure, statements / took_s, "/s", conditions, bar="≤ 60")


def _counting(scratch: Path, file: Path) -> dict[str, str]:
    site = scratch / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(COUNTING)
    return {"PYTHONPATH": os.pathsep.join([str(site), os.getcwd()]), "STATEMENTS_FILE": str(file)}


def _start(running: Running, jobs: int) -> int:
    """Jobs that have read what there is; how many slots they have."""
    running.wait_for_instances()
    running.call("POST", "/v1/streams", json={"name": "s", "partitions": PARTITIONS})
    names = [f"idle-{number:03}" for number in range(jobs)]
    for name in names:
        body = {"name": name, "source": "s", "operators": [OPERATOR], "sink": f"{name}-out"}
        running.call("POST", "/v1/jobs", json=body)
    record = b'{"key":"a","value":1,"timestamp":1000}\n'
    running.call("POST", "/v1/streams/s/records", content=record, headers={"Content-Type": NDJSON})
    for name in names:
        running.wait_until_caught_up(name)
    return sum(len(instance["slots"]) for instance in running.call("GET", "/v1/instances")["items"])


def _cpu_s(running: Running) -> float:
    times = psutil.Process(running.process.pid).cpu_times()
    return float(times.user + times.system)


if __name__ == "__main__":
    main()
