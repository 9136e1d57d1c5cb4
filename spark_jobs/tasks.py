"""An active task as its slot holds it: what was assigned, its replicas, its backlog, its failures.

It knows how these hang together. It refuses to know when the task's turn is (`rounds`), what its work does (`work`) and
how a replica follows its changelog (`follow`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from service.protocol import AssignedTask, HeldTask, InputRange, StoreRef
from service.storage.replica import Replica
from service.streams.records import StateReader
from service.streams.topology.chain import Chain
from spark_jobs.failures import TASK_PAUSES_S, Failures
from spark_jobs.follow import Follower, follow_all
from spark_jobs.work import FIRST_RECORDS, Work, most_after, next_work

HAND_OVER_PAUSE_S: Final = 0.05
LESS: Final = 4  # where memory is short, a batch is this part of the one before
REGAIN: Final = 8  # after memory was short, each batch may be larger than the one before by an eighth


@dataclass(slots=True)
class StreamTask:
    """A task that the slot owns. `chain` answers its operators; it may fail where the executor lacks one."""

    assigned: AssignedTask
    replicas: Mapping[str, Follower[Replica]]  # by store name
    chain: Callable[[], Chain]
    feeds_others: bool = False  # other tasks of the job read what it writes
    failures: Failures = field(default_factory=lambda: Failures(TASK_PAUSES_S))
    has_failed: bool = False  # for good: its job fails
    has_backlog: bool = False  # its operators have more to give of what they have read, before it reads on
    most: int = FIRST_RECORDS  # records of an input to read at once
    has_run: bool = False  # so that it is known how fast it is
    room: int | None = None  # records for which there was memory, once there was none for more
    is_cut: bool = False  # the last batch was not all that it could read
    held_at: int = 0  # what its inputs were like when all that it read had to wait
    ran_s: float = 0.0
    was_left_out: bool = False  # of the last round

    def assign(self, assigned: AssignedTask) -> None:
        """Take over what the catalog says of it now."""
        self.assigned = assigned
        for store, replica in self.replicas.items():
            replica.end = assigned.changelogs[store]

    @property
    def work(self) -> Work | None:
        """What it does next."""
        return next_work(self.assigned, is_restored=self.is_restored, has_backlog=self.has_backlog, most=self.most)

    @property
    def ranges(self) -> list[InputRange]:
        """What it is to read: of what it dropped, where that comes first, or of its inputs."""
        return self.assigned.work if self.assigned.replay is None else [self.assigned.replay.range]

    @property
    def is_downstream(self) -> bool:
        """Whether it goes on with what other tasks of the job give."""
        return any(head.sub_log is not None for head in self.assigned.inputs)

    @property
    def is_pressing(self) -> bool:
        """Whether it has something to do that can not wait."""
        return self.has_backlog or (self.assigned.is_due and not self.assigned.can_wait)

    @property
    def is_open(self) -> bool:
        """Whether all its replicas are open: a former owner may have one still."""
        return all(replica.is_open for replica in self.replicas.values())

    @property
    def is_restored(self) -> bool:
        return not any(replica.is_behind for replica in self.replicas.values())

    @property
    def lag(self) -> int:
        """Changes that its replicas have still to replay."""
        return sum(max(0, replica.end - replica.position) for replica in self.replicas.values())

    @property
    def is_due(self) -> bool:
        """Whether it has something to do, once it is restored."""
        return self.assigned.is_due or self.has_backlog

    @property
    def is_waiting(self) -> bool:
        """Whether it is to be left alone for now."""
        return self.has_failed or self.failures.is_waiting

    @property
    def is_ready(self) -> bool:
        return self.is_restored and not self.is_waiting

    def held(self, stores: Mapping[str, StoreRef]) -> HeldTask:
        """How it stands, for the catalog."""
        open_at = {stores[name].id: at.position for name, at in self.replicas.items() if at.is_open}
        return HeldTask(
            self.assigned.task,
            self.assigned.epoch,
            applied=open_at,
            has_backlog=self.has_backlog,
            held_at=self.held_at,
        )

    def open(self) -> bool:
        """Open its replicas; what was kept may be all that it needs. Whether they were closed and are open now."""
        was_open = self.is_open
        for replica in self.replicas.values():
            if not replica.open():
                self.failures.pause(HAND_OVER_PAUSE_S)  # its former owner gives it up just now
                return False
        self.note_backlog()
        return not was_open

    def check(self) -> None:
        """Look where its open replicas stand. Raises ReplicaDamaged, also for damage done while nothing was to do."""
        for replica in self.replicas.values():
            replica.check()

    def restore(self, until_s: float) -> None:
        """Bring its open replicas nearer to the ends of their changelogs, until that moment (monotonic)."""
        follow_all(self.replicas.values(), until_s)
        self.note_backlog()

    def note_backlog(self) -> None:
        """Ask its operators whether they have more to give; they answer once the replicas are at the end."""
        if self.is_restored:
            with self.states() as states:
                self.has_backlog = self.chain().has_backlog(states)

    def hold(self) -> None:
        """All that it can read has to wait for an input that may have something before it: until that is otherwise."""
        self.held_at = self.assigned.heads_digest
        self.assigned = msgspec.structs.replace(self.assigned, work=[])

    def note_run(self, cut_after: int | None, took_s: float) -> None:
        """A batch was run in so many seconds, and cut behind so many records (None: not at all)."""
        self.is_cut = cut_after is not None or any(each.end - each.start > self.most for each in self.ranges)
        self.most, self.has_run = most_after(self.most, self.ranges, cut_after, took_s), True
        if self.room is not None:
            self.room += max(1, self.room // REGAIN)
            self.most = min(self.most, self.room)

    def read_less(self) -> None:
        """There was no memory for what it was about to do."""
        largest = max((each.end - each.start for each in self.ranges), default=self.most)
        self.most = self.room = max(1, min(self.most, largest) // LESS)

    @contextmanager
    def states(self) -> Iterator[dict[str, StateReader]]:
        """Consistent views of its replicas, by store."""
        with ExitStack() as views:
            yield {name: views.enter_context(at.copy.reader()) for name, at in self.replicas.items()}

    def close(self) -> None:
        """Close its replicas; what they hold is kept."""
        self.has_backlog = False
        with ExitStack() as closing:
            for replica in self.replicas.values():
                closing.callback(replica.close)
