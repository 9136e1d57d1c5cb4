"""Sinks that a job is to write from now on and others wrote or write: what comes out will lie among what is theirs.

It knows who writes a stream and how much it holds; it refuses to know what is in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.catalog.streams import find_stream
from service.catalog.tables import JobRow, JobStreamRow, PartitionRow
from service.streams.errors import Problem
from service.streams.topology.spec import JobSpec

MAX_NAMES = 5


def shared_sinks(s: Session, spec: JobSpec, job: JobRow | None = None) -> Iterator[Problem]:
    """A problem for each sink that holds records, or that other jobs write. `job`: the one that becomes this, if it is
    made already; what it writes now is its own.
    """
    own = set() if job is None else {sink.stream for sink in JobSpec.parse(job.spec).sinks}
    for i, sink in enumerate(spec.sinks):
        stream = find_stream(s, sink.stream)
        if stream is None or sink.stream in own:
            continue
        held = s.scalars(select(func.sum(PartitionRow.records)).where(PartitionRow.stream_id == stream.id)).one()
        writers = _writers(s, stream.id)
        said = [f"holds {held} record(s) that this job did not write"] if held else []
        said += [f"is written by {_listed(writers)} too"] if writers else []
        if said:
            pointer = "/sink" if isinstance(spec.sink, str) else f"/sink/{i}/stream"
            yield Problem(pointer, f"{sink.stream!r} {' and '.join(said)}: results will lie among them")


def _writers(s: Session, stream_id: str) -> list[str]:
    query = select(JobRow.name).join(JobStreamRow, JobStreamRow.job_id == JobRow.id).order_by(JobRow.name)
    return list(s.scalars(query.where(JobStreamRow.stream_id == stream_id, JobStreamRow.role == "sink")))


def _listed(names: list[str]) -> str:
    shown = ", ".join(map(repr, names[:MAX_NAMES]))
    return shown if len(names) <= MAX_NAMES else f"{shown} and {len(names) - MAX_NAMES} more"
