"""What tasks may write: their job's sinks, the changelogs of their own stores, their job's dropped records.

It knows which logs are a task's, and that a sink is written on any partition, what a job keeps only on the task's own.
It refuses to know what is written and when.
"""

from __future__ import annotations

from collections.abc import Iterable

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service.catalog.tables import JobStreamRow, StoreRow, TaskRow

_SINK, _INTERNAL = "sink", "internal"
_LOGS = (
    select(JobStreamRow.job_id, JobStreamRow.stream_id, JobStreamRow.role, StoreRow.sub_topology)
    .outerjoin(StoreRow, StoreRow.changelog_stream_id == JobStreamRow.stream_id)
    .where(JobStreamRow.job_id.in_(bindparam("job_ids", expanding=True)), JobStreamRow.role.in_([_SINK, _INTERNAL]))
)


class Outputs:
    """The logs that the tasks of some jobs may write; one query."""

    def __init__(self, s: Session, job_ids: Iterable[str]) -> None:
        found = s.execute(_LOGS, {"job_ids": sorted(set(job_ids))})
        self._logs = {(job_id, stream_id): (role, stored_by) for job_id, stream_id, role, stored_by in found}

    def may_write(self, task: TaskRow, stream_id: str, partition: int) -> bool:
        """Whether this is one of the task's logs; whether the partition exists is another question."""
        role, stored_by = self._logs.get((task.job_id, stream_id), (None, None))
        if role == _INTERNAL:
            return partition == task.partition and stored_by in {None, task.sub_topology}
        return role == _SINK
