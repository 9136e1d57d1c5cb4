"""What became of a record that tasks behind a repartition go on with: the tasks of its job once more, one after the
other, each over what those before it write for it.

It knows what tasks write for each other, which records of users' streams all of that comes from, and how what several
tasks say of a record becomes one answer. It refuses to know how a task runs, and what became of a record in it
(`explanation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.simulate.explanation import (
    NO_PLACE,
    NOWHERE,
    SHOWN_RECORDS,
    Rerun,
    SeveralInputs,
    TaskAgain,
    TaskToExplain,
    shortened,
    unknown,
)
from service.simulate.taken import TakenRecords
from service.streams.clock import CloseReason
from service.streams.inputs import Batch
from service.streams.partitioner import split_by_partition
from service.streams.records import REPARTITION_SCHEMA, as_records
from service.streams.topology.chain import ChainResult
from service.streams.topology.graph import Topology
from service.streams.topology.trails import Fate

Int64s = npt.NDArray[np.int64]
At = tuple[int, int]  # sub-topology, partition of a task

_CLOSED: Final[dict[CloseReason, int]] = {"idle": -1, "flush": -2}  # what caused a record that no record did
_REASONS: Final = {code: reason for reason, code in _CLOSED.items()}
_LOG_SCHEMA: Final = pa.schema([pa.field("offset", pa.int64()), *REPARTITION_SCHEMA])


class OrderUnknown(Exception):
    """In which order a task took its records can not be told."""


def explain_all(task: TaskToExplain, batches: Iterable[pa.RecordBatch], folder: Path) -> dict[str, Any]:
    """The answer, by all tasks of the job (`task.tasks`). `batches`: records of users' streams as for `explain`, with
    the numbers of the task and of its input in the metadata.

    Raises OperatorFailed, ExplanationTooLarge.
    """
    with ExitStack() as opened:
        job = JobRerun(task, batches, folder, opened)
        try:
            job.run()
        except OrderUnknown as error:
            return unknown("several_inputs", str(error))
        return shortened(job.answer())


class _Log:
    """What a task wrote for another one: records with `aligned_at`, and which record of its own caused each (negative:
    none, see `_CLOSED`).
    """

    def __init__(self) -> None:
        self._parts: list[pa.RecordBatch] = []
        self._causes: list[Int64s] = []

    def append(self, rows: pa.RecordBatch, causes: Int64s) -> None:
        self._parts.append(rows)
        self._causes.append(causes)

    @property
    def causes(self) -> Int64s:
        return np.concatenate([np.empty(0, np.int64), *self._causes])

    @property
    def records(self) -> pa.Table:
        """As `TakenRecords` has them: a record's offset is its place here."""
        table = pa.Table.from_batches(self._parts, REPARTITION_SCHEMA)
        offsets = pa.chunked_array([np.arange(table.num_rows)], pa.int64())
        return pa.Table.from_arrays([offsets, *table.columns], schema=_LOG_SCHEMA)


class _Onward(NamedTuple):
    """A record in a log that tasks of another sub-topology read: who reads it, as which input, at which place. `root`:
    the record that was asked for.
    """

    reader: At
    input: int
    offset: int
    root: int


