"""Which of some bins each task should be in: the former one first, then evenly (the second step of an assignment).

It knows bins, capacities and where tasks were. It refuses to know what a bin is: the coordinator deals the tasks of a
node to its slots with it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from service.streams.assignment.group import Task


def deal(capacities: Mapping[str, int], tasks: Sequence[Task], previous: Mapping[str, str | None]) -> dict[str, str]:
    """Task id → bin, by capacities: previous ones first, up to the quota, the rest to the least loaded, of each
    sub-topology and in all. The order of the arguments decides ties, so equal arguments give equal answers.
    """
    quotas = _quotas(capacities, len(tasks), Counter(previous.get(task.id) for task in tasks))
    dealt: dict[str, str] = {}
    load: Counter[str] = Counter()
    alike: Counter[tuple[str, int]] = Counter()

    def give(task: Task, to: str) -> None:
        dealt[task.id] = to
        load[to] += 1
        alike[to, task.sub_topology] += 1

    for task in tasks:
        owner = previous.get(task.id)
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
