"""The commit of what tasks did: the only way in which results, positions and changelogs come to exist.

It knows epochs, versions, positions and offsets; it refuses to know what an operator does and when a lease ends.

A commit is accepted when the slot holds the task under the epoch and version that the catalog holds, its positions
begin where the stored ones are, its segments are pending ones of this slot, and their chunks are for logs of the task.
A task that has another version of its job to adopt does that by its next commit, and by nothing else.
Each commit of a request is judged alone, before anything of it is written. Repeating the id of a task's last commit
gets the first answer; a writer asks again before it commits anything else, so nothing older can be asked for.

Locks are taken in the order of the catalog: tasks by id, segments by id, partitions by (stream, partition).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service import ranges
from service.catalog import idle_and_flush, replays, task_moves, task_orders
from service.catalog.converters import converter
from service.catalog.engine import now_ms, progress_topic, wake
from service.catalog.inputs import inputs_of_tasks, packed_positions, partitions_read_by
from service.catalog.outputs import Outputs
from service.catalog.replicas import active_of, note_commit
from service.catalog.segments import PENDING, Appender, lock_segments
from service.catalog.tables import JobRow, ReplicaRow, TaskRow
from service.faults import fault_point
from service.protocol import Move, TakenOrder, TaskCommit, Verdict, WrittenSegment
from service.streams import measures
from service.streams.records import ChunkMeta, Published

_verdict = converter(Verdict)


def commit_tasks(s: Session, slot_id: str, commits: Sequence[TaskCommit]) -> list[Verdict]:
    """Judge each commit alone and write what is accepted; the verdicts come in the order of the commits."""
    return _Committing(s, slot_id, commits).run()


def lock_tasks_by_id(s: Session, task_ids: Iterable[str]) -> dict[str, TaskRow]:
    """Lock tasks in the order of their ids."""
    rows = s.scalars(_BY_ID, {"task_ids": sorted(task_ids)}, execution_options={"populate_existing": True})
    return {task.id: task for task in rows}


_BY_ID = (  # made once: making it takes as long as running it
    select(TaskRow)
    .where(TaskRow.id.in_(bindparam("task_ids", expanding=True)))
    .order_by(TaskRow.id)
    .with_for_update(key_share=True)
)


class _Committing:
    """One request of commits: everything it may touch is locked first, in order, then each is judged in memory."""

    def __init__(self, s: Session, slot_id: str, commits: Sequence[TaskCommit]) -> None:
        self._s, self._slot_id, self._commits = s, slot_id, commits
        self._at_ms = now_ms(s)
        self._tasks = lock_tasks_by_id(s, {commit.task for commit in commits})
        self._active = active_of(s, list(self._tasks))
        self._inputs = inputs_of_tasks(s, self._tasks)
        segments = [segment for commit in commits for segment in commit.segments]
        self._segments = lock_segments(s, {segment.id for segment in segments}) if segments else {}
        self._published: set[str] = set()
        self._outputs = Outputs(s, (task.job_id for task in self._tasks.values())) if segments else None
        self._log = Appender(s, self._written() | self._read_by_idle())

    def run(self) -> list[Verdict]:
        verdicts = [self._judge(commit) for commit in self._commits]
        self._s.flush()
        self._log.write()
        return verdicts

    def _written(self) -> set[tuple[str, int]]:
        """Where the commits append, each to logs of its own task: no others are locked."""
        return {
            (chunk.stream_id, chunk.partition)
            for commit in self._commits
            if (task := self._tasks.get(commit.task)) is not None
            for segment in commit.segments
            for chunk in segment.chunks
            if self._may_write(task, chunk)
        }

    def _may_write(self, task: TaskRow, chunk: ChunkMeta) -> bool:
        return self._outputs is not None and self._outputs.may_write(task, chunk)

    def _read_by_idle(self) -> set[tuple[str, int]]:
        """The sources of jobs that close on idle input: locked, so that what is idle stays so until we are done."""
        advances = [(commit.task, commit.advance) for commit in self._commits]
        idle = {task_id for task_id, advance in advances if advance is not None and advance.reason == "idle"}
        jobs = {task.job_id for task_id, task in self._tasks.items() if task_id in idle}
        return partitions_read_by(self._s, jobs) if jobs else set()

    def _judge(self, commit: TaskCommit) -> Verdict:
        task = self._tasks.get(commit.task)
        if task is not None and task.last_commit_id == commit.commit_id and task.last_commit_result is not None:
            return _verdict(task.last_commit_result)
        if task is None:
            return Verdict(commit.task, commit.commit_id, "refused", "unknown_task")
        active = self._active.get(task.id)
        if active is None or active.slot_id != self._slot_id or task.epoch != commit.epoch:
            return Verdict(commit.task, commit.commit_id, "refused", "stale_epoch", task.version)
        reason = self._objection(task, commit)
        if reason is not None:
            return Verdict(commit.task, commit.commit_id, "refused", reason, task.version)
        return self._accept(task, active, commit)

    def _objection(self, task: TaskRow, commit: TaskCommit) -> str | None:
        """Why a commit of the task's owner can not be accepted; None when it can."""
        if task.version != commit.version:
            return "stale_version"
        if task.next_version != commit.adopted:
            return "not_adopted" if commit.adopted is None else "wrong_job_version"
        inputs = self._inputs[task.id]
        if len({move.input for move in commit.positions}) < len(commit.positions):
            return "wrong_position"
        for move in commit.positions:
            at = inputs[move.input] if move.input < len(inputs) else None
            if at is None or at.position != move.start or not at.position <= move.end <= at.end:
                return "wrong_position"
        objection = self._objection_to_advance(task, commit) or replays.objection(task, commit.replayed)
        return objection or self._objection_to_segments(task, commit.segments)

    def _objection_to_advance(self, task: TaskRow, commit: TaskCommit) -> str | None:
        """A batch moves by records, replays or advances, never two; and what allowed an advance must still be so."""
        if commit.adopted is not None and (commit.positions or commit.replayed or commit.advance):
            return "more_than_adopted"
        if sum(map(bool, (commit.positions, commit.replayed, commit.advance))) > 1:
            return "records_and_replay" if commit.advance is None else "records_and_advance"
        if commit.advance is None:
            return None
        if commit.advance.reason == "idle":
            job = self._s.get_one(JobRow, task.job_id)
            return None if idle_and_flush.is_idle(self._s, job, task.id) else "not_idle"
        return None if idle_and_flush.is_flush_due(task.flush_at, self._inputs[task.id]) else "not_to_flush"

    def _objection_to_segments(self, task: TaskRow, segments: Sequence[WrittenSegment]) -> str | None:
        if len({segment.id for segment in segments}) < len(segments):
            return "segment_twice"
        for segment in segments:
            objection = self._objection_to_name(segment.id) or self._objection_to_chunks(task, segment.chunks)
            if objection is not None:
                return objection
        return None

    def _objection_to_name(self, segment_id: str) -> str | None:
        """Names are for who registered them: the file of another's name is another's."""
        known = self._segments.get(segment_id)
        if known is None or known.state != PENDING or segment_id in self._published:
            return "segment_not_pending"
        return None if known.writer == self._slot_id else "foreign_segment"

    def _objection_to_chunks(self, task: TaskRow, chunks: Sequence[ChunkMeta]) -> str | None:
        if any(chunk.records < 1 for chunk in chunks):
            return "empty_chunk"
        if not all(self._may_write(task, chunk) for chunk in chunks):
            return "foreign_stream"
        packed = ((chunk, chunk.ranges) for chunk in chunks if chunk.ranges is not None)
        if not all(ranges.is_whole(found, chunk.records, chunk.byte_length) for chunk, found in packed):
            return "wrong_ranges"
        return None if self._log.missing(chunks) is None else "unknown_partition"

    def _accept(self, task: TaskRow, active: ReplicaRow, commit: TaskCommit) -> Verdict:
        published: list[Published] = []
        for segment in commit.segments:
            published += self._log.append(segment.id, segment.bytes, segment.chunks)
            self._published.add(segment.id)
        if commit.positions:
            self._move(task, commit.positions, commit.order)
        if commit.replayed is not None:
            replays.note(task, commit.replayed)
        if commit.advance is not None:
            idle_and_flush.note(task, commit.advance, self._at_ms)
        if commit.adopted is not None:
            task.spec_version, task.next_version, task.set_back_to = commit.adopted, None, None
        task.version += 1
        self._note_move(task, commit)
        verdict = Verdict(commit.task, commit.commit_id, "accepted", None, task.version, published)
        task.last_commit_id, task.last_commit_result = commit.commit_id, msgspec.to_builtins(verdict)
        task.counters = measures.after(task.counters, dict(commit.counters))
        note_commit(active, commit.applied)
        task.stream_time = max(task.stream_time, commit.stream_time)
        task.has_backlog = commit.has_backlog or (task.has_backlog and commit.adopted is not None)
        task.updated_ms = self._at_ms
        wake(self._s, progress_topic(task.job_id))
        return verdict

    def _note_move(self, task: TaskRow, commit: TaskCommit) -> None:
        """Remember what a commit did without a record."""
        inputs = self._inputs[task.id]
        if commit.adopted is not None:
            task_moves.note(self._s, task, inputs, "adopt")
        elif commit.replayed is not None:
            task_moves.note(self._s, task, inputs, "replay")
        elif commit.advance is not None and commit.advance.to is not None:
            task_moves.note(self._s, task, inputs, commit.advance.reason)

    def _move(self, task: TaskRow, moves: Sequence[Move], order: TakenOrder | None) -> None:
        inputs = self._inputs[task.id]
        if order is not None:
            task_orders.note(self._s, task, inputs, order)
            fault_point("order.noted")
        for move in moves:
            at = inputs[move.input]
            at.position, at.frontier = move.end, max(at.frontier, move.frontier)
        task.positions = packed_positions(inputs)
        task.is_closed = False