class JobRerun:
    """All tasks of a job once more, as far as a record's way leads through what they write."""

    def __init__(
        self, asked: TaskToExplain, batches: Iterable[pa.RecordBatch], folder: Path, opened: ExitStack
    ) -> None:
        self._asked, self._folder, self._opened = asked, folder, opened
        self._topology = Topology.from_json(asked.topology)
        self._writers = {name: writer.id for name, (writer, _) in self._topology.repartitions().items()}
        self._readers = {name: each.id for each in self._topology.sub_topologies for name in each.sources}
        self._tasks = {(each.sub_topology, each.partition): each for each in asked.tasks}
        self._logs: dict[tuple[str, int, int], _Log] = {}
        self._causes: dict[tuple[str, int, int], Int64s] = {}
        self._coming: dict[At, list[_Onward]] = {}
        self._ways: dict[tuple[At, str, int], list[_Onward]] = {}
        self._reruns: dict[At, Rerun] = {}  # of the tasks that a record which is asked for went through
        self._taken: dict[At, TakenRecords] = {}
        self._given: dict[tuple[int, int], list[pa.RecordBatch]] = {}
        for batch in batches:
            said = batch.schema.metadata
            self._given.setdefault((int(said[b"task"]), int(said[b"input"])), []).append(
                batch.replace_schema_metadata()
            )

    @property
    def asked_at(self) -> At:
        return self._asked.sub_topology, self._asked.partition

    @property
    def first(self) -> Rerun:
        """That of the task which reads the record itself."""
        return self._reruns[self.asked_at]

    def run(self) -> None:
        """Raises OrderUnknown, OperatorFailed, ExplanationTooLarge."""
        for number, again in enumerate(self._asked.tasks):
            at = again.sub_topology, again.partition
            is_followed = at == self.asked_at or at in self._coming
            if is_followed:
                self._reruns[at] = self._run(number, again, self._opened)
                self._follow(at)
            elif self._topology.sub_topologies[again.sub_topology].repartitions:
                with ExitStack() as opened:
                    self._run(number, again, opened)

    def answer(self) -> dict[str, Any]:
        """As that of the one task, with what became of the last record in the others; not `shortened` yet."""
        found = self.first.answer()
        last = self.first.last
        if last is None:
            return found
        for at, number in self._beyond(self.asked_at, last):
            rerun = self._reruns[at]
            if not rerun.is_run(number):
                continue
            seen = {each["operator"] for each in found["path"]}
            found["path"] += [each for each in rerun.path(number) if each["operator"] not in seen]
            found["outputs"] += rerun.outputs(number)
            windows = rerun.windows(self._taken[at].stamp_of(number))
            found["windows"] += [each for each in windows if each not in found["windows"]]
        return found

    # ---------------------------------------------------------------- running

    def _run(self, number: int, again: TaskAgain, opened: ExitStack) -> Rerun:
        at = again.sub_topology, again.partition
        tables = [self._table(number, i, again) for i in range(len(again.inputs))]
        taken = TakenRecords(tables, [*again.orders, again.position])
        are_there = [
            table.num_rows >= position or stream not in self._writers
            for table, position, (stream, _) in zip(tables, again.position, again.inputs, strict=True)
        ]
        if not all(are_there) or not _is_as_remembered(again, taken):
            raise OrderUnknown(f"task {_name(at)} had taken others than come out now")
        self._taken[at] = taken
        rerun = self._rerun(at, again, taken, opened)
        for batch in taken.batches():
            rerun.feed(batch)
        rerun.finish()
        taken.let_go()
        return rerun

    def _rerun(self, at: At, again: TaskAgain, taken: TakenRecords, opened: ExitStack) -> Rerun:
        asked, is_asked = self._asked, at == self.asked_at
        coming = self._coming.get(at, [])
        followed = [(each, taken.number_of(each.input, each.offset)) for each in coming]
        last = self.first.last if self.asked_at in self._reruns else None
        own = [number for each, number in followed if number is not None and each.root == last]
        key = asked.key if is_asked else taken.key_of(own[0]) if own else None
        number = 0 if not is_asked else [tuple(each) for each in again.inputs].index((asked.stream, asked.partition))
        several = SeveralInputs(again.inputs, number, again.begin, again.position, (), (), None)
        offset = None
        if is_asked and asked.offset is not None:
            found = taken.number_of(number, asked.offset)
            offset = NOWHERE if found is None else found
        skipped = (taken.number_of(0, offset) for offset in again.skips)
        task = msgspec.structs.replace(
            asked,
            sub_topology=at[0],
            partition=at[1],
            begin=0,
            position=taken.before(again.position),
            advances=[(taken.before(place), reason) for place, reason in again.advances],
            skips=[number for number in skipped if number is not None],
            known_to=None,
            ended_by=None,
            key=key,
            offset=offset,
            several=several,
            tasks=(),
        )
        rerun = Rerun(task, self._folder, opened, taken)
        rerun.heard = lambda result, batch, reason: self._hand_on(at, result, batch, reason)
        rerun.place = lambda number: self._origin(at, number)
        rerun.onward = lambda fate, number: list(self._verdicts(at, fate, number))
        if not is_asked:
            rerun.chosen = np.array(sorted(number for _, number in followed if number is not None), np.int64)
            rerun.shown = np.array(own, np.int64)
        return rerun

    def _table(self, number: int, place: int, again: TaskAgain) -> pa.Table:
        """The records of an input, from where its task began."""
        stream, partition = again.inputs[place]
        if stream in self._writers:
            log = (stream, partition, again.partition)
            self._causes[log] = self._logs[log].causes if log in self._logs else np.empty(0, np.int64)
            return self._logs[log].records if log in self._logs else _LOG_SCHEMA.empty_table()
        return TakenRecords.table_of(self._given.pop((number, place), []))

    def _hand_on(self, at: At, result: ChainResult, batch: Batch, reason: CloseReason | None) -> None:
        """What a task wrote for others."""
        for each in result.repartitioned:
            ordinals = each.rows.column("ordinal").to_numpy()
            if reason is None and (ordinals < 0).any():
                # its `aligned_at` depends on how batches were cut
                raise OrderUnknown(
                    f"more came of a record of task {_name(at)} than one commit takes, and waited in front of"
                    f" {each.stream}; between which records of other tasks it went on, nobody took note of"
                )
            words = result.origins.words(ordinals)
            causes = words if reason is None else np.full(len(ordinals), _CLOSED[reason])
            columns = [*as_records(each.rows).columns, pa.array(batch.reached(ordinals))]
            rows = pa.RecordBatch.from_arrays(columns, schema=REPARTITION_SCHEMA)
            for target, own in split_by_partition(each.keys, each.targets, at[1]):
                log = self._logs.setdefault((each.stream, at[1], target), _Log())
                log.append(rows.take(pa.array(own)), causes[own])

    def _follow(self, at: At) -> None:
        """Where the records of a task that are followed go on."""
        rerun, taken = self._reruns[at], self._taken[at]
        roots: dict[int, int] = {}
        if at == self.asked_at:
            roots = {number: number for number in rerun.matched[-SHOWN_RECORDS:]}
        else:
            for each in self._coming[at]:
                number = taken.number_of(each.input, each.offset)
                roots |= {} if number is None else {number: each.root}
        streams: dict[str, list[int]] = {}
        for number in sorted(roots):
            for stream in rerun.handed_on(number):
                streams.setdefault(stream, []).append(number)
        for (stream, partition, target), log in self._logs.items():
            if stream not in streams or partition != at[1]:
                continue
            reader, causes = (self._readers[stream], target), log.causes
            inputs = [tuple(each) for each in self._tasks[reader].inputs]
            for i in np.flatnonzero(np.isin(causes, streams[stream])).tolist():
                number = int(causes[i])
                onward = _Onward(reader, inputs.index((stream, partition)), i, roots[number])
                self._coming.setdefault(reader, []).append(onward)
                self._ways.setdefault((at, stream, number), []).append(onward)

    # ---------------------------------------------------------------- telling

    def _verdicts(self, at: At, fate: Fate, number: int) -> Iterator[dict[str, Any]]:
        """What became of a record that others go on with, there."""
        for each in self._ways.get((at, fate.stream or "", number), []):
            place = self._taken[each.reader].number_of(each.input, each.offset)
            if place is not None:
                yield from self._reruns[each.reader].verdicts(place)

    def _beyond(self, at: At, number: int) -> Iterator[tuple[At, int]]:
        """A record in all tasks that went on with it, in their order."""
        for (writer, _, cause), onward in self._ways.items():
            if (writer, cause) != (at, number):
                continue
            for each in onward:
                place = self._taken[each.reader].number_of(each.input, each.offset)
                if place is not None:
                    yield each.reader, place
                    yield from self._beyond(each.reader, place)

    def _origin(self, at: At, number: int) -> dict[str, Any]:
        """The record of a user's stream that a record of a task comes from; or what no record caused."""
        taken = self._taken[at]
        stream, partition = self._tasks[at].inputs[taken.inputs[number]]
        offset = int(taken.offsets[number])
        if stream not in self._writers:
            where = dict(zip(NO_PLACE, (stream, partition, offset), strict=True))
            return {**where, "timestamp": taken.stamp_of(number), "reason": "record"}
        cause = int(self._causes[stream, partition, at[1]][offset])
        if cause < 0:
            return {**NO_PLACE, "timestamp": taken.stamp_of(number), "reason": _REASONS[cause]}
        return self._origin((self._writers[stream], partition), cause)


def _name(at: At) -> str:
    return f"{at[0]}_{at[1]}"


def _is_as_remembered(again: TaskAgain, taken: TakenRecords) -> bool:
    """Whether the last record that a task took is the one that it took when it ran."""
    if again.last is None:
        return True
    at = taken.before(again.position) - 1
    return tuple(again.last) == ((-1, -1) if at < 0 else (int(taken.aligned_at[at]), int(taken.inputs[at])))
