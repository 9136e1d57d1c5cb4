"""How far the tasks of a job are, all together: what may still come in their inputs, and who waits for whom.

It knows positions, ends of logs and which task writes which repartition log, from one snapshot. It refuses to know
what records are and what an operator does with them. One-input jobs need none of it.

bound       of a task: nothing that it writes from now on has a lower `aligned_at` (ms). What it has read says so
            (a record that it writes has the highest `aligned_at` of all that the task read before), and what its inputs
            can still bring: of one with unread records what was read of it, else what the task that writes it says
caught up   of a task: every input is read to its end, all upstream tasks are caught up, user partitions silent for
            `max_task_idle_ms`, and it owes nothing: no backlog, replay or advance. Nothing comes of it until something
            happens outside of the job, so nobody waits for it
stage       of a sub-topology: 0 where it reads no repartition stream, else one more than the highest before it
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import bindparam, or_, select
from sqlalchemy.orm import Session

from service.catalog.driver import Prepared
from service.catalog.inputs import LONG_MS, POSITION_BYTES, SILENT_MS, Log, Logs, TaskInput, with_removed
from service.catalog.repartitions import unread_bytes
from service.catalog.tables import JobRow, JobStreamRow, PartitionRow, TaskInputRow, TaskRow

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_NEVER: Final = np.iinfo(np.int64).max
_NOBODY: Final = -1
_TASKS = Prepared(
    select(TaskRow.id.label("task_id"), TaskRow.sub_topology, TaskRow.partition, TaskRow.positions, TaskRow.is_closed)
    .add_columns(TaskRow.has_backlog, TaskRow.flush_at.is_not(None).label("is_flushing"))
    .add_columns(TaskRow.replay.is_not(None).label("is_replaying"), TaskInputRow.number)
    .add_columns(TaskInputRow.stream_id, TaskInputRow.partition.label("first"), TaskInputRow.partitions)
    .select_from(TaskInputRow)
    .join(TaskRow, TaskRow.id == TaskInputRow.task_id)
    .where(TaskRow.job_id == bindparam("job_id"))
    .order_by(TaskRow.sub_topology, TaskRow.partition, TaskInputRow.number)
)
_LOGS = Prepared(
    select(JobStreamRow.stream_id, JobStreamRow.sub_topology, PartitionRow.partition, PartitionRow.bytes)
    .add_columns(PartitionRow.start_offset, PartitionRow.end_offset, SILENT_MS)
    .join(PartitionRow, PartitionRow.stream_id == JobStreamRow.stream_id)
    .where(JobStreamRow.job_id == bindparam("job_id"))
    .where(or_(JobStreamRow.role == "source", JobStreamRow.sub_topology.is_not(None)))
    .order_by(JobStreamRow.stream_id, PartitionRow.partition)
)


@dataclass(frozen=True, slots=True)
class Patience:
    """What of a job says how long its tasks wait: `max_repartition_bytes` before they write more, `max_task_idle_ms`
    for a source partition that is silent; `idle_close_after_ms`, `flush`: what they still have to close. `read_to`:
    users' streams (id → an offset a partition) end there for them, while the job comes to rest for a change.
    """

    max_repartition_bytes: int
    max_task_idle_ms: int
    idle_close_after_ms: int | None
    flush: Mapping[str, Any] | None
    read_to: Mapping[str, Sequence[int]] | None = None

    @classmethod
    def of(cls, job: JobRow) -> Patience | None:
        """None: each task of the job has one input, a user's."""
        if job.max_repartition_bytes is None:
            return None
        return cls(job.max_repartition_bytes, job.max_task_idle_ms or 0, job.idle_close_after_ms, job.flush)


