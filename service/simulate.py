"""`POST /v1/jobs:simulate`: a job over records given by hand, with real operators and real replicas, nothing kept.

It knows how a task is fed and its state replayed, in one thread and a temporary folder, and how much one simulation
may give; it refuses to know what the operators mean, and it uses no catalog, no segments and no Spark.

A few records can become millions of updates (hopping windows, `collect`), so records are fed a few at a time and what
they came to is counted before more are: how a range is cut changes nothing. `last_per_batch` alone sees batches, and
keeps those it asked for; there the updates are counted beforehand.
"""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from service.storage.replica import Replica
from service.streams import clock
from service.streams.errors import InvalidRecords, InvalidSpec, OperatorFailed, Problem, SimulationTooLarge
from service.streams.operators.aggregate import AggregateSpec
from service.streams.operators.fields import MAX_INT64
from service.streams.operators.windows import HoppingWindow, SlidingWindow
from service.streams.partitioner import sink_partition_of
from service.streams.records import RECORD_SCHEMA, TASK_SCHEMA, StateReader, as_task_batch, empty
from service.streams.stores.forms import form_of
from service.streams.stores.reading import Entry, Form, Place, Query, Snapshot, read, read_page
from service.streams.topology import graph
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.graph import Node, SubTopology, Topology
from service.streams.topology.spec import JobSpec

MAX_RECORDS: Final = 100_000
MAX_PARTITIONS: Final = 256
MAX_ITEMS: Final = 100_000  # in an answer: outputs, dropped records and entries of stores, together
MAX_BYTES: Final = 64 << 20  # of their keys and values
MAX_SECONDS: Final = 30.0
MAX_REPLICAS: Final = 512  # each is an open file, and takes 64 GiB of addresses
_MAX_STORED: Final = 4 * MAX_ITEMS  # store keys while it runs: those of indexes, and of entries that are over, too
_MAX_DISK: Final = 8 * MAX_BYTES  # that replicas take meanwhile
_FED_RECORDS: Final = 1000  # at once
_FED_BYTES: Final = 32 << 20  # that they may become at once; an operator takes ten times that to make them
_NUMBERS: Final = frozenset({"count", "sum", "mean"})  # functions whose values do not grow with those of records
_PAGE_ITEMS: Final = 1000
_ROW_BYTES: Final = 64  # of what is not key or value
_DEFAULTS = {"name": "x", "source": "in", "sink": "out"}


class SimulatedRecord(BaseModel):
    """A record to feed; the order of the list is the order of arrival."""

    model_config = ConfigDict(extra="forbid", strict=True)

    stream: str | None = None
    partition: Annotated[int, Field(ge=0, lt=MAX_PARTITIONS)] = 0
    key: str | None = None
    value: JsonValue = None
    timestamp: Annotated[int, Field(ge=0, le=MAX_INT64)]


