"""`make bench`: what Millrace does in a second, and how often that is what a peer does, in one run on one machine.

Prints a Markdown table and writes the same as JSON (`benchmarks/results.json`). Runs of Millrace and of its peer
alternate; the ratio is that of their medians. All invariants are on: fsync, changelog, HTTP commit, replay.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.events import Workload, arrow_stream, bids, ndjson
from benchmarks.running import ARROW, NDJSON, Running

INTERVAL_MS = 60_000
CORES = 2


@dataclass(frozen=True)
class Row:
    """One line of the table. `figure` is in `unit`; `ratio` is against `peer`, where there is one."""

    measure: str
    figure: float
    unit: str
    conditions: str
    peer: str = ""
    peer_figure: float | None = None
    ratio: float | None = None
    bar: str = ""


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer records and runs: under three minutes")
    arguments.add_argument("--records", type=int, help="deliveries of the stateful rows (8,000,000; quick: 2,000,000)")
    given = arguments.parse_args()
    quick = given.quick
    workload = Workload(given.records or (2_000_000 if quick else 8_000_000))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as scratch:
        events = bids(workload)
        for row in _rows(events, Path(scratch), runs=1 if quick else 3):
            rows.append(row)
            print(f"  measured: {row.measure}", file=sys.stderr)
    _print(rows, workload)
    return 0


def _rows(events: pa.Table, scratch: Path, runs: int) -> Iterator[Row]:
    with Running(scratch / "data", cores=CORES) as running:
        running.wait_for_instances()
        for name in ("bids", "ndjson", "arrow", "idle"):
            running.call("POST", "/v1/streams", json={"name": name, "partitions": 4})
        yield _ingest(running, events.slice(0, 2_000_000), "ndjson", NDJSON, ndjson, "≥ 300,000")
        yield _ingest(running, events.slice(0, 4_000_000), "arrow", ARROW, arrow_stream, "≥ 2,000,000")
        yield from _latency(running)
        _post(running, events, "bids", ARROW, arrow_stream, 200_000)
        yield _deduplicate(running, events, scratch, runs)


def _ingest(
    running: Running, events: pa.Table, stream: str, media: str, encode: Callable[[pa.Table], bytes], bar: str
) -> Row:
    seconds = _post(running, events, stream, media, encode, 100_000)
    conditions = f"{events.num_rows:,} records, bodies of 100,000, two keep-alive clients, fsync before the answer"
    return Row(f"ingest over HTTP, {stream}", events.num_rows / seconds, "rec/s", conditions, bar=bar)


def _post(
    running: Running,
    events: pa.Table,
    stream: str,
    media: str,
    encode: Callable[[pa.Table], bytes],
    body_records: int,
) -> float:
    """Seconds of posting alone; the bodies are made before."""
    bodies = [encode(events.slice(start, body_records)) for start in range(0, events.num_rows, body_records)]
    path, headers = f"/v1/streams/{stream}/records", {"Content-Type": media}
    started = time.monotonic()
    with ThreadPoolExecutor(2) as clients:
        list(clients.map(lambda body: running.call("POST", path, content=body, headers=headers), bodies))
    return time.monotonic() - started


def _latency(running: Running, rounds: int = 100) -> Iterator[Row]:
    """From the answer of a POST to the moment its output can be read, one record at a time on an idle system."""
    _start_job(running, "idle_dedup", "idle", "idle-out")
    waits = [_visible_after_ms(running, number) for number in range(rounds + 10)][10:]
    deciles = statistics.quantiles(waits, n=100)
    conditions = f"{rounds} single records, one job, idle system, reader asks without pause"
    yield Row("POST acknowledged to output readable, p50", deciles[49], "ms", conditions, bar="≤ 60")
    yield Row("POST acknowledged to output readable, p99", deciles[98], "ms", conditions, bar="≤ 250")
    running.call("POST", "/v1/jobs/idle_dedup:stop")


def _visible_after_ms(running: Running, number: int) -> float:
    record = {"key": f"k{number}", "value": {"n": number}, "timestamp": 1_700_000_000_000 + number, "partition": 0}
    running.call("POST", "/v1/streams/idle/records", json={"records": [record]})
    started = time.monotonic()
    while not _read_one(running, f"k{number}"):
        if time.monotonic() - started > 30:
            raise TimeoutError(f"record {number} never came out")
    elapsed = time.monotonic() - started
    time.sleep(0.15)  # idle again: longer than the commit interval
    return elapsed * 1000


def _read_one(running: Running, key: str) -> bool:
    partitions = running.call("GET", "/v1/streams/idle-out")["partitions"]
    last = [(p["partition"], p["end_offset"] - 1) for p in partitions if p["end_offset"] > 0]
    for partition, offset in last:
        where = {"partition": partition, "from_offset": offset, "limit": 1}
        records = running.call("GET", "/v1/streams/idle-out/records", params=where)["records"]
        if records and records[0]["key"] == key:
            return True
    return False


def _deduplicate(running: Running, events: pa.Table, scratch: Path, runs: int) -> Row:
    source = scratch / "parquet"
    _write_parquet(events, source, files=16)
    ours, theirs = [], []
    for run in range(runs + 1):  # the first of ours warms the page cache and is not counted
        seconds = _dedup_seconds(running, f"dedup_{run}")
        if run:
            ours.append(seconds)
            theirs.append(_peer_seconds(source))
    count = events.num_rows
    figure, peer = count / statistics.median(ours), count / statistics.median(theirs)
    conditions = (
        f"{count:,} records, 4 partitions, zipf 1.2 over 500 k keys, interval {INTERVAL_MS // 1000} s, {CORES} cores, "
        f"median of {runs} alternating runs: {_seconds(ours)} against {_seconds(theirs)}"
    )
    return Row(
        "dedup by key, stream to stream, POST of the job to caught up",
        figure,
        "rec/s",
        conditions,
        "Spark dropDuplicatesWithinWatermark",
        peer,
        figure / peer,
        "≥ 4×",
    )


def _seconds(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) + " s"


def _start_job(running: Running, name: str, source: str, sink: str) -> None:
    operator = {"op": "deduplicate_by_key", "name": "once", "interval_ms": INTERVAL_MS}
    running.call("POST", "/v1/jobs", json={"name": name, "source": source, "operators": [operator], "sink": sink})


def _dedup_seconds(running: Running, name: str) -> float:
    started = time.monotonic()
    _start_job(running, name, "bids", f"{name.replace('_', '-')}-out")
    job = running.call("GET", f"/v1/jobs/{name}?wait=caught_up&timeout_ms=60000")
    seconds = time.monotonic() - started
    if any(position["lag"] for position in job["positions"]):
        raise SystemExit(f"{name} did not catch up: {job}")
    running.call("POST", f"/v1/jobs/{name}:stop")
    return seconds


def _write_parquet(events: pa.Table, folder: Path, files: int) -> None:
    folder.mkdir()
    size = -(-events.num_rows // files)
    for number in range(files):
        pq.write_table(events.slice(number * size, size), folder / f"{number:04}.parquet")


def _peer_seconds(source: Path) -> float:
    command = [sys.executable, "-m", "benchmarks.spark_peer", str(source), str(CORES), str(INTERVAL_MS // 1000), "4"]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return float(json.loads(answer.stdout.splitlines()[-1])["seconds"])


def _print(rows: list[Row], workload: Workload) -> None:
    machine = (
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"
    )
    print(f"\nConditions: {machine}; workload {workload}; all invariants on.\n")
    print("| measure | figure | peer | ratio | bar | conditions |\n|---|---|---|---|---|---|")
    for row in rows:
        peer = f"{row.peer}: {row.peer_figure:,.0f} {row.unit}" if row.peer_figure is not None else ""
        ratio = f"{row.ratio:.1f}×" if row.ratio is not None else ""
        print(f"| {row.measure} | {row.figure:,.0f} {row.unit} | {peer} | {ratio} | {row.bar} | {row.conditions} |")
    results = {"machine": machine, "workload": asdict(workload), "rows": [asdict(row) for row in rows]}
    Path(__file__).with_name("results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main())
