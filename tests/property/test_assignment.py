"""What holds of every assignment, whatever the group; and that placements cost the least."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.assignment.assignor import assign
from service.streams.assignment.group import Assignment, AssignmentSettings, Group, ReplicaNode, Task
from service.streams.assignment.outlook import carried_out, outlook
from service.streams.assignment.placing import place

STRATEGIES = ["high_availability", "sticky"]
ACCEPTABLE = 100


@st.composite
def groups(draw: st.DrawFn) -> Group:
    """Any group: tasks that run somewhere or nowhere, copies anywhere and how far behind."""
    sub_topologies = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    stateless = draw(st.sets(st.integers(0, 2), max_size=1))
    tasks = [
        Task(f"{sub}_{partition}", sub, partition, sub not in stateless)
        for sub, count in enumerate(sub_topologies)
        for partition in range(count)
    ]
    names = [f"n{i}" for i in range(draw(st.integers(1, 5)))]
    runs = {task.id: draw(st.sampled_from([None, *names])) for task in tasks}
    lags = st.one_of(st.none(), st.integers(0, ACCEPTABLE), st.integers(0, 200 * ACCEPTABLE))
    nodes = []
    for name in names:
        drawn = {task.id: draw(lags) for task in tasks if task.is_stateful and runs[task.id] != name}
        nodes.append(
            ReplicaNode(
                id=name,
                slots=draw(st.integers(1, 3)),
                tags={"zone": draw(st.sampled_from("xyz"))},
                running=[task for task, node in runs.items() if node == name],
                lags={task: lag for task, lag in drawn.items() if lag is not None},
            )
        )
    settings = AssignmentSettings(
        standby_replicas=draw(st.integers(0, 2)),
        acceptable_recovery_lag=ACCEPTABLE,
        max_warmup_replicas=draw(st.integers(1, 3)),
        rack_tags=draw(st.sampled_from([(), ("zone",)])),
    )
    return Group(nodes, tasks, settings)


def settled(group: Group) -> tuple[Group, Assignment]:
    """The group, asked again until nothing is left to move."""
    for _ in range(60):
        made = assign(group)
        group = carried_out(group, made)
        if not made.probing:
            return group, made
    raise AssertionError("no end")


def is_even(group: Group, counted: Iterable[str]) -> bool:
    counts, slots = Counter(counted), sum(node.slots for node in group.nodes)
    total = counts.total()
    shares = [(counts[node.id], divmod(total * node.slots, slots)) for node in group.nodes]
    return all(floor <= count <= floor + (rest > 0) for count, (floor, rest) in shares)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(group=groups())
def test_every_task_runs_once_and_its_copies_are_elsewhere(strategy, group):
    made, names = assign(group, strategy), {node.id for node in group.nodes}
    assert set(made.active) == {task.id for task in group.tasks}
    assert set(made.active.values()) <= names
    wanted = min(group.settings.standby_replicas, len(group.nodes) - 1)
    for task in group.tasks:
        copies = [*made.standby.get(task.id, []), *made.warm_up.get(task.id, [])]
        assert len({made.active[task.id], *copies}) == len(copies) + 1
        assert set(copies) <= names
        assert len(made.standby.get(task.id, [])) == (wanted if task.is_stateful else 0)


@given(groups())
def test_warm_ups_are_bounded_and_asked_for_again(group):
    made = assign(group)
    warm_ups = sum(map(len, made.warm_up.values()))
    assert warm_ups <= group.settings.max_warmup_replicas
    assert made.probing or not warm_ups


@given(groups())
def test_a_task_runs_where_it_is_caught_up_if_it_is_so_anywhere(group):
    active = assign(group).active
    for task in (task for task in group.tasks if task.is_stateful):
        ready = {
            node.id for node in group.nodes if task.id in node.running or node.lags.get(task.id, 10**9) <= ACCEPTABLE
        }
        assert not ready or active[task.id] in ready


@given(groups())
def test_no_standby_that_is_caught_up_goes_before_its_successor_while_tasks_move(group):
    made = assign(group)
    nodes = {node.id: node for node in group.nodes}
    length = max([100 * ACCEPTABLE, *(lag for node in group.nodes for lag in node.lags.values())])
    for task, standbys in made.standby.items():
        ready = [
            node.id
            for node in group.nodes
            if node.id != made.active[task] and (task in node.running or node.lags.get(task, 10**9) <= ACCEPTABLE)
        ]
        kept = [n for n in standbys if task in nodes[n].running or nodes[n].lags.get(task, 10**9) <= 0.5 * length]
        if assign(carried_out(group, made)).active != made.active:
            assert len(kept) >= min(len(ready), len(standbys))


@given(groups())
def test_in_the_end_all_is_even(group):
    group, made = settled(group)
    has_state = {task.id: task.is_stateful for task in group.tasks}
    for kind in True, False:
        assert is_even(group, (node for task, node in made.active.items() if has_state[task] is kind))
    for sub in {task.sub_topology for task in group.tasks}:
        assert is_even(group, (made.active[task.id] for task in group.tasks if task.sub_topology == sub))
    if not group.settings.rack_tags and len(group.nodes) > 2:
        assert not any(made.warm_up.values())


@given(st.integers(2, 6), st.integers(1, 3), st.data())
def test_standbys_of_the_tasks_of_one_node_are_all_over_the_others_and_its_loss_leaves_all_even(count, each, data):
    nodes = [ReplicaNode(f"n{number}", slots=1) for number in range(count)]
    tasks = [Task(f"0_{partition}", 0, partition) for partition in range(count * (count - 1) * each)]
    group, made = settled(Group(nodes, tasks, AssignmentSettings(1, ACCEPTABLE)))
    pairs = Counter((made.active[task.id], *made.standby[task.id]) for task in tasks)
    assert pairs == {(a.id, b.id): each for a in nodes for b in nodes if a.id != b.id}
    lost = data.draw(st.integers(0, count - 1))
    left = replace(group, nodes=[node for number, node in enumerate(group.nodes) if number != lost])
    after = assign(left).active
    assert is_even(left, after.values())
    assert settled(left)[1].active == after


@given(groups())
def test_an_assignment_that_is_carried_out_moves_nothing(group):
    group, made = settled(group)
    again = assign(group)
    assert (again.active, again.probing) == (made.active, False)
    assert {task: set(nodes) for task, nodes in again.standby.items()} == {
        task: set(nodes) for task, nodes in made.standby.items()
    }


@given(groups())
def test_the_outlook_is_where_nothing_moves_any_more(group):
    in_the_end = outlook(group, "high_availability")
    assert is_even(group, (in_the_end[task.id] for task in group.tasks if task.is_stateful))
    assert set(in_the_end) == {task.id for task in group.tasks}


@st.composite
def groups_with_leavers(draw: st.DrawFn) -> Group:
    """Any group, of which some nodes are leaving."""
    group = draw(groups())
    leaving = draw(st.sets(st.sampled_from([node.id for node in group.nodes]), max_size=len(group.nodes) - 1))
    return replace(group, nodes=[replace(each, slots=0 if each.id in leaving else each.slots) for each in group.nodes])


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(group=groups_with_leavers())
def test_a_node_that_leaves_keeps_what_it_has_and_gets_nothing(strategy, group):
    made, nodes = assign(group, strategy), {node.id: node for node in group.nodes}
    assert set(made.active) == {task.id for task in group.tasks}
    assert all(nodes[node].slots or task in nodes[node].running for task, node in made.active.items())
    for task, where in [*made.standby.items(), *made.warm_up.items()]:
        assert all(nodes[node].slots or task in {*nodes[node].running, *nodes[node].lags} for node in where)
        assert made.active[task] not in where


@given(groups_with_leavers())
def test_in_the_end_nothing_runs_on_a_node_that_leaves(group):
    group, made = settled(group)
    slots = {node.id: node.slots for node in group.nodes}
    used = [*made.active.values(), *(node for where in made.standby.values() for node in where)]
    assert all(slots[node] for node in used)


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(group=groups())
def test_where_all_nodes_leave_everything_stays(strategy, group):
    left = replace(group, nodes=[replace(node, slots=0) for node in group.nodes])
    running = {task: node.id for node in group.nodes for task in node.running}
    assert assign(left, strategy).active == running


@pytest.mark.parametrize("strategy", STRATEGIES)
@given(group=groups(), random=st.randoms(use_true_random=False))
def test_the_order_of_what_is_given_changes_nothing(strategy, group, random):
    nodes, tasks = list(group.nodes), list(group.tasks)
    random.shuffle(nodes)
    random.shuffle(tasks)
    shuffled = [replace(node, running=sorted(node.running, reverse=True)) for node in nodes]
    assert assign(Group(shuffled, tasks, group.settings), strategy) == assign(group, strategy)


def test_without_nodes_nothing_is_assigned() -> None:
    assert assign(Group([], [Task("0_0", 0, 0)], AssignmentSettings())).active == {}


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[Task], list[ReplicaNode], np.ndarray, int]:
    nodes = [ReplicaNode(f"n{i}", draw(st.integers(1, 2))) for i in range(draw(st.integers(2, 3)))]
    tasks = [Task(f"{sub}_{p}", sub, p) for sub in range(2) for p in range(draw(st.integers(1, 2)))]
    costs = [[draw(st.integers(0, 5)) for _ in nodes] for _ in tasks]
    return tasks, nodes, np.array(costs, np.int64) * 10_000, draw(st.integers(1, 2))


def unevenness(tasks, nodes, chosen):
    """How far loads are from their shares, in all and by sub-topology, in whole units."""
    found = 0
    for kind in None, 0, 1:
        load = Counter(
            node for task, at in zip(tasks, chosen, strict=True) for node in at if kind in {None, task.sub_topology}
        )
        for i, node in enumerate(nodes):
            floor, rest = divmod(load.total() * node.slots, sum(each.slots for each in nodes))
            found += max(floor - load[i], 0) + max(load[i] - floor - (rest > 0), 0)
    return found


@given(placements())
def test_a_placement_is_even_and_costs_the_least_of_all_even_ones(given_):
    tasks, nodes, costs, copies = given_
    table = place(tasks, nodes, costs, copies)
    made = [tuple(np.flatnonzero(row)) for row in table]
    assert all(len(at) == copies for at in made)
    all_there_are = product(combinations(range(len(nodes)), copies), repeat=len(tasks))
    best = min(
        (unevenness(tasks, nodes, chosen), sum(costs[t, m] for t, at in enumerate(chosen) for m in at))
        for chosen in all_there_are
    )
    assert (unevenness(tasks, nodes, made), int(costs[table].sum())) == best
