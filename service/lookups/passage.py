"""The way of a position to a store behind repartition streams: who must have read how far by now.

It knows which tasks come before a store and what each has read. It refuses to know how anybody waits (`freshness`) and
what an entry is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from service.catalog.inputs import TaskInput
from service.catalog.stores import StoreNow, StorePartition, TaskBefore
from service.positions import Position

Log = tuple[str, int]  # stream id, partition


@dataclass(slots=True)
class Passage:
    """How far a position has come, look after look.

    Once all tasks of a sub-topology have read what it takes, what lies in the logs that they write has to be read too:
    `_marks` are the ends of these logs when that was seen first.
    """

    _marks: dict[Log, int] = field(default_factory=dict)
    _passed: set[int] = field(default_factory=set)

    def obstacle(self, now: StoreNow, at: StorePartition, position: Position) -> str | None:
        """Why a task of the store can not have all that comes of a position; None: it has read that."""
        for sub_topology in sorted({task.sub_topology for task in now.before} - self._passed):
            tasks = [task for task in now.before if task.sub_topology == sub_topology]
            if all(self._wanted(each, position) is None for task in tasks for each in task.inputs):
                continue
            reason = next((found for task in tasks if (found := self._missing(task, position)) is not None), None)
            if reason is not None:
                return reason
            self._passed.add(sub_topology)
            for each in (*at.inputs, *(each for task in now.before for each in task.inputs)):
                if now.writers.get(each.stream_id) == sub_topology:
                    self._marks[each.stream_id, each.partition] = each.end
        return next((_behind(at.task, each, wanted) for each, wanted in self._unread(at.inputs, position)), None)

    def _missing(self, task: TaskBefore, position: Position) -> str | None:
        for each, wanted in self._unread(task.inputs, position):
            return _behind(task.name, each, wanted)
        return f"task {task.name} has not given all that comes of what it has read" if task.has_backlog else None

    def _unread(self, inputs: list[TaskInput], position: Position) -> list[tuple[TaskInput, int]]:
        wanted = [(each, self._wanted(each, position)) for each in inputs]
        return [(each, offset) for each, offset in wanted if offset is not None and each.position < offset]

    def _wanted(self, read: TaskInput, position: Position) -> int | None:
        """Up to which offset an input has to be read; None: nothing of the position comes there, as far as is known."""
        if read.stream_id == position.stream:
            return position.offsets.get(str(read.partition))
        return self._marks.get((read.stream_id, read.partition))


def _behind(task: str, read: TaskInput, wanted: int) -> str:
    return f"task {task} has read up to {read.position} of {wanted}"
