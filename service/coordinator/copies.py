"""Copies that a slot keeps beside its tasks, as one poll sees them: which there are, how far it says that they are, and
when its poll is to be answered for them.

It knows the pace of answers and of writes: a slot hears of a longer changelog at most every COPY_PACE_MS, and the
catalog of positions at most every REPORT_MS, of one that has caught up every CAUGHT_UP_REPORT_MS; of a change of state
at once. It refuses to know who should keep a copy (`ownership`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Final, NamedTuple

from sqlalchemy.orm import Session

from service.catalog.engine import partition_topic
from service.catalog.replicas import RESTORING, RUNNING, state_of_copy
from service.catalog.tables import JobRow
from service.catalog.tasks import Followed, describe_copies
from service.coordinator.situation import AssignmentSpec
from service.protocol import FollowedTask, HeldCopy

COPY_PACE_MS: Final = 200
REPORT_MS, CAUGHT_UP_REPORT_MS = 1_000, 5_000


class CopyReport(NamedTuple):
    """How far a slot says that a copy is, and what it becomes by that."""

    applied: Mapping[str, int]
    state: str
    has_caught_up: bool


class CopiesLook(NamedTuple):
    """`is_ready`: the slot is to hear of its copies now, else when one of `topics` wakes or in `look_again_ms`;
    `reports`: by task, those that are to be written.
    """

    described: list[FollowedTask]
    is_ready: bool
    topics: Set[str]
    look_again_ms: int | None
    reports: Mapping[str, CopyReport]


def look_at_copies(
    s: Session, job_id: str, followed: Sequence[Followed], held: Sequence[HeldCopy], waited_ms: int
) -> CopiesLook:
    """What a slot that keeps the copies `held` is to hear and has said of those that it should keep; a query where
    there are any.
    """
    said = {each.task: each.applied for each in held}
    is_news = said.keys() != {each.id for each in followed}
    if not followed:
        return CopiesLook([], is_news, frozenset(), None, {})
    acceptable = AssignmentSpec.of(s.get_one(JobRow, job_id)).acceptable_recovery_lag
    kept = [each for each in followed if each.id in said]
    is_behind = any(each.lag(said[each.id]) for each in kept)
    is_ready = is_news or (is_behind and waited_ms >= COPY_PACE_MS)
    reports = {each.id: _report(each, said[each.id], acceptable) for each in kept}
    return CopiesLook(
        describe_copies(followed),
        is_ready,
        {partition_topic(at.stream_id, each.partition) for each in followed for at in each.changelogs},
        max(1, COPY_PACE_MS - waited_ms) if is_behind and not is_ready else None,
        {each.id: reports[each.id] for each in kept if _is_to_write(each, reports[each.id])},
    )


def _report(copy: Followed, applied: Mapping[str, int], acceptable: int) -> CopyReport:
    state = state_of_copy(copy.state, copy.lag(applied), acceptable)
    return CopyReport(applied, state, copy.state == RESTORING and state == RUNNING)


def _is_to_write(copy: Followed, report: CopyReport) -> bool:
    if report.state != copy.state:
        return True
    pace_ms = REPORT_MS if report.state == RESTORING else CAUGHT_UP_REPORT_MS
    is_due = copy.age_ms is None or copy.age_ms >= pace_ms
    return is_due and bool(report.applied.items() - copy.applied.items())
