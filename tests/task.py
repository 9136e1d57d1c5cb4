"""A task without an engine: the chain over a store that is a dict, kept up to date by its changelog alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from service.storage.expiry import in_force
from service.streams import clock, inputs
from service.streams.clock import CloseReason
from service.streams.inputs import Batch, Input, InputPosition, Origins, Part, Unread
from service.streams.layouts import reserved, store_keys
from service.streams.layouts.expiry import expires_after, own_times
from service.streams.records import RECORD_SCHEMA, StoreSpec
from service.streams.stores.reading import Query, read, read_page
from service.streams.topology import graph
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.graph import Topology, form_of
from service.streams.topology.spec import JobSpec

Record = dict[str, Any]
INPUT = Input("in", 0)
NOTHING = Origins.none([INPUT])  # of no records


class DictState(dict[bytes, bytes]):
    """A StateReader. `replay` is the only way in, as with a replica; expired entries may go at once."""

    def get_many(self, keys: list[bytes], default: bytes) -> list[bytes]:
        return [self.get(key, default) for key in keys]

    def scan(
        self, start: bytes, end: bytes, limit: int | None = None, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        keys = sorted((key for key in self if start <= key < end), reverse=reverse)
        return [(key, self[key]) for key in keys[:limit]]

    def replay(self, changes: pa.RecordBatch, store: StoreSpec, *, forget: bool = False) -> None:
        keys, values = changes.column("key").to_pylist(), changes.column("value").to_pylist()
        assert keys == sorted(set(keys)), "a changelog batch is sorted by key, each key once"
        if (before := reserved.time_in(reserved.FORGOT_KEY, changes)) is not None:
            batch = pa.RecordBatch.from_pylist(
                [{"key": key, "value": value} for key, value in self.items()], schema=changes.schema
            )
            for key, time in zip(list(self), own_times(store, batch).tolist(), strict=True):
                if time < before:
                    del self[key]
        for key, value in zip(keys, values, strict=True):
            if value is None:
                del self[key]  # nothing is deleted that is not there
            else:
                self[key] = value
        store = in_force(store, reserved.time_at(reserved.TTL_KEY, self))
        if forget and reserved.OBS_KEY in self:
            obs = reserved.unpack_time(self[reserved.OBS_KEY])
            batch = pa.RecordBatch.from_pylist(
                [{"key": key, "value": value} for key, value in self.items()], schema=changes.schema
            )
            indexed = self.scan(store_keys.index_bound(0), store_keys.index_bound(1 << 63), 1)
            first_open = store_keys.split_index_keys([key for key, _ in indexed])[0].tolist() or [clock.END_OF_TIME]
            after, times = expires_after(store, batch), own_times(store, batch)
            for key, last, time in zip(list(self), after.tolist(), times.tolist(), strict=True):
                if obs > last and time < first_open[0]:  # what is to be emitted when it closes stays until then
                    del self[key]


@dataclass
class View:
    """A DictState as lookups read it."""

    state: DictState
    position = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)


@dataclass
class Task:
    """Runs batches of one sub-topology and keeps what it committed."""

    topology: Topology
    on_error: str = "fail"
    forget: bool = False
    states: dict[str, DictState] = field(default_factory=dict)
    changelog: list[dict[str, pa.RecordBatch]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chain = Chain(self.topology.sub_topologies[0], self.on_error)
        self.states = {store.name: DictState() for store in self.topology.stores()}

    def run(self, batch: Batch) -> ChainResult:
        return self._kept(self.chain.run(batch, self.states))

    def advance(self, to: int, reason: CloseReason = "flush") -> ChainResult:
        return self._kept(self.chain.advance(to, self.states, reason, NOTHING))

    def close(self, reason: CloseReason = "flush") -> list[ChainResult]:
        """Everything that is open."""
        found = []
        while self.chain.horizon(self.states) is not None:
            found += [self._kept(self.chain.close(self.states, reason, NOTHING)), *self.drain()]
        return found

    def drain(self) -> list[ChainResult]:
        """Everything that was too much at once."""
        found = []
        while self.chain.has_backlog(self.states):
            found.append(self._kept(self.chain.go_on(self.states, NOTHING)))
        return found

    def _kept(self, result: ChainResult) -> ChainResult:
        self.replay(result.changes)
        return result

    def replay(self, changes: dict[str, pa.RecordBatch]) -> None:
        self.changelog.append(changes)
        for store in self.topology.stores():
            if store.name in changes:
                self.states[store.name].replay(changes[store.name], store, forget=self.forget)


def held(task: Task) -> dict[str, list[Any]]:
    """Key, window, value and timestamp of what lives in each store, as lookups find it."""
    found = {}
    for node in task.topology.sub_topologies[0].nodes:
        if node.store is not None:
            reading = read_page(form_of(node), Query(), [0], 1000)
            entries = [item.entry for item in read(reading, {0: View(task.states[node.store.name])}).items]
            found[node.store.name] = [
                (e.key.decode(), e.window or (None, None), e.value, e.timestamp) for e in entries if e.key is not None
            ]
    return found


def job(operators: list[Record], *, partitions: Mapping[str, int] | None = None, **fields: Any) -> Topology:
    """The compiled topology of a job over one partition of `in`, or over streams with so many."""
    spec = JobSpec.parse({"name": "t", "source": "in", "sink": "out", "operators": operators, **fields})
    return graph.compile(spec, partitions or {"in": 1})


def batch_of(records: Sequence[Record], first_offset: int = 0) -> Batch:
    """Records (key: text, bytes or None; value: anything JSON; timestamp; window) as a batch of one input."""
    rows = [
        {
            "key": record["key"].encode() if isinstance(record["key"], str) else record["key"],
            "value": None if record["value"] is None else json.dumps(record["value"], ensure_ascii=False),
            "timestamp": record["timestamp"],
            "window_start": (record.get("window") or {}).get("start"),
            "window_end": (record.get("window") or {}).get("end"),
        }
        for record in records
    ]
    part = Part(pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA), first_offset)
    return inputs.batch_of([Unread(INPUT, InputPosition(first_offset), first_offset + len(rows), [part])])


def rows_of(records: Sequence[Record]) -> pa.RecordBatch:
    """The same as rows (TASK_SCHEMA)."""
    return batch_of(records).rows


def cut(records: Sequence[Record], sizes: Iterable[int]) -> list[Batch]:
    """The records as batches of these sizes, in turn; the rest in one."""
    batches, at = [], 0
    for size in sizes:
        if at >= len(records):
            break
        batches.append(batch_of(records[at : at + size], at))
        at += size
    if at < len(records):
        batches.append(batch_of(records[at:], at))
    return batches


def shown(records: pa.RecordBatch) -> list[Record]:
    """Records as the conformance cases write them."""
    return [
        {
            "key": None if row["key"] is None else row["key"].decode(),
            "value": None if row["value"] is None else json.loads(row["value"]),
            "timestamp": row["timestamp"],
            "window": None if row["window_start"] is None else {"start": row["window_start"], "end": row["window_end"]},
        }
        for row in records.to_pylist()
    ]


def outputs(result: ChainResult) -> list[Record]:
    """What went to the first sink."""
    return shown(result.outputs[0][1])


def causes(result: ChainResult, sink: int = 0) -> list[int]:
    """The offsets of the records that caused what went to a sink, -1 where none did; of the one input that there is."""
    found: list[int] = result.origins.words(result.ordinals[sink]).tolist()
    return found


def dropped(result: ChainResult) -> list[tuple[str, str, int]]:
    """Operator, reason and offset of each dropped record."""
    return [
        (each.operator, each.reason, offset)
        for each in result.dropped
        for offset in result.origins.words(each.rows.column("ordinal").to_numpy()).tolist()
    ]


def parts(task: Task, batch: Batch) -> list[ChainResult]:
    """The results of a batch, in as many parts as the task makes of it."""
    found = [task.run(batch), *task.drain()]
    taken = found[0].taken
    while taken < batch.rows.num_rows:
        batch = batch.rest(taken)
        result = task.run(batch)
        taken = result.taken
        found += [result, *task.drain()]
    return found


def run_all(task: Task, batches: Iterable[Batch]) -> list[Record]:
    """The outputs of all batches."""
    return [record for batch in batches for result in parts(task, batch) for record in outputs(result)]


def check_replay(topology: Topology, batches: Sequence[Batch], crash: int) -> None:
    """A task whose first `crash` commits are replayed goes on as one that never stopped: same outputs, same state."""
    undisturbed = Task(topology)
    expected = [run_all(undisturbed, [batch]) for batch in batches]
    restored = Task(topology)
    for changes in undisturbed.changelog[:crash]:
        restored.replay(changes)
    assert run_all(restored, batches[crash:]) == [record for out in expected[crash:] for record in out]
    assert restored.states == undisturbed.states
