"""A task stays with who had it while there is room, whatever that costs (KIP-429; `strategy: sticky`).

It does not ask how far a copy is behind: a task is handed over at once and restored where it goes. There are no
warm-ups, and nothing to ask again for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from service.streams.assignment.group import Assignment, Group, ReplicaNode, Task


def assign(group: Group) -> Assignment:
    """Room on a node is tasks / slots in all, rounded down, for each slot of it. First the node that ran a task, if it
    has room; then one that has a copy and room; then, a sub-topology at a time, the least loaded, ties to the former
    owner, then to a copy. Standbys go by the same last rule to nodes that have not the task.
    """
    active = _active(group)
    wanted = min(group.settings.standby_replicas, len(group.open_nodes) - 1)
    stateful = [task for task in group.tasks if task.is_stateful]
    load = Counter(active.values())
    standby: dict[str, list[str]] = {task.id: [] for task in stateful}
    for _ in range(wanted):
        for task in stateful:
            free = [node for node in group.open_nodes if node.id not in {active[task.id], *standby[task.id]}]
            chosen = _least_loaded(free, load, task)
            standby[task.id].append(chosen.id)
            load[chosen.id] += 1
    return Assignment(active, standby, {task.id: [] for task in stateful}, probing=False)


def _active(group: Group) -> dict[str, str]:
    of_a_slot = len(group.tasks) // sum(node.slots for node in group.nodes)
    active: dict[str, str] = {}
    load: Counter[str] = Counter()

    def give(task: Task, among: Sequence[ReplicaNode]) -> None:
        room = [node for node in among if load[node.id] < of_a_slot * node.slots]
        if task.id not in active and room:
            active[task.id] = room[0].id
            load[room[0].id] += 1

    for task in group.tasks:
        give(task, [node for node in group.nodes if task.id in node.running])
    for task in group.tasks:
        copies = [node for node in group.nodes if task.id in node.lags]
        give(task, sorted(copies, key=lambda node: (node.lags[task.id], node.id)))
    for task in group.tasks:  # by sub-topology
        if task.id not in active:
            active[task.id] = _least_loaded(group.open_nodes, load, task).id
            load[active[task.id]] += 1
    return {task.id: active[task.id] for task in group.tasks}


def _least_loaded(nodes: Sequence[ReplicaNode], load: Counter[str], task: Task) -> ReplicaNode:
    return min(
        nodes,
        key=lambda node: (load[node.id] / node.slots, task.id not in node.running, task.id not in node.lags, node.id),
    )
