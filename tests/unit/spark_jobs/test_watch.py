"""The watch over an application: who is lost is said until it is heard, and when it is the end."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from spark_jobs.cluster import HEARD, Listener
from spark_jobs.watch import ApplicationWatch, CoreCount, End, ExecutorWatch


class Api:
    """Hears which executors were lost, if it can be reached."""

    def __init__(self) -> None:
        self.is_there = True
        self.lost: list[list[str]] = []

    def lose(self, executors: Collection[str]) -> bool:
        self.lost.append(list(executors))
        return self.is_there


@pytest.fixture
def api() -> Api:
    return Api()


def test_who_is_there_is_not_lost_and_who_comes_neither(api: Api) -> None:
    watch = ExecutorWatch(api.lose)
    watch.note({"0"})
    watch.note({"0", "1"})
    assert api.lost == []


def test_who_is_lost_is_said_once(api: Api) -> None:
    watch = ExecutorWatch(api.lose)
    for present in ({"0", "1", "2"}, {"1", "3"}, {"1", "3"}):
        watch.note(present)
    assert api.lost == [["0", "2"]]


def test_what_nobody_heard_is_said_again_with_what_came_since(api: Api) -> None:
    watch = ExecutorWatch(api.lose)
    watch.note({"0", "1"})
    api.is_there = False
    watch.note({"1"})
    api.is_there = True
    for _ in range(2):
        watch.note(set())
    assert api.lost == [["0"], ["0", "1"]]


# ---------------------------------------------------------------- the end of an application


def watch(*, has_masters: bool = True) -> ApplicationWatch:
    return ApplicationWatch(patience_s=30.0, began_s=100.0, has_masters=has_masters)


def test_an_application_that_waits_for_its_first_core_stays() -> None:
    waiting = watch()
    for now_s in range(100, 1_000, 2):
        waiting.note_executors(now_s, 0)
        waiting.note_masters(now_s, True)
        assert waiting.end(now_s) is None


def test_executors_that_are_lost_may_come_back_for_as_long_as_it_is_patient() -> None:
    lost = watch(has_masters=False)
    lost.note_executors(100.0, 2)
    lost.note_executors(125.0, 0)
    assert lost.end(130.0) is None
    lost.note_executors(130.0, 1)
    lost.note_executors(131.0, 0)
    assert lost.end(160.0) is None
    assert lost.end(160.1) is End.EXECUTORS_LOST


def test_an_application_that_no_master_knows_is_gone_however_many_executors_it_has() -> None:
    gone = watch()
    gone.note_executors(101.0, 2)
    for is_known, end in ((False, None), (True, None), (False, None), (None, None), (False, End.APPLICATION_GONE)):
        gone.note_masters(101.0, is_known)
        assert gone.end(101.0) is end


def test_masters_may_be_away_for_as_long_as_it_is_patient() -> None:
    alone = watch()
    alone.note_masters(110.0, True)
    for now_s in (112.0, 140.0):
        alone.note_executors(now_s, 2)
        alone.note_masters(now_s, None)
        assert alone.end(now_s) is None
    assert alone.end(140.1) is End.MASTER_LOST
    alone.note_masters(141.0, True)
    assert alone.end(141.0) is None


def test_where_nobody_can_be_asked_nobody_is_missed() -> None:
    assert watch(has_masters=False).end(10_000.0) is None


# ---------------------------------------------------------------- cores


def test_cores_count_once_no_more_come_and_fewer_after_patience() -> None:
    cores = CoreCount(None, 30.0)
    told = [cores.note(now_s, there) for now_s, there in ((0, 0), (1, 4), (2, 8), (3.9, 8), (4, 8), (5, 4), (34.9, 4))]
    assert told == [0, 0, 0, 0, 8, 8, 8]
    assert cores.note(35.0, 4) == 4


def test_cores_that_were_asked_for_are_not_waited_for_once_they_are_there() -> None:
    cores = CoreCount(6, 30.0)
    assert [cores.note(1.0, 4), cores.note(1.1, 6), cores.note(1.2, 8)] == [0, 6, 6]


# ---------------------------------------------------------------- Spark's listener


def test_a_listener_answers_every_method_and_hears_of_executors_alone() -> None:
    listener = Listener()
    for name in ("onTaskStart", "onStageCompleted", "onWhateverALaterSparkHas"):
        getattr(listener, name)(object())
    assert not listener.happened.is_set()
    for name in HEARD:
        getattr(listener, name)(object())
        assert listener.happened.is_set()
        listener.happened.clear()
    assert not hasattr(listener, "_get_object_id")
