"""What became of jobs since a moment: failures, starts, versions, rebalances; counted, of all jobs at once.

It knows rows that say when. It refuses to know what is in a version or a rebalance (`job_versions`, `groups`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import BigInteger, bindparam, func, select
from sqlalchemy.orm import Session

from service.catalog.driver import Prepared
from service.catalog.tables import JobTransitionRow, JobVersionRow, RebalanceRow

FAILED: Final = "failed"
STARTING: Final = "starting"

_SINCE: Final = bindparam("since_ms", type_=BigInteger)
_TRANSITIONS = Prepared(
    select(JobTransitionRow.job_id, JobTransitionRow.from_state, JobTransitionRow.to_state)
    .add_columns(func.count().label("times"), func.max(JobTransitionRow.at_ms).label("at_ms"))
    .where(JobTransitionRow.at_ms >= _SINCE, JobTransitionRow.to_state.in_([FAILED, STARTING]))
    .where(JobTransitionRow.kind == "state")
    .group_by(JobTransitionRow.job_id, JobTransitionRow.from_state, JobTransitionRow.to_state)
)
_VERSIONS = Prepared(
    select(JobVersionRow.job_id, func.min(JobVersionRow.version).label("version"))
    .where(JobVersionRow.at_ms >= _SINCE)
    .group_by(JobVersionRow.job_id)
)
_REBALANCES = Prepared(
    select(RebalanceRow.job_id, func.count().label("times"))
    .where(RebalanceRow.at_ms >= _SINCE)
    .group_by(RebalanceRow.job_id)
)


@dataclass(slots=True)
class JobChanges:
    """Of one job: how often it failed, last when (ms); how often it was started again; the version that it had before
    (None: the same, or none); how often its tasks were given out anew.
    """

    failures: int = 0
    failed_ms: int | None = None
    starts: int = 0
    former_version: int | None = None
    rebalances: int = 0


def changes_since(s: Session, since_ms: int) -> dict[str, JobChanges]:
    """By the id of the job, of those of which there is something to say; three statements."""
    found: dict[str, JobChanges] = {}
    for row in _TRANSITIONS.rows(s, since_ms=since_ms):
        changes = found.setdefault(row.job_id, JobChanges())
        if row.to_state == FAILED:
            changes.failures += row.times
            changes.failed_ms = max(changes.failed_ms or 0, row.at_ms)
        elif row.from_state is not None:  # what is made starts, too
            changes.starts += row.times
    for row in _VERSIONS.rows(s, since_ms=since_ms):
        if row.version > 1:
            found.setdefault(row.job_id, JobChanges()).former_version = row.version - 1
    for row in _REBALANCES.rows(s, since_ms=since_ms):
        found.setdefault(row.job_id, JobChanges()).rebalances = row.times
    return found
