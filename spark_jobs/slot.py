"""A slot: the resident loop that owns stream tasks of one job. Poll, run, commit, replay; restore what is behind.

It knows when to do what, which failure belongs to a task, and that the catalog decides: what a poll answers replaces
whatever the slot believed. It refuses to know what operators do (`task`), how requests are repeated (`client`) and how
slots are started (`session`).

Lease: polls and commits renew it. While one batch takes longer, a thread renews it, as long as the loop has moved
within BUSY_LIMIT_S; after that the lease runs out, the tasks move on, and the process is ended.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

import lmdb
import structlog
from pyspark import TaskContext

from service import logs
from service.storage.replica import Replica, replay, replica_path
from service.storage.segments import Storage, open_storage
from service.streams.errors import ExpressionFailed, ReplicaDamaged, SegmentMissing, SegmentUnreadable
from service.streams.records import StoreSpec
from service.streams.topology.chain import Chain
from service.streams.topology.graph import SubTopology, Topology
from spark_jobs.client import (
    Api,
    ApiError,
    AssignedTask,
    Gone,
    JoinedSlot,
    Json,
    Place,
    Refused,
    Unreachable,
    Verdict,
    slot_path,
)
from spark_jobs.task import Done, Routes, described, published_chunk, read_batch, run_batch

BUSY_LIMIT_S: Final = 60.0  # an expression may take 30 s
SEGMENTS_AT_ONCE: Final = 32
SPARE_SEGMENTS: Final = 8
ROUND_S: Final = 1.0  # a round that takes longer commits what it has, between two tasks
RESTORE_RECORDS: Final = 50_000  # one slice of a restore beside running tasks: some 30 ms
RESTORE_ALONE_S: Final = 0.5
MAX_PAUSE_S: Final = 0.25
MAX_ATTEMPTS: Final = 5
TRANSIENT: Final = (OSError, lmdb.Error, ReplicaDamaged, SegmentMissing)


def run_slot(place: Place, index: int) -> None:
    """Be slot `index` of the place's job until it wants none: the body of a Spark task."""
    logs.configure("info")
    log = structlog.get_logger().bind(job=place.job_id, index=index)
    started, ended_well = time.monotonic(), False
    try:
        with Api(place.api_url, place.api_key) as api, Pulse(place) as pulse:
            while _live_once(api, place, index, pulse):
                pass
        ended_well = True
    except Refused as error:
        log.error("slot_refused", error=str(error))
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
    """None: the job wants no slots here. An instance that is gone may be about to join again."""
    for _ in range(20):
        try:
            return api.join_slot(place.instance_id, slot_id=uuid.uuid4().hex, job_id=place.job_id, index=index)
        except Unreachable:
            pass
        except Refused as error:
            if error.status != 410:
                return None
        pulse.beat()
        time.sleep(0.25)
    return None


class Pulse:
    """Signs of life: a file for the driver on this machine, a timer that ends this process when there are none.

    The file's name is the attempt of the Spark task, so that the driver can have Spark kill it.
    """

    def __init__(self, place: Place) -> None:
        context = TaskContext.get()
        attempt = context.taskAttemptId() if context else os.getpid()
        self._file = pulses_of(place.replica_dir, place.instance_id) / str(attempt)
        self.last_s = time.monotonic()
        self._armed_s = 0.0

    def __enter__(self) -> Self:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.touch()
        self.beat()
        return self

    def __exit__(self, *_: object) -> None:
        faulthandler.cancel_dump_traceback_later()
        self._file.unlink(missing_ok=True)

    def beat(self) -> None:
        """The loop moved."""
        self.last_s = time.monotonic()
        with contextlib.suppress(FileNotFoundError):
            os.utime(self._file)
        if self.last_s - self._armed_s > 1.0:
            self._armed_s = self.last_s
            faulthandler.dump_traceback_later(BUSY_LIMIT_S * 2, exit=True)  # shows where it hangs, needs no GIL


def pulses_of(replica_dir: Path, instance_id: str) -> Path:
    """The folder where slots of an instance leave their signs of life."""
    return replica_dir / instance_id / "pulses"


class LeaseKeeper:
    """A thread that renews the lease while the slot's loop is in a long batch."""

    def __init__(self, renew: Callable[[], object], pulse: Pulse, lease_ms: int) -> None:
        self._renew, self._pulse, self._every_s = renew, pulse, lease_ms / 5000
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _keep(self) -> None:
        while not self._ended.wait(self._every_s):
            silent_s = time.monotonic() - self._pulse.last_s
            if self._every_s < silent_s < BUSY_LIMIT_S:
                with contextlib.suppress(ApiError):  # the loop meets it too, and knows what to do
                    self._renew()