class SimulateRequest(BaseModel):
    """The body: a job whose `name`, `source` and `sink` may be left out, and what to feed it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    job: dict[str, Any]
    records: Annotated[list[SimulatedRecord], Field(max_length=MAX_RECORDS)] = []
    batch_records: Annotated[int, Field(ge=1)] | None = None
    advance_to: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None


Show = Callable[[str], Any]
Fed = tuple[int, SimulatedRecord, str | None]  # its position, and its value as text


def simulate(body: SimulateRequest, show: Show = json.loads) -> dict[str, Any]:
    """Run the job over the records; the answer of contract.md, Jobs. `show` makes of a value's JSON what stands there.

    Offsets are positions in `records`. Raises InvalidSpec, InvalidRecords, OperatorFailed; SimulationTooLarge as soon
    as more comes of it than an answer takes (MAX_ITEMS, MAX_BYTES), or it takes longer than MAX_SECONDS.
    """
    spec, topology = _compiled(body)
    _check_streams(body.records, spec.sources)
    sub_topology = topology.sub_topologies[0]
    texts = [_value(record, i) for i, record in enumerate(body.records)]
    reach = _Reach.of(spec, body.records)
    _check_reach(body, spec, reach, texts, replicas=len(sub_topology.stores()))
    try:
        with TemporaryDirectory(prefix="millrace-simulate-") as folder, ExitStack() as opened:
            bounds = _Bounds(reach, len(body.records), time.monotonic() + MAX_SECONDS)
            run = _Run(sub_topology, Chain(sub_topology, spec.on_error), Path(folder), opened, bounds, show)
            run.feed_all(body.records, texts, _batches(body), is_whole=_sees_batches(spec))
            if body.advance_to is not None:
                run.advance(body.advance_to)
            return run.answer()
    except OperatorFailed as error:
        error.at(_place(error, sub_topology))
        raise


def _batches(body: SimulateRequest) -> list[range]:
    """The batches that were asked for, as positions in the records."""
    count = len(body.records)
    size = min(body.batch_records or count, count)
    return [range(begin, min(begin + size, count)) for begin in range(0, count, size)] if count else []


def _sees_batches(spec: JobSpec) -> bool:
    """Whether outputs depend on how records are cut into batches."""
    return any(isinstance(each, AggregateSpec) and each.updates == "last_per_batch" for each in spec.operators)


def _place(error: OperatorFailed, sub_topology: SubTopology) -> str:
    """Where in the request it is that an operator failed: at a record, where one is known, else at the operator."""
    if error.offset is not None and error.offset >= 0:
        return f"/records/{error.offset}"
    names = [node.name for node in sub_topology.nodes]
    return f"/job/operators/{names.index(error.operator)}" if error.operator in names else "/job"


def _compiled(body: SimulateRequest) -> tuple[JobSpec, Topology]:
    partitions = 1 + max((record.partition for record in body.records), default=0)
    try:
        spec = JobSpec.parse(_DEFAULTS | body.job)
        return spec, graph.compile(spec, dict.fromkeys(spec.sources, partitions))
    except InvalidSpec as error:
        raise InvalidSpec([Problem("/job" + each.pointer, each.detail) for each in error.errors]) from error


def _check_streams(records: list[SimulatedRecord], sources: list[str]) -> None:
    unknown = [
        Problem(f"/records/{i}/stream", f"{record.stream!r} is not a source of the job")
        for i, record in enumerate(records)
        if record.stream is not None and record.stream not in sources
    ]
    if unknown:
        raise InvalidRecords(unknown[:100])


@dataclass(frozen=True, slots=True)
class _Reach:
    """How many updates one record may become: `hops` by hopping windows for certain, `most` where sliding windows
    are as crowded as timestamps allow. `has_values`: its value may be in each of them.
    """

    hops: int
    most: int
    has_values: bool

    @classmethod
    def of(cls, spec: JobSpec, records: Sequence[SimulatedRecord]) -> _Reach:
        hops = most = 1
        aggregates = [each for each in spec.operators if isinstance(each, AggregateSpec)]
        for window in (each.window for each in aggregates):
            if isinstance(window, HoppingWindow):
                hops *= math.ceil(window.size_ms / window.advance_ms)
            elif isinstance(window, SlidingWindow):
                most *= 2 * max(1, _crowd(records, window.time_difference_ms))
        functions = {function.fn for each in aggregates for function in each.aggregates.values()}
        return cls(hops, hops * most, not functions <= _NUMBERS)


def _crowd(records: Sequence[SimulatedRecord], difference_ms: int) -> int:
    """The most records that lie so close together: a record changes no more than twice as many sliding windows."""
    times = np.sort(np.array([record.timestamp for record in records], np.int64))
    ends = np.searchsorted(times, times + np.minimum(difference_ms, MAX_INT64 - times), "right")
    return int((ends - np.arange(len(times))).max(initial=0))


def _check_reach(
    body: SimulateRequest, spec: JobSpec, reach: _Reach, texts: Sequence[str | None], *, replicas: int
) -> None:
    """What is too much before anything runs. Raises SimulationTooLarge."""
    tasks = len({record.partition for record in body.records})
    if tasks * replicas > MAX_REPLICAS:
        detail = (
            f"{tasks} partitions with {replicas} stores each are more than the {MAX_REPLICAS} that are kept at once"
        )
        raise SimulationTooLarge(detail)
    largest = max((len(text) for text in texts if text is not None), default=0)
    if reach.hops > MAX_ITEMS or (reach.has_values and reach.hops > 1 and reach.hops * largest > _FED_BYTES):
        detail = f"one record of {largest} bytes falls into {reach.hops} windows"
        raise SimulationTooLarge(f"{detail}; an answer has at most {MAX_ITEMS} items of {MAX_BYTES} bytes")
    batch = max((len(each) for each in _batches(body)), default=0)
    if _sees_batches(spec) and batch * reach.most > MAX_ITEMS:
        detail = f"a batch of {batch} records may be {batch * reach.most} updates, at most {MAX_ITEMS} are taken"
        raise SimulationTooLarge(f"{detail}: give a smaller batch_records")


@dataclass(slots=True)
class _Bounds:
    """How much there is of the answer already, when time is over, and how many records may go in at once.

    `widest`, `heaviest`: the outputs of the record that had most of them, and their bytes.
    """

    reach: _Reach
    records: int
    until: float
    items: int = 0
    bytes: int = 0
    widest: int = 1
    heaviest: int = 1

    def take(self, items: int, size: int) -> None:
        """Count what goes into the answer. Raises SimulationTooLarge."""
        self.items += items
        self.bytes += size
        if self.items > MAX_ITEMS or self.bytes > MAX_BYTES:
            found = f"more than {MAX_ITEMS} items" if self.items > MAX_ITEMS else f"more than {MAX_BYTES} bytes"
            raise self.too_large(f"give {found} of outputs, dropped records and entries of stores")
        if time.monotonic() > self.until:
            raise self.too_large(f"take longer than {MAX_SECONDS:g} s")

    def see(self, causes: np.ndarray[Any, Any], sizes: np.ndarray[Any, Any]) -> None:
        """Count outputs, before anything is made of them. Raises SimulationTooLarge."""
        self.take(len(sizes), int(sizes.sum()))
        if len(sizes):
            _, which = np.unique(causes, return_inverse=True)
            self.widest = max(self.widest, int(np.bincount(which).max()))
            self.heaviest = max(self.heaviest, int(np.bincount(which, sizes).max()))

    def hold(self, replicas: Iterable[Replica]) -> None:
        """Look at how much is in stores. Raises SimulationTooLarge."""
        keys = size = 0
        for replica in replicas:
            keys, size = keys + replica.entries, size + replica.disk_bytes
        if keys > _MAX_STORED or size > _MAX_DISK:
            held = f"{_MAX_STORED} keys" if keys > _MAX_STORED else f"{_MAX_DISK} bytes on disk"
            raise self.too_large(f"fill stores with more than {held}")

    def cut(self, sizes: Sequence[int]) -> int:
        """How many of the next records (their bytes) go in at once, at least one.

        The first of them may be in the result of each of the others, as with `collect`.
        """
        count = size = 0
        for count, more in enumerate(sizes, 1):
            size += more
            is_wide = count * max(self.reach.most, self.widest) > MAX_ITEMS
            weight = size * self.reach.most if self.reach.has_values else size
            if is_wide or count * max(weight, self.heaviest) > _FED_BYTES:
                return max(1, count - 1)
        return max(1, count)

    def too_large(self, what: str) -> SimulationTooLarge:
        return SimulationTooLarge(f"{self.records} records {what}: send fewer, or a job that gives less")


@dataclass(slots=True)
class _Task:
    """One task and its replicas."""

    replicas: dict[str, Replica]
    stream_time: int = clock.NOT_STARTED

    def replay(self, changes: dict[str, pa.RecordBatch]) -> None:
        """Apply committed changes, as everywhere."""
        for store, batch in changes.items():
            replica = self.replicas[store]
            replica.apply(replica.position, replica.position + batch.num_rows, batch)

    def entries(self, node: Node, partition: int) -> Iterator[list[Entry]]:
        """What the store of an operator holds, page by page."""
        if node.store is not None:
            with self.replicas[node.store.name].reader() as view:
                yield from _entries(form_of(node), partition, view)


@dataclass(slots=True)
class _Run:
    """A simulation under way."""

    sub_topology: SubTopology
    chain: Chain
    folder: Path
    opened: ExitStack
    bounds: _Bounds
    show: Show
    tasks: dict[int, _Task] = field(default_factory=dict)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)

    def feed_all(
        self,
        records: Sequence[SimulatedRecord],
        texts: Sequence[str | None],
        batches: Iterable[range],
        *,
        is_whole: bool,
    ) -> None:
        """Batch after batch; each in one go, if it `is_whole`, else as much at once as the bounds allow."""
        sizes = [
            _ROW_BYTES + len(record.key or "") + len(text or "") for record, text in zip(records, texts, strict=True)
        ]
        for batch in batches:
            begin = batch.start
            while begin < batch.stop:
                ahead = sizes[begin : min(batch.stop, begin + _FED_RECORDS)]
                end = batch.stop if is_whole else begin + self.bounds.cut(ahead)
                self.feed([(i, records[i], texts[i]) for i in range(begin, end)])
                self.bounds.hold(replica for task in self.tasks.values() for replica in task.replicas.values())
                begin = end

    def feed(self, records: Sequence[Fed]) -> None:
        """Each partition's task runs its share; results come in the order of their causes."""
        shares: dict[int, list[Fed]] = {}
        for fed in records:
            shares.setdefault(fed[1].partition, []).append(fed)
        outputs: list[tuple[int, dict[str, Any]]] = []
        dropped: list[tuple[int, dict[str, Any]]] = []
        for partition, share in shares.items():
            for result in self._run(partition, _batch(share)):
                outputs += self._outputs(result, partition)
                dropped += self._dropped(result)
        self.outputs += [output for _, output in sorted(outputs, key=_cause)]
        self.dropped += [drop for _, drop in sorted(dropped, key=_cause)]

    def advance(self, to: int) -> None:
        """Move stream time, one task after another, as a flush of the job would."""
        for partition, task in sorted(self.tasks.items()):
            with self._states(task) as states:
                result = self.chain.advance(to, states, "flush")
            task.stream_time = max(task.stream_time, to)
            task.replay(result.changes)
            for said in itertools.chain([result], self._rest(task)):
                self.outputs += [output for _, output in self._outputs(said, partition)]
                self.dropped += [drop for _, drop in self._dropped(said)]

    def answer(self) -> dict[str, Any]:
        """What the run came to."""
        tasks = sorted(self.tasks.items())
        return {
            "outputs": self.outputs,
            "stores": {
                node.store.name: [item for partition, task in tasks for item in self._items(task, node, partition)]
                for node in self.sub_topology.nodes
                if node.store is not None
            },
            "dropped": self.dropped,
            "stream_time": {f"{self.sub_topology.id}_{p}": task.stream_time for p, task in tasks},
        }

    def _run(self, partition: int, batch: pa.RecordBatch) -> Iterator[ChainResult]:
        task = self.tasks.get(partition) or self._start(partition)
        while batch.num_rows:
            with self._states(task) as states:
                result = self.chain.run(batch, states)
            task.stream_time = max(task.stream_time, result.stream_time)
            task.replay(result.changes)
            yield result
            yield from self._rest(task)
            batch = batch.slice(result.taken(batch))

    def _rest(self, task: _Task) -> Iterator[ChainResult]:
        """What operators still have to say of what they were given."""
        while True:
            with self._states(task) as states:
                if not self.chain.has_backlog(states):
                    return
                result = self.chain.run(empty(TASK_SCHEMA), states)
            task.replay(result.changes)
            yield result

    @staticmethod
    @contextmanager
    def _states(task: _Task) -> Iterator[dict[str, StateReader]]:
        with ExitStack() as views:
            yield {name: views.enter_context(replica.reader()) for name, replica in task.replicas.items()}

    def _outputs(self, result: ChainResult, partition: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for (_, records), causes in zip(result.outputs, result.offsets, strict=True):
            self.bounds.see(causes, _sizes(records))
        for (stream, records), causes in zip(result.outputs, result.offsets, strict=True):
            targets = sink_partition_of(records.column("key"), self.sub_topology.partitions, partition)
            for cause, target, record in zip(causes.tolist(), targets.tolist(), records.to_pylist(), strict=True):
                yield cause, {"stream": stream, "partition": target, **self._shown(record)}

    def _shown(self, record: dict[str, Any]) -> dict[str, Any]:
        start, end = record["window_start"], record["window_end"]
        return {
            "key": _text(record["key"]),
            "value": None if record["value"] is None else self.show(record["value"]),
            "timestamp": record["timestamp"],
            "window": None if start is None else {"start": start, "end": end},
        }

    def _dropped(self, result: ChainResult) -> Iterator[tuple[int, dict[str, Any]]]:
        for each in result.dropped:
            self.bounds.take(each.rows.num_rows, int(_sizes(each.rows).sum()))
            for record in each.rows.to_pylist():
                shown = {"key": _text(record["key"]), "timestamp": record["timestamp"]}
                yield record["offset"], {"operator": each.operator, "reason": each.reason, **shown}

    def _items(self, task: _Task, node: Node, partition: int) -> Iterator[dict[str, Any]]:
        for page in task.entries(node, partition):
            sizes = (_ROW_BYTES + len(entry.key or b"") + len(entry.value or "") for entry in page)
            self.bounds.take(len(page), sum(sizes))
            for entry in page:
                yield {
                    "key": _text(entry.key),
                    "window": None if entry.window is None else dict(zip(("start", "end"), entry.window, strict=True)),
                    "value": None if entry.value is None else self.show(entry.value),
                    "timestamp": entry.timestamp,
                }

    def _start(self, partition: int) -> _Task:
        replicas = {}
        for store in self.sub_topology.stores():
            path = self.folder / store.name / str(partition)
            replicas[store.name] = Replica.open(path, store, store.name, "simulation")
            self.opened.callback(replicas[store.name].close)
        self.tasks[partition] = _Task(replicas)
        return self.tasks[partition]


def _cause(tagged: tuple[int, dict[str, Any]]) -> int:
    return tagged[0]


def _batch(records: Sequence[Fed]) -> pa.RecordBatch:
    nothing = pa.nulls(len(records), pa.int64())
    columns = [
        pa.array([_key(record, offset) for offset, record, _ in records], pa.binary()),
        pa.array([text for _, _, text in records], pa.utf8()),
        pa.array([record.timestamp for _, record, _ in records], pa.int64()),
        nothing,
        nothing,
        pa.nulls(len(records), pa.utf8()),
    ]
    offsets = pa.array([offset for offset, _, _ in records], pa.int64())
    return as_task_batch(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA), offsets)


