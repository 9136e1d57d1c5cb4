"""Copies of tasks: which node has one, what it is for, who keeps it, how far it is, and how a task changes hands.

It knows that a task has at most one active copy, whose slot owns it, and that an epoch rises with every change of that
slot or of what it runs. It refuses to know who should own what (`service.coordinator`) and what is in a copy.

role      `active`: its slot runs the task; `standby`, `warm-up`: its slot only follows the changelogs
state     `restoring`: not known to be at the ends of its changelogs since its slot has it; `running`: it was there;
          `warm`: it was there when its slot was given the task, and has not been shown since;
          `backlog`: it is there, and the task's operators still have output of what they have read
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from sqlalchemy import bindparam, exists, select
from sqlalchemy.orm import Session

from service.catalog.engine import now_ms, progress_topic, wake
from service.catalog.tables import Json, PartitionRow, ReplicaRow, SlotRow, StoreRow, TaskRow

ACTIVE: Final = "active"
STANDBY: Final = "standby"
WARM_UP: Final = "warm-up"
RESTORING, WARM, RUNNING, BACKLOG = "restoring", "warm", "running", "backlog"
NOT_SHOWN: Final = (RESTORING, WARM)

OUT_OF_TOUCH: Final = 10_000  # records, beyond twice what is acceptable
IS_ACTIVE = (ReplicaRow.task_id == TaskRow.id) & (ReplicaRow.role == ACTIVE)  # how a task joins its active copy
IS_STORE_OF = (StoreRow.job_id == TaskRow.job_id) & (StoreRow.sub_topology == TaskRow.sub_topology)
IS_CHANGELOG_OF = (PartitionRow.stream_id == StoreRow.changelog_stream_id) & (  # and a store its task's changelog
    PartitionRow.partition == TaskRow.partition
)
HAS_OWNER = exists().where(IS_ACTIVE, ReplicaRow.slot_id.is_not(None))
FRESH: Final = {"populate_existing": True}  # what was read before the lock is old
_OF_TASKS = select(ReplicaRow).where(ReplicaRow.task_id.in_(bindparam("task_ids", expanding=True)))
_ACTIVE_OF = _OF_TASKS.where(ReplicaRow.role == ACTIVE)
_OF_SLOT = _OF_TASKS.where(ReplicaRow.slot_id == bindparam("slot_id"))


class TaskOwner(NamedTuple):
    """A task, the slot that owns it and the slot that it is about to move to."""

    task: str
    slot_id: str | None
    target_slot_id: str | None


@dataclass(slots=True)
class Holding:
    """A locked task and its copies, by node."""

    task: TaskRow
    copies: dict[str, ReplicaRow]

    @property
    def active(self) -> ReplicaRow | None:
        """The copy that it runs on, or ran on last; None: nobody ever owned it."""
        return next((copy for copy in self.copies.values() if copy.role == ACTIVE), None)

    @property
    def slot_id(self) -> str | None:
        """The slot that owns the task."""
        return None if self.active is None else self.active.slot_id

    @property
    def target_slot_id(self) -> str | None:
        """The slot that it is about to move to."""
        return None if self.active is None else self.active.target_slot_id

    @property
    def node_id(self) -> str | None:
        """Where its active copy is, or was last."""
        return None if self.active is None else self.active.node_id

    def aim(self, target_slot_id: str | None) -> None:
        """Say which slot it is about to move to; None: it stays."""
        if self.active is not None:
            self.active.target_slot_id = target_slot_id

    def give(self, s: Session, slot: SlotRow | None, at_ms: int) -> None:
        """Change its owner. A new owner has its copy to show; what is left on another node is a standby that nobody
        keeps.
        """
        former = self.active
        if former is not None:
            former.slot_id = former.target_slot_id = None
        if slot is not None:
            if former is not None and former.node_id != slot.node_id:
                former.role = STANDBY
                s.flush()  # before there is another active copy
            here = self.copy_on(s, slot.node_id)
            is_warm = here.role != ACTIVE and here.slot_id is not None and here.state == RUNNING
            here.role, here.state, here.slot_id = ACTIVE, WARM if is_warm else RESTORING, slot.id
        self._begin_epoch(at_ms)

    def keeper_on(self, node_id: str) -> str | None:
        """The slot that keeps its copy on a node, if one does."""
        copy = self.copies.get(node_id)
        return None if copy is None else copy.slot_id

    def is_active_on(self, node_id: str) -> bool:
        """Whether its active copy is on that node."""
        return self.active is not None and self.active.node_id == node_id

    def keep(self, s: Session, node_id: str, role: str, slot_id: str) -> bool:
        """Have a slot keep a copy beside the active one. Returns whether that is news."""
        copy = self.copy_on(s, node_id)
        is_news = (copy.role, copy.slot_id) != (role, slot_id)
        if copy.slot_id != slot_id:
            copy.state = RESTORING
        copy.role, copy.slot_id = role, slot_id
        return is_news

    def copy_on(self, s: Session, node_id: str) -> ReplicaRow:
        """Its copy on a node; where there is none one that begins, which is to be given a role."""
        if node_id not in self.copies:
            self.copies[node_id] = ReplicaRow(task_id=self.task.id, node_id=node_id, state=RESTORING, applied={})
            s.add(self.copies[node_id])
        return self.copies[node_id]

    def renew(self, at_ms: int) -> None:
        """Let its owner, if there is one, begin anew: what that has under way is void, and it has its copy to show."""
        if self.active is not None:
            self.active.state = RESTORING
        self._begin_epoch(at_ms)

    def _begin_epoch(self, at_ms: int) -> None:
        """The one place where an epoch rises."""
        self.task.epoch += 1
        self.task.updated_ms = at_ms


class Report(NamedTuple):
    """How far a slot says that its copy of a task is (store id → changelog position); `is_restored`: it is at the ends
    of its changelogs.
    """

    applied: Mapping[str, int]
    is_restored: bool
    has_backlog: bool


def holdings_of(s: Session, tasks: Iterable[TaskRow]) -> list[Holding]:
    """Locked tasks with their copies, in the order given."""
    found = {task.id: Holding(task, {}) for task in tasks}
    for row in s.scalars(_OF_TASKS, {"task_ids": list(found)}, execution_options=FRESH):
        found[row.task_id].copies[row.node_id] = row
    return list(found.values())


def active_of(s: Session, task_ids: Sequence[str]) -> dict[str, ReplicaRow]:
    """Task id → its active copy, of locked tasks."""
    rows = s.scalars(_ACTIVE_OF, {"task_ids": list(task_ids)}, execution_options=FRESH)
    return {row.task_id: row for row in rows}


def copies_of_slot(s: Session, slot_id: str, task_ids: Sequence[str]) -> dict[str, ReplicaRow]:
    """Task id → the copy that a slot keeps, of those of these locked tasks that it does."""
    rows = s.scalars(_OF_SLOT, {"slot_id": slot_id, "task_ids": list(task_ids)}, execution_options=FRESH)
    return {row.task_id: row for row in rows}


def owners_of(s: Session, job_id: str) -> list[TaskOwner]:
    """Who owns each task of a job, in the order of the tasks."""
    query = select(TaskRow.name, ReplicaRow.slot_id, ReplicaRow.target_slot_id).outerjoin(ReplicaRow, IS_ACTIVE)
    rows = s.execute(query.where(TaskRow.job_id == job_id).order_by(TaskRow.sub_topology, TaskRow.partition))
    return [TaskOwner(*row) for row in rows]


def copy_summary(s: Session, job_id: str, wanted: int) -> Json:
    """How many of the standbys asked for are missing or not caught up, and the copy that is the furthest behind."""
    query = (
        select(TaskRow.id, TaskRow.name, ReplicaRow.node_id, ReplicaRow.state, ReplicaRow.applied, ReplicaRow.slot_id)
        .outerjoin(ReplicaRow, (ReplicaRow.task_id == TaskRow.id) & (ReplicaRow.role != ACTIVE))
        .where(TaskRow.job_id == job_id)
        .order_by(TaskRow.sub_topology, TaskRow.partition, ReplicaRow.node_id)
    )
    ends = changelog_ends(s, job_id)  # of tasks with stores
    caught_up, copies = dict.fromkeys(ends, 0), list[Json]()
    for task_id, task, node, state, applied, slot in s.execute(query):
        if task_id not in ends or slot is None:
            continue
        caught_up[task_id] += state == RUNNING
        copies.append({"task": task, "node": node, "lag_records": behind(applied, ends[task_id])})
    worst = max(copies, key=lambda copy: copy["lag_records"], default=None)
    return {
        "missing_standbys": sum(max(0, wanted - count) for count in caught_up.values()),
        "most_behind": worst if worst is not None and worst["lag_records"] else None,
    }


def is_news(state: str, applied: Mapping[str, int], report: Report) -> bool:
    """Whether a report differs from the state and positions that are stored of a copy."""
    return state != _state_after(state, report) or bool(report.applied.items() - applied.items())


def note_report(s: Session, task: TaskRow, copy: ReplicaRow, report: Report) -> None:
    """Keep how far a copy of a locked task is."""
    if is_news(copy.state, copy.applied, report):
        _go_on(copy, report.applied, now_ms(s))
        copy.state = _state_after(copy.state, report)
        wake(s, progress_topic(task.job_id))


def changelog_ends(s: Session, job_id: str) -> dict[str, dict[str, int]]:
    """Task id → store id → the end of its changelog, of the tasks of a job that have stores."""
    query = (
        select(TaskRow.id, StoreRow.id, PartitionRow.end_offset)
        .join(StoreRow, IS_STORE_OF)
        .join(PartitionRow, IS_CHANGELOG_OF)
        .where(TaskRow.job_id == job_id, StoreRow.is_removed.is_(False))
    )
    found: dict[str, dict[str, int]] = {}
    for task_id, store_id, end in s.execute(query):
        found.setdefault(task_id, {})[store_id] = end
    return found


def behind(applied: Mapping[str, int], ends: Mapping[str, int]) -> int:
    """Records between positions and ends, both by store id."""
    return sum(max(0, end - applied.get(store_id, 0)) for store_id, end in ends.items())


def state_of_copy(state: str, lag: int, acceptable: int) -> str:
    """What a copy that a slot follows becomes at a lag: running once that is acceptable, restoring again only where it
    fell far behind.
    """
    if lag <= acceptable:
        return RUNNING
    return state if lag <= 2 * acceptable + OUT_OF_TOUCH else RESTORING


def note_copy(copy: ReplicaRow, applied: Mapping[str, int], state: str, at_ms: int) -> None:
    """Keep how far a copy of a locked task is that a slot follows, and what it is by that."""
    _go_on(copy, applied, at_ms)
    copy.state = state


def _go_on(copy: ReplicaRow, applied: Mapping[str, int], at_ms: int) -> None:
    """Note positions, and the rate at which they went further since the last ones (half of it the former rate)."""
    after = {**copy.applied, **applied}
    if copy.reported_ms is not None and at_ms > copy.reported_ms:
        rate = (sum(after.values()) - sum(copy.applied.values())) * 1000 // (at_ms - copy.reported_ms)
        copy.rate = max(0, rate if copy.rate is None else (rate + copy.rate) // 2)
    copy.applied, copy.reported_ms = after, at_ms


def _state_after(state: str, report: Report) -> str:
    if report.has_backlog:
        return BACKLOG
    return state if state in NOT_SHOWN and not report.is_restored else RUNNING


def note_commit(copy: ReplicaRow, applied: Mapping[str, int]) -> None:
    """A copy whose task commits was at the ends of its changelogs."""
    if copy.state in NOT_SHOWN:
        copy.state = RUNNING
    if applied:
        copy.applied = {**copy.applied, **applied}
