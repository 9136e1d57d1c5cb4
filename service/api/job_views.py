"""A job as answers show it, and its entity tag.

Refuses to know who asks for it, and how long an answer waits (`service.api.job_waiting`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import tagged
from service.api.moments import Moment
from service.catalog import jobs
from service.catalog.job_states import STAFFED
from service.catalog.tables import JobRow
from service.streams.errors import StaleTag
from service.streams.topology.spec import JobSpec

JobState = Literal["starting", "running", "rebalancing", "changing", "paused", "draining", "stopped", "failed"]


class JobPositionView(BaseModel):
    """The job's position in one partition of a source."""

    stream: str
    partition: int
    position: int
    end: int
    lag: int


class JobChangeView(BaseModel):
    """A change to another version that is not made."""

    state: Literal["pending", "refused"]
    version: int
    reason: str


class JobErrorView(BaseModel):
    """Why a job failed, and at which record; of a full buffer, how full it is."""

    code: str
    detail: str
    operator: str | None = None
    stream: str | None = None
    partition: int | None = None
    offset: int | None = None
    records: int | None = None
    max_records: int | None = None
    bytes: int | None = None
    max_bytes: int | None = None


class JobView(BaseModel):
    """A job as it stands, from one snapshot of the catalog."""

    id: str
    name: str
    state: JobState
    reason: str
    spec: JobSpec
    positions: list[JobPositionView]
    caught_up: Annotated[bool, Field(description="Every position is at its end, and every replica has applied it.")]
    stream_time: int | None
    error: JobErrorView | None
    generation: int
    shortage: Annotated[
        Literal["no_cores"] | None,
        Field(description="What it lacks to run; `no_cores`: others have all there are."),
    ]
    is_flushing: Annotated[bool, Field(description="A flush was asked for and is not done.")]
    is_replaying: Annotated[bool, Field(description="Dropped records are still to be taken in again.")]
    stores: list[str]
    version: Annotated[int, Field(description="Rises with every change of state or specification.")]
    spec_version: Annotated[int, Field(description="Of its specification: `…/versions` lists all.")]
    change: Annotated[
        JobChangeView | None, Field(description="A change that waits until the job is quiet, or was given up last.")
    ]
    created_at: Moment


def find_job_view(s: Session, name: str) -> dict[str, Any]:
    """The members of a `JobView`. Raises UnknownJob."""
    return job_view(s, jobs.get_job(s, name))


def job_view(s: Session, job: JobRow) -> dict[str, Any]:
    """The members of a `JobView`."""
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "reason": job.reason,
        "spec": job.spec,
        "positions": [position._asdict() for position in jobs.positions(s, job.id)],
        "caught_up": jobs.is_caught_up(s, job.id),
        "stream_time": jobs.stream_time(s, job.id),
        "error": job.error,
        "generation": job.generation,
        "shortage": (job.shortage or None) if job.state in STAFFED else None,
        "is_flushing": jobs.is_flushing(s, job.id),
        "is_replaying": jobs.is_replaying(s, job.id),
        "stores": [store.name for store in jobs.stores_of(s, job.id)],
        "version": job.etag,
        "spec_version": job.spec_version,
        "change": _change_view(job),
        "created_at": job.created_at.isoformat(),
    }


def _change_view(job: JobRow) -> dict[str, Any] | None:
    if job.change is None:
        return None
    return {"version": job.spec_version + 1, **{name: job.change[name] for name in ("state", "reason")}}


def tagged_job(request: Request, view: dict[str, Any]) -> Response:
    """The answer that shows a job, with its entity tag; 304 when the caller has it."""
    return tagged(request, view, job_version(view["id"], view["version"]))


def require_tag(job: JobRow, tag: str) -> None:
    """Raises StaleTag where a job was changed since the request's entity tag was its."""
    if tag.rpartition("-")[0] != job_version(job.id, job.etag):
        raise StaleTag(job.name)


def job_version(job_id: str, version: int) -> str:
    """The part of a job's entity tag that only requests change; a job made again under the name has another."""
    return f"{job_id[:12]}-{version}"
