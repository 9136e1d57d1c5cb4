"""The group of a job as the assignor sees it: its nodes with their slots, what runs where, how far copies are behind.

It knows which rows of the catalog make it. It refuses to know who should run what (`service.streams.assignment`) and
how a task changes hands (`ownership`).

What counts: a task *runs* on a node whose live slot owns it and has shown that its copy is at the ends of its
changelogs, or is known to be within `acceptable_recovery_lag` of them; one that restores from farther is a copy with a
lag. A node without a copy is as far behind as the log is long: where that is acceptable, nothing needs to be warmed up.
A standby that a slot keeps, and that has caught up, counts as acceptable between two of its reports, and as running
once the task is given to it. Where a slot of a former version keeps no copies, tasks are handed over at once
(`sticky`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.nodes import HOST, nodes_by_id
from service.catalog.replicas import BACKLOG, RUNNING, WARM, Holding, behind, changelog_ends
from service.catalog.tables import InstanceRow, JobRow, ReplicaRow, ShareRow, SlotRow
from service.coordinator.leases import IS_SHARE_OF_SLOT, LIVE, PRESENT
from service.streams.assignment.group import AssignmentSettings, Group, ReplicaNode, Strategy, Task

_RUN: Final = (WARM, RUNNING, BACKLOG)


class AwaitedSlot(NamedTuple):
    """A slot that should join within moments, on which node."""

    id: str
    node_id: str


class AssignmentSpec(NamedTuple):
    """What a job's specification says of its group."""

    standby_replicas: int
    acceptable_recovery_lag: int
    max_warmup_replicas: int
    strategy: Strategy

    @classmethod
    def of(cls, job: JobRow) -> Self:
        """Fields that an older specification lacks have their defaults."""
        spec = job.spec
        return cls(
            spec.get("standby_replicas", 0),
            spec.get("acceptable_recovery_lag", 10_000),
            spec.get("max_warmup_replicas", 2),
            spec.get("strategy") or "high_availability",
        )


@dataclass(frozen=True, slots=True)
class Situation:
    """A group and what it was made of. `slots`: node → the slots that its tasks are dealt to, those that are awaited
    among them; `live`: slots by id, those on instances that leave too; `followers`: nodes whose slots keep copies of
    tasks that they do not run.
    """

    group: Group
    strategy: Strategy
    slots: Mapping[str, Sequence[str]]
    live: Mapping[str, SlotRow]
    followers: Collection[str]

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Tasks by name."""
        return {task.id: task for task in self.group.tasks}


def situation_of(
    s: Session, job: JobRow, holdings: Sequence[Holding], awaited: Iterable[AwaitedSlot] = ()
) -> Situation:
    """The group of a job now. Slots of instances that leave count for nothing where they leave a node alone."""
    spec = AssignmentSpec.of(job)
    present = _present(s, job.id)
    live = {slot.id: slot for slot, _ in present}
    staying: dict[str, list[str]] = {}
    for slot, is_open in present:
        staying.setdefault(slot.node_id, [])
        if is_open:
            staying[slot.node_id].append(slot.id)
    for slot_id, node_id in awaited:
        staying.setdefault(node_id, []).append(slot_id)
    leaving = {node: [slot.id for slot, _ in present if slot.node_id == node] for node in staying}
    ends = changelog_ends(s, job.id)
    followers = {slot.node_id for slot, _ in present if slot.node_id != slot.instance_id}
    strategy: Strategy = spec.strategy if all(slot.node_id in followers for slot, _ in present) else "sticky"
    without = [node for node, slots in staying.items() if slots and strategy == "high_availability"]
    by_node: dict[str, _OnNode] = {node: _OnNode([], {}) for node in staying}
    for each in holdings:
        _place(by_node, each, ends.get(each.task.id), live, spec.acceptable_recovery_lag, without)
    tags = {node: row.tags for node, row in nodes_by_id(s, list(staying)).items()}
    names = {name for each in tags.values() for name in each}
    rack_tags = tuple(sorted(names, key=lambda name: (name == HOST, name)))
    nodes = [
        ReplicaNode(node, len(staying[node]), tags.get(node, {}), on_it.running, on_it.lags)
        for node, on_it in by_node.items()
    ]
    tasks = [
        Task(each.task.name, each.task.sub_topology, each.task.partition, each.task.id in ends) for each in holdings
    ]
    settings = AssignmentSettings(*spec[:3], rack_tags)
    return Situation(
        Group(nodes, tasks, settings),
        strategy,
        {node: there or leaving[node] for node, there in staying.items()},
        live,
        followers,
    )


class _OnNode(NamedTuple):
    running: list[str]
    lags: dict[str, int]


def _present(s: Session, job_id: str) -> list[tuple[SlotRow, bool]]:
    """The live slots of a job, and whether they stay, in the order in which they joined: their instance does, and they
    are within its share.
    """
    query = select(SlotRow, InstanceRow.state, ShareRow.slots)
    query = query.join(InstanceRow, InstanceRow.id == SlotRow.instance_id).outerjoin(ShareRow, IS_SHARE_OF_SLOT)
    alive = query.where(SlotRow.job_id == job_id, SlotRow.state == LIVE, InstanceRow.state.in_(PRESENT))
    there: Counter[str] = Counter()
    found = []
    for slot, state, share in s.execute(alive.order_by(SlotRow.joined_ms, SlotRow.slot_index, SlotRow.id)):
        found.append((slot, state == LIVE and (share is None or there[slot.instance_id] < share)))
        there[slot.instance_id] += 1
    return found


def _place(
    by_node: Mapping[str, _OnNode],
    holding: Holding,
    ends: Mapping[str, int] | None,
    live: Mapping[str, SlotRow],
    acceptable: int,
    without: Collection[str],
) -> None:
    """Say of each node what it has of a task; `ends`: of its changelogs, None for a task without stores; `without`:
    nodes for which having no copy is a lag as well.
    """
    name, length = holding.task.name, sum((ends or {}).values())
    for node, on_it in by_node.items():
        copy = holding.copies.get(node)
        if copy is not None and _runs(copy, ends, live, acceptable):
            on_it.running.append(name)
        elif ends is not None and copy is not None:
            on_it.lags[name] = _lag(copy, ends, live, acceptable)
        elif ends is not None and length <= acceptable and node in without:
            on_it.lags[name] = length


def _runs(copy: ReplicaRow, ends: Mapping[str, int] | None, live: Mapping[str, SlotRow], acceptable: int) -> bool:
    if copy.role != "active" or copy.slot_id not in live:
        return False
    return ends is None or copy.state in _RUN or behind(copy.applied, ends) <= acceptable


def _lag(copy: ReplicaRow, ends: Mapping[str, int], live: Mapping[str, SlotRow], acceptable: int) -> int:
    lag = behind(copy.applied, ends)
    return min(lag, acceptable) if copy.state == RUNNING and copy.slot_id in live else lag
