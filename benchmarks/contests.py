"""Jobs of Millrace against Spark's own operators, on the same events: who does more in a second, and do they agree.

Knows the contests, how both sides are timed, and that a ratio counts only when the results are those of the events.
Runs alternate. Ours go to a service that has run such a job before; each of Spark's is the first real query of a
fresh application, as a job there is, after a tiny one that is not counted. A JVM that has run the query before is two
to three times as fast: that is measured once, and said beside the ratio. Quick runs share one application, which
favours Spark from the second contest on, and their input is so small that starts count: their ratios are no figures.

Windows are those of Nexmark: counts of bids per bidder in sessions of 10 s (query 11), in windows of 10 s (12), in
windows of 10 s every 2 s (5).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import monotonic
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.agreement import CLOSING, check_counts, check_survivors, expected
from benchmarks.events import key_in
from benchmarks.report import Measurement
from benchmarks.running import Running, wait_until

SOURCE = "bids"
PARTITIONS = 4
GRACE_MS = 5_000  # the disorder of the events
FILE_RECORDS = 500_000  # a micro-batch has one file for each partition: together as much as a batch of each of ours
DAY_MS = 86_400_000


@dataclass(frozen=True)
class Contest:
    """Operators of ours against a query of `spark_peer`; `times` are what both are given. `kind`: whose results these
    are, of the contests without a repartition. `beside`: the contest of the same run that says what that costs.
    """

    name: str
    measure: str
    peer: str
    bar: str
    times: Mapping[str, int]
    operators: Sequence[Mapping[str, Any]]
    kind: str
    beside: str | None = None


def _count(window_type: str, times: Mapping[str, int], **how: str) -> dict[str, Any]:
    window = {"type": window_type, **times}
    return {"op": "aggregate", "name": "counts", "window": window, "aggregates": {"n": {"fn": "count"}}, **how}


_MINUTE = {"interval_ms": 60_000}
_SESSION = {"gap_ms": 10_000, "grace_ms": GRACE_MS}
_TUMBLING = {"size_ms": 10_000, "grace_ms": GRACE_MS}
_HOPPING = {"size_ms": 10_000, "advance_ms": 2_000, "grace_ms": GRACE_MS}

CONTESTS = (
    Contest(
        "deduplicate",
        "dedup by key, stream to stream",
        "dropDuplicatesWithinWatermark",
        "≥ 5×",
        _MINUTE,
        [{"op": "deduplicate_by_key", "name": "once", **_MINUTE}],
        "deduplicate",
    ),
    Contest(
        "session",
        "session count emitted on close, store materialised",
        "session_window, append",
        "≥ 8×",
        _SESSION,
        [_count("session", _SESSION, emit="on_window_close")],
        "session",
    ),
    Contest(
        "tumbling",
        "tumbling count, last_per_batch, store materialised",
        "window, update",
        "≥ 6×",
        _TUMBLING,
        [_count("tumbling", _TUMBLING, updates="last_per_batch")],
        "tumbling",
    ),
    Contest(
        "hopping",
        "hopping count (5 windows a record), last_per_batch, store materialised",
        "window with slide, update",
        "≥ 6×",
        _HOPPING,
        [_count("hopping", _HOPPING, updates="last_per_batch")],
        "hopping",
    ),
    Contest(
        "global",
        "dedup by id over all partitions, through a repartition",
        "repartition, dropDuplicatesWithinWatermark",
        "≥ 0.4× by key",
        _MINUTE,
        [{"op": "deduplicate", "name": "once", "id": "key", **_MINUTE}],
        "deduplicate",
        beside="deduplicate",
    ),
    Contest(
        "rekeyed",
        "select_key, then tumbling count, through a repartition",
        "another key, window, update",
        "≥ 0.4× by key",
        _TUMBLING,
        [{"op": "select_key", "key": "reverse(key)"}, _count("tumbling", _TUMBLING, updates="last_per_batch")],
        "tumbling",
        beside="tumbling",
    ),
)


class Peer:
    """The process of `spark_peer`; a context manager that ends it."""

    def __init__(self, cores: int) -> None:
        command = [sys.executable, "-m", "benchmarks.spark_peer", str(cores)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, text=True, **pipes)

    def seconds(self, contest: Contest, source: Path, out: Path) -> float:
        """How long its query took over the deliveries in `source`."""
        asked = {"name": contest.name, "times": contest.times, "source": str(source), "out": str(out)}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps({**asked, "files_per_batch": PARTITIONS}), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit(f"Spark gave up on {contest.name}")
        return float(json.loads(answer)["seconds"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


def with_closing(events: pa.Table) -> pa.Table:
    """The events, and after them for each partition a record a day later, so that everything closes on both sides."""
    last_ms = pc.max(events["timestamp"]).as_py() + DAY_MS
    keys = [key_in(partition, PARTITIONS, CLOSING) for partition in range(PARTITIONS)]
    closing = pa.table({"key": keys, "value": ["{}"] * PARTITIONS, "timestamp": [last_ms] * PARTITIONS})
    return pa.concat_tables([events, closing.cast(events.schema)])


def contests(
    running: Running, events: pa.Table, scratch: Path, *, cores: int, runs: int, fresh_peers: bool
) -> Iterator[Measurement]:
    """A row for each contest. `events` are in SOURCE already; without `fresh_peers` all share one application of Spark.
    Raises Disagreement.
    """
    with ExitStack() as opened:
        shared = None if fresh_peers else opened.enter_context(Peer(cores))
        arena, seconds = Arena(running, events, scratch, cores, shared), dict[str, float]()
        for contest in CONTESTS:
            yield _contest(arena, contest, runs, seconds)


class Arena:
    """Where contests are held: the service, and the same events as files for Spark."""

    def __init__(self, running: Running, events: pa.Table, scratch: Path, cores: int, shared: Peer | None) -> None:
        self.running, self.events, self.cores, self._scratch = running, events, cores, scratch
        self.shared = shared
        self.source = scratch / "source"
        _write_parquet(events, self.source)

    @contextmanager
    def peer(self) -> Iterator[Peer]:
        """The one that all share, or one of its own."""
        if self.shared is not None:
            yield self.shared
            return
        with Peer(self.cores) as peer:
            yield peer

    @contextmanager
    def folder(self) -> Iterator[Path]:
        """An empty one for what Spark writes; gone afterwards."""
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder:
            yield Path(folder)


def _contest(arena: Arena, contest: Contest, runs: int, seconds: dict[str, float]) -> Measurement:
    """A row. `seconds`: those of ours, by contest, so far."""
    _job_seconds(arena.running, contest, 0)
    ours, theirs, notes, warm_ratio = [], [], [], None
    for run in range(1, runs + 1):
        ours.append(_job_seconds(arena.running, contest, run))
        with arena.folder() as folder, arena.peer() as peer:
            theirs.append(peer.seconds(contest, arena.source, folder / "first"))
            if run == 1:
                notes.append(_agreement(arena, contest, _sink(contest, run), folder / "first"))
            elif run == runs:
                warm = peer.seconds(contest, arena.source, folder / "second")
                warm_ratio = warm / median(ours)
                notes.append(f"the same query again in the same JVM: {warm:.2f} s, {warm_ratio:.1f}×")
    if arena.shared is not None:
        notes.append("all contests in one application of Spark, whose JVM is warm from the first on")
    seconds[contest.name] = median(ours)
    if contest.beside is not None:
        notes.append(f"{seconds[contest.beside] / seconds[contest.name]:.2f}× of what {contest.beside} did in this run")
    figure, peer_figure = (arena.events.num_rows / median(each) for each in (ours, theirs))
    conditions = (
        f"{arena.events.num_rows:,} records, {PARTITIONS} partitions, {_described(contest.times)}, {arena.cores} cores",
        f"POST of the job to caught up, median of {runs} alternating runs: {_listed(ours)} against {_listed(theirs)}",
        *notes,
    )
    return Measurement(
        contest.measure,
        figure,
        "rec/s",
        "; ".join(conditions),
        f"Spark {contest.peer}",
        peer_figure,
        figure / peer_figure,
        warm_ratio,
        contest.bar,
    )


def _job_seconds(running: Running, contest: Contest, run: int) -> float:
    """From the POST of the job until it has read everything and its store can be looked up."""
    name = f"{contest.name}_{run}"
    started = monotonic()
    body = {"name": name, "source": SOURCE, "operators": contest.operators, "sink": _sink(contest, run)}
    running.call("POST", "/v1/jobs", json=body)
    running.wait_until_caught_up(name)
    seconds = monotonic() - started
    running.call("POST", f"/v1/jobs/{name}:stop")
    wait_until(lambda: running.call("GET", f"/v1/jobs/{name}")["state"] == "stopped", f"the end of {name}")
    return seconds


def _agreement(arena: Arena, contest: Contest, sink: str, out: Path) -> str:
    """What was found equal, in words."""
    ours = _as_text_keys(arena.running.read(sink, PARTITIONS))
    theirs = pa.concat_tables(pq.read_table(file) for file in sorted(out.rglob("*.parquet")))
    if contest.kind == "deduplicate":
        return check_survivors(ours, theirs, arena.events)
    if contest.name == "rekeyed":
        ours, theirs = _reversed(ours), _reversed(theirs)
    wanted = expected(contest.kind, contest.times, arena.events)
    check_counts(contest.kind, contest.times, wanted, ours, theirs)
    return f"both gave the same {wanted.windows:,} windows with {wanted.records:,} records"


def _sink(contest: Contest, run: int) -> str:
    return f"{contest.name}-{run}"


def _as_text_keys(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("key"), "key", table["key"].cast(pa.utf8()))


def _reversed(table: pa.Table) -> pa.Table:
    return table.set_column(table.column_names.index("key"), "key", pc.utf8_reverse(table["key"]))


def _write_parquet(events: pa.Table, folder: Path) -> None:
    """Files in order; Spark reads them by age, which for its clock must differ."""
    folder.mkdir()
    for number, start in enumerate(range(0, events.num_rows, FILE_RECORDS)):
        file = folder / f"{number:04}.parquet"
        pq.write_table(events.slice(start, FILE_RECORDS), file)
        os.utime(file, (number, number))


def _described(times: Mapping[str, int]) -> str:
    return ", ".join(f"{name.removesuffix('_ms')} {ms / 1000:g} s" for name, ms in times.items())


def _listed(seconds: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in seconds) + " s"