class JobLogs:
    """What the tasks of a job read, from one snapshot: users' partitions and repartition logs; one query. `by_stream`:
    as its tasks are to see them.
    """

    def __init__(self, s: Session, job_id: str, patience: Patience) -> None:
        self._patience = patience
        self.rows: Sequence[Any] = _LOGS.rows(s, job_id=job_id)  # by (stream id, partition)
        found: dict[str, list[Log]] = {}
        for row in self.rows:
            found.setdefault(row.stream_id, []).append(self._log_of(row))
        self.by_stream: Logs = found
        self._feeding = {row.sub_topology for row in self.rows}  # those that write logs

    def _log_of(self, row: Any) -> Log:
        """A partition as the job's tasks are to see it: of one that they read up to a mark, nothing comes behind."""
        marks = (self._patience.read_to or {}).get(row.stream_id)
        if marks is None:
            return Log(row.start_offset, row.end_offset, row.silent_ms)
        return Log(row.start_offset, min(row.end_offset, marks[row.partition]), LONG_MS)

    def feeds_others(self, sub_topology: int) -> bool:
        """Whether other tasks of the job read what tasks of this sub-topology write."""
        return sub_topology in self._feeding

    @property
    def may_throttle(self) -> bool:
        """Whether a task may have written so much which nobody has read that it must wait."""
        most = self._patience.max_repartition_bytes
        return any(row.sub_topology is not None and row.bytes > most for row in self.rows)