@dataclass(slots=True)
class OwnedTask:
    """A task that this slot owns: how to run it, its replicas, and how it fares."""

    now: AssignedTask
    chain: Chain
    stores: dict[str, StoreSpec]
    replicas: dict[str, Replica] = field(default_factory=dict)
    positions: dict[str, int] = field(default_factory=dict)
    failures: int = 0
    not_before_s: float = 0.0
    has_failed: bool = False

    @property
    def is_caught_up(self) -> bool:
        return all(self.positions.get(store, -1) >= end for store, end in self.now.changelogs.items())

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


class Slot:
    """One life of a slot, from its join until it leaves or is gone."""

    def __init__(self, api: Api, place: Place, joined: JoinedSlot, pulse: Pulse) -> None:
        self._api, self._place, self._joined, self._pulse = api, place, joined, pulse
        self._path = slot_path(place.instance_id, joined.slot_id)
        self._storage: Storage = open_storage(place.storage_uri)
        self._topology = Topology.from_json(joined.topology)
        self._routes = Routes(joined.streams, joined.stores)
        self._spare: list[tuple[str, str]] = []
        self._tasks: dict[str, OwnedTask] = {}
        self._interval_s = joined.spec["commit_interval_ms"] / 1000
        self._round_start_s = -self._interval_s
        self._has_full_batch = False
        self._keeper = LeaseKeeper(lambda: api.commit(self._path, [], patience_s=1.0), pulse, joined.lease_ms)
        self.log = structlog.get_logger().bind(job=joined.job_name, slot=joined.slot_id)

    def __enter__(self) -> Self:
        self._keeper.__enter__()
        self.log.info("slot_joined", pid=os.getpid())
        return self

    def __exit__(self, *_: object) -> None:
        self._keeper.__exit__()
        for task in self._tasks.values():
            task.close()

    def turn(self) -> bool:
        """Ask what to do and do it once; False after leaving. Raises Gone when the slot is not there any more."""
        time.sleep(min(self._pause_s(), MAX_PAUSE_S))
        try:
            answer = self._api.poll(self._path, self._held(), self._wait_ms())
            if answer.directive == "leave":
                return self._leave()
            self._take(answer.tasks)
            self._restore()
            self._run_round()
        except Unreachable as error:
            # Nothing is known of what was under way: the next answer says what counts, replicas catch up with it.
            self.log.warning("api_unreachable", error=str(error))
        return True

    # ------------------------------------------------------------ what to do

    def _held(self) -> list[Json]:
        ids = {name: store.id for name, store in self._joined.stores.items()}
        return [
            {
                "task": task.now.id,
                "epoch": task.now.epoch,
                "applied": {ids[store]: position for store, position in task.positions.items()},
            }
            for task in self._tasks.values()
        ]

    def _wait_ms(self) -> int:
        """How long the API may keep the question; it keeps it for less than the lease allows."""
        is_restoring = any(not task.is_caught_up and not task.is_waiting for task in self._tasks.values())
        return 0 if is_restoring else self._joined.lease_ms

    def _pause_s(self) -> float:
        """What is left of the commit interval under load, or until a task that failed is tried again."""
        now = time.monotonic()
        interval_s = 0.0 if self._has_full_batch else self._round_start_s + self._interval_s - now
        retries = [task.not_before_s - now for task in self._tasks.values() if not task.has_failed]
        return max(0.0, interval_s, min((wait for wait in retries if wait > 0), default=0.0))

    def _take(self, assigned: Iterable[AssignedTask]) -> None:
        """Own exactly what the answer says, under the epochs that it says."""
        told = {task.id: task for task in assigned}
        for task_id, task in list(self._tasks.items()):
            if task_id not in told or told[task_id].epoch != task.now.epoch:
                self._tasks.pop(task_id).close()
        for task_id, now in told.items():
            if task_id in self._tasks:
                self._tasks[task_id].now = now
            else:
                self._tasks[task_id] = self._begin(now)

    def _begin(self, now: AssignedTask) -> OwnedTask:
        part: SubTopology = self._topology.sub_topologies[now.sub_topology]
        chain = Chain(part, self._joined.spec["on_error"])
        return OwnedTask(now, chain, {store.name: store for store in part.stores()})

    def _leave(self) -> bool:
        """Give the tasks up after their replicas are closed: the next owner, here, may open them."""
        for task in self._tasks.values():
            task.close()
        self._tasks.clear()
        with contextlib.suppress(ApiError):  # then the lease runs out
            self._api.leave_slot(self._path)
        self.log.info("slot_left")
        return False

    # ------------------------------------------------------------ restore

    def _restore(self) -> None:
        """Bring replicas nearer to the end of their changelogs: one slice each beside running tasks, more alone."""
        behind = [task for task in self._tasks.values() if not task.is_caught_up and not task.is_waiting]
        is_alone = len(behind) == len(self._tasks)
        until = time.monotonic() + (RESTORE_ALONE_S if is_alone else 0.0)
        for task in behind:
            with self._border(task):
                self._open(task)
                while not task.is_caught_up:
                    self._restore_slice(task)
                    if time.monotonic() >= until:
                        break

    def _open(self, task: OwnedTask) -> None:
        for name, store in task.stores.items():
            if name in task.replicas:
                continue
            store_id, partition = self._joined.stores[name].id, task.now.partition
            path = replica_path(self._place.replica_dir, self._place.instance_id, store_id, partition)
            end = task.now.changelogs[name]
            replica = Replica.open(path, store, store_id, self._joined.lineage, end)
            task.replicas[name], task.positions[name] = replica, replica.position

    def _restore_slice(self, task: OwnedTask) -> None:
        for name, end in task.now.changelogs.items():
            if task.positions[name] >= end:
                continue
            stream = self._joined.stores[name].changelog
            found = self._api.find_chunks(self._path, stream, task.now.partition, task.positions[name], RESTORE_RECORDS)
            task.positions[name] = replay(task.replicas[name], self._storage, found.chunks) if found.chunks else end

    # ------------------------------------------------------------ run

    def _run_round(self) -> None:
        """Run every task that has work, then commit; a long round commits in between."""
        ready = [task for task in self._tasks.values() if task.now.work and task.is_caught_up and not task.is_waiting]
        self._has_full_batch = any(self._is_full(task.now) for task in ready)
        if not ready or (not self._has_full_batch and self._pause_s() > 0):
            return
        self._round_start_s = commit_start_s = time.monotonic()
        written: list[_Written] = []
        for task in ready:
            self._pulse.beat()
            with self._border(task):
                written.append(self._run_task(task))
            if time.monotonic() - commit_start_s > ROUND_S:
                self._commit(written)
                written, commit_start_s = [], time.monotonic()
        self._commit(written)
        if len(self._spare) < SPARE_SEGMENTS:
            self._spare += self._api.register_segments(self._path, SEGMENTS_AT_ONCE)

    def _is_full(self, now: AssignedTask) -> bool:
        return now.work is not None and now.work.end - now.work.start >= self._joined.spec["max_batch_records"]

    def _run_task(self, task: OwnedTask) -> _Written:
        """Run one batch and write its segment; nobody sees it before the commit."""
        assert task.now.work is not None
        batch = read_batch(self._storage, task.now.work, task.now.skips)
        with ExitStack() as views:
            states = {name: views.enter_context(replica.reader()) for name, replica in task.replicas.items()}
            done = run_batch(task.now, task.chain, batch, states, self._routes)
        segment_id = path = ""
        if done.segment is not None:
            if not self._spare:
                self._spare = self._api.register_segments(self._path, SEGMENTS_AT_ONCE)
            segment_id, path = self._spare.pop()
            self._storage.write(path, done.segment)
            done.commit["segment"] = described(done.segment, segment_id)
        return _Written(task, done, segment_id, path)

    def _commit(self, written: list[_Written]) -> None:
        """Publish, then replay what was accepted. Repeated with the same ids until answered."""
        if not written:
            return
        patience_s = 3 * self._joined.lease_ms / 1000
        verdicts = self._api.commit(self._path, [each.done.commit for each in written], patience_s=patience_s)
        for each, verdict in zip(written, verdicts, strict=True):
            if verdict.is_accepted:
                with self._border(each.task):
                    self._replay(each, verdict)
            else:
                self.log.warning("commit_refused", task=each.task.now.name, reason=verdict.reason)

    def _replay(self, written: _Written, verdict: Verdict) -> None:
        task, done = written.task, written.done
        task.failures = 0
        for store, index in done.changelogs.items():
            first = verdict.first_offsets[index]
            chunk = published_chunk(done, index, segment_id=written.segment_id, path=written.path, first_offset=first)
            task.positions[store] = replay(task.replicas[store], self._storage, [chunk])

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
        task.has_failed = True
        with contextlib.suppress(Refused):  # it is somebody else's by now
            self._api.fail_task(self._path, task_id=task.now.id, epoch=task.now.epoch, error=self._problem(task, error))

    def _problem(self, task: OwnedTask, error: Exception) -> Json:
        """An error as the job shows it: what, and at which record of which partition."""
        place: dict[str, Any] = {}
        if task.now.work is not None:
            names = {stream.id: name for name, stream in self._joined.streams.items()}
            place = {"stream": names.get(task.now.work.stream_id), "partition": task.now.work.partition}
        if isinstance(error, ExpressionFailed):
            return {
                "code": error.code,
                "operator": error.operator,
                "offset": error.offset,
                "detail": error.detail,
            } | place
        if isinstance(error, SegmentUnreadable):
            return {"code": error.code, "detail": str(error)} | place
        code = "io_failed" if isinstance(error, TRANSIENT) else "internal_error"
        return {"code": code, "detail": f"{type(error).__name__}: {error}"} | place


@dataclass(frozen=True, slots=True)
class _Written:
    """A batch whose segment is written and waits for its commit."""

    task: OwnedTask
    done: Done
    segment_id: str
    path: str
