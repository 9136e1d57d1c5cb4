"""What tasks may write: their job's sinks, the changelogs of their own stores, what others of the job go on with, their
job's dropped records.

It knows which logs are a task's, and that a sink is written on any partition, what a job keeps only on the task's own.
It refuses to know what is written and when.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy.orm import Session

from service.catalog.driver import Prepared
from service.catalog.tables import JobStreamRow, StoreRow, TaskRow
from service.streams.records import ChunkMeta

_SINK, _INTERNAL = "sink", "internal"
_LOGS = Prepared(
    select(JobStreamRow.job_id, JobStreamRow.stream_id, JobStreamRow.role, StoreRow.sub_topology)
    .add_columns(JobStreamRow.sub_topology)
    .outerjoin(StoreRow, StoreRow.changelog_stream_id == JobStreamRow.stream_id)
    .where(JobStreamRow.job_id.in_(bindparam("job_ids", expanding=True)), JobStreamRow.role.in_([_SINK, _INTERNAL]))
)


class _Output(NamedTuple):
    """A stream that a job writes; of a changelog and of a repartition stream, whose tasks do."""

    role: str
    stored_by: int | None
    repartitioned_by: int | None


_NONE = _Output("", None, None)


class Outputs:
    """The logs that the tasks of some jobs may write; one query."""

    def __init__(self, s: Session, job_ids: Iterable[str]) -> None:
        found = _LOGS.rows(s, job_ids=sorted(set(job_ids)))
        self._logs = {(job_id, stream_id): _Output(*output) for job_id, stream_id, *output in found}

    def may_write(self, task: TaskRow, chunk: ChunkMeta) -> bool:
        """Whether this is one of the task's logs, and the chunk one for targets exactly where these read it; whether
        the partition exists is another question.
        """
        log = self._logs.get((task.job_id, chunk.stream_id), _NONE)
        if (chunk.ranges is not None) != (log.repartitioned_by is not None):
            return False
        if log.role != _INTERNAL:
            return log.role == _SINK
        writers = {log.stored_by, log.repartitioned_by} - {None}
        return chunk.partition == task.partition and writers <= {task.sub_topology}
