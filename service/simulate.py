"""`POST /v1/jobs:simulate`: a job over records given by hand, with real operators and real replicas, nothing kept.

It knows how a task is fed and its state replayed, in one thread and a temporary folder; it refuses to know
what the operators mean, and it uses no catalog, no segments and no Spark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, JsonValue

from service.storage.replica import Replica
from service.streams import clock
from service.streams.errors import InvalidRecords, InvalidSpec, Problem
from service.streams.operators.fields import MAX_INT64
from service.streams.partitioner import sink_partition_of
from service.streams.records import RECORD_SCHEMA, TASK_SCHEMA, StateReader, as_task_batch, empty
from service.streams.stores.forms import form_of
from service.streams.stores.reading import Form, Place, Query, Snapshot, read, read_page
from service.streams.topology import graph
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.graph import Node, SubTopology, Topology
from service.streams.topology.spec import JobSpec

MAX_RECORDS = 100_000
MAX_PARTITIONS = 256
_PAGE_ITEMS = 1000
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


def simulate(body: SimulateRequest) -> dict[str, Any]:
    """Run the job over the records; the answer of contract.md, Jobs.

    Offsets are positions in `records`. Raises InvalidSpec, InvalidRecords, ExpressionFailed.
    """
    spec, topology = _compiled(body)
    _check_streams(body.records, spec.sources)
    sub_topology = topology.sub_topologies[0]
    with TemporaryDirectory(prefix="millrace-simulate-") as folder, ExitStack() as opened:
        run = _Run(sub_topology, Chain(sub_topology, spec.on_error), Path(folder), opened)
        size = body.batch_records or max(len(body.records), 1)
        for begin in range(0, len(body.records), size):
            run.feed(begin, body.records[begin : begin + size])
        if body.advance_to is not None:
            run.advance(body.advance_to)
        return run.answer()


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

    def items(self, node: Node, partition: int) -> list[dict[str, Any]]:
        """What the store of an operator holds."""
        if node.store is None:
            return []
        with self.replicas[node.store.name].reader() as view:
            return list(_items(form_of(node), partition, view))


@dataclass(slots=True)
class _Run:
    """A simulation under way."""

    sub_topology: SubTopology
    chain: Chain
    folder: Path
    opened: ExitStack
    tasks: dict[int, _Task] = field(default_factory=dict)
    outputs: list[dict[str, Any]] = field(default_factory=list)
    dropped: list[dict[str, Any]] = field(default_factory=list)

    def feed(self, begin: int, records: list[SimulatedRecord]) -> None:
        """One batch: each partition's task runs its share; results come in the order of their causes."""
        shares: dict[int, list[int]] = {}
        for i, record in enumerate(records):
            shares.setdefault(record.partition, []).append(i)
        outputs: list[tuple[int, dict[str, Any]]] = []
        dropped: list[tuple[int, dict[str, Any]]] = []
        for partition, share in shares.items():
            batch = _batch([records[i] for i in share], [begin + i for i in share])
            for result in self._run(partition, batch):
                outputs += _outputs(result, partition, self.sub_topology.partitions)
                dropped += _dropped(result)
        self.outputs += [output for _, output in sorted(outputs, key=_cause)]
        self.dropped += [drop for _, drop in sorted(dropped, key=_cause)]

    def advance(self, to: int) -> None:
        """Move stream time, one task after another, as a flush of the job would."""
        for partition, task in sorted(self.tasks.items()):
            with self._states(task) as states:
                result = self.chain.advance(to, states, "flush")
            task.stream_time = max(task.stream_time, to)
            task.replay(result.changes)
            for said in (result, *self._rest(task)):
                self.outputs += [output for _, output in _outputs(said, partition, self.sub_topology.partitions)]
                self.dropped += [drop for _, drop in _dropped(said)]

    def answer(self) -> dict[str, Any]:
        """What the run came to."""
        tasks = sorted(self.tasks.items())
        return {
            "outputs": self.outputs,
            "stores": {
                node.store.name: [item for partition, task in tasks for item in task.items(node, partition)]
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


def _batch(records: list[SimulatedRecord], offsets: list[int]) -> pa.RecordBatch:
    nothing = pa.nulls(len(records), pa.int64())
    columns = [
        pa.array([_key(record, offset) for record, offset in zip(records, offsets, strict=True)], pa.binary()),
        pa.array([_value(record, offset) for record, offset in zip(records, offsets, strict=True)], pa.utf8()),
        pa.array([record.timestamp for record in records], pa.int64()),
        nothing,
        nothing,
        pa.nulls(len(records), pa.utf8()),
    ]
    return as_task_batch(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA), pa.array(offsets, pa.int64()))


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


def _outputs(result: ChainResult, partition: int, count: int) -> Iterator[tuple[int, dict[str, Any]]]:
    for (stream, records), causes in zip(result.outputs, result.offsets, strict=True):
        targets = sink_partition_of(records.column("key"), count, partition)
        for cause, target, record in zip(causes.tolist(), targets.tolist(), records.to_pylist(), strict=True):
            yield cause, {"stream": stream, "partition": target, **_shown(record)}


def _shown(record: dict[str, Any]) -> dict[str, Any]:
    start, end = record["window_start"], record["window_end"]
    return {
        "key": _text(record["key"]),
        "value": None if record["value"] is None else json.loads(record["value"]),
        "timestamp": record["timestamp"],
        "window": None if start is None else {"start": start, "end": end},
    }


def _dropped(result: ChainResult) -> Iterator[tuple[int, dict[str, Any]]]:
    for each in result.dropped:
        for record in each.rows.to_pylist():
            shown = {"key": _text(record["key"]), "timestamp": record["timestamp"]}
            yield record["offset"], {"operator": each.operator, "reason": each.reason, **shown}


def _items(form: Form, partition: int, view: Snapshot) -> Iterator[dict[str, Any]]:
    """The entries of a task's store that live, in its order."""
    after: Place | None = None
    while True:
        page = read(read_page(form, Query(), [partition], _PAGE_ITEMS, after), {partition: view})
        for found in page.items:
            entry = found.entry
            yield {
                "key": _text(entry.key),
                "window": None if entry.window is None else dict(zip(("start", "end"), entry.window, strict=True)),
                "value": None if entry.value is None else json.loads(entry.value),
                "timestamp": entry.timestamp,
            }
        after = page.next
        if after is None:
            return


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "replace")
