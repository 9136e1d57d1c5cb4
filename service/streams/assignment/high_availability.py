"""A task runs only where its copy is caught up, and moves only to where it is so (KIP-441).

Four steps, each a function. Where should tasks run in the end, evenly? Where can they run now? Where should standbys
be in the end? And which copies are kept and built now, on the way there?

The rule of the way: **no caught-up standby goes before its successor is caught up.** What is built meanwhile is a
warm-up, and there are `max_warmup_replicas` of them, those that running tasks wait for first, the nearest of these
first; so what is begun is finished. Copies that only make standbys even begin once all tasks but one are where they
should be: what happens next may want them elsewhere. Two things need no warm-up: a standby that is missing anyway is
built where one will be in the end, and a copy that is nearly there takes its place at once, which frees its warm-up for
the next. Only once every task runs where it should, and all that is left is standbys to be made even, do they move at
once: it is over sooner, and a group that is not otherwise in motion risks least by it.

While a group is in motion, warm-ups that nothing waits for keep copies that moves left behind: if their task's node is
lost next, it goes on there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from service.streams.assignment.group import Assignment, AssignmentSettings, Group, ReplicaNode, Task
from service.streams.assignment.placing import place
from service.streams.kernels import placement

Table = NDArray[np.int64]

ABSENT: Final = -1  # the lag of a copy that is not there; the owner of a task that nobody runs
# What a task costs on a node. What has to be copied is worth several tasks that change their nodes beside it.
_HERE, _SCATTER, _HAND_OVER, _CATCH_UP, _LENGTH = 0, 100, 20_000, 120_000, 1_000_000
# A log whose length nobody says is at least this many times what is acceptable, and as long as the longest lag.
_LOG_IN_ACCEPTABLE_LAGS: Final = 100
_NEAR: Final = 0.5  # of the length of a log: so far behind, a copy is nearly there
_LEFT_BEHIND: Final = 0.125  # of the length of a log: so far behind, a copy costs little to keep
_LAST_MOVES: Final = 1  # with so many tasks out of place, copies that make standbys even are begun


@dataclass(frozen=True, slots=True)
class _Situation:
    """The stateful tasks of a group, as tables tasks × nodes."""

    nodes: Sequence[ReplicaNode]
    tasks: Sequence[Task]
    settings: AssignmentSettings
    lags: Table  # ABSENT: no copy
    owners: Table  # per task: the node that runs it, or ABSENT
    is_caught_up: NDArray[np.bool_]
    length: int  # of a log, estimated

    @classmethod
    def of(cls, group: Group) -> Self:
        tasks = [task for task in group.tasks if task.is_stateful]
        rows = {task.id: row for row, task in enumerate(tasks)}
        lags = np.full((len(tasks), len(group.nodes)), ABSENT, np.int64)
        owners = np.full(len(tasks), ABSENT, np.int64)
        for column, node in enumerate(group.nodes):
            for task, lag in node.lags.items():
                if task in rows:
                    lags[rows[task], column] = lag
            for task in node.running:
                if task in rows:
                    lags[rows[task], column], owners[rows[task]] = 0, column
        acceptable = group.settings.acceptable_recovery_lag
        longest = max(int(lags.max(initial=1)), _LOG_IN_ACCEPTABLE_LAGS * acceptable)
        is_caught_up = (lags != ABSENT) & (lags <= acceptable)
        return cls(group.nodes, tasks, group.settings, lags, owners, is_caught_up, longest)

    @property
    def behind(self) -> Table:
        """How far each copy is behind; one that is not there by more than any other."""
        return np.where(self.lags == ABSENT, self.length + self.length // 10, self.lags)

    def cost_to_catch_up(self) -> Table:
        """Of each task on each node; more the farther behind."""
        costs: Table = (_CATCH_UP + self.behind * (_LENGTH / self.length)).astype(np.int64)
        return costs

    @property
    def is_open(self) -> NDArray[np.bool_]:
        """Which nodes may get something: those that have slots."""
        return np.array([node.slots > 0 for node in self.nodes], np.bool_)


def assign(group: Group) -> Assignment:
    """See the module; `group` has a node."""
    situation = _Situation.of(group)
    targets = _targets(situation)
    active = _active(situation, targets)
    final = _standbys(situation, targets, active)
    kept, probing = _copies(situation, targets, active, final)
    wanted = _wanted(situation)
    ids, names = [task.id for task in situation.tasks], [node.id for node in group.nodes]
    runs = {task: names[node] for task, node in zip(ids, active, strict=True)} | _stateless(group)
    return Assignment(
        active={task.id: runs[task.id] for task in group.tasks},
        standby={task: [names[node] for node in kept[row][:wanted]] for row, task in enumerate(ids)},
        warm_up={task: [names[node] for node in kept[row][wanted:]] for row, task in enumerate(ids)},
        probing=probing,
    )


def _wanted(situation: _Situation) -> int:
    return min(situation.settings.standby_replicas, int(situation.is_open.sum()) - 1)


def _targets(s: _Situation) -> Table:
    """The node where each task should run in the end: evenly; where it runs, else where it is caught up, else where it
    is nearest.
    """
    costs = s.cost_to_catch_up()
    there = s.is_caught_up.sum(axis=1)
    is_short = (there > 0) & (there <= _wanted(s))  # a copy is built anyway: where the task will run, if it must move
    costs[is_short] = (_HAND_OVER + s.behind[is_short] * (_CATCH_UP - _HAND_OVER) / (2 * s.length)).astype(np.int64)
    is_owned = s.owners != ABSENT
    costs[s.is_caught_up] = np.broadcast_to(np.where(is_owned, _HAND_OVER, _HERE)[:, None], costs.shape)[s.is_caught_up]
    costs[is_owned, s.owners[is_owned]] = _HERE
    costs[:, ~s.is_open] = placement.NEVER
    targets: Table = place(s.tasks, s.nodes, costs).argmax(axis=1).astype(np.int64)
    return targets


def _active(s: _Situation, targets: Table) -> Table:
    """The node where each task runs now: its target if it is caught up there, else where it runs, else the least
    loaded where it is caught up, else where it is nearest.
    """
    rows = np.arange(len(s.tasks))
    active = np.where(s.is_caught_up[rows, targets], targets, s.owners)
    slots, is_open = [node.slots for node in s.nodes], s.is_open
    load = np.bincount(active[active != ABSENT], minlength=len(slots))
    behind = s.behind
    for row in np.flatnonzero(active == ABSENT):
        ready = np.flatnonzero(s.is_caught_up[row] & is_open)
        if len(ready):
            active[row] = min(ready, key=lambda node: (load[node] / slots[node], node))
        else:
            active[row] = min(np.flatnonzero(is_open), key=lambda node: (behind[row, node], node != targets[row], node))
        load[active[row]] += 1
    return active


def _standbys(s: _Situation, targets: Table, active: Table) -> NDArray[np.bool_]:
    """Where standbys should be in the end, as a table: evenly in all (they cost disk and replay, which sub-topologies
    share), spread over tags, where there are copies already.
    """
    wanted, rows = _wanted(s), np.arange(len(s.tasks))
    if not wanted or not s.tasks:
        return np.zeros(s.lags.shape, np.bool_)
    costs = s.cost_to_catch_up()
    costs[s.is_caught_up] = _HAND_OVER // 2
    costs += _scattered(targets, len(s.nodes))
    costs[rows, active] = _HERE
    costs[rows, targets] = placement.NEVER
    costs[:, ~s.is_open] = placement.NEVER
    return place(s.tasks, s.nodes, costs, wanted, s.settings.rack_tags, targets, by_sub_topology=False)


def _scattered(targets: Table, nodes: int) -> Table:
    """What a missing copy costs more on each node, less than anything else does: of the tasks of one node each has
    another node first. So when it is lost they go on all over the group, which is even without another move.
    """
    order = np.argsort(targets, kind="stable")
    turns = np.empty(len(targets), np.int64)
    turns[order] = np.arange(len(targets)) - np.searchsorted(targets[order], targets[order])
    others = (np.arange(nodes) - targets[:, None] - 1) % nodes  # counted from the node behind the task's own
    table: Table = (others - turns[:, None] - targets[:, None]) % (nodes - 1) * _SCATTER // nodes
    return table


def _copies(s: _Situation, targets: Table, active: Table, final: NDArray[np.bool_]) -> tuple[list[list[int]], bool]:
    """For each task the nodes that keep or build a copy beside the active one, standbys first; and whether asking again
    will move something.
    """
    behind, rows = s.behind, range(len(s.tasks))
    plans = [_plan(s, behind[row], row, int(targets[row]), int(active[row]), final[row]) for row in rows]
    queue = sorted((node != targets[row], behind[row, node], row, node) for row in rows for node in plans[row].waiting)
    moves = int((active != targets).sum())
    warm_ups = s.settings.max_warmup_replicas
    for is_for_evenness, lag, row, node in queue:
        plan = plans[row]
        is_early = is_for_evenness and moves > _LAST_MOVES and lag >= s.length
        if warm_ups > 0 and not is_early:
            warm_ups -= 1
            plan.warm_ups.append(node)
        elif not moves and plan.passing:
            plan.kept.remove(plan.passing.pop())
            plan.kept.append(node)
    probing = moves > 0 or bool(queue) or any(plan.passing for plan in plans)
    if probing:
        for row, node in _left_behind(s, plans, active)[:warm_ups]:
            plans[row].warm_ups.append(node)
    return [[*plan.kept, *plan.warm_ups] for plan in plans], probing


def _left_behind(s: _Situation, plans: Sequence[_Plan], active: Table) -> list[tuple[int, int]]:
    """(task, node) of copies that are worth keeping, one a task: where it has standbys those that cost nothing, where
    it has none the farthest behind first, for that one is deleted next.
    """
    most = s.settings.acceptable_recovery_lag
    if not _wanted(s):
        most = max(most, int(_LEFT_BEHIND * s.length))
    found = {}
    for row, plan in enumerate(plans):
        nodes = np.flatnonzero((s.lags[row] != ABSENT) & (s.lags[row] <= most) & s.is_open).tolist()
        lags = {node: int(s.lags[row, node]) for node in nodes if node not in {*plan.kept, *plan.warm_ups, active[row]}}
        if lags:
            node = max(lags, key=lambda node: (lags[node], -node))
            found[row] = (-lags[node], row, node)
    return [(row, node) for _, row, node in sorted(found.values())]


@dataclass(slots=True)
class _Plan:
    """For one task: copies that count as its standbys, those of them that will go, and those that are to be built."""

    kept: list[int]
    passing: list[int]
    waiting: list[int]
    warm_ups: list[int]


def _plan(s: _Situation, behind: Table, row: int, target: int, active: int, final: NDArray[np.bool_]) -> _Plan:
    wanted, near, acceptable = _wanted(s), _NEAR * s.length, s.settings.acceptable_recovery_lag
    lag = {node: int(s.lags[row, node]) for node in np.flatnonzero(s.lags[row] != ABSENT).tolist()}
    staying = {target, *np.flatnonzero(final).tolist()} - {active}
    others = lag.keys() - staying - {active}
    ready: list[int] = []
    built: list[int] = []
    for node in sorted(staying, key=lambda node: (behind[node], node != target, node)):
        is_ready = node in lag and lag[node] <= max(near, acceptable)
        (ready if is_ready and len(ready) < wanted else built).append(node)
    passing = sorted((node for node in others if lag[node] <= acceptable), key=lambda node: (lag[node], node))
    passing = passing[: wanted - len(ready)]
    kept = ready + passing
    # What is missing anyway: where a copy is nearly there, though it will not stay, else where one will be.
    nearest = sorted(
        [*built, *(node for node in others if acceptable < lag[node] <= near and s.nodes[node].slots)],
        key=lambda node: (behind[node], node in others, node != target, node),
    )
    for node in nearest[: wanted - len(kept)]:
        kept.append(node)
        (built.remove if node in staying else passing.append)(node)
    return _Plan(kept, passing, built, [])


def _stateless(group: Group) -> dict[str, str]:
    """Tasks without state: evenly, where they run."""
    tasks = [task for task in group.tasks if not task.is_stateful]
    if not tasks:
        return {}
    costs = np.full((len(tasks), len(group.nodes)), _HAND_OVER, np.int64)
    for column, node in enumerate(group.nodes):
        here = set(node.running)
        costs[[row for row, task in enumerate(tasks) if task.id in here], column] = _HERE
        if not node.slots:
            costs[:, column] = placement.NEVER
    chosen = place(tasks, group.nodes, costs).argmax(axis=1)
    return {task.id: group.nodes[node].id for task, node in zip(tasks, chosen, strict=True)}
