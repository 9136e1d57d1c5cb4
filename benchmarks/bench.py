"""`make bench`: what Millrace does in a second, and how often that is what a peer does, in one run on one machine.

Prints a Markdown table and writes the same as JSON (`benchmarks/results.json`), of which `benchmarks.report` makes the
figures of the README. All invariants are on: fsync, changelog, HTTP commit, replay. Rows come from here (ingest, waits
for output), from `contests` (against Spark), `catalog_rows`, `posts`, `lookups`, `tails`, `standby_cost`,
`failover`, `idle` and `dashboard`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import dashboard, failover, idle, standby_cost
from benchmarks.catalog_rows import TASKS, wide_commits
from benchmarks.contests import PARTITIONS, SOURCE, contests, with_closing
from benchmarks.events import Workload, arrow_stream, bids, ndjson
from benchmarks.load import GENERATOR
from benchmarks.lookups import CLIENTS, RATE, Figures, figures
from benchmarks.posts import RUNS as POST_RUNS
from benchmarks.posts import Posted, posted
from benchmarks.report import Measurement, report
from benchmarks.running import ARROW, NDJSON, Running
from benchmarks.tails import TailFigures, cases
from service.streams.partitioner import partition_of_key

CORES = 2
INGEST_RUNS = 3
READ_WAIT_MS = 5_000
INGEST_CLIENTS = 4  # while one waits for its fsync, others are read and checked
SERVED = ("waits", "ingest", "posts", "contests", "rows")  # by one service
PARTS = (*SERVED, "lookups")
LONG = ("tails", "standbys", "failover", "idle", "dashboard")  # on services of their own: minutes, so in no quick run
POST_BARS = {64: "≥ 1,500", 8: "≥ 600", 1: "≤ 4"}  # of so many clients: posts a second; of one: its wait in ms


@dataclass(frozen=True)
class Effort:
    """How much is measured, and how often: `records` of a contest, `posted` to measure ingest, `rounds` of a wait after
    `warm_rounds`, `seconds` under load.
    """

    records: int
    posted: int
    runs: int
    rounds: int
    warm_rounds: int
    seconds: float
    fresh_peers: bool

    @property
    def described(self) -> str:
        peers = "a fresh application of Spark each" if self.fresh_peers else "one application of Spark for all"
        return f"{self.records:,} records a contest, {self.runs} runs, {peers}"


FULL = Effort(records=8_000_000, posted=4_000_000, runs=3, rounds=100, warm_rounds=20, seconds=5, fresh_peers=True)
QUICK = Effort(records=300_000, posted=1_000_000, runs=1, rounds=20, warm_rounds=10, seconds=1.5, fresh_peers=False)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer records and runs: under three minutes")
    arguments.add_argument("--records", type=int, help=f"of a contest ({FULL.records:,}; quick: {QUICK.records:,})")
    arguments.add_argument(
        "--only", choices=(*PARTS, *LONG), action="append", help="these rows alone; may be given again"
    )
    given = arguments.parse_args()
    effort = QUICK if given.quick else FULL
    effort = replace(effort, records=given.records or effort.records)
    workload = Workload(max(effort.records, effort.posted))
    load_average = os.getloadavg()[0]
    rows: list[Measurement] = []
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as scratch:
        parts = given.only or (PARTS if given.quick else (*PARTS, *LONG))
        for row in _rows(workload, Path(scratch), effort, parts):
            rows.append(row)
            print(f"  measured: {row.measure}", file=sys.stderr)
    report(rows, workload, load_average, effort=effort.described, is_quick=given.quick)
    return 0


def _rows(workload: Workload, scratch: Path, effort: Effort, parts: Sequence[str]) -> Iterator[Measurement]:
    if set(parts) & set(SERVED):
        yield from _served_rows(bids(workload), scratch, effort, parts)
    if "lookups" in parts:
        for where in ("lmdb", "redis"):
            yield from _lookups(figures(where, seconds=effort.seconds, rounds=effort.rounds))
    if "tails" in parts:
        yield from map(_tailed, cases(4 * effort.seconds))
    if "standbys" in parts:
        yield from standby_cost.rows()
    if "failover" in parts:
        yield from failover.rows()
    if "idle" in parts:
        yield from idle.rows()
    if "dashboard" in parts:
        yield from dashboard.rows()


def _served_rows(events: pa.Table, scratch: Path, effort: Effort, parts: Sequence[str]) -> Iterator[Measurement]:
    with Running(scratch / "data", cores=CORES) as running:
        running.wait_for_instances()
        if "waits" in parts:
            yield from _output_waits(running, effort)
        if "ingest" in parts:  # not first: Spark's workers are still loading their code then
            yield from _ingest(running, events.slice(0, effort.posted))
        if "posts" in parts:
            yield from map(_posts, posted(running, seconds=effort.seconds / POST_RUNS))
        if "contests" in parts:
            yield from _contests(running, events.slice(0, effort.records), scratch, effort)
        if "rows" in parts:
            yield _rows_of_a_wide_commit(running)


def _contests(running: Running, events: pa.Table, scratch: Path, effort: Effort) -> Iterator[Measurement]:
    events = with_closing(events)
    running.call("POST", "/v1/streams", json={"name": SOURCE, "partitions": PARTITIONS})
    for part in _parts(events, 200_000):  # one after another: the order of arrival is the disorder of the events
        _post_s(running, SOURCE, ARROW, [arrow_stream(part)])
    yield from contests(running, events, scratch, cores=CORES, runs=effort.runs, fresh_peers=effort.fresh_peers)


def _rows_of_a_wide_commit(running: Running) -> Measurement:
    found = wide_commits(running)
    conditions = (
        f"chunk rows by commits of {TASKS} source tasks, each commit for {TASKS} targets; {found.commits} commits left "
        f"{found.chunk_rows} chunk rows, {found.range_bytes / found.chunk_rows:,.0f} bytes of ranges in each; "
        f"{found.end_rows} rows say where the logs end, one a source task"
    )
    measure = f"catalog rows a commit of a {TASKS} × {TASKS} repartition"
    return Measurement(measure, found.chunk_rows / found.commits, "rows", conditions, bar="≤ 1")


# ---------------------------------------------------------------- ingest


def _ingest(running: Running, events: pa.Table) -> Iterator[Measurement]:
    yield _ingested(running, events.slice(0, 2_000_000), "ndjson", NDJSON, ndjson, "≥ 300,000")
    yield _ingested(running, events.slice(0, 4_000_000), "arrow", ARROW, arrow_stream, "≥ 2,000,000")


def _ingested(
    running: Running,
    events: pa.Table,
    name: str,
    media: str,
    encode: Callable[[pa.Table], bytes],
    bar: str,
) -> Measurement:
    bodies = [encode(part) for part in _parts(events, 100_000)]
    running.call("POST", "/v1/streams", json={"name": name, "partitions": PARTITIONS})
    _post_s(running, name, media, bodies[:4])  # what runs for the first time is slower
    seconds = [_post_s(running, name, media, bodies) for _ in range(INGEST_RUNS)]
    rates = ", ".join(f"{events.num_rows / each:,.0f}" for each in seconds)
    conditions = (
        f"{events.num_rows:,} records, bodies of 100,000, {INGEST_CLIENTS} keep-alive clients, "
        f"fsync before the answer, median of {INGEST_RUNS} runs: {rates}"
    )
    return Measurement(
        f"ingest over HTTP, {name}", events.num_rows / statistics.median(seconds), "rec/s", conditions, bar=bar
    )


def _posts(found: Posted) -> Measurement:
    """One of both figures, rate and wait; the other stands in the conditions."""
    load = found.found
    if load.failed:
        raise SystemExit(f"{load.failed} posts failed with {found.clients} clients")
    clients = f"{found.clients} keep-alive client{'s' if found.clients > 1 else ''}"
    measure = f"posts of one record, {clients}{', with a job running' if found.with_job else ''}"
    conditions = (
        f"fsync before the answer, best of {POST_RUNS} runs; "
        f"{load.per_second:,.0f}/s, p50 {load.p50_ms:.1f} ms, p99 {load.p99_ms:.1f} ms; "
        f"the API takes {found.cpu_ms:.2f} ms of processor a post; {found.chunk_rows:,.0f} chunk rows for 1,000 posts; "
        f"load: {GENERATOR}, {load.busy:.0%} of a processor"
    )
    bar = POST_BARS[found.clients]
    if found.clients == 1:
        return Measurement(f"{measure}, p50", load.p50_ms, "ms", conditions, bar=bar)
    return Measurement(measure, load.per_second, "/s", conditions, bar=bar)


def _parts(events: pa.Table, records: int) -> Iterator[pa.Table]:
    return (events.slice(start, records) for start in range(0, events.num_rows, records))


def _post_s(running: Running, stream: str, media: str, bodies: Sequence[bytes]) -> float:
    """Seconds of posting alone; the bodies are made before."""
    path, headers = f"/v1/streams/{stream}/records", {"Content-Type": media}
    started = time.monotonic()
    with ThreadPoolExecutor(INGEST_CLIENTS) as clients:
        list(clients.map(lambda body: running.call("POST", path, content=body, headers=headers), bodies))
    return time.monotonic() - started


# ---------------------------------------------------------------- waits


def _output_waits(running: Running, effort: Effort) -> Iterator[Measurement]:
    """From the answer of a POST to the moment its output can be read, one record at a time on an idle system: of a job
    of one task a partition, and of one that repartitions.
    """
    operator = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000}
    conditions = "one job, idle system, reader awaits the next record of the partition in a long poll"
    alone = _output_waits_ms(running, "idle", [operator], effort)
    yield from _waits("POST acknowledged to output readable", alone, conditions, p50_bar_ms=30)
    through = _output_waits_ms(running, "moved", [{"op": "repartition", "name": "again"}, operator], effort)
    figures = _waits("POST acknowledged to output readable through one repartition", through, conditions, p50_bar_ms=60)
    for each in figures:
        times = f"{statistics.median(through) / statistics.median(alone):.2f}× at the median of what it takes without"
        yield replace(each, conditions=f"{each.conditions}; {times}")


def _output_waits_ms(running: Running, name: str, operators: list[dict[str, Any]], effort: Effort) -> list[float]:
    for stream in (name, f"{name}-out"):
        running.call("POST", "/v1/streams", json={"name": stream, "partitions": PARTITIONS})
    body = {"name": f"{name}_dedup", "source": name, "operators": operators, "sink": f"{name}-out"}
    running.call("POST", "/v1/jobs", json=body)
    numbers = range(effort.rounds + effort.warm_rounds)
    waits = [_visible_after_ms(running, name, number) for number in numbers][effort.warm_rounds :]
    running.call("POST", f"/v1/jobs/{name}_dedup:stop")
    return waits


def _waits(measure: str, waits_ms: list[float], conditions: str, *, p50_bar_ms: int) -> Iterator[Measurement]:
    percentiles = statistics.quantiles(waits_ms, n=100, method="inclusive")
    conditions = f"{len(waits_ms)} single records, {conditions}"
    yield Measurement(f"{measure}, p50", percentiles[49], "ms", conditions, bar=f"≤ {p50_bar_ms}")
    yield Measurement(f"{measure}, p99", percentiles[98], "ms", conditions, bar="≤ 250")


def _visible_after_ms(running: Running, name: str, number: int) -> float:
    """The reader knows where the output will be, as one that follows a partition does."""
    key = f"k{number}"
    partition = partition_of_key(key.encode(), PARTITIONS)
    end = running.call("GET", f"/v1/streams/{name}-out")["partitions"][partition]["end_offset"]
    record = {"key": key, "value": {"n": number}, "timestamp": 1_700_000_000_000 + number, "partition": 0}
    running.call("POST", f"/v1/streams/{name}/records", json={"records": [record]})
    started = time.monotonic()
    where = {"partition": partition, "from_offset": end, "limit": 1, "wait_ms": READ_WAIT_MS}
    while not running.call("GET", f"/v1/streams/{name}-out/records", params=where)["records"]:
        if time.monotonic() - started > 30:
            raise TimeoutError(f"record {number} never came out")
    elapsed = time.monotonic() - started
    time.sleep(0.15)  # idle again: longer than the commit interval
    return elapsed * 1000


# ---------------------------------------------------------------- lookups


def _lookups(found: Figures) -> Iterator[Measurement]:
    where = {"lmdb": "LMDB", "redis": "Redis"}[found.where]
    clients = f"one API process, {CLIENTS} keep-alive clients on the same machine"
    if found.fastest.failed or found.steady.failed:
        raise SystemExit(f"{found.fastest.failed + found.steady.failed} lookups failed: {where}")
    yield Measurement(
        f"lookup by key, {where}",
        found.fastest.per_second,
        "/s",
        f"{clients}; p50 {found.fastest.p50_ms:.1f} ms, p99 {found.fastest.p99_ms:.1f} ms; "
        f"load: {GENERATOR}, {found.fastest.busy:.0%} of a processor",
        bar="≥ 8,000",
    )
    yield Measurement(
        f"lookup by key, {where}, p99 at half the rate of the bar",
        found.steady.p99_ms,
        "ms",
        f"{clients}; {found.steady.per_second:,.0f} of {RATE:,.0f}/s asked, p50 {found.steady.p50_ms:.1f} ms",
        bar="≤ 15",
    )
    measure = f"POST acknowledged to lookup visible, {where}"
    yield from _waits(measure, found.visible_ms, "two jobs, idle system", p50_bar_ms=60)


# ---------------------------------------------------------------- tails


def _tailed(found: TailFigures) -> Measurement:
    followed = found.followed
    if followed.lost or followed.repeated:
        raise SystemExit(f"{followed.lost} records were lost and {followed.repeated} came twice: {found}")
    before_mb, with_mb = found.rss_mb
    conditions = (
        f"from the POST on, p50 {found.p50_ms:.1f} ms; nothing lost or twice through a SIGKILL of the API, which was "
        f"away for {found.away_s:.1f} s ({found.worst_ms / 1000:.1f} s at most for a record, {followed.returns} times "
        f"clients came back); the API takes {found.cpu:.0%} of a processor, and {with_mb:.0f} MB ({before_mb:.0f} "
        f"without tails); the clients {followed.busy:.0%} of a processor"
    )
    measure = f"tail of {found.rate:,} rec/s to {found.clients} clients, p99"
    return Measurement(measure, found.p99_ms, "ms", conditions)


if __name__ == "__main__":
    sys.exit(main())
