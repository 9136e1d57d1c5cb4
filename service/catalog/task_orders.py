"""In which order a task took the records of several inputs, where what it had read so far does not say that.

It knows that the records of a commit are in the order of (`aligned_at`, input number, offset), and that so are those of
several commits, unless one begins before where the one before it ended: a late waker. Only there a place is kept: how
far each input was read when the order began anew. It refuses to know what records are.

How far an input was read is an offset; of a repartition stream, how many records for the task were taken of it since it
began: offsets there depend on how commits were cut, and nobody can look them up once all targets have passed.

    tasks.taken_order   JSON lines: where the last commit ended (`aligned_at`, input number), and how many records of
                        each input it had taken; then a line a place, since the one before it: [input number,
                        offsets, ...] of the inputs that moved
    task_orders         the same lines of places, oldest first, deflated, whenever there are enough

A commit that is in order writes nothing but where it ended, in the row of the task that it writes anyway.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import msgspec
from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from service.catalog.inputs import TaskInput
from service.catalog.tables import TaskMoveRow, TaskOrderRow, TaskRow
from service.protocol import TakenOrder

MAX_RECORDS: Final = 1_000_000  # of a task that are run again: of more the order is of no use
BEGIN: Final = "begin"  # the kind of a task's first move
PART_BYTES: Final = 1024  # of lines of places, in the row of the task

Place = tuple[int, ...]  # an offset an input, of repartition streams a count: how far each was read


class _Head(msgspec.Struct, array_like=True):
    """The first line: where the last commit ended; how far the inputs were at the last place; how far they are, in sum,
    when nobody asks for their order any more; and, where repartition streams are among the inputs, how many records of
    each were taken.
    """

    aligned_at: int
    input: int
    offsets: list[int]
    most: int
    records: list[int] = []


_HEAD = msgspec.json.Decoder(_Head)
_LINE = msgspec.json.Decoder(list[int])


class Taken(NamedTuple):
    """How far a task has taken its inputs, and of its last record `aligned_at` (ms) and the number of its input; -1:
    there is none.
    """

    place: Place
    aligned_at: int
    input: int


def begin(task: TaskRow, offsets: Sequence[int], *, is_behind_repartition: bool) -> None:
    """A task begins with empty stores: of now on its order is known, if it has one to be known."""
    if len(offsets) > 1 or is_behind_repartition:
        records = [0] * len(offsets) if is_behind_repartition else []
        head = _Head(-1, -1, list(offsets), sum(offsets) + MAX_RECORDS, records)
        task.taken_order = msgspec.json.encode(head)


def taken_of(task: TaskRow, inputs: Sequence[TaskInput]) -> Taken | None:
    """How far a task is that has a repartition stream among its inputs; None: nobody took note of it."""
    if task.taken_order is None:
        return None
    head = _HEAD.decode(task.taken_order.partition(b"\n")[0])
    place = _place(head, inputs)
    return None if place is None else Taken(place, head.aligned_at, head.input)


def place_of(task: TaskRow, inputs: Sequence[TaskInput]) -> Place | None:
    """How far a task is in its inputs, as places are; None: nobody took note of that."""
    if all(each.sub_log is None for each in inputs):
        return tuple(each.position for each in inputs)
    taken = taken_of(task, inputs)
    return None if taken is None else taken.place


def note(s: Session, task: TaskRow, inputs: Sequence[TaskInput], taken: TakenOrder) -> None:
    """A commit of a locked task takes records of several inputs, which were read so far before it."""
    if task.taken_order is None:
        return
    first_line, _, lines = task.taken_order.partition(b"\n")
    head = _HEAD.decode(first_line)
    before = _place(head, inputs)
    if before is None or sum(before) > head.most or len(taken.records) != len(head.records):
        stop(s, task)
        return
    if (taken.first_aligned_at, taken.first_input) < (head.aligned_at, head.input):
        moved = enumerate(zip(before, head.offsets, strict=True))
        line = [number for n, (at, was) in moved if at > was for number in (n, at - was)]
        lines = b"\n".join([*([lines] if lines else []), msgspec.json.encode(line)])
        head.offsets = list(before)
        if len(lines) >= PART_BYTES:
            if _is_of_no_use(s, task, inputs):
                stop(s, task)
                return
            _keep(s, task.id, lines)
            lines = b""
    head.aligned_at, head.input = taken.last_aligned_at, taken.last_input
    head.records = [before + more for before, more in zip(head.records, taken.records, strict=True)]
    task.taken_order = b"\n".join([msgspec.json.encode(head), *([lines] if lines else [])])


def stop(s: Session, task: TaskRow) -> None:
    """It can never be run again."""
    task.taken_order = None
    forget(s, [task.id])


def forget(s: Session, task_ids: Iterable[str]) -> None:
    """Tasks go, or begin anew."""
    s.execute(delete(TaskOrderRow).where(TaskOrderRow.task_id.in_(sorted(task_ids))))


def places_of(s: Session, task: TaskRow, begins: Sequence[int]) -> list[Place]:
    """Where the order of a task began anew, since it began with its inputs at these offsets."""
    query = select(TaskOrderRow.packed).where(TaskOrderRow.task_id == task.id).order_by(TaskOrderRow.number)
    parts = [zlib.decompress(packed) for packed in s.scalars(query)]
    parts.append((task.taken_order or b"").partition(b"\n")[2])
    found: list[Place] = []
    at = list(begins)
    for line in (line for part in parts for line in part.splitlines()):
        moved = _LINE.decode(line)
        for number, offsets in zip(moved[::2], moved[1::2], strict=True):
            at[number] += offsets
        found.append(tuple(at))
    return found


def _is_of_no_use(s: Session, task: TaskRow, inputs: Sequence[TaskInput]) -> bool:
    """Whether retention has taken records with which the task began."""
    query = select(TaskMoveRow.offsets).where(TaskMoveRow.task_id == task.id, TaskMoveRow.kind == BEGIN)
    begins = s.scalars(query).one_or_none()
    return begins is None or is_behind_retention(begins, inputs)


def is_behind_retention(begins: Sequence[int], inputs: Sequence[TaskInput]) -> bool:
    """Whether records of users' streams from there on are gone."""
    return any(at < each.start for at, each in zip(begins, inputs, strict=False) if each.sub_log is None)


def _place(head: _Head, inputs: Sequence[TaskInput]) -> Place | None:
    """How far the inputs are; None: they are others than at the last place, of another version."""
    if len(inputs) != len(head.offsets):
        return None
    if not head.records:
        return tuple(each.position for each in inputs)
    pairs = zip(inputs, head.records, strict=True)
    return tuple(each.position if each.sub_log is None else records for each, records in pairs)


def _keep(s: Session, task_id: str, lines: bytes) -> None:
    of_task = select(func.coalesce(func.max(TaskOrderRow.number) + 1, 0)).where(TaskOrderRow.task_id == task_id)
    number = s.scalars(of_task).one()
    s.execute(insert(TaskOrderRow).values(task_id=task_id, number=number, packed=zlib.compress(lines)))
