"""A simulation: batches to their tasks, results back in the order of their causes, and the answer of it all.

It knows how results are shown; it refuses to know how a task runs (`task`) and what is too much (`bounds`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from service.simulate.bounds import ROW_BYTES, Bounds, Reach, check_reach, row_bytes
from service.simulate.request import (
    NumberedRecord,
    SimulatedRecord,
    SimulateRequest,
    as_batch,
    batches,
    check_streams,
    compiled,
    input_of,
    sees_batches,
    value_text,
)
from service.simulate.task import SimulatedTask
from service.streams.errors import OperatorFailed
from service.streams.partitioner import sink_partition_of
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.graph import Node, SubTopology

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
    sub_topology = topology.sub_topologies[0]
    texts = [value_text(record, i) for i, record in enumerate(body.records)] if written is None else written
    reach = Reach.of(spec, body.records)
    check_reach(body, spec, reach, texts, replicas=len(sub_topology.stores()))
    try:
        with TemporaryDirectory(prefix="millrace-simulate-") as folder, ExitStack() as opened:
            bounds = Bounds(reach, len(body.records))
            simulation = Simulation(
                sub_topology, Chain(sub_topology, spec.on_error), Path(folder), opened, bounds, show
            )
            simulation.feed_all(body.records, texts, batches(body), is_whole=sees_batches(spec))
            if body.advance_to is not None:
                simulation.advance(body.advance_to)
            return simulation.answer()
    except OperatorFailed as error:
        error.at(place_of(error, sub_topology, body.job_at))
        raise


def place_of(error: OperatorFailed, sub_topology: SubTopology, job_at: str = "/job") -> str:
    """The pointer of an operator's failure into the request: to a record where one is known, else to the operator."""
    if error.offset is not None:
        return f"/records/{error.offset}"
    names = [node.name for node in sub_topology.nodes]
    return f"{job_at}/operators/{names.index(error.operator)}" if error.operator in names else job_at


@dataclass(slots=True)
class Simulation:
    """A simulation under way."""

    sub_topology: SubTopology
    chain: Chain
    folder: Path
    opened: ExitStack
    bounds: Bounds
    show: Show
    tasks: dict[int, SimulatedTask] = field(default_factory=dict)
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
            ROW_BYTES + len(record.key or "") + len(text or "") for record, text in zip(records, texts, strict=True)
        ]
        for batch in batches:
            begin = batch.start
            while begin < batch.stop:
                end = batch.stop if is_whole else self.bounds.cut(sizes, begin, batch.stop)
                self.feed([(i, records[i], texts[i]) for i in range(begin, end)])
                self.bounds.hold(replica for task in self.tasks.values() for replica in task.replicas.values())
                begin = end

    def feed(self, records: Sequence[NumberedRecord]) -> None:
        """Each partition's task runs its share; results come in the order of their causes."""
        shares: dict[int, list[NumberedRecord]] = {}
        for fed in records:
            shares.setdefault(fed[1].partition, []).append(fed)
        outputs: list[tuple[int, dict[str, Any]]] = []
        dropped: list[tuple[int, dict[str, Any]]] = []
        for partition, share in shares.items():
            for result in self._task(partition).run(as_batch(input_of(partition), share)):
                outputs += self._outputs(result, partition)
                dropped += self._dropped(result)
        self.outputs += [output for _, output in sorted(outputs, key=_cause)]
        self.dropped += [drop for _, drop in sorted(dropped, key=_cause)]

    def advance(self, to: int) -> None:
        """Move stream time (ms), one task after another, as a flush of the job would."""
        for partition, task in sorted(self.tasks.items()):
            for result in task.advance(to, [input_of(partition)]):
                self.outputs += [output for _, output in self._outputs(result, partition)]
                self.dropped += [drop for _, drop in self._dropped(result)]

    def answer(self) -> dict[str, Any]:
        """Outputs, live entries of stores, dropped records and stream times (ms) so far."""
        tasks = sorted(self.tasks.items())
        return {
            "outputs": self.outputs,
            "stores": {
                node.store.name: [item for _, task in tasks for item in self._items(task, node)]
                for node in self.sub_topology.nodes
                if node.store is not None
            },
            "dropped": self.dropped,
            "stream_time": {f"{self.sub_topology.id}_{p}": task.stream_time for p, task in tasks},
        }

    def _task(self, partition: int) -> SimulatedTask:
        task = self.tasks.get(partition)
        if task is None:
            task = SimulatedTask.open(self.sub_topology, self.chain, partition, self.folder, self.opened)
            self.tasks[partition] = task
        return task

    def _outputs(self, result: ChainResult, partition: int) -> Iterator[tuple[int, dict[str, Any]]]:
        for (_, records), ordinals in zip(result.outputs, result.ordinals, strict=True):
            self.bounds.see(ordinals, row_bytes(records))
        for (stream, records), ordinals in zip(result.outputs, result.ordinals, strict=True):
            causes = result.origins.words(ordinals)
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
            self.bounds.take(each.rows.num_rows, int(row_bytes(each.rows).sum()))
            causes = result.origins.words(each.rows.column("ordinal").to_numpy())
            errors: Sequence[str | None] = each.errors or [None] * len(causes)
            for cause, record, error in zip(causes.tolist(), each.rows.to_pylist(), errors, strict=True):
                shown = {"key": _text(record["key"]), "timestamp": record["timestamp"]}
                why = {} if error is None else {"error": error}
                yield cause, {"operator": each.operator, "reason": each.reason, **shown, **why}

    def _items(self, task: SimulatedTask, node: Node) -> Iterator[dict[str, Any]]:
        for page in task.entries(node):
            sizes = (ROW_BYTES + len(entry.key or b"") + len(entry.value or "") for entry in page)
            self.bounds.take(len(page), sum(sizes))
            for entry in page:
                yield {
                    "key": _text(entry.key),
                    "window": None if entry.window is None else dict(zip(("start", "end"), entry.window, strict=True)),
                    "value": None if entry.value is None else self.show(entry.value),
                    "timestamp": entry.timestamp,
                }


def _cause(tagged: tuple[int, dict[str, Any]]) -> int:
    return tagged[0]


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode("utf-8", "replace")
