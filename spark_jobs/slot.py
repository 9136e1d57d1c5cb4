"""A slot: the resident loop that owns stream tasks of one job. Poll, run, commit, replay; restore what is behind.

It knows when to do what, which failure belongs to a task, and that the catalog decides: what a poll answers replaces
whatever the slot believed. It refuses to know what operators do (`task`), how requests are repeated (`client`) and how
slots are started (`session`).
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final, Self

import lmdb
import msgspec
import structlog

from service import logs
from service.protocol import AssignedTask, ChunkRange, HeldTask, InputRange, JoinedSlot, TaskCommit, TaskError, Verdict
from service.storage import environments
from service.storage.private import private_folder
from service.storage.replica import Replica, replay, replica_path
from service.storage.segments import Storage, open_storage
from service.streams.errors import OperatorFailed, ReplicaDamaged, SegmentMissing, SegmentUnreadable
from service.streams.records import Chunk, StateReader
from service.streams.topology.chain import Chain
from service.streams.topology.graph import Topology
from spark_jobs import memory
from spark_jobs.client import (
    Api,
    ApiError,
    Gone,
    Json,
    Place,
    Refused,
    Unreachable,
    slot_path,
)
from spark_jobs.pulse import LeaseKeeper, Pulse, folder_of
from spark_jobs.task import Routes, advance, at_most, described, go_on, read_batch, run_batch
from spark_jobs.views import KeptViews

SEGMENTS_AT_ONCE: Final = 32
SPARE_SEGMENTS: Final = 8
ROUND_S: Final = 0.25  # a round that takes longer ends between two tasks: those that are left may have to move
SWELLS_BYTES: Final = 1 << 20  # read or written by a batch: leaves memory worth giving back
RESTORE_RECORDS: Final = 200_000  # changes asked for at once
RESTORE_BESIDE_S: Final = 0.03
RESTORE_ALONE_S: Final = 0.5
HAND_OVER_S: Final = 3.0  # a new life of a replica costs a full restore
HAND_OVER_PAUSE_S: Final = 0.05
MAX_PAUSE_S: Final = 0.25
LEAST_AFTER_CUT: Final = 1000  # records that are read where a batch was cut to less
MAX_ATTEMPTS: Final = 5
JOIN_ATTEMPTS: Final = 20
JOIN_PAUSE_S: Final = 0.25
OVERTAKEN: Final = {
    "stale_epoch",
    "stale_version",
    "wrong_position",
    "segment_not_pending",
    "unknown_task",
    "not_idle",
    "not_to_flush",
}
TRANSIENT: Final = (OSError, lmdb.Error, ReplicaDamaged, SegmentMissing)


def run_slot(place: Place, api_key: str, index: int) -> None:
    """Be slot `index` of the place's job until it wants none: the body of a Spark task."""
    logs.configure("info")
    log = structlog.get_logger().bind(job=place.job_id, index=index)
    started, ended_well = time.monotonic(), False
    try:
        private_folder(place.replica_dir)
        with Api(place.api_url, api_key) as api, Pulse(folder_of(place.replica_dir, place.instance_id)) as pulse:
            while _live_once(api, place, index, pulse):
                pass
        memory.hand_back()  # Spark keeps the process for the next job's slot
        ended_well = True
    except Refused:
        log.exception("slot_refused")
        ended_well = True
    finally:
        if not ended_well:  # Spark starts it again at once: not in a tight loop
            time.sleep(max(0.0, started + 1.0 - time.monotonic()))


def _live_once(api: Api, place: Place, index: int, pulse: Pulse) -> bool:
    """Join and run until told to leave (False) or found gone (True)."""
    joined = _join(api, place, index, pulse)
    if joined is None:
        return False
    with Slot(api, place, joined, pulse) as slot:
        try:
            while slot.turn():
                pulse.beat()
        except Gone as error:
            slot.log.warning("slot_gone", error=str(error))
            return True
    return False


def _join(api: Api, place: Place, index: int, pulse: Pulse) -> JoinedSlot | None:
    """None: the job wants no slot here. An instance that is gone may be about to join again."""
    for _ in range(JOIN_ATTEMPTS):
        try:
            return api.join_slot(place.instance_id, slot_id=uuid.uuid4().hex, job_id=place.job_id, index=index)
        except Unreachable:
            pass  # asked for long enough already
        except Refused as error:
            if error.status not in {404, 409, 410}:
                raise
            if error.status != 410:
                return None
        pulse.beat()
        time.sleep(JOIN_PAUSE_S)
    return None


