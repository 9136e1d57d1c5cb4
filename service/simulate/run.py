"""A simulation: batches to their tasks, results back in the order of their causes, and the answer of it all.

It knows how records go from one task to the next and how results are shown; it refuses to know how a task runs (`task`)
and what is too much (`bounds`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa

from service.simulate.bounds import ROW_BYTES, Bounds, Reach, check_reach, row_bytes
from service.simulate.request import (
    NumberedRecord,
    SimulateRequest,
    as_part,
    batches,
    check_streams,
    compiled,
    sees_batches,
    value_text,
)
from service.simulate.task import SimulatedTask
from service.storage.segments import offsets_of
from service.streams.errors import OperatorFailed
from service.streams.inputs import (
    NO_CAUSE,
    Batch,
    Input,
    InputPosition,
    Int64s,
    Part,
    Unread,
    batch_of,
    split_words,
)
from service.streams.partitioner import sink_partition_of, split_by_partition
from service.streams.records import as_records
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.graph import Node, SubTopology, Topology
from service.streams.topology.spec import JobSpec

Show = Callable[[str], Any]


def simulate(
    body: SimulateRequest, show: Show = json.loads, written: Sequence[str | None] | None = None
) -> dict[str, Any]:
    """Run the job over the records; the answer of contract.md, Jobs. `show` turns a value's JSON into its place there.
    `written`: the values of the records as JSON texts, where these are to stay what they were written as.

    Offsets are positions in `records`. Raises InvalidSpec, InvalidRecords, OperatorFailed; SimulationTooLarge as soon
    as the answer passes its bounds (`bounds.MAX_ITEMS`, `MAX_BYTES`), or it takes longer than `MAX_SECONDS`.
    """
    spec, topology = compiled(body)
    check_streams(body.records, spec.sources)
    texts = [value_text(record, i) for i, record in enumerate(body.records)] if written is None else written
    reach = Reach.of(spec, body.records)
    check_reach(body, spec, topology, reach, texts)
    try:
        with TemporaryDirectory(prefix="millrace-simulate-") as folder, ExitStack() as opened:
            simulation = Simulation(spec, topology, Path(folder), opened, Bounds(reach, len(body.records)), show)
            for batch in batches(body):
                simulation.feed([(i, body.records[i], texts[i]) for i in batch])
            if body.advance_to is not None:
                simulation.advance(body.advance_to)
            return simulation.answer()
    except OperatorFailed as error:
        error.at(place_of(error, spec, body.job_at))
        raise


def place_of(error: OperatorFailed, spec: JobSpec, job_at: str = "/job") -> str:
    """The pointer of an operator's failure into the request: to a record where one is known, else to the operator."""
    if error.offset is not None:
        return f"/records/{error.offset}"
    names = spec.operator_names
    return f"{job_at}/operators/{names.index(error.operator)}" if error.operator in names else job_at


@dataclass(slots=True)
class SimulatedLog:
    """One partition of a repartition stream: what is unread of it, by target, and the record of the request that caused
    each of its records (-1: none).
    """

    unread: dict[int, list[Part]] = field(default_factory=dict)
    causes: list[int] = field(default_factory=list)

    def append(self, target: int, records: pa.RecordBatch, aligned_at: Int64s, causes: Sequence[int]) -> None:
        """Records (RECORD_SCHEMA) for a target."""
        self.unread.setdefault(target, []).append(Part(records, len(self.causes), aligned_at))
        self.causes.extend(causes)