class JobProgress:
    """The progress of a job, from one snapshot; a query beside that of its `logs`, rows as many as tasks.

    Arrays over tasks in their order, over logs by (stream id, partition), and over inputs by task and number: `_task`
    and `_log` say which of either.
    """

    def __init__(self, s: Session, job_id: str, patience: Patience, logs: JobLogs | None = None) -> None:
        self._patience = patience
        ranges = _TASKS.rows(s, job_id=job_id)
        tasks = list({row.task_id: row for row in ranges}.values())
        self._places = {row.task_id: place for place, row in enumerate(tasks)}
        places = {(row.sub_topology, row.partition): place for place, row in enumerate(tasks)}
        self._read_logs(logs or JobLogs(s, job_id, patience), places)
        self._read_inputs(ranges, tasks)
        self._read_tasks(tasks)
        self._find_bounds()

    # ------------------------------------------------------------ what was read

    def _read_logs(self, logs: JobLogs, places: Mapping[tuple[int, int], int]) -> None:
        self._firsts: dict[str, int] = {}  # stream id → the place of its first log
        for place, row in enumerate(logs.rows):
            self._firsts.setdefault(row.stream_id, place)
        self._of_log = [*((row.stream_id, row.partition) for row in logs.rows), ("", 0)]  # the last: of removed inputs
        every = [*(log for of_stream in logs.by_stream.values() for log in of_stream), Log(0, 0, LONG_MS)]
        self._end, self._silent_ms = (np.array([log[field] for log in every], np.int64) for field in (1, 2))
        self._bytes: Int64s = np.array([*(row.bytes for row in logs.rows), 0], np.int64)
        writers = [*(places.get((row.sub_topology, row.partition), _NOBODY) for row in logs.rows), _NOBODY]
        self._writer: Int64s = np.array(writers, np.int64)  # of each log the task, _NOBODY: users

    def _read_inputs(self, ranges: Sequence[Any], tasks: Sequence[Any]) -> None:
        logs, owners, removed = list[int](), list[int](), len(self._of_log) - 1
        for row, begin, end in with_removed(ranges):
            first = self._firsts[row.stream_id] + row.first
            following = row.number + row.partitions
            logs += [removed] * (row.number - begin)
            logs += range(first, first + row.partitions)
            logs += [removed] * (end - following)
            owners += [self._places[row.task_id]] * (end - begin)
        self._log: Int64s = np.array(logs, np.int64)
        self._task: Int64s = np.array(owners, np.int64)
        packed = np.frombuffer(b"".join(row.positions for row in tasks), "<i8").reshape(-1, 2)
        self._position, self._frontier = packed[:, 0], packed[:, 1]
        sizes = [len(row.positions) // POSITION_BYTES for row in tasks]
        self._begin: Int64s = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])

    def _read_tasks(self, tasks: Sequence[Any]) -> None:
        self._sub: Int64s = np.array([row.sub_topology for row in tasks], np.int64)
        self._is_closed, is_behind, is_flushing = (
            np.array(flags, np.bool_)
            for flags in (
                [row.is_closed for row in tasks],
                [row.has_backlog or row.is_replaying for row in tasks],
                [row.is_flushing for row in tasks],
            )
        )
        self._stages: dict[int, int] = {}
        for sub_topology in np.unique(self._sub).tolist():
            writers = self._writer[self._log[self._sub[self._task] == sub_topology]]
            before = np.unique(self._sub[writers[writers != _NOBODY]]).tolist()
            self._stages[sub_topology] = 1 + max((self._stages[each] for each in before), default=-1)
        flush, stage = self._patience.flush, np.array([self._stages[each] for each in self._sub.tolist()], np.int64)
        is_awaiting = np.zeros(len(tasks), np.bool_) if flush is None else stage > flush["stage"]
        closes_soon = ~self._is_closed & (self.idle_in_ms is not None and self.idle_in_ms <= 0)
        self._is_flushing = bool(is_flushing.any())
        self._owes: Bools = is_behind | is_flushing | is_awaiting | closes_soon

    # ------------------------------------------------------------ what follows

    @cached_property
    def _unread(self) -> Bools:
        found: Bools = self._position < self._end[self._log]
        return found

    @cached_property
    def _is_user(self) -> Bools:
        """Of each log."""
        found: Bools = self._writer == _NOBODY
        return found

    @cached_property
    def idle_in_ms(self) -> int | None:
        """ms until user input is idle, if nothing comes; None while some is unread, or where silence closes nothing."""
        own = self._log[self._is_user[self._log]]
        if self._patience.idle_close_after_ms is None or (self._unread & self._is_user[self._log]).any():
            return None
        return self._patience.idle_close_after_ms - int(self._silent_ms[own].min(initial=_NEVER))

    def _find_bounds(self) -> None:
        """Bounds of all tasks and whether they are caught up, sub-topology after sub-topology: one reads what those
        before it write.
        """
        count = len(self._sub)
        self._bound: Int64s = np.full(count, -1, np.int64)
        np.maximum.at(self._bound, self._task, self._frontier)
        self._is_caught_up: Bools = np.zeros(count, np.bool_)
        for sub_topology in np.unique(self._sub):
            own = np.flatnonzero(self._sub[self._task] == sub_topology)
            unread, tasks = self._unread[own], self._task[own]
            is_done = ~unread & self._nothing_comes(self._log[own])
            reach = np.where(unread, self._frontier[own], self._head_bounds(own))
            least, all_done = np.full(count, _NEVER), np.ones(count, np.bool_)
            np.minimum.at(least, tasks[~is_done], reach[~is_done])
            np.logical_and.at(all_done, tasks, is_done)
            mine = self._sub == sub_topology
            goes_on = mine & ~self._owes & (least < _NEVER)
            self._bound[goes_on] = np.maximum(self._bound, least)[goes_on]
            self._is_caught_up[mine] = (all_done & ~self._owes)[mine]

    def _nothing_comes(self, logs: Int64s) -> Bools:
        """Whether these logs do not grow until something happens outside of the job."""
        is_silent = self._silent_ms[logs] >= self._patience.max_task_idle_ms
        found: Bools = np.where(self._is_user[logs], is_silent, self._is_caught_up[self._writer[logs]])
        return found

    def _head_bounds(self, inputs: Int64s) -> Int64s:
        """Of these inputs: nothing with a lower `aligned_at` comes behind the end of the log."""
        logs, read = self._log[inputs], self._frontier[inputs]
        return np.where(self._is_user[logs], read, np.maximum(read, self._bound[self._writer[logs]]))

    # ------------------------------------------------------------ what is asked

    def note(self, task_id: str, inputs: Sequence[TaskInput]) -> int:
        """Say of each input of a task what can still come; returns the digest of all that is said of them, 0 of a task
        with one.
        """
        own = self._inputs_of(task_id)
        bounds, is_caught_up = self._head_bounds(own), self._nothing_comes(self._log[own])
        for at, bound, caught_up in zip(inputs, bounds.tolist(), is_caught_up.tolist(), strict=True):
            at.bound, at.is_caught_up = bound, caught_up
        if len(own) == 1:
            return 0
        heads = np.stack([self._position[own], self._end[self._log[own]], bounds, is_caught_up])
        return zlib.crc32(heads.tobytes()) or 1

    @property
    def is_stage_closed(self) -> bool:
        """Whether a flush is to go on: no task has anything to close at this stage any more."""
        return self._patience.flush is not None and not self._is_flushing

    def stage_of(self, sub_topology: int) -> int:
        return self._stages[sub_topology]

    @property
    def last_stage(self) -> int:
        return max(self._stages.values())

    def is_idle(self, task_id: str) -> bool:
        """Whether silence may close a task: that of all user input, and upstream there is nothing left to close."""
        own = self._inputs_of(task_id)
        writers = self._writer[self._log[own]]
        upstream = writers[writers != _NOBODY]
        is_left = ~(self._is_closed[upstream] & self._is_caught_up[upstream])
        is_silent = self.idle_in_ms is not None and self.idle_in_ms <= 0
        return is_silent and not is_left.any() and not self._unread[own].any()

    @cached_property
    def caught_up_in_ms(self) -> int | None:
        """ms until a user partition that holds others back is silent for long enough; None: no such."""
        logs = self._log[~self._unread & self._is_user[self._log]]
        left = self._patience.max_task_idle_ms - self._silent_ms[logs]
        return int(left[left > 0].min()) if (left > 0).any() else None

    def throttled(self, s: Session, task_ids: Sequence[str]) -> set[str]:
        """Those of these tasks that have written so much which nobody has read that they must wait.

        Not so the one that others wait for: with the lowest bound of its sub-topology, while a target has read all of
        it and holds back what others wrote. Else it and they would wait for each other.
        """
        over = ~self._is_user & (self._bytes > self._patience.max_repartition_bytes)  # of what is unread it is the most
        if not over.any():
            return set()
        over &= np.isin(self._writer, [self._places[task_id] for task_id in task_ids])
        if not over.any():
            return set()
        lowest = np.full(len(self._end), _NEVER)
        np.minimum.at(lowest, self._log, self._position)
        is_holding = np.zeros(len(self._sub), np.bool_)
        is_holding[self._task[self._unread]] = True
        is_awaited = np.zeros(len(self._end), np.bool_)
        is_awaited[self._log[~self._unread & is_holding[self._task]]] = True
        unread = self._unread_bytes(s, over, lowest)
        return {
            task_id
            for task_id in task_ids
            if unread[place := self._places[task_id]] > self._patience.max_repartition_bytes
            and not (self._is_lowest(place) and is_awaited[self._writer == place].any())
        }

    def _unread_bytes(self, s: Session, logs: Bools, lowest: Int64s) -> Int64s:
        """Of each task, what targets have not read of what it wrote; one query a stream."""
        found = np.zeros(len(self._sub), np.int64)
        of_streams: dict[str, dict[int, int]] = {}
        for place in np.flatnonzero(logs).tolist():
            stream_id, partition = self._of_log[place]
            of_streams.setdefault(stream_id, {})[partition] = int(lowest[place])
        for stream_id, of_stream in of_streams.items():
            for partition, size in unread_bytes(s, stream_id, of_stream).items():
                found[self._writer[self._firsts[stream_id] + partition]] += size
        return found

    def _is_lowest(self, place: int) -> bool:
        peers = (self._sub == self._sub[place]) & ~self._is_caught_up
        return bool(self._bound[place] <= self._bound[peers].min(initial=_NEVER))

    def _inputs_of(self, task_id: str) -> Int64s:
        place = self._places[task_id]
        return np.arange(self._begin[place], self._begin[place + 1])