@dataclass(slots=True)
class OwnedTask:
    """A task that this slot owns: what the catalog says of it, its replicas, and how it fares."""

    now: AssignedTask
    replicas: dict[str, Replica] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    not_before_s: float = 0.0
    has_failed: bool = False
    has_backlog: bool = False  # it has more to say of what it has read, before it reads on
    at_most: int | None = None  # records to read at once, as its last batch was cut: the rest is not to wait
    ran_s: float = 0.0
    since_s: float = field(default_factory=time.monotonic)

    @property
    def is_caught_up(self) -> bool:
        return all(self.positions.get(store, -1) >= end for store, end in self.now.changelogs.items())

    @property
    def is_due(self) -> bool:
        """Whether there is something to do."""
        return self.now.is_due or self.has_backlog

    @property
    def work(self) -> InputRange | None:
        """What to read next: after a cut not much more than was taken, as the rest would be read in vain."""
        work = self.now.work[0] if self.now.work else None
        return work if work is None or self.at_most is None else at_most(work, self.at_most)

    def note_cut(self, cut_after: int | None) -> None:
        """Its work was run, up to so many records (None: to the end)."""
        if cut_after is not None:
            self.at_most = max(2 * cut_after, LEAST_AFTER_CUT)
        elif self.at_most is not None and self.now.work:
            is_done = self.now.work[0].end - self.now.work[0].start <= self.at_most
            self.at_most = None if is_done else 4 * self.at_most

    @property
    def is_ready(self) -> bool:
        return self.is_caught_up and not self.is_waiting

    @property
    def is_waiting(self) -> bool:
        """Whether it is to be left alone for now."""
        return self.has_failed or time.monotonic() < self.not_before_s

    def close(self) -> None:
        """Close its replicas; what they hold is kept."""
        for replica in self.replicas.values():
            replica.close()
        self.replicas.clear()
        self.positions.clear()
        self.has_backlog = False

    @contextmanager
    def states(self) -> Iterator[dict[str, StateReader]]:
        """Consistent views of its replicas, by store."""
        with ExitStack() as views:
            yield {name: views.enter_context(replica.reader()) for name, replica in self.replicas.items()}


