"""Tasks of a node dealt to its slots: every task once, even, and nothing moved without need."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from service.streams.assignment.group import Task
from service.streams.assignment.sticky import deal


def slots(count: int) -> dict[str, int]:
    return {f"s{i}": 1 for i in range(count)}


def tasks(count: int, *, sub_topologies: int = 1) -> list[Task]:
    return [Task(f"{sub}_{p}", sub, p) for sub in range(sub_topologies) for p in range(count)]


def loads(dealt: dict[str, str]) -> list[int]:
    return sorted(Counter(dealt.values()).values())


def moved(before: dict[str, str], now: dict[str, str]) -> int:
    return sum(before[task] != now[task] for task in before)


def test_one_slot_gets_everything() -> None:
    assert set(deal(slots(1), tasks(4), {}).values()) == {"s0"}


def test_every_slot_gets_some_of_each_sub_topology() -> None:
    dealt = deal(slots(2), tasks(2, sub_topologies=2), {})
    assert dealt["0_0"] != dealt["0_1"]
    assert dealt["1_0"] != dealt["1_1"]


def test_an_even_deal_stays_as_it_is() -> None:
    first = deal(slots(4), tasks(9), {})
    assert deal(slots(4), tasks(9), first) == first


def test_a_joining_slot_takes_only_its_share() -> None:
    first = deal(slots(2), tasks(9), {})
    second = deal(slots(3), tasks(9), first)
    assert loads(second) == [3, 3, 3]
    assert moved(first, second) == 3


def test_what_a_slot_that_left_had_goes_to_the_others() -> None:
    first = deal(slots(3), tasks(9), {})
    second = deal({"s0": 1, "s1": 1}, tasks(9), first)
    assert loads(second) == [4, 5]
    assert all(second[task] == owner for task, owner in first.items() if owner != "s2")


@given(st.integers(1, 6), st.integers(0, 20), st.integers(1, 3), st.data())
def test_every_deal_is_even_and_moves_no_more_than_it_must(
    bins: int, count: int, subs: int, draw: st.DataObject
) -> None:
    dealt_out = tasks(count, sub_topologies=subs)
    names = [*slots(bins), "gone"]
    previous = {task.id: draw.draw(st.sampled_from(names)) for task in dealt_out}
    dealt = deal(slots(bins), dealt_out, previous)
    assert set(dealt) == {task.id for task in dealt_out}
    sizes = [Counter(dealt.values())[name] for name in slots(bins)]
    assert max(sizes) - min(sizes) <= 1
    had = Counter(previous.values())
    most = -(-len(dealt_out) // bins)
    for name in slots(bins):
        stayed = sum(dealt[task] == name for task, owner in previous.items() if owner == name)
        assert stayed >= min(had[name], most - 1)
