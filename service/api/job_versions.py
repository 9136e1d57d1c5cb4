"""Versions of jobs over HTTP: list them, look into one.

Knows the shapes of answers. Refuses to know what a change means (`service.streams.topology.versions`) and which rows
are kept (`service.catalog.job_versions`).
"""

from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import UNCHANGED, answer, tagged
from service.api.document import router_of
from service.api.models import MAX_ROW_ID, Cursor, Limit, PageView, first_row
from service.auth import Reader
from service.catalog import job_versions, jobs
from service.catalog.tables import JobRow, JobVersionRow
from service.positions import RowCursor, opaque
from service.problems import declared

router = router_of("jobs")


class OperatorVerdictView(BaseModel):
    """What a change means for an operator and its store."""

    operator: str
    former: Annotated[str | None, Field(description="The operator of the version before; null: it is a new one.")]
    store: str | None
    verdict: str
    detail: str


class JobVersionView(BaseModel):
    """A version of a job, present or former."""

    version: int
    is_present: bool
    at: str
    who: str
    kind: Annotated[job_versions.Kind, Field(description="What made it.")]
    reason: str
    operators: Annotated[list[OperatorVerdictView], Field(description="What it meant for each operator, of a change.")]
    outputs: Annotated[list[str], Field(description="What it meant for records that were written before, of a change.")]


class JobVersionSpecView(JobVersionView):
    """A version of a job with its specification and topology."""

    spec: dict[str, Any]
    topology: dict[str, Any]


@router.get(
    "/v1/jobs/{job:name}/versions", responses={200: {"model": PageView[JobVersionView]}, **declared(401, 403, 404, 422)}
)
def list_job_versions(request: Request, job: str, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List a job's versions, latest first: when, by whom, what changed."""
    return answer(request.state.catalog.read(_versions, job, limit, cursor))


@router.get(
    "/v1/jobs/{job:name}/versions/{version}",
    responses={200: {"model": JobVersionSpecView}, **UNCHANGED, **declared(401, 403, 404, 422)},
)
def get_job_version(
    request: Request, job: str, version: Annotated[int, Path(ge=1, le=MAX_ROW_ID)], _: Reader
) -> Response:
    """Show a version of a job with its specification: what `:rollback` would go back to."""
    return tagged(request, request.state.catalog.read(_version, job, version))


# ---------------------------------------------------------------- in a transaction


def _versions(s: Session, name: str, limit: int, cursor: str | None) -> dict[str, Any]:
    job = jobs.get_job(s, name)
    of = f"versions/{job.id}"
    rows = job_versions.versions_of(s, job.id, limit=limit + 1, before=first_row(of, cursor))
    following = opaque(RowCursor(of, rows[limit - 1].version)) if len(rows) > limit else None
    return {"items": [_shown(job, row) for row in rows[:limit]], "next": following}


def _version(s: Session, name: str, version: int) -> dict[str, Any]:
    job = jobs.get_job(s, name)
    row = job_versions.get_version(s, job, version)
    return {**_shown(job, row), "spec": row.spec, "topology": row.topology}


def _shown(job: JobRow, row: JobVersionRow) -> dict[str, Any]:
    details = row.details or {}
    return {
        "version": row.version,
        "is_present": row.version == job.spec_version,
        "at": datetime.fromtimestamp(row.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "who": row.who,
        "kind": row.kind,
        "reason": row.reason,
        "operators": details.get("operators", []),
        "outputs": details.get("outputs", []),
    }
