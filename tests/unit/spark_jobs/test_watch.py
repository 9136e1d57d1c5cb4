"""The watch over executors: who is lost is said once, and again for as long as nobody heard it."""

from __future__ import annotations

import threading
from collections.abc import Collection

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no stubs

from spark_jobs.cluster import HEARD, Listener
from spark_jobs.watch import ExecutorWatch


class Cluster:
    """Executors that come and go, and who was told which were lost."""

    def __init__(self, *present: str) -> None:
        self.present, self.is_heard = set(present), True
        self.lost: list[list[str]] = []

    def look(self) -> Collection[str]:
        return self.present

    def lose(self, executors: Collection[str]) -> bool:
        self.lost.append(list(executors))
        return self.is_heard

    def watch(self) -> ExecutorWatch:
        watch = ExecutorWatch(self.look, self.lose)
        watch.look_once()
        return watch


def test_who_is_there_is_not_lost_and_who_comes_neither() -> None:
    cluster = Cluster("0")
    watch = cluster.watch()
    cluster.present.add("1")
    watch.look_once()
    assert cluster.lost == []


def test_who_is_lost_is_said_once() -> None:
    cluster = Cluster("0", "1", "2")
    watch = cluster.watch()
    cluster.present = {"1", "3"}
    for _ in range(2):
        watch.look_once()
    assert cluster.lost == [["0", "2"]]


def test_what_nobody_heard_is_said_again_with_what_came_since() -> None:
    cluster = Cluster("0", "1")
    watch = cluster.watch()
    cluster.is_heard = False
    cluster.present = {"1"}
    watch.look_once()
    cluster.is_heard, cluster.present = True, set()
    for _ in range(2):
        watch.look_once()
    assert cluster.lost == [["0"], ["0", "1"]]


def test_a_look_follows_each_event_until_asked_to_stop() -> None:
    looked, stop, happened = threading.Semaphore(0), threading.Event(), threading.Event()

    def look() -> Collection[str]:
        looked.release()
        return []

    thread = threading.Thread(target=ExecutorWatch(look, lambda _: True).run, args=(happened, stop))
    thread.start()
    happened.set()
    assert looked.acquire(timeout=30)
    stop.set()
    happened.set()
    thread.join(30)
    assert not thread.is_alive()


def test_the_watch_ends_with_the_jvm() -> None:
    def look() -> Collection[str]:
        raise Py4JError("the JVM is gone")

    ExecutorWatch(look, lambda _: True).run(threading.Event(), threading.Event())


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