def _sizes(rows: pa.RecordBatch) -> np.ndarray[Any, Any]:
    """The bytes of each row."""
    sizes = np.full(rows.num_rows, _ROW_BYTES, np.int64)
    for name in ("key", "value"):
        sizes += np.asarray(pc.fill_null(pc.binary_length(rows.column(name)), 0))
    return sizes


def _key(record: SimulatedRecord, position: int) -> bytes | None:
    try:
        return None if record.key is None else record.key.encode()
    except UnicodeEncodeError as error:
        raise InvalidRecords([Problem(f"/records/{position}/key", "is not Unicode text")]) from error


def _value(record: SimulatedRecord, position: int) -> str | None:
    if record.value is None:
        return None
    try:
        text = json.dumps(record.value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        text.encode()
    except ValueError as error:  # NaN, infinities and lone surrogates, which Python's JSON reads
        raise InvalidRecords([Problem(f"/records/{position}/value", "is not JSON")]) from error
    return text


def _entries(form: Form, partition: int, view: Snapshot) -> Iterator[list[Entry]]:
    """The entries of a task's store that live, in its order, page by page."""
    after: Place | None = None
    while True:
        page = read(read_page(form, Query(), [partition], _PAGE_ITEMS, after), {partition: view})
        yield [found.entry for found in page.items]
        after = page.next
        if after is None:
            return


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "replace")
