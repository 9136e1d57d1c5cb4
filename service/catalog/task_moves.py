"""What moved tasks otherwise than by records: where they began, time that moved without a record, versions, replays.

It knows how far back a task can be run again: from where it began with empty stores, as long as its records are there,
and nothing but records and advances of time went in. It refuses to know what an operator makes of them.

What retention has made useless is not kept: a task has some rows, or one a silence or flush since it began, each of
which some record came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service.catalog import task_orders
from service.catalog.inputs import TaskInput
from service.catalog.tables import JobVersionRow, TaskMoveRow, TaskRow
from service.catalog.task_orders import BEGIN, Place
from service.protocol import AdvanceReason

Kind = Literal["begin", "idle", "flush", "adopt", "replay"]
Advance = tuple[Place, AdvanceReason]  # in front of what, and why


class Moves(NamedTuple):
    """Of a task since it began with empty stores at `begin`, as its job was in `spec_version`. Places are offsets, of
    repartition streams counts (`task_orders`), one an input, in the order of their numbers.

    `orders`: where it took records of several inputs that come before others which it had taken. `advances`: in front
    of what time was moved, and why. `known_to`: up to where nothing else went in (None: to the present position),
    `ended_by` what did there.
    """

    begin: Place
    spec_version: int
    orders: Sequence[Place]
    advances: Sequence[Advance]
    known_to: Place | None
    ended_by: Kind | None


class Begun(NamedTuple):
    """A task that begins with empty stores in front of these offsets, one an input."""

    task: TaskRow
    offsets: Sequence[int]
    is_behind_repartition: bool


def note_begin(s: Session, begun: Iterable[Begun], spec_version: int) -> None:
    """Tasks begin."""
    rows = []
    for task, offsets, is_behind_repartition in begun:
        rows.append(
            {
                "task_id": task.id,
                "version": task.version,
                "kind": BEGIN,
                "spec_version": spec_version,
                **_place(offsets),
            }
        )
        task_orders.begin(task, offsets, is_behind_repartition=is_behind_repartition)
    if rows:
        s.execute(insert(TaskMoveRow), rows)


def note(s: Session, task: TaskRow, inputs: Sequence[TaskInput], kind: Kind) -> None:
    """An accepted commit of a locked task, whose version it is, moved it by no record."""
    own = TaskMoveRow.task_id == task.id
    begin = s.scalars(select(TaskMoveRow).where(own, TaskMoveRow.kind == BEGIN)).one_or_none()
    if begin is None:
        return
    at = task_orders.place_of(task, inputs)
    if at is None or task_orders.is_behind_retention(_place_of(begin), inputs):  # it can never be run again
        s.execute(delete(TaskMoveRow).where(own, TaskMoveRow.kind != BEGIN))
        task_orders.stop(s, task)
        return
    version = task.spec_version
    s.add(TaskMoveRow(task_id=task.id, version=task.version, kind=kind, spec_version=version, **_place(at)))


def forget(s: Session, task_ids: Iterable[str]) -> None:
    """Tasks go, or begin anew."""
    ids = sorted(task_ids)
    s.execute(delete(TaskMoveRow).where(TaskMoveRow.task_id.in_(ids)))
    task_orders.forget(s, ids)


def moves_of(s: Session, task: TaskRow) -> Moves | None:
    """What moved a task; None where nobody took note of where it began."""
    query = select(TaskMoveRow).where(TaskMoveRow.task_id == task.id).order_by(TaskMoveRow.version)
    begin: TaskMoveRow | None = None
    advances: list[Advance] = []
    for row in s.scalars(query):
        if row.kind == BEGIN:
            begin = row
        elif begin is not None and row.kind == "idle":
            advances.append((_place_of(row), "idle"))
        elif begin is not None and row.kind == "flush":
            advances.append((_place_of(row), "flush"))
        elif begin is not None:
            return _moves(s, task, begin, advances, row)
    return None if begin is None else _moves(s, task, begin, advances, None)


def _moves(
    s: Session, task: TaskRow, begin: TaskMoveRow, advances: Sequence[Advance], other: TaskMoveRow | None
) -> Moves:
    begins = _place_of(begin)
    ended = (None, None) if other is None else (_place_of(other), other.kind)
    if other is None and not _runs_alike(s, task, begin.spec_version):
        ended = begins, "adopt"
    orders = task_orders.places_of(s, task, begins) if len(begins) > 1 else []
    return Moves(begins, begin.spec_version, orders, advances, *ended)


def _place(offsets: Sequence[int]) -> dict[str, Any]:
    return {"position": sum(offsets), "offsets": list(offsets) if len(offsets) > 1 else None}


def _place_of(row: TaskMoveRow) -> Place:
    return (row.position,) if row.offsets is None else tuple(row.offsets)


def _runs_alike(s: Session, task: TaskRow, version: int) -> bool:
    """Whether all versions of the job since then run the same operators."""
    query = select(JobVersionRow.topology, JobVersionRow.spec)
    rows = s.execute(query.where(JobVersionRow.job_id == task.job_id, JobVersionRow.version >= version))
    found: list[Any] = [(row.topology, row.spec.get("on_error")) for row in rows]
    return all(each == found[0] for each in found)
