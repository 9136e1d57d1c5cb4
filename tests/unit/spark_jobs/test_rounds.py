"""Whose turn it is: an interval apart, nobody starves, and what may not wait does not."""

from __future__ import annotations

from typing import Any

import pytest

from service.protocol import AssignedTask, InputHead, InputRange
from spark_jobs import rounds
from spark_jobs.rounds import ASIDE_S, MAX_PAUSE_S, Rounds
from spark_jobs.tasks import StreamTask

FULL = 100


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(rounds, "time", made)
    return made


def no_chain() -> Any:
    raise AssertionError("nothing is run here")


def task(
    name: str, records: int = 1, target: int | None = None, *, can_wait: bool = False, has_run: bool = True
) -> StreamTask:
    """A task with so many records to read; `target`: of a repartition stream; `can_wait`: they are for others."""
    work = [InputRange(0, 0, records, [])] if records else []
    inputs = [InputHead("in", 0, 0, records, sub_log=target)]
    assigned = AssignedTask(name, name, 0, 0, 1, 0, inputs=inputs, work=work, can_wait=can_wait)
    return StreamTask(assigned, {}, no_chain, has_run=has_run)


def names(given: Rounds, tasks: list[StreamTask]) -> list[str]:
    return [task.assigned.name for task in given.turns(tasks)]


def test_the_first_round_begins_at_once_and_the_next_an_interval_later(clock: Clock) -> None:
    given, tasks = Rounds(0.1, FULL), [task("a")]
    assert given.pause_s(tasks) == 0.0
    assert names(given, tasks) == ["a"]
    assert names(given, tasks) == []
    assert given.pause_s(tasks) == pytest.approx(0.1)
    clock.now_s += 0.11
    assert names(given, tasks) == ["a"]


def test_who_has_nothing_to_do_has_no_turn(clock: Clock) -> None:
    given = Rounds(0.1, FULL)
    assert names(given, [task("idle", 0), task("due")]) == ["due"]


def test_who_can_wait_leaves_one_round_to_those_who_can_not(clock: Clock) -> None:
    given, tasks = Rounds(0.1, FULL), [task("a"), task("can wait", target=0, can_wait=True)]
    found = []
    for _ in range(4):
        found.append(names(given, tasks))
        clock.now_s += 0.11
    assert found == [["a"], ["can wait", "a"]] * 2


def test_records_do_not_wait_for_the_interval_of_a_round_of_those_who_can(clock: Clock) -> None:
    given, waiting = Rounds(60.0, FULL), task("can wait", target=0, can_wait=True)
    clock.now_s += 60.0
    assert names(given, [waiting]) == ["can wait"]
    assert given.pause_s([waiting]) == 0.0
    assert names(given, [waiting, task("a")]) == ["a"]


def test_without_anything_to_do_no_interval_begins(clock: Clock) -> None:
    given = Rounds(60.0, FULL)
    assert names(given, [task("idle", 0)]) == []
    assert names(given, [task("due")]) == ["due"]


def test_a_full_batch_does_not_wait_and_takes_the_others_along(clock: Clock) -> None:
    given, tasks = Rounds(60.0, FULL), [task("full", FULL), task("other")]
    assert names(given, tasks) == ["full", "other"]
    assert given.pause_s(tasks) == 0.0
    assert names(given, tasks) == ["full", "other"]


def test_a_new_task_waits_for_no_interval_and_says_at_once_that_it_has_caught_up(clock: Clock) -> None:
    given, old, new = Rounds(60.0, FULL), task("old"), task("new", has_run=False)
    assert names(given, [old]) == ["old"]
    assert names(given, [old, task("idle", 0, has_run=False)]) == []
    assert names(given, [old, new]) == ["new", "old"]
    new.has_run = True
    assert given.pause_s([old, new]) == 0.0
    assert names(given, [old, new]) == []
    assert given.pause_s([old, new]) > 0.0


