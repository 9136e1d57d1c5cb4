"""Resets: a job begins to read anew, with empty stores, as if it had just been made.

It knows which rows say what a job has read and what it keeps. Stores, changelogs and repartition streams get new ids,
so that no copy of what was kept before is ever read again; the old streams go as those of a deleted job do, stores of
operators that were removed with them, and the collector frees their files. Sinks, dropped records and the records to
pass over stay. It refuses to know who may reset what, and who owns a task.

Locks: the job and its tasks are locked; then partitions by id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service.catalog import task_moves
from service.catalog.engine import now_ms
from service.catalog.inputs import TaskInput, inputs_of_job, pack
from service.catalog.job_changes import drop_store
from service.catalog.jobs import streams_of
from service.catalog.start_positions import FirstRecords, start_of
from service.catalog.streams import create_stream, lock_partitions_of, remove_streams
from service.catalog.tables import (
    CatalogTable,
    JobRow,
    JobStreamRow,
    ReplicaRow,
    StoreRow,
    StreamRow,
    TaskInputRow,
    TaskRow,
    new_id,
)
from service.streams.errors import InvalidSpec
from service.streams.inputs import InputPosition
from service.streams.topology.starts import Start, unfit_for_partitions, unfit_for_sources


def begin_anew(
    s: Session, job: JobRow, tasks: Iterable[TaskRow], start: Start, records: FirstRecords | None = None
) -> None:
    """Set a locked job back to a start. Raises InvalidSpec (where that lies outside of what is there)."""
    locked = list(tasks)
    read = streams_of(s, job.id, "source")
    counts, sources = {each.name: each.partitions for each in read}, {each.id: each.name for each in read}
    if found := [*unfit_for_sources(start, list(counts)), *unfit_for_partitions(start, counts)]:
        raise InvalidSpec(found)
    internal = streams_of(s, job.id, "internal")
    dropped = [stream.id for stream in internal if stream.kind == "dropped"]
    partitions = {
        (at.stream_id, at.partition): at for at in lock_partitions_of(s, [*sources, *(each.id for each in internal)])
    }
    inputs = inputs_of_job(s, job.id)

    def first(at: TaskInput) -> InputPosition:
        if at.stream_id not in sources:
            return InputPosition(0)  # a stream of its own, which begins anew too
        return InputPosition(start_of(s, start, sources[at.stream_id], partitions[at.stream_id, at.partition], records))

    job.flush = job.change = None
    at_ms = now_ms(s)
    job.replays_from = {str(at.partition): at.end_offset for at in partitions.values() if at.stream_id in dropped}
    begun: list[task_moves.Begun] = []
    for task in locked:
        task.positions = pack(first(at) for at in inputs[task.id])
        task.version += 1
        task.counters, task.stream_time = {}, -1
        task.is_closed, task.has_backlog = True, False
        task.flush_at = task.advanced = task.replay = task.next_version = task.set_back_to = None
        task.spec_version = job.spec_version
        task.updated_ms = at_ms
        task.taken_order = None
        is_behind_repartition = any(at.sub_log is not None for at in inputs[task.id])
        offsets = [first(at).offset for at in inputs[task.id]]
        begun.append(task_moves.Begun(task, offsets, is_behind_repartition))
    s.flush()
    task_moves.forget(s, [task.id for task in locked])
    task_moves.note_begin(s, begun, job.spec_version)
    s.execute(delete(ReplicaRow).where(ReplicaRow.task_id.in_([task.id for task in locked])))
    removed = s.scalars(select(StoreRow).where(StoreRow.job_id == job.id, StoreRow.is_removed)).all()
    going = {*dropped, *(store.changelog_stream_id for store in removed)}
    for store in removed:
        drop_store(s, store)
    _renew_streams(s, job, [stream for stream in internal if stream.id not in going])


def _renew_streams(s: Session, job: JobRow, streams: Iterable[StreamRow]) -> None:
    """Put empty streams with other ids in the place of these, and stores with other ids in the place of all."""
    old = {stream.id: (stream.name, stream.partitions, stream.kind) for stream in streams}
    of_stores = _taken(s, StoreRow, StoreRow.job_id == job.id)
    of_inputs = _taken(s, TaskInputRow, TaskInputRow.stream_id.in_(old))
    of_job = _taken(s, JobStreamRow, JobStreamRow.stream_id.in_(old))
    remove_streams(s, list(old))
    new = {
        stream_id: create_stream(s, name, partitions=partitions, kind=kind, job_id=job.id).id
        for stream_id, (name, partitions, kind) in old.items()
    }
    begun = {"since_version": job.spec_version}
    stores = [
        {**row, **begun, "id": new_id(), "changelog_stream_id": new[row["changelog_stream_id"]]} for row in of_stores
    ]
    _add(s, StoreRow, stores)
    for table, rows in ((JobStreamRow, of_job), (TaskInputRow, of_inputs)):
        _add(s, table, [{**row, "stream_id": new[row["stream_id"]]} for row in rows])


def _add(s: Session, table: type[CatalogTable], rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        s.execute(insert(table), rows)


def _taken(s: Session, table: type[CatalogTable], which: Any) -> list[dict[str, Any]]:
    """Rows as they were, which are there no more."""
    rows = [dict(row) for row in s.execute(select(table.__table__).where(which)).mappings()]
    s.execute(delete(table).where(which))
    return rows
