"""The sticky assignment: every task once, even, and nothing moved without need."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from service.streams.assignment.sticky import Member, TaskToAssign, assign


def members(*counts: int) -> list[Member]:
    """`counts[i]` slots in process i."""
    return [Member(f"p{i}s{j}", f"p{i}") for i, count in enumerate(counts) for j in range(count)]


def tasks(count: int, *, sub_topologies: int = 1) -> list[TaskToAssign]:
    return [TaskToAssign(f"{sub}_{p}", sub) for sub in range(sub_topologies) for p in range(count)]


def after(assignment: dict[str, str], tasks: list[TaskToAssign]) -> list[TaskToAssign]:
    """The same tasks, as they are owned now."""
    return [
        TaskToAssign(task.id, task.sub_topology, assignment.get(task.id), assignment.get(task.id, "").split("s")[0])
        for task in tasks
    ]


def moved(before: dict[str, str], now: dict[str, str]) -> int:
    return sum(before[task] != now[task] for task in before)


def loads(assignment: dict[str, str]) -> list[int]:
    return sorted(Counter(assignment.values()).values())


def test_without_members_nothing_is_assigned() -> None:
    assert assign([], tasks(4)) == {}


def test_one_member_gets_everything() -> None:
    assert set(assign(members(1), tasks(4)).values()) == {"p0s0"}


def test_tasks_are_spread_over_processes_before_slots() -> None:
    assert Counter(owner[:2] for owner in assign(members(4, 4), tasks(4)).values()) == {"p0": 2, "p1": 2}


def test_a_process_gets_its_share_by_its_slots() -> None:
    assert Counter(owner[:2] for owner in assign(members(1, 3), tasks(4)).values()) == {"p0": 1, "p1": 3}


def test_every_member_gets_some_of_each_sub_topology() -> None:
    assignment = assign(members(2), tasks(2, sub_topologies=2))
    assert assignment["0_0"] != assignment["0_1"]
    assert assignment["1_0"] != assignment["1_1"]


def test_an_even_assignment_stays_as_it_is() -> None:
    first = assign(members(2, 2), tasks(8))
    assert assign(members(2, 2), after(first, tasks(8))) == first


def test_a_joining_slot_takes_only_its_share() -> None:
    first = assign(members(2), tasks(9))
    second = assign(members(3), after(first, tasks(9)))
    assert loads(second) == [3, 3, 3]
    assert moved(first, second) == 3


def test_a_second_instance_takes_its_half_though_the_first_has_room() -> None:
    first = assign(members(4), tasks(4))
    second = assign(members(4, 4), after(first, tasks(4)))
    assert moved(first, second) == 2


def test_when_a_member_leaves_only_its_tasks_move() -> None:
    first = assign(members(3), tasks(9))
    second = assign(members(2), after(first, tasks(9)))
    assert moved(first, second) == sum(owner == "p0s2" for owner in first.values())


def test_the_extra_task_stays_with_who_has_it() -> None:
    owned = [TaskToAssign(f"0_{i}", 0, "p0s1", "p0") for i in range(3)]
    assert Counter(assign(members(2), owned).values()) == {"p0s1": 2, "p0s0": 1}


def test_a_task_without_owner_goes_back_to_the_process_with_its_replica() -> None:
    free = [TaskToAssign("0_0", 0, None, "p1"), TaskToAssign("0_1", 0, None, "p0")]
    assignment = assign(members(1, 1), free)
    assert assignment == {"0_0": "p1s0", "0_1": "p0s0"}


def test_a_process_gives_up_what_its_lost_slot_had() -> None:
    first = assign(members(2), tasks(4))
    second = assign(members(1, 1), after(first, tasks(4)))
    assert moved(first, second) == 2


@given(st.lists(st.integers(0, 4), max_size=4), st.lists(st.integers(0, 4), max_size=4), st.integers(0, 24))
def test_any_change_of_members_covers_all_evenly_and_moves_nothing_without_need(
    before: list[int], now: list[int], count: int
) -> None:
    first = assign(members(*before), tasks(count))
    second = assign(members(*now), after(first, tasks(count)))
    slots = members(*now)
    assert set(second) == ({task.id for task in tasks(count)} if slots else set())
    for process in {member.process for member in slots}:
        inside = [member.id for member in slots if member.process == process]
        load = [sum(owner == member for owner in second.values()) for member in inside]
        share = count * len(inside) / len(slots)
        assert int(share) <= sum(load) <= -int(-share // 1)
        assert max(load) - min(load) <= 1
    if slots and before == now:
        assert first == second
    if slots:
        assert moved(first, second) <= needed(first, slots, count)


def needed(first: dict[str, str], slots: list[Member], count: int) -> int:
    """An upper bound on needed moves: what is lost, and what is above the share rounded down, at both levels."""
    total = 0
    for process in {member.process for member in slots}:
        inside = [member.id for member in slots if member.process == process]
        had = [sum(owner == member for owner in first.values()) for member in inside]
        keep = min(sum(had), count * len(inside) // len(slots))
        total += sum(min(mine, keep // len(inside)) for mine in had)
    return len(first) - total


def test_equal_arguments_give_equal_answers() -> None:
    assert assign(members(3, 2), tasks(17)) == assign(members(3, 2), tasks(17))