class Slot:
    """One life of a slot, from its join until it leaves or is gone."""

    def __init__(self, api: Api, place: Place, joined: JoinedSlot, pulse: Pulse) -> None:
        self._api, self._place, self._joined, self._pulse = api, place, joined, pulse
        self._path = slot_path(place.instance_id, joined.slot)
        self._storage: Storage = open_storage(place.storage_uri)
        self._topology = Topology.from_json(joined.job.topology)
        self._chains: dict[int, Chain] = {}
        self._routes = Routes(joined.streams, joined.stores)
        self._views = KeptViews(joined.redis_url, joined, self._topology.stores(), self._storage, self._find_chunks)
        self._spare: list[tuple[str, str]] = []
        self._tasks: dict[str, OwnedTask] = {}
        self._interval_s = joined.job.spec["commit_interval_ms"] / 1000
        self._round_start_s = -self._interval_s
        self._has_full_batch = self._is_cut_short = self._is_swollen = False
        self._keeper = LeaseKeeper(self._renew, pulse, joined.lease_ms)
        self.log = structlog.get_logger().bind(job=joined.job.name, slot=joined.slot)

    def __enter__(self) -> Self:
        self._keeper.__enter__()
        self.log.info("slot_joined", pid=os.getpid())
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.__exit__()
        for task in self._tasks.values():
            task.close()
        self._views.close()

    def turn(self) -> bool:
        """Ask what to do and do it once; False after leaving. Raises Gone when the slot is not there any more."""
        time.sleep(self._pause_s())
        try:
            answer = self._api.poll(self._path, self._held(), self._wait_ms())
            if answer.directive == "leave":
                return self._leave()
            self._take(answer.tasks)
            self._restore()
            self._run_round()
            self._views.keep_up(self._tasks.values())
            self._slim_down()
        except Unreachable as error:
            # Nothing is known of what was under way: the next answer says what counts, replicas catch up with it.
            self.log.warning("api_unreachable", error=str(error))
        return True

    # ------------------------------------------------------------ what to do

    def _held(self) -> list[HeldTask]:
        ids = {name: store.id for name, store in self._joined.stores.items()}
        return [
            HeldTask(
                task=task.now.task,
                epoch=task.now.epoch,
                applied={ids[store]: at for store, at in task.positions.items()},
                has_backlog=task.has_backlog,
            )
            for task in self._tasks.values()
        ]

    def _wait_ms(self) -> int:
        """How long the API may keep the question (less than the lease, whatever we say): not while replicas wait."""
        if self._views.is_behind or any(task.has_backlog and task.is_ready for task in self._tasks.values()):
            return 0
        due_s = [task.not_before_s for task in self._tasks.values() if not task.is_caught_up and not task.has_failed]
        if not due_s:
            return self._joined.lease_ms
        return max(0, int((min(due_s) - time.monotonic()) * 1000))

    def _pause_s(self) -> float:
        """What is left of the commit interval, none while a full batch or the rest of a round waits; until anything may
        run at all.
        """
        if self._has_full_batch or self._is_cut_short:
            return 0.0
        now_s = time.monotonic()
        with_work = [task for task in self._tasks.values() if task.is_due]
        waits_s = [MAX_PAUSE_S if task.has_failed else task.not_before_s - now_s for task in with_work]
        return max(0.0, min(MAX_PAUSE_S, max(self._interval_left_s(), min(waits_s, default=0.0))))

    def _take(self, assigned: Iterable[AssignedTask]) -> None:
        """Own exactly what the answer says, under the epochs that it says."""
        told = {task.task: task for task in assigned}
        for task_id, task in list(self._tasks.items()):
            if task_id not in told or told[task_id].epoch != task.now.epoch:
                self._tasks.pop(task_id).close()
        for task_id, now in told.items():
            if task_id in self._tasks:
                self._tasks[task_id].now = now
            else:
                self._tasks[task_id] = OwnedTask(now)

    def _leave(self) -> bool:
        """Give the tasks up after their replicas are closed: the next owner, here, may open them."""
        for task in self._tasks.values():
            task.close()
        self._tasks.clear()
        with contextlib.suppress(ApiError):  # then the lease runs out
            self._api.leave_slot(self._path)
        self.log.info("slot_left")
        return False

    def _renew(self) -> None:
        """Keep the lease, from another thread; where that fails the loop meets the reason itself."""
        with contextlib.suppress(ApiError):
            self._api.commit(self._path, [], patience_s=1.0)

    # ------------------------------------------------------------ restore

    def _restore(self) -> None:
        """Open the replicas of new tasks, then bring those that are behind nearer to the end of their changelogs.

        Beside running tasks that takes RESTORE_BESIDE_S of a turn and at least one chunk: they hardly notice.
        """
        for task in self._behind():
            with self._border(task):
                if not self._open(task):
                    task.not_before_s = time.monotonic() + HAND_OVER_PAUSE_S
        behind = self._behind()
        budget_s = RESTORE_ALONE_S if len(behind) == len(self._tasks) else RESTORE_BESIDE_S
        until_s = time.monotonic() + budget_s
        for task in behind:
            with self._border(task):
                self._catch_up(task, until_s)
            if time.monotonic() >= until_s:
                break

    def _behind(self) -> list[OwnedTask]:
        return [task for task in self._tasks.values() if not task.is_caught_up and not task.is_waiting]

    def _open(self, task: OwnedTask) -> bool:
        """Open its replicas; False while a former owner, which gives them up just now, has one open still."""
        for store in self._topology.sub_topologies[task.now.sub_topology].stores():
            if store.name in task.replicas:
                continue
            store_id = self._joined.stores[store.name].id
            path = replica_path(self._place.replica_dir, self._place.instance_id, store_id, task.now.partition)
            if time.monotonic() - task.since_s < HAND_OVER_S and environments.is_open_elsewhere(path):
                return False
            replica = Replica.open(path, store, store_id, self._joined.lineage, task.now.changelogs[store.name])
            task.replicas[store.name], task.positions[store.name] = replica, replica.position
        self._note_backlog(task)
        return True

    def _catch_up(self, task: OwnedTask, until_s: float) -> None:
        for name, end in task.now.changelogs.items():
            changelog = self._joined.stores[name].changelog
            while (since := task.positions[name]) < end:
                found = self._find_chunks(changelog, task.now.partition, since)
                for chunk in found.chunks:
                    task.positions[name] = replay(task.replicas[name], self._storage, [chunk], since)
                    if time.monotonic() >= until_s:
                        return
                if not found.chunks:
                    task.positions[name] = end  # offsets that no chunk holds carry no changes
        self._note_backlog(task)

    def _note_backlog(self, task: OwnedTask) -> None:
        if task.is_caught_up:
            with task.states() as states:
                task.has_backlog = self._chain_of(task.now.sub_topology).has_backlog(states)

    def _find_chunks(self, changelog: str, partition: int, since: int) -> ChunkRange:
        """What replicas and views catch up with; how large it is once it is unpacked nobody says."""
        found = self._api.find_chunks(self._path, changelog, partition, since, RESTORE_RECORDS)
        self._is_swollen |= bool(found.chunks)
        return found

    # ------------------------------------------------------------ run

    def _run_round(self) -> None:
        """Run the tasks whose turn it is, those first that have waited longest, then commit."""
        in_turn, since_s = self._in_turn(), time.monotonic()
        self._is_cut_short = False
        if not in_turn:
            return
        written: list[_Written] = []
        for task in sorted(in_turn, key=lambda task: task.ran_s):
            if written and time.monotonic() - since_s > ROUND_S:
                self._is_cut_short = True  # the rest has waited for its round already
                break
            task.ran_s = time.monotonic()
            self._pulse.beat()
            with self._border(task):
                written.append(self._run_task(task))
        self._commit(written)
        if len(self._spare) < SPARE_SEGMENTS:
            self._spare += self._api.register_segments(self._path, SEGMENTS_AT_ONCE)

    def _in_turn(self) -> list[OwnedTask]:
        """The tasks to run now: all that have something to do when a round begins. One that was cut short goes on with
        those that it has not run yet; who may not wait is always among them.
        """
        ready = [task for task in self._tasks.values() if task.is_due and task.is_ready]
        self._has_full_batch = any(self._may_not_wait(task) for task in ready)
        has_interval_left = self._interval_left_s() > 0
        if self._is_cut_short and has_interval_left:
            return [task for task in ready if task.ran_s < self._round_start_s or self._may_not_wait(task)]
        if not ready or (has_interval_left and not self._has_full_batch):
            return []
        self._round_start_s = time.monotonic()
        return ready

    def _slim_down(self) -> None:
        """Give memory back once there is nothing to do after much."""
        is_behind = self._views.is_behind or bool(self._behind())
        if self._is_swollen and not is_behind and not any(task.is_due for task in self._tasks.values()):
            memory.hand_back()
            self._is_swollen = False

    def _interval_left_s(self) -> float:
        left_s: float = self._round_start_s + self._interval_s - time.monotonic()
        return left_s

    def _may_not_wait(self, task: OwnedTask) -> bool:
        """Whether a commit interval would only keep back what is there already."""
        return task.has_backlog or task.at_most is not None or any(self._is_full(work) for work in task.now.work)

    def _is_full(self, work: InputRange) -> bool:
        return work.end - work.start >= int(self._joined.job.spec["max_batch_records"])

    def _run_task(self, task: OwnedTask) -> _Written:
        """Run one batch, or close what is open, and write its segment; nobody sees it before the commit."""
        chain, work = self._chain_of(task.now.sub_topology), task.work
        batch = None if work is None or task.has_backlog else read_batch(self._storage, task.now, work)
        self._is_swollen |= batch is None or batch.rows.nbytes > SWELLS_BYTES
        with task.states() as states:
            if task.has_backlog:
                done = go_on(task.now, chain, states, self._routes)
            elif batch is None:
                done = advance(task.now, chain, states, self._routes)
            else:
                done = run_batch(task.now, chain, batch, states, self._routes)
        task.note_cut(done.cut_after)
        if done.segment is None:
            return _Written(task, done.commit)
        self._is_swollen |= sum(part.nbytes for part in done.segment.batches) > SWELLS_BYTES
        if not self._spare:
            self._spare = self._api.register_segments(self._path, SEGMENTS_AT_ONCE)
        segment_id, path = self._spare.pop()
        self._storage.write(path, done.segment)
        commit = msgspec.structs.replace(done.commit, segments=[described(done.segment, segment_id)])
        return _Written(task, commit, done.changelogs, path)

    def _chain_of(self, sub_topology: int) -> Chain:
        if sub_topology not in self._chains:
            part = self._topology.sub_topologies[sub_topology]
            self._chains[sub_topology] = Chain(part, self._joined.job.spec["on_error"])
        return self._chains[sub_topology]

    def _commit(self, written: list[_Written]) -> None:
        """Publish, then replay what was accepted. Repeated with the same ids until answered."""
        if not written:
            return
        patience_s = 3 * self._joined.lease_ms / 1000
        verdicts = self._api.commit(self._path, [each.commit for each in written], patience_s=patience_s)
        for each, verdict in zip(written, verdicts, strict=True):
            if verdict.status == "accepted":
                with self._border(each.task):
                    self._replay(each, verdict)
            else:
                self.log.warning("commit_refused", task=each.task.now.name, reason=verdict.reason)
                with self._border(each.task):
                    _be_understandable(verdict)

    def _replay(self, written: _Written, verdict: Verdict) -> None:
        """The committed changes, as a restore would read them; since the poll nobody else could commit any."""
        task = written.task
        task.failures = 0
        for store, index in written.changelogs.items():
            chunk = written.chunk(index, verdict.published[index].first_offset)
            task.positions[store] = replay(task.replicas[store], self._storage, [chunk], task.positions[store])
            self._views.follow(task.now, store, chunk)
        self._note_backlog(task)

    # ------------------------------------------------------------ failures

    @contextmanager
    def _border(self, task: OwnedTask) -> Iterator[None]:
        """Whatever goes wrong with one task stays with it: its job fails, others go on."""
        try:
            yield
        except ApiError:
            raise
        except Exception as error:  # noqa: BLE001  the border of one task
            self._on_failure(task, error)

    def _on_failure(self, task: OwnedTask, error: Exception) -> None:
        task.failures += 1
        may_pass = isinstance(error, TRANSIENT) and task.failures < MAX_ATTEMPTS
        say = self.log.warning if may_pass else self.log.error
        say("task_failed", task=task.now.name, error=str(error), failures=task.failures, exc_info=error)
        with contextlib.suppress(OSError, lmdb.Error, ReplicaDamaged):
            task.close()  # opened anew and caught up before it runs again
        if may_pass:
            task.not_before_s = time.monotonic() + 0.1 * 2**task.failures
            return
        problem = self._problem(task, error)
        with contextlib.suppress(Refused):  # the task is somebody else's by now
            self._api.fail_task(self._path, task_id=task.now.task, epoch=task.now.epoch, error=problem)
        task.has_failed = True

    def _problem(self, task: OwnedTask, error: Exception) -> TaskError:
        """An error as the job shows it: what, and at which record of which partition."""
        place: Json = {}
        if task.now.work:
            names = {stream.id: name for name, stream in self._joined.streams.items()}
            head = task.now.inputs[task.now.work[0].input]
            place = {"stream": names.get(head.stream_id), "partition": head.partition}
        if isinstance(error, OperatorFailed):
            place |= {"operator": error.operator, "offset": error.offset}
            return TaskError(error.code, error.detail, **(place | error.figures))
        if isinstance(error, SegmentUnreadable):
            return TaskError(error.code, str(error), **place)
        code = "io_failed" if isinstance(error, TRANSIENT) else "internal_error"
        return TaskError(code, f"{type(error).__name__}: {error}", **place)


def _be_understandable(verdict: Verdict) -> None:
    """Whoever was overtaken asks again; a commit that no one could accept would be refused for ever.

    Raises RuntimeError for the latter: a mistake of ours.
    """
    if verdict.reason not in OVERTAKEN:
        raise RuntimeError(f"The catalog refused a commit: {verdict.reason}")


@dataclass(frozen=True, slots=True)
class _Written:
    """A batch whose segment, if it has one, is written and waits for its commit. It holds no records any more."""

    task: OwnedTask
    commit: TaskCommit
    changelogs: Mapping[str, int] = field(default_factory=dict)
    path: str = ""

    def chunk(self, index: int, first_offset: int) -> Chunk:
        """Chunk `index` of the segment once it is published at `first_offset`, as any reader is told of it."""
        [segment] = self.commit.segments
        meta = segment.chunks[index]
        where = (meta.byte_offset, meta.byte_length, meta.crc32)
        return Chunk(self.path, segment.id, index, *where, first_offset, first_offset + meta.records, meta.records)
