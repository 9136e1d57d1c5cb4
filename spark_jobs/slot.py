"""A slot: the resident loop that owns stream tasks of one job. Poll, restore, run, commit, replay.

It knows in which order this happens, and that the catalog decides: what a poll answers replaces whatever the slot
believed. It refuses to know what work is and how it is carried out (`work`, `job`), how copies follow their changelogs
(`follow`), whose turn it is (`rounds`), what becomes of a failure (`border`), how requests are repeated (`client`) and
how slots are started (`session`).
"""

from __future__ import annotations

import contextlib
import math
import os
import socket
import time
import uuid
from collections.abc import Sequence
from functools import partial
from typing import Any, Final, Self

import msgspec
import structlog

from service import logs
from service.protocol import (
    MAX_WAIT_MS,
    AssignedTask,
    ChunkRange,
    FollowedTask,
    JobToRun,
    JoinedSlot,
    PollAnswer,
    PollRequest,
    SlotRequest,
    TaskError,
    Verdict,
)
from service.storage.janitor import Janitor
from service.storage.node import NodeFolder
from service.storage.private import private_folder
from service.storage.segments import open_storage
from spark_jobs import memory
from spark_jobs.border import TaskBorder
from spark_jobs.client import Api, ApiError, Gone, Refused, SlotPlace, Unreachable, slot_path
from spark_jobs.commits import PreparedCommit, SegmentWriter, targets_of
from spark_jobs.job import SlotJob
from spark_jobs.pulse import LeaseKeeper, Pulse, folder_of
from spark_jobs.rounds import Rounds
from spark_jobs.tasks import StreamTask

BESIDE_S: Final = 0.03  # of a turn for copies that are behind, while tasks run: these hardly notice
ALONE_S: Final = 0.5  # where nothing else is to be done
JOIN_ATTEMPTS: Final = 20
JOIN_PAUSE_S: Final = 0.25
NODE_ELSEWHERE: Final = "node_elsewhere"  # the code of the refusal
OVERTAKEN: Final = {
    "stale_epoch",
    "stale_version",
    "wrong_position",
    "segment_not_pending",
    "unknown_task",
    "not_idle",
    "not_to_flush",
}


def run_slot(place: SlotPlace, api_key: str, index: int) -> None:
    """Be slot `index` of the place's job until it wants none: the body of a Spark task."""
    logs.configure("info")
    log = structlog.get_logger().bind(job=place.job_id, index=index)
    started, ended_well = time.monotonic(), False
    try:
        private_folder(place.replica_dir)
        with (
            Api(place.api_url, api_key) as api,
            Pulse(folder_of(place.replica_dir, place.instance_id)) as pulse,
            NodeFolder(place.replica_dir, socket.gethostname()) as node,
        ):
            while _live_once(api, place, index, pulse, node):
                pass
        memory.hand_back()  # Spark keeps the process for the next job's slot
        ended_well = True
    except Refused:
        log.exception("slot_refused")
        ended_well = True
    finally:
        if not ended_well:  # Spark starts it again at once: not in a tight loop
            time.sleep(max(0.0, started + 1.0 - time.monotonic()))


def _live_once(api: Api, place: SlotPlace, index: int, pulse: Pulse, node: NodeFolder) -> bool:
    """Join and run until told to leave (False) or found gone (True)."""
    joined = _join(api, place, index, pulse, node)
    if joined is None:
        return False
    pulse.become(joined.slot)
    with Slot(api, place, joined, pulse) as slot:
        try:
            while slot.turn():
                pulse.beat()
        except Gone as error:
            slot.log.warning("slot_gone", error=str(error))
            return True
    return False


def _join(api: Api, place: SlotPlace, index: int, pulse: Pulse, node: NodeFolder) -> JoinedSlot | None:
    """None: the job wants no slot here. An instance that is gone may be about to join again; a node that is in use
    elsewhere becomes another one.
    """
    for _ in range(JOIN_ATTEMPTS):
        try:
            slot = SlotRequest(uuid.uuid4().hex, place.job_id, index, node.ref, place.executor)
            return api.join_slot(place.instance_id, slot)
        except Unreachable:
            pass  # asked for long enough already
        except Refused as error:
            if error.code == NODE_ELSEWHERE:
                node.renew()
                continue
            if error.status not in {404, 409, 410}:
                raise
            if error.status != 410:
                return None
        pulse.beat()
        time.sleep(JOIN_PAUSE_S)
    return None


