"""What standbys cost: a job with one standby a task beside the same job without, in turn, in one run.

`python -m benchmarks.standby_cost [RECORDS]` starts a service and two instances (Spark, `local[1]`), each on a node of
its own, and prints a line for each pair of runs and the ratio of their medians. A run in which not every task has its
standby is no figure.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from benchmarks.events import Workload, arrow_stream, bids
from benchmarks.report import Measurement
from benchmarks.running import ARROW, Running, clean_environment, wait_until

PAIRS: Final = 3
PARTITIONS: Final = 4
RECORDS: Final = 2_000_000
POST_RECORDS: Final = 200_000
DEDUPLICATE: Final = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000}


def main() -> None:
    """Measure, and print."""
    for row in rows(int(sys.argv[1]) if len(sys.argv) > 1 else RECORDS):
        print(f"{row.measure}: {row.figure:.2f} (bar: {row.bar}; {row.conditions})")


def rows(records: int = RECORDS) -> Iterator[Measurement]:
    """Measure, print each pair; the figure."""
    without, with_one = [], []
    with (
        tempfile.TemporaryDirectory() as scratch,
        Running(Path(scratch, "data"), instances=0) as running,
        ExitStack() as up,
    ):
        for name in ("one", "two"):
            up.enter_context(_instance(running, Path(scratch), name))
        running.call("POST", "/v1/streams", json={"name": "bids", "partitions": PARTITIONS})
        events = bids(Workload(records))
        for start in range(0, records, POST_RECORDS):
            body = arrow_stream(events.slice(start, POST_RECORDS))
            running.call("POST", "/v1/streams/bids/records", content=body, headers={"Content-Type": ARROW})
        wait_until(lambda: _live(running) == 2, "two live instances")
        _seconds(running, "warming", 0)
        for pair in range(PAIRS):
            without.append(_seconds(running, f"without-{pair}", 0))
            with_one.append(_seconds(running, f"with-{pair}", 1))
            print(
                f"without {records / without[-1]:,.0f} rec/s, with one standby {records / with_one[-1]:,.0f} rec/s",
                file=sys.stderr,
            )
    medians = [statistics.median(seconds) for seconds in (without, with_one)]
    rates = " and ".join(f"{records / each:,.0f} rec/s" for each in medians)
    conditions = f"{records:,} records, {PAIRS} pairs in turn, medians of {rates}; two instances of one core; "
    conditions += f"load of the machine {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    measure = "throughput with one standby a task to that without"
    yield Measurement(measure, medians[0] / medians[1], "×", conditions, bar="≥ 0.75")


@contextmanager
def _instance(running: Running, scratch: Path, name: str) -> Iterator[None]:
    key = running.call("POST", "/v1/tokens", json={"role": "instance", "name": name})["key"]
    environment = clean_environment({"MILLRACE_API_KEY": key, "MILLRACE_REPLICA_DIR": str(scratch / name)})
    command = [sys.executable, "-m", "spark_jobs.instance", "--api", running.url, "--name", name]
    with Path(scratch, f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*command, "--spark-master", "local[1]"], env=environment, stdout=log, stderr=log)
    try:
        yield
    finally:
        process.terminate()
        process.wait(60)


def _live(running: Running) -> int:
    return sum(found["state"] == "live" for found in running.call("GET", "/v1/instances")["items"])


def _seconds(running: Running, name: str, standbys: int) -> float:
    """From the POST of the job until it has read everything."""
    job = {"name": name, "source": "bids", "operators": [DEDUPLICATE], "sink": f"{name}-out"}
    started = time.monotonic()
    running.call("POST", "/v1/jobs", json=job | {"standby_replicas": standbys})
    running.wait_until_caught_up(name)
    seconds = time.monotonic() - started
    if _standbys(running, name) != standbys * PARTITIONS:
        raise SystemExit(f"{name} has {_standbys(running, name)} standbys")
    running.call("POST", f"/v1/jobs/{name}:stop", params={"wait": "stopped"})
    running.call("DELETE", f"/v1/jobs/{name}")
    return seconds


def _standbys(running: Running, job: str) -> int:
    lines = running.client.get("/metrics").text.splitlines()
    copies = [line for line in lines if line.startswith("millrace_copy_lag_records{") and 'role="standby"' in line]
    return sum(f'job="{job}"' in line for line in copies)


if __name__ == "__main__":
    main()
