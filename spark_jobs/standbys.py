"""The copies that a slot keeps of tasks that run elsewhere: standbys and warm-ups.

It knows how much of a slot's time they get, that they begin when the slot's own tasks are restored, and that a task is
taken over with its copy open. It refuses to know how a copy follows its changelog (`follow`), where it lies (`stores`)
and who decides what is kept where (the catalog).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from service.protocol import FollowedTask, HeldCopy, StoreRef
from service.storage.replica import Replica
from spark_jobs.follow import Copies, Follower, StorePartition

SHARE: Final = 0.1  # of a busy slot's time
SLICE_S: Final = 0.03  # at once, where the slot has tasks: a record that comes just then hardly waits
ALONE_S: Final = 0.5  # where it has none


class Standbys:
    """The copies beside the tasks of one slot. Each task's fail, pause and are tried again by themselves."""

    def __init__(self, make: Callable[[StorePartition, int], Follower[Replica]]) -> None:
        self._make = make
        self._tasks: dict[str, Copies[Replica]] = {}
        self._credit_s, self._since_s = SLICE_S, time.monotonic()

    @property
    def not_before_s(self) -> float | None:
        """When `follow` would next find something to do (monotonic); None: there is nothing."""
        moments_s = [copies.failures.not_before_s for copies in self._tasks.values() if copies.is_incomplete]
        return min(moments_s, default=None)

    def keep(self, wanted: Sequence[FollowedTask]) -> None:
        """Have copies of exactly these tasks. What is not wanted is closed at once: another slot may be about to open
        it.
        """
        for gone in self._tasks.keys() - {task.task for task in wanted}:
            self._tasks.pop(gone).close()
        for task in wanted:
            copies = self._tasks.setdefault(task.task, Copies(self._make))
            copies.keep({(store, task.partition): end for store, end in task.changelogs.items()})

    def give(self, task_id: str) -> Mapping[str, Follower[Replica]]:
        """The copy of a task that the slot runs from now on, by store, as open as it is; none where it kept none."""
        copies = self._tasks.pop(task_id, None)
        return {} if copies is None else {store: follower for (store, _), follower in copies.give().items()}

    def held(self, stores: Mapping[str, StoreRef]) -> list[HeldCopy]:
        """How they stand, for the catalog."""
        return [
            HeldCopy(task_id, {stores[store].id: position for (store, _), position in copies.positions.items()})
            for task_id, copies in self._tasks.items()
        ]

    def follow(self, *, is_busy: bool, has_tasks: bool) -> None:
        """Bring copies nearer to the ends of their changelogs, for a moment: those first that have waited longest.

        While the slot is busy that is SHARE of its time on average. What a chunk takes beyond that is made up for by
        waiting: so they get on however busy the slot is, and however large the chunks are.
        """
        now_s = time.monotonic()
        self._credit_s = min(SLICE_S, self._credit_s + (now_s - self._since_s) * SHARE / (1 - SHARE))
        self._since_s = now_s
        if self.not_before_s is None or (is_busy and self._credit_s <= 0):
            return
        until_s = now_s + (self._credit_s if is_busy else SLICE_S if has_tasks else ALONE_S)
        for task_id in list(self._tasks):
            copies = self._tasks[task_id] = self._tasks.pop(task_id)  # to the end of the line
            copies.follow(until_s)
            if time.monotonic() >= until_s:
                break
        self._since_s = time.monotonic()
        if is_busy:
            self._credit_s -= self._since_s - now_s

    def close(self) -> None:
        """Keep none."""
        self.keep([])
