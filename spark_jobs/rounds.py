"""Whose turn it is in a slot: rounds of all tasks that have something to do, a commit interval apart.

Tasks that go on with what others give take their turn in the round in which it was given, as soon as it is there: a
commit interval is waited for once, however many stages a job has.

It knows clocks and intervals. It refuses to know what a task does in its turn.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Set
from typing import Final

from spark_jobs.tasks import StreamTask

ROUND_S: Final = 0.25  # a round that takes longer ends between two tasks: those that are left may have to move
MAX_PAUSE_S: Final = 0.25
ASIDE_S: Final = 0.02  # who has given its own tasks nothing lets others ask for, run and commit what it gave them


class Rounds:
    """The rounds of one slot. `full_batch`: offsets of one input at which a batch is full and does not wait."""

    def __init__(self, interval_s: float, full_batch: int) -> None:
        self.change(interval_s, full_batch)
        self._start_s = time.monotonic() - interval_s
        self._is_urgent_round = self._is_cut_short = self._may_go_on = False
        self._given: Set[tuple[str, int]] = frozenset()

    def change(self, interval_s: float, full_batch: int) -> None:
        """Another interval, also for the round that waits."""
        self._interval_s, self._full_batch = interval_s, full_batch

    def turns(self, tasks: Collection[StreamTask]) -> Iterator[StreamTask]:
        """The tasks to run now, those first that have waited longest; it ends early when that takes ROUND_S."""
        in_turn = sorted(self._in_turn(tasks), key=lambda task: task.ran_s)
        self._is_cut_short = False
        since_s = time.monotonic()
        for number, task in enumerate(in_turn):
            if number and time.monotonic() - since_s > ROUND_S:
                self._is_cut_short = True  # the rest has waited for its round already
                return
            task.ran_s = time.monotonic()
            yield task
        if in_turn:
            self._may_go_on = any(self._is_next(task) for task in tasks)

    def note_given(self, targets: Set[tuple[str, int]]) -> None:
        """The (stream id, target)s that the round has written records for."""
        self._given = targets

    def pause_s(self, tasks: Collection[StreamTask]) -> float:
        """What is left of the commit interval, none after an urgent round or while the rest of a batch or of a round
        waits; until anything may run at all.
        """
        is_rest_left = any(task.is_due and task.is_ready and _has_rest(task) for task in tasks)
        if self._is_urgent_round or self._is_cut_short or is_rest_left:
            return 0.0
        if self._may_go_on:
            self._may_go_on = False  # ask once: what the round gave may be there for others
            is_awaited = any(self._is_awaited(task) for task in tasks if task.is_downstream)
            return 0.0 if is_awaited else max(0.0, min(ASIDE_S, self._interval_left_s()))
        now_s = time.monotonic()
        due = [task for task in tasks if task.is_pressing]
        waits_s = [MAX_PAUSE_S if task.has_failed else task.failures.not_before_s - now_s for task in due]
        return max(0.0, min(MAX_PAUSE_S, max(self._interval_left_s(), min(waits_s, default=0.0))))

    def _in_turn(self, tasks: Collection[StreamTask]) -> list[StreamTask]:
        """All that have something to do when a round begins; who can wait leaves one round to those who can not. A
        round that was cut short goes on with those that it has not run yet; who is urgent is always among them.
        """
        ready = [task for task in tasks if task.is_due and task.is_ready]
        self._is_urgent_round = any(self._is_urgent(task) for task in ready)
        has_interval_left = self._interval_left_s() > 0
        if self._is_cut_short and has_interval_left:
            return [task for task in ready if task.ran_s < self._start_s or self._is_urgent(task)]
        if has_interval_left and not self._is_urgent_round:
            return [task for task in ready if self._is_next(task) and task.is_pressing]
        if not ready:
            return []
        is_any_pressing = any(task.is_pressing for task in ready)
        if is_any_pressing:  # else nothing that follows has to keep its distance
            self._start_s = time.monotonic()
        for task in ready:
            task.was_left_out = is_any_pressing and not (task.is_pressing or task.was_left_out)
        return [task for task in ready if not task.was_left_out]

    def _is_next(self, task: StreamTask) -> bool:
        """Whether it may go on in this round with what others gave in it."""
        return task.is_downstream and task.ran_s < self._start_s

    def _is_awaited(self, task: StreamTask) -> bool:
        """Whether the round has written records for it, or others wait to hear how far it is."""
        heads = task.assigned.inputs
        return task.feeds_others or any((head.stream_id, head.sub_log) in self._given for head in heads)

    def _interval_left_s(self) -> float:
        return self._start_s + self._interval_s - time.monotonic()

    def _is_urgent(self, task: StreamTask) -> bool:
        """Whether an interval would only keep back what is there already, or the news that a new task has caught up."""
        is_full = any(each.end - each.start >= self._full_batch for each in task.ranges)
        is_first = bool(task.ranges) and not task.has_run
        return is_full or is_first or _has_rest(task)


def _has_rest(task: StreamTask) -> bool:
    """Whether its last batch left some of what is there already."""
    return task.has_backlog or task.is_cut
