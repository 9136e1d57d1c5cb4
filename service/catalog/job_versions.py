"""Versions of jobs: what each was, since when, by whom, and which operators went on with whose stores or had them back.

It knows the rows of versions. It refuses to know what a change means (`service.streams.topology.versions`) and how one
is made (`job_changes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.catalog.engine import now_ms
from service.catalog.tables import JobRow, JobVersionRow, Json
from service.streams.errors import UnknownVersion

Kind = Literal["create", "patch", "put", "rollback", "copy"]
INHERITS = "inherits"  # in `details`: operator → the one before it whose store it goes on with
RETURNS = "returns"  # in `details`: operator → the version, and the operator then, whose removed store it has back


LEFT = "left"  # in `details`: operator before whose store is removed → partition → the version of that task's stores
_LATEST_FIRST = JobVersionRow.version.desc()


class Standing(NamedTuple):
    """A version that has a store, and what its operator is called there."""

    version: int
    operator: str


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
    present = s.get_one(JobRow, job_id).spec_version
    found = stood(s, job_id, since, {name: Standing(present, name) for name in names})
    return {name: at.operator for name, at in found.items() if at.version == since}


def stood(s: Session, job_id: str, since: int, stores: Mapping[str, Standing]) -> dict[str, Standing]:
    """Where stores stood at version `since`, by the keys of `stores`, which says where they stand later: the last
    version up to `since` that had them. Those that had not begun by then are left out.
    """
    changes = select(JobVersionRow.version, JobVersionRow.details).where(JobVersionRow.job_id == job_id)
    found = dict(stores)
    for version, details in s.execute(changes.where(JobVersionRow.version > since).order_by(_LATEST_FIRST)):
        before = {key: _before(at, version, details or {}) for key, at in found.items()}
        found = {key: at for key, at in before.items() if at is not None}
    return found


def last_with_store(s: Session, job_id: str, store: str) -> JobVersionRow | None:
    """The last version that had a store of this name."""
    rows = s.scalars(select(JobVersionRow).where(JobVersionRow.job_id == job_id).order_by(_LATEST_FIRST))
    return next((row for row in rows if store in _stores_in(row.topology)), None)


def _before(at: Standing, version: int, details: Json) -> Standing | None:
    """Where a store stood before a version of these details was made; None: it began with that."""
    if at.version != version:
        return at
    inherits = details.get(INHERITS)
    if inherits is None:
        return Standing(version - 1, at.operator)
    if at.operator in inherits:
        return Standing(version - 1, inherits[at.operator])
    returned = details.get(RETURNS, {}).get(at.operator)
    return None if returned is None else Standing(*returned)


def _stores_in(topology: Json) -> set[str]:
    nodes = (node for each in topology["sub_topologies"] for node in each["nodes"])
    return {node["store"]["name"] for node in nodes if node["store"] is not None}
