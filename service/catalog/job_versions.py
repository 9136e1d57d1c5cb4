"""Versions of jobs: what each was, since when, by whom, and which operators went on with whose stores.

It knows the rows of versions. It refuses to know what a change means (`service.streams.topology.versions`) and how one
is made (`job_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.engine import now_ms
from service.catalog.tables import JobRow, JobVersionRow, Json
from service.streams.errors import UnknownVersion

Kind = Literal["create", "patch", "put", "rollback", "copy"]
INHERITS = "inherits"  # in `details`: operator → the one before it whose store it goes on with


def note_version(s: Session, job: JobRow, kind: Kind, *, who: str, reason: str, details: Json | None = None) -> None:
    """Keep what a locked job is now, under its present version."""
    s.add(
        JobVersionRow(
            job_id=job.id,
            version=job.spec_version,
            spec=job.spec,
            spec_sha256=job.spec_sha256,
            topology=job.topology,
            at_ms=now_ms(s),
            kind=kind,
            who=who,
            reason=reason,
            details=details,
        )
    )


def versions_of(s: Session, job_id: str, *, limit: int = 100, before: int | None = None) -> list[JobVersionRow]:
    """The versions of a job, latest first; those before this one."""
    query = select(JobVersionRow).where(JobVersionRow.job_id == job_id)
    query = query if before is None else query.where(JobVersionRow.version < before)
    return list(s.scalars(query.order_by(JobVersionRow.version.desc()).limit(limit)))


def get_version(s: Session, job: JobRow, version: int) -> JobVersionRow:
    """A version of a job. Raises UnknownVersion."""
    found = s.get(JobVersionRow, (job.id, version))
    if found is None:
        raise UnknownVersion(f"{job.name}/{version}")
    return found


def former_names(s: Session, job_id: str, since: int, names: Iterable[str]) -> dict[str, str]:
    """Those of these operators of the present version whose stores version `since` had → what they were called then."""
    of_changes = select(JobVersionRow.details).where(JobVersionRow.job_id == job_id, JobVersionRow.version > since)
    found = {name: name for name in names}
    for details in s.scalars(of_changes.order_by(JobVersionRow.version.desc())):
        inherits = (details or {}).get(INHERITS)
        if inherits is not None:
            found = {name: inherits[there] for name, there in found.items() if there in inherits}
    return found
