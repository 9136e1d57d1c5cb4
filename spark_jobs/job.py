"""A job as one slot runs it: its operators, its stores, and how the work of a task is carried out.

It knows what all tasks of the job share. It refuses to know whose turn it is (`rounds`), who commits (`slot`) and what
the work comes to (`work`).
"""

from __future__ import annotations

import time
from functools import cache, partial
from typing import Final, cast

import pyarrow as pa

from service.protocol import AssignedTask, JoinedSlot
from service.storage.segments import Storage
from service.storage.view import View
from service.streams.records import Chunk
from service.streams.topology.chain import Chain
from service.streams.topology.graph import Topology
from spark_jobs.client import SlotPlace
from spark_jobs.follow import Copies, FindChunks
from spark_jobs.memory import Footprint
from spark_jobs.reading import ChunkReader
from spark_jobs.standbys import Standbys
from spark_jobs.stores import JobStores
from spark_jobs.tasks import StreamTask
from spark_jobs.work import (
    Adopt,
    Advance,
    GoOn,
    Outcome,
    Replay,
    Restore,
    Routes,
    Run,
    TaskRunner,
    read_batch,
    read_kept,
)

MANY: Final = 100_000  # records: they take about as long as a commit


class SlotJob:
    """Makes tasks of a job, and does their work. `joined`: the job as it is run, with the ids behind its names."""

    def __init__(
        self, place: SlotPlace, joined: JoinedSlot, storage: Storage, find: FindChunks, footprint: Footprint
    ) -> None:
        self._chain = cache(self._make_chain)
        self._storage, self._reader, self._footprint = storage, ChunkReader(storage), footprint
        self._make_stores = partial(JobStores, place, read=self._read_changes, find=find)
        self._begin(joined)

    def change(self, joined: JoinedSlot) -> None:
        """Run by this version of the job from now on. Tasks that the slot keeps keep their replicas."""
        self.close()
        self._chain.cache_clear()
        self._begin(joined)

    def _begin(self, joined: JoinedSlot) -> None:
        self.joined = joined
        self._paces = dict[int, int]()  # by sub-topology: how many records its tasks began with at once
        self._topology, self._on_error = Topology.from_json(joined.job.topology), joined.job.spec["on_error"]
        self._routes = Routes(joined.streams, joined.stores)
        self._stores = self._make_stores(joined, self._topology)
        self.views: Copies[View] = Copies(self._stores.view)
        self.standbys = Standbys(self._stores.replica)

    def forget_read(self) -> None:
        """Nothing is to be done: nothing that was read is kept."""
        self._reader.clear()

    def close(self) -> None:
        """Close its views and standbys, and the connection to Redis."""
        self.views.close()
        self.standbys.close()
        self._stores.close()

    def task(self, assigned: AssignedTask) -> StreamTask:
        """A task that was just assigned. Nothing of it is open yet, unless the slot kept a copy of it: that goes on."""
        kept = self.standbys.give(assigned.task)
        replicas = {
            store: kept.get(store) or self._stores.replica((store, assigned.partition), end)
            for store, end in assigned.changelogs.items()
        }
        for store, replica in replicas.items():
            replica.end = assigned.changelogs[store]
        feeds_others = bool(self._topology.sub_topologies[assigned.sub_topology].repartitions)
        return StreamTask(assigned, replicas, partial(self._chain, assigned.sub_topology), feeds_others)

    def keep_views(self, assigned: list[AssignedTask]) -> None:
        """Keep the views of exactly these tasks' stores, where there is a Redis."""
        if self._stores.has_views:
            ends = [(name, task.partition, end) for task in assigned for name, end in task.changelogs.items()]
            self.views.keep({(name, partition): end for name, partition, end in ends})

    def carry_out(self, task: StreamTask, until_s: float) -> Outcome | None:
        """Do what a task does next; None: nothing is to be committed. A restore ends at that moment (monotonic).

        Raises OperatorFailed, SegmentUnreadable, ReplicaDamaged, lmdb.Error, OSError.
        """
        match task.work:
            case Restore():
                task.restore(until_s)
            case Run() as run:
                return self._run(task, run) if task.has_run else self._run_first(task, run)
            case Adopt(version):
                with task.states() as states:
                    return self._runner(task).adopt(states, version)
            case Replay(given):
                started_s = time.monotonic()
                kept = read_kept(self._reader, task.assigned, given)
                self._footprint.note(kept.rows.nbytes)
                with task.states() as states:
                    outcome = self._runner(task).replay(kept, given, states)
                task.note_run(outcome.cut_after, time.monotonic() - started_s)
                return outcome
            case GoOn():
                self._footprint.note(None)
                with task.states() as states:
                    return self._runner(task).go_on(states)
            case Advance(reason):
                self._footprint.note(None)
                with task.states() as states:
                    return self._runner(task).advance(states, reason)
        return None

    def _run_first(self, task: StreamTask, few: Run) -> Outcome | None:
        """The first batch of a task. The first few records of any say how many it and its like can take at once. Where
        that is many, they are run once more with these: a commit, a replay and a poll for the few alone made a job of a
        million records a sixth slower.
        """
        like = task.assigned.sub_topology
        if task.room is not None or like not in self._paces:
            outcome = self._run(task, few)
            if not task.is_cut or task.most < MANY:
                return outcome
            self._paces[like] = task.most
        task.most = self._paces[like]
        return self._run(task, cast(Run, task.work))

    def _run(self, task: StreamTask, run: Run) -> Outcome | None:
        """What a batch gave; None: all of it has to wait."""
        started_s = time.monotonic()
        batch = read_batch(self._reader, task.assigned, run)
        if not task.has_run:  # a chunk is decoded whole, however few of its records are run: that says nothing of more
            started_s = time.monotonic()
        self._footprint.note(batch.rows.nbytes)
        with task.states() as states:
            outcome = self._runner(task).run(batch, states)
        if outcome.is_nothing:
            task.hold()
            return None
        task.note_run(outcome.cut_after, time.monotonic() - started_s)
        return outcome

    def _read_changes(self, chunk: Chunk) -> pa.RecordBatch:
        changes = self._storage.read_chunk(chunk)
        self._footprint.note(changes.nbytes)
        return changes

    def _runner(self, task: StreamTask) -> TaskRunner:
        return TaskRunner(task.assigned, task.chain(), self._routes)

    def _make_chain(self, sub_topology: int) -> Chain:
        return Chain(self._topology.sub_topologies[sub_topology], self._on_error)