class Slot:
    """One life of a slot, from its join until it leaves or is gone."""

    def __init__(self, api: Api, place: SlotPlace, joined: JoinedSlot, pulse: Pulse) -> None:
        self.log = structlog.get_logger().bind(job=joined.job.name, slot=joined.slot)
        self._api, self._joined, self._pulse = api, joined, pulse
        self._path = slot_path(place.instance_id, joined.slot)
        self._footprint = memory.Footprint()
        storage = open_storage(place.storage_uri)
        self._job = SlotJob(place, joined, storage, self._find_chunks, self._footprint)
        self._tasks: dict[str, StreamTask] = {}
        self._writer = SegmentWriter(storage, partial(api.register_segments, self._path))
        self._rounds = Rounds(*_pace(joined.job))
        self._border = self._new_border(joined)
        self._janitor = Janitor(place.replica_dir, joined.lineage, partial(api.live_stores, self._path))
        self._keeper = LeaseKeeper(self._renew, pulse, joined.lease_ms, joined.max_busy_ms)

    def __enter__(self) -> Self:
        self._keeper.__enter__()
        self.log.info("slot_joined", pid=os.getpid())
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.__exit__()
        self._own([], [])
        self._job.close()

    def turn(self) -> bool:
        """Ask what to do and do it once; False after leaving. Raises Gone when the slot is not there any more."""
        time.sleep(self._rounds.pause_s(self._tasks.values()))
        try:
            with self._pulse.asking():
                answer = self._api.poll(self._path, self._polled())
            if answer.directive == "leave":
                return self._leave()
            if answer.job is not None:
                self._change(answer, answer.job)
            self._own(answer.tasks, answer.copies)
            self._restore()
            self._run_round()
            self._follow()
        except Unreachable as error:
            # Nothing is known of what was under way: the next answer says what counts, replicas catch up with it.
            self.log.warning("api_unreachable", error=str(error))
        return True

    def _change(self, answer: PollAnswer, job: JobToRun) -> None:
        """Run by another version of the job. Tasks whose epochs rose with it end before their stores may be others."""
        epochs = {task.task: task.epoch for task in answer.tasks}
        held = [task.assigned for task in self._tasks.values()]
        self._own([task for task in held if epochs.get(task.task) == task.epoch], [])
        joined = msgspec.structs.replace(self._job.joined, job=job, streams=answer.streams, stores=answer.stores)
        self._job.change(joined)
        self._border = self._new_border(joined)
        self._rounds.change(*_pace(job))

    def _own(self, assigned: list[AssignedTask], copies: list[FollowedTask]) -> None:
        """Own exactly these tasks, under these epochs, and keep copies of exactly those."""
        epochs = {task.task: task.epoch for task in assigned}
        for task_id, held in list(self._tasks.items()):
            if epochs.get(task_id) != held.assigned.epoch:
                self._tasks.pop(task_id).close()
        for task in assigned:
            if task.task in self._tasks:
                self._tasks[task.task].assign(task)
            else:
                self._take(self._job.task(task))
        self._job.standbys.keep(copies)
        self._job.keep_views(assigned)

    def _take(self, task: StreamTask) -> None:
        """Begin with a task; one whose copy was kept up to date here is restored already."""
        self._tasks[task.assigned.task] = task
        with self._border.around(task):
            task.note_backlog()
        if task.is_open:
            self._note_opened(task)

    def _note_opened(self, task: StreamTask) -> None:
        self.log.info("task_opened", task=task.assigned.name, changes_to_replay=task.lag)

    def _leave(self) -> bool:
        """Give the tasks up after their replicas are closed: the next owner, here, may open them."""
        self._own([], [])
        with contextlib.suppress(ApiError):  # then the lease runs out
            self._api.leave_slot(self._path)
        self.log.info("slot_left")
        return False

    def _polled(self) -> PollRequest:
        """What the slot holds and knows, and how long it can wait for something else."""
        stores, job = self._job.joined.stores, self._job.joined.job
        held = [task.held(stores) for task in self._tasks.values()]
        return PollRequest(held, self._wait_ms(), job.spec_sha256, job.version, self._job.standbys.held(stores))

    def _wait_ms(self) -> int:
        """How long the API may keep the question (less than the lease where nobody else keeps that): until something is
        to be done that no answer is needed for.
        """
        tasks = [task for task in self._tasks.values() if not task.has_failed]
        moments_s = [task.failures.not_before_s for task in tasks if task.has_backlog or not task.is_restored]
        if self._job.views.is_behind:
            moments_s.append(self._job.views.failures.not_before_s)
        if (standbys_s := self._job.standbys.not_before_s) is not None and self._may_stand_by:
            moments_s.append(standbys_s)
        left_s = min(moments_s, default=math.inf) - time.monotonic()
        return math.ceil(min(max(0.0, 1000 * left_s), MAX_WAIT_MS))

    # ------------------------------------------------------------ copies

    def _behind(self) -> list[StreamTask]:
        """The tasks to restore, those first that have least to replay."""
        behind = [task for task in self._tasks.values() if not task.is_restored and not task.is_waiting]
        return sorted(behind, key=lambda task: task.lag)

    def _restore(self) -> None:
        """Open the replicas of new tasks and of those whose files were found damaged, then bring those that are behind
        nearer to the ends of their changelogs.
        """
        for task in self._tasks.values():
            with self._border.around(task):
                task.check()
        for task in self._behind():
            with self._border.around(task):
                if task.open():
                    self._note_opened(task)
        behind = [task for task in self._behind() if task.is_open]
        until_s = _until_s(is_alone=len(behind) == len(self._tasks))
        for task in behind:
            with self._border.around(task):
                self._job.carry_out(task, until_s)
            if time.monotonic() >= until_s:
                break

    @property
    def _may_stand_by(self) -> bool:
        """Whether the slot's own tasks are restored, as far as they can be: copies of others come behind them."""
        return all(task.is_restored or task.has_failed for task in self._tasks.values())

    def _follow(self) -> None:
        """Bring views nearer to what was committed, then copies of tasks that run elsewhere; give memory back where
        that was the last that was to do.
        """
        is_idle = not any(task.is_due for task in self._tasks.values())
        self._job.views.follow(_until_s(is_alone=is_idle))
        if self._may_stand_by:
            self._job.standbys.follow(is_busy=not is_idle, has_tasks=bool(self._tasks))
        is_over = not self._job.views.is_behind and self._job.standbys.not_before_s is None
        if is_idle and is_over and not self._behind():
            self._job.forget_read()
            self._footprint.settle()
            self._sweep()

    def _sweep(self) -> None:
        """Delete replicas that nobody will open again, if that is due and nobody else on the node does."""
        try:
            if swept := self._janitor.look():
                self.log.info("replicas_swept", count=swept)
        except (OSError, ApiError) as error:  # the next look does it
            self.log.warning("sweep_failed", error=str(error))

    # ------------------------------------------------------------ work

    def _run_round(self) -> None:
        """Run the tasks whose turn it is, then commit."""
        prepared = []
        for task in self._rounds.turns(self._tasks.values()):
            self._pulse.beat()
            with self._border.around(task):
                outcome = self._job.carry_out(task, math.inf)
                if outcome is not None:
                    self._footprint.note(outcome.nbytes)
                    prepared.append((task, self._writer.prepare(outcome)))
        self._rounds.note_given(targets_of(each.commit for _, each in prepared))
        if prepared:
            self._commit(prepared)
            self._writer.top_up()

    def _commit(self, prepared: Sequence[tuple[StreamTask, PreparedCommit]]) -> None:
        """Publish, then replay what was accepted. Repeated with the same ids until answered."""
        patience_s = 3 * self._joined.lease_ms / 1000
        verdicts = self._api.commit(self._path, [each.commit for _, each in prepared], patience_s=patience_s)
        for (task, each), verdict in zip(prepared, verdicts, strict=True):
            with self._border.around(task):
                if verdict.status == "accepted":
                    self._replay(task, each, verdict)
                elif verdict.reason in OVERTAKEN:  # the next poll says what counts
                    self.log.warning("commit_refused", task=task.assigned.name, reason=verdict.reason)
                else:  # no one could accept it, ever: a mistake of ours
                    raise RuntimeError(f"The catalog refused a commit: {verdict.reason}")

    def _replay(self, task: StreamTask, prepared: PreparedCommit, verdict: Verdict) -> None:
        """The committed changes, as a restore would read them; since the poll nobody else could commit any."""
        task.failures.clear()
        for store, chunk in prepared.changelog_chunks(verdict.published):
            task.replicas[store].take(chunk)
            self._job.views.take((store, task.assigned.partition), chunk)
        task.note_backlog()

    # ------------------------------------------------------------ what others ask of the API through the slot

    def _renew(self) -> None:
        """Keep the lease, from another thread; where that fails the loop meets the reason itself."""
        with contextlib.suppress(ApiError):
            self._api.commit(self._path, [], patience_s=1.0)

    def _find_chunks(self, *which: Any) -> ChunkRange:
        """Chunks for copies that are behind."""
        return self._api.find_chunks(self._path, *which)

    def _new_border(self, joined: JoinedSlot) -> TaskBorder:
        return TaskBorder(self._report, joined.streams, self.log)

    def _report(self, task: StreamTask, error: TaskError) -> None:
        self._api.fail_task(self._path, task_id=task.assigned.task, epoch=task.assigned.epoch, error=error)


def _pace(job: JobToRun) -> tuple[float, int]:
    """The commit interval (s), and the records of a full batch."""
    return job.spec["commit_interval_ms"] / 1000, job.spec["max_batch_records"]


def _until_s(*, is_alone: bool) -> float:
    """When copies that are behind have had their share of a turn (monotonic)."""
    return time.monotonic() + (ALONE_S if is_alone else BESIDE_S)
