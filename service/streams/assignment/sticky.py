"""Who should own which task: sticky first, then even (KIP-429; Kafka's StickyTaskAssignor).

It knows members, the processes they live in, tasks and who had them. It refuses to know leases, epochs and how a task
changes hands: `service.coordinator` does that, one hand-over at a time.

Tasks are dealt out twice by the same rule, first to processes in proportion to their members, then inside each
process to its members. So a second instance takes its share of the tasks even where the first has slots for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """A slot, and the process (instance) it lives in: replicas stay with the process."""

    id: str
    process: str


@dataclass(frozen=True, slots=True)
class TaskToAssign:
    """A task, and who had it last: the member if it is alive, else the process that may still have its replica."""

    id: str
    sub_topology: int
    member: str | None = None
    process: str | None = None


def assign(members: Sequence[Member], tasks: Sequence[TaskToAssign]) -> dict[str, str]:
    """Task id → member id, for every task; nothing where there are no members.

    Every process holds its share of the tasks (by its members) rounded down or up, and so does every member of a
    process. Within that as few tasks as possible leave their previous owner. The order of the arguments decides
    ties, so equal arguments give equal answers.
    """
    if not members:
        return {}
    process_of = {member.id: member.process for member in members}
    slots = Counter(process_of.values())
    had = {task.id: process_of.get(task.member or "", task.process) for task in tasks}
    by_process = deal(slots, _by_claim(tasks, process_of), had)
    assignment: dict[str, str] = {}
    for process in slots:
        inside = {member.id: 1 for member in members if member.process == process}
        here = [task for task in tasks if by_process[task.id] == process]
        assignment |= deal(inside, here, {task.id: task.member for task in here})
    return assignment


def _by_claim(tasks: Sequence[TaskToAssign], process_of: Mapping[str, str]) -> list[TaskToAssign]:
    """Tasks with a living owner first, one of each owner in turn: what a process has to give up is then what its
    members have too many of, or what none of them has."""
    rank: Counter[str | None] = Counter()
    claims = {}
    for task in tasks:
        claims[task.id] = (task.member not in process_of, rank[task.member])
        rank[task.member] += 1
    return sorted(tasks, key=lambda task: claims[task.id])


def deal(
    capacities: Mapping[str, int], tasks: Sequence[TaskToAssign], previous: Mapping[str, str | None]
) -> dict[str, str]:
    """Task id → bin, by capacities: previous ones first, up to the quota, the rest to the least loaded.

    With the slots of one node as bins, it is how a node's tasks find their slot.
    """
    quotas = _quotas(capacities, len(tasks), Counter(previous[task.id] for task in tasks))
    dealt: dict[str, str] = {}
    load: Counter[str] = Counter()
    alike: Counter[tuple[str, int]] = Counter()

    def give(task: TaskToAssign, to: str) -> None:
        dealt[task.id] = to
        load[to] += 1
        alike[to, task.sub_topology] += 1

    for task in tasks:
        owner = previous[task.id]
        if owner is not None and load[owner] < quotas.get(owner, 0):
            give(task, owner)
    for task in tasks:
        if task.id not in dealt:
            room = [name for name in capacities if load[name] < quotas[name]]
            by_load = {name: (alike[name, task.sub_topology], load[name] / capacities[name]) for name in room}
            give(task, min(room, key=by_load.__getitem__))
    return dealt


def _quotas(capacities: Mapping[str, int], tasks: int, had: Mapping[str | None, int]) -> dict[str, int]:
    """Shares rounded down; what is left goes one each to those who had more than their share, then to the
    largest remainders."""
    total = sum(capacities.values())
    quotas = {name: tasks * capacity // total for name, capacity in capacities.items()}
    remainders = {name: tasks * capacity % total for name, capacity in capacities.items()}
    eager = sorted(
        (name for name in capacities if remainders[name]),
        key=lambda name: (had.get(name, 0) <= quotas[name], -remainders[name]),
    )
    for name in eager[: tasks - sum(quotas.values())]:
        quotas[name] += 1
    return quotas
