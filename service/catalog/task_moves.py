"""What moved tasks otherwise than by records: where they began, time that moved without a record, versions, replays.

It knows how far back a task can be run again: from where it began with empty stores, as long as its records are there,
and nothing but records and advances of time went in. It refuses to know what an operator makes of them.

Only tasks with one input are kept note of. What retention has made useless is not kept: a task has some rows, or one a
silence or flush since it began, each of which some record came before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, NamedTuple

from sqlalchemy import delete, insert, select
from sqlalchemy.orm import Session

from service.catalog.inputs import TaskInput
from service.catalog.tables import JobVersionRow, TaskMoveRow, TaskRow
from service.protocol import AdvanceReason

BEGIN: Final = "begin"
Kind = Literal["begin", "idle", "flush", "adopt", "replay"]
Advance = tuple[int, AdvanceReason]  # in front of which offset, and why


class Moves(NamedTuple):
    """Of a task since it began with empty stores in front of the offset `begin`, as its job was in `spec_version`.

    `advances`: positions in front of which time was moved, and why. `known_to`: up to which position nothing else went
    in (None: to the present one), `ended_by` what did there.
    """

    begin: int
    spec_version: int
    advances: Sequence[Advance]
    known_to: int | None
    ended_by: Kind | None


def note_begin(s: Session, begun: Iterable[tuple[TaskRow, int]], spec_version: int) -> None:
    """Tasks with one input each begin with empty stores in front of these offsets."""
    rows = [
        {"task_id": task.id, "version": task.version, "kind": BEGIN, "position": at, "spec_version": spec_version}
        for task, at in begun
    ]
    if rows:
        s.execute(insert(TaskMoveRow), rows)


def note(s: Session, task: TaskRow, inputs: Sequence[TaskInput], kind: Kind) -> None:
    """An accepted commit of a locked task, whose version it is, moved it by no record."""
    if len(inputs) != 1:
        return
    own = TaskMoveRow.task_id == task.id
    begin = s.scalars(select(TaskMoveRow.position).where(own, TaskMoveRow.kind == BEGIN)).one_or_none()
    if begin is None:
        return
    if begin < inputs[0].start:  # it can never be run again
        s.execute(delete(TaskMoveRow).where(own, TaskMoveRow.kind != BEGIN))
        return
    position, version = inputs[0].position, task.spec_version
    s.add(TaskMoveRow(task_id=task.id, version=task.version, kind=kind, position=position, spec_version=version))


def forget(s: Session, task_ids: Iterable[str]) -> None:
    """Tasks go, or begin anew."""
    s.execute(delete(TaskMoveRow).where(TaskMoveRow.task_id.in_(sorted(task_ids))))


def moves_of(s: Session, task: TaskRow) -> Moves | None:
    """What moved a task; None where nobody took note of where it began."""
    query = select(TaskMoveRow).where(TaskMoveRow.task_id == task.id).order_by(TaskMoveRow.version)
    begin: TaskMoveRow | None = None
    advances: list[Advance] = []
    for row in s.scalars(query):
        if row.kind == BEGIN:
            begin = row
        elif begin is not None and row.kind == "idle":
            advances.append((row.position, "idle"))
        elif begin is not None and row.kind == "flush":
            advances.append((row.position, "flush"))
        elif begin is not None:
            return _moves(s, task, begin, advances, row)
    return None if begin is None else _moves(s, task, begin, advances, None)


def _moves(
    s: Session, task: TaskRow, begin: TaskMoveRow, advances: Sequence[Advance], other: TaskMoveRow | None
) -> Moves:
    ended = (None, None) if other is None else (other.position, other.kind)
    if other is None and not _runs_alike(s, task, begin.spec_version):
        ended = begin.position, "adopt"
    return Moves(begin.position, begin.spec_version, advances, *ended)


def _runs_alike(s: Session, task: TaskRow, version: int) -> bool:
    """Whether all versions of the job since then run the same operators."""
    query = select(JobVersionRow.topology, JobVersionRow.spec)
    rows = s.execute(query.where(JobVersionRow.job_id == task.job_id, JobVersionRow.version >= version))
    found: list[Any] = [(row.topology, row.spec.get("on_error")) for row in rows]
    return all(each == found[0] for each in found)