@pytest.mark.parametrize("change", [{"has_backlog": True}, {"is_cut": True}])
def test_what_was_cut_does_not_wait(clock: Clock, change: dict[str, Any]) -> None:
    given, one = Rounds(60.0, FULL), task("a")
    assert names(given, [one]) == ["a"]
    assert given.pause_s([one]) > MAX_PAUSE_S / 2
    for name, value in change.items():
        setattr(one, name, value)
    assert given.pause_s([one]) == 0.0
    assert names(given, [one]) == ["a"]


@pytest.mark.parametrize("change", [{"has_backlog": True}, {"is_cut": True}])
def test_what_was_cut_and_may_not_go_on_asks_no_sooner(clock: Clock, change: dict[str, Any]) -> None:
    """A task that failed, or one that is to read nothing more: the slot does not ask again and again."""
    given, failed, done = Rounds(60.0, FULL), task("a"), task("b")
    assert names(given, [failed, done]) == ["a", "b"]
    for name, value in change.items():
        setattr(failed, name, value)
    failed.has_failed = True
    done.is_cut, done.assigned = True, task("b", records=0).assigned
    assert given.pause_s([failed, done]) == MAX_PAUSE_S


def test_a_long_round_ends_between_two_tasks_and_the_rest_goes_on_without_a_pause(clock: Clock) -> None:
    given, tasks = Rounds(60.0, FULL), [task("a"), task("b"), task("c")]
    ran = []
    for each in given.turns(tasks):
        ran.append(each.assigned.name)
        clock.now_s += 0.2
    assert ran == ["a", "b"]
    assert given.pause_s(tasks) == 0.0
    assert names(given, tasks) == ["c"]
    assert names(given, tasks) == []


def test_who_has_waited_longest_comes_first(clock: Clock) -> None:
    given, tasks = Rounds(0.0, FULL), [task("a"), task("b")]
    for each in given.turns(tasks):
        clock.now_s += 0.5
        assert each.assigned.name == "a"
    for each in given.turns(tasks):
        clock.now_s += 0.5
        assert each.assigned.name == "b"


def test_a_task_that_failed_is_left_alone_until_it_may_be_tried_again(clock: Clock) -> None:
    given, one = Rounds(0.0, FULL), task("a")
    one.failures.not_before_s = clock.now_s + 0.1
    assert given.pause_s([one]) == pytest.approx(0.1)
    one.has_failed = True
    assert names(given, [one]) == []
    assert given.pause_s([one]) == MAX_PAUSE_S


def test_who_goes_on_with_what_a_round_gave_waits_for_no_interval(clock: Clock) -> None:
    given, source, target = Rounds(0.1, FULL), task("a"), task("b", records=0, target=0)
    assert names(given, [source, target]) == ["a"]
    given.note_given({("in", 0)})
    assert given.pause_s([source, target]) == 0.0  # it asks for what came of it, once
    assert given.pause_s([source, target]) == pytest.approx(0.1)
    clock.now_s += 0.02
    target = task("b", target=0)
    assert names(given, [source, target]) == ["b"]  # the source has had its turn
    assert names(given, [source, target]) == []
    assert given.pause_s([source, target]) == pytest.approx(0.08)
    clock.now_s += 0.08
    assert names(given, [source, target]) == ["a", "b"]


@pytest.mark.parametrize(("feeds_others", "pause_s"), [(False, ASIDE_S), (True, 0.0)])
def test_who_has_given_others_something_lets_them_go_first_unless_it_is_waited_for(
    clock: Clock, feeds_others: bool, pause_s: float
) -> None:
    given, source, target = Rounds(0.1, FULL), task("a"), task("b", records=0, target=0)
    target.feeds_others = feeds_others
    assert names(given, [source, target]) == ["a"]
    given.note_given({("in", 1), ("another", 0)})
    assert given.pause_s([source, target]) == pytest.approx(pause_s)
    assert given.pause_s([source, target]) == pytest.approx(0.1)