class Simulation:
    """A simulation under way: sub-topology after sub-topology, each to the end of what is there, as a job does that
    finds all of it when it starts.
    """

    def __init__(
        self, spec: JobSpec, topology: Topology, folder: Path, opened: ExitStack, bounds: Bounds, show: Show
    ) -> None:
        self._spec, self._topology, self._folder, self._opened = spec, topology, folder, opened
        self._bounds, self._show = bounds, show
        self._is_whole = sees_batches(spec)
        self._chains = [Chain(each, spec.on_error) for each in topology.sub_topologies]
        self._writers = {name: writer for name, (writer, _) in topology.repartitions().items()}
        self._logs: dict[tuple[str, int], SimulatedLog] = {
            (name, partition): SimulatedLog()
            for name, writer in self._writers.items()
            for partition in range(writer.partitions)
        }
        self._positions: dict[tuple[int, Input], InputPosition] = {}
        self._tasks: dict[tuple[int, int], SimulatedTask] = {}
        self._outputs: list[dict[str, Any]] = []
        self._dropped: list[dict[str, Any]] = []

    def feed(self, records: Sequence[NumberedRecord]) -> None:
        """Each task runs its share; results come in the order of the records that caused them."""
        given: dict[Input, list[NumberedRecord]] = {}
        for fed in records:
            stream = fed[1].stream or self._spec.sources[0]
            given.setdefault(Input(stream, fed[1].partition), []).append(fed)
        shares = {log: as_part(share) for log, share in given.items()}
        results = _Results()
        for sub_topology in self._topology.sub_topologies:
            for partition in range(sub_topology.partitions):
                self._run(sub_topology, partition, shares, results)
        self._keep(results)

    def advance(self, to: int) -> None:
        """Move stream time (ms) as a flush of the job would: of a sub-topology once those before it are through."""
        for sub_topology in self._topology.sub_topologies:
            for partition in range(sub_topology.partitions):
                results = _Results()
                self._run(sub_topology, partition, {}, results)
                if (task := self._tasks.get((sub_topology.id, partition))) is not None:
                    nothing = batch_of(self._unread(sub_topology, partition, {}))
                    for result in task.advance(to, nothing.origins.inputs):
                        self._take(sub_topology, partition, result, nothing, results)
                self._outputs += [output for _, output in results.outputs]
                self._dropped += [drop for _, drop in results.dropped]

    def _keep(self, results: _Results) -> None:
        self._outputs += [output for _, output in sorted(results.outputs, key=_cause)]
        self._dropped += [drop for _, drop in sorted(results.dropped, key=_cause)]

    def _run(self, sub_topology: SubTopology, partition: int, shares: Mapping[Input, Part], results: _Results) -> None:
        """One task over all that is unread."""
        batch = batch_of(self._unread(sub_topology, partition, shares))
        if not batch.rows.num_rows:
            return
        task = self._task(sub_topology, partition)
        with self._located(sub_topology, partition):
            for result, run in task.run(batch, self._fitting):
                self._take(sub_topology, partition, result, run, results)
                self._bounds.hold((sub_topology.id, partition), task.replicas.values())
        for log, position in zip(batch.origins.inputs, batch.positions(batch.rows.num_rows), strict=True):
            self._positions[sub_topology.id, log] = position

    def _unread(self, sub_topology: SubTopology, partition: int, shares: Mapping[Input, Part]) -> list[Unread]:
        """What a task has not read, of all its inputs, in their order; its share of a repartition stream is its own."""
        found = []
        for source in sub_topology.sources:
            writer = self._writers.get(source)
            if writer is None:
                log = Input(source, partition)
                found.append(self._unread_of(sub_topology, log, [shares[log]] if log in shares else []))
            else:
                for number in range(writer.partitions):
                    parts = self._logs[source, number].unread.pop(partition, [])
                    found.append(self._unread_of(sub_topology, Input(source, number, partition), parts))
        return found

    def _unread_of(self, sub_topology: SubTopology, log: Input, parts: list[Part]) -> Unread:
        start = self._positions.get((sub_topology.id, log), InputPosition(0))
        end = int(offsets_of(parts[-1])[-1]) + 1 if parts else start.offset
        return Unread(log, start, end, parts)

    def _fitting(self, rows: pa.RecordBatch) -> int:
        return rows.num_rows if self._is_whole else self._bounds.fitting(row_bytes(rows).tolist())

    def _take(
        self, sub_topology: SubTopology, partition: int, result: ChainResult, run: Batch, results: _Results
    ) -> None:
        """Results of a task: shown, or handed to the tasks that go on with them."""
        results.outputs += self._shown_outputs(result, sub_topology, partition)
        results.dropped += self._shown_dropped(result)
        for each in result.repartitioned:
            log, ordinals = self._logs[each.stream, partition], each.rows.column("ordinal").to_numpy()
            records, reached = as_records(each.rows), run.reached(ordinals)
            causes = np.array(self._causes(result, ordinals), np.int64)
            for target, own in split_by_partition(each.keys, each.targets, partition):
                log.append(target, records.take(pa.array(own)), reached[own], causes[own].tolist())

    def _causes(self, result: ChainResult, ordinals: Int64s) -> list[int]:
        """The positions in the request of the records that caused rows; -1 where none did."""
        words = result.origins.words(ordinals)
        numbers, offsets = split_words(words)
        found = []
        for word, number, offset in zip(words.tolist(), numbers.tolist(), offsets.tolist(), strict=True):
            log = None if word == NO_CAUSE else result.origins.inputs[number]
            if log is None or log.stream_id not in self._writers:
                found.append(-1 if log is None else offset)
            else:
                found.append(self._logs[log.stream_id, log.partition].causes[offset])
        return found

    @contextmanager
    def _located(self, sub_topology: SubTopology, partition: int) -> Iterator[None]:
        """An operator that fails says at which record of the request."""
        try:
            yield
        except OperatorFailed as error:
            if error.offset is not None and error.stream_id in self._writers:
                cause = self._logs[error.stream_id, error.partition or 0].causes[error.offset]
                error.offset = None if cause < 0 else cause
            raise

    def answer(self) -> dict[str, Any]:
        """Outputs, live entries of stores, dropped records and stream times (ms) so far."""
        tasks = sorted(self._tasks.items())
        return {
            "outputs": self._outputs,
            "stores": {
                node.store.name: [item for (i, _), task in tasks if i == each.id for item in self._items(task, node)]
                for each in self._topology.sub_topologies
                for node in each.nodes
                if node.store is not None
            },
            "dropped": self._dropped,
            "stream_time": {f"{i}_{partition}": task.stream_time for (i, partition), task in tasks},
        }

    def _task(self, sub_topology: SubTopology, partition: int) -> SimulatedTask:
        at = sub_topology.id, partition
        if at not in self._tasks:
            chain = self._chains[sub_topology.id]
            self._tasks[at] = SimulatedTask.open(sub_topology, chain, partition, self._folder, self._opened)
        return self._tasks[at]

    def _shown_outputs(
        self, result: ChainResult, sub_topology: SubTopology, partition: int
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        for (_, records), ordinals in zip(result.outputs, result.ordinals, strict=True):
            self._bounds.see(ordinals, row_bytes(records))
        for (stream, records), ordinals in zip(result.outputs, result.ordinals, strict=True):
            causes = self._causes(result, ordinals)
            targets = sink_partition_of(records.column("key"), sub_topology.partitions, partition)
            for cause, target, record in zip(causes, targets.tolist(), records.to_pylist(), strict=True):
                yield cause, {"stream": stream, "partition": target, **self._shown(record)}

    def _shown(self, record: dict[str, Any]) -> dict[str, Any]:
        start, end = record["window_start"], record["window_end"]
        return {
            "key": _text(record["key"]),
            "value": None if record["value"] is None else self._show(record["value"]),
            "timestamp": record["timestamp"],
            "window": None if start is None else {"start": start, "end": end},
        }

    def _shown_dropped(self, result: ChainResult) -> Iterator[tuple[int, dict[str, Any]]]:
        for each in result.dropped:
            self._bounds.take(each.rows.num_rows, int(row_bytes(each.rows).sum()))
            causes = self._causes(result, each.rows.column("ordinal").to_numpy())
            errors: Sequence[str | None] = each.errors or [None] * len(causes)
            for cause, record, error in zip(causes, each.rows.to_pylist(), errors, strict=True):
                shown = {"key": _text(record["key"]), "timestamp": record["timestamp"]}
                why = {} if error is None else {"error": error}
                yield cause, {"operator": each.operator, "reason": each.reason, **shown, **why}

    def _items(self, task: SimulatedTask, node: Node) -> Iterator[dict[str, Any]]:
        for page in task.entries(node):
            sizes = (ROW_BYTES + len(entry.key or b"") + len(entry.value or "") for entry in page)
            self._bounds.take(len(page), sum(sizes))
            for entry in page:
                yield {
                    "key": _text(entry.key),
                    "window": None if entry.window is None else dict(zip(("start", "end"), entry.window, strict=True)),
                    "value": None if entry.value is None else self._show(entry.value),
                    "timestamp": entry.timestamp,
                }


@dataclass(slots=True)
class _Results:
    """What is shown of results, each with the position of the record that caused it (-1: none did)."""

    outputs: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    dropped: list[tuple[int, dict[str, Any]]] = field(default_factory=list)


def _cause(tagged: tuple[int, dict[str, Any]]) -> int:
    return tagged[0]


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "replace")
