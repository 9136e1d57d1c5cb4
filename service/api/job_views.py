"""A job as answers show it, and its entity tag.

Refuses to know who asks for it, and how long an answer waits (`service.api.job_waiting`).
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import tagged
from service.api.moments import Moment
from service.catalog import jobs, replicas
from service.catalog.inputs import inputs_of_job
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


class SlowestTaskView(BaseModel):
    """The task whose stream time is the lowest."""

    task: str
    stream_time: int


class TaskSummaryView(BaseModel):
    """The tasks of a job, all together."""

    count: Annotated[int, Field(description="How many there are.")]
    without_owner: Annotated[int, Field(description="How many of them nobody runs.")]
    open: Annotated[int, Field(description="In how many of them something is open, as their last commits found.")]
    slowest: Annotated[
        SlowestTaskView | None,
        Field(description="Of those in which something is open the one with the lowest stream time; null: none."),
    ]


class BehindCopyView(BaseModel):
    """The copy of a task's stores that is the furthest behind."""

    task: str
    node: str
    lag_records: Annotated[int, Field(description="Changes that it has not applied.")]


class CopySummaryView(BaseModel):
    """The standbys and warm-up copies of a job, all together."""

    missing_standbys: Annotated[
        int, Field(description="How many of the standbys asked for are not there and caught up.")
    ]
    most_behind: Annotated[
        BehindCopyView | None, Field(description="The copy that is the furthest behind; null: none is behind.")
    ]


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
    tasks: Annotated[TaskSummaryView, Field(description="Its tasks, all together: `…/tasks` lists them.")]
    copies: Annotated[
        CopySummaryView | None,
        Field(description="Copies of its stores, all together; null: it asks for none."),
    ]
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


def job_views(s: Session, rows: Sequence[JobRow]) -> list[dict[str, Any]]:
    """The members of a `JobView` of each of these jobs."""
    marks = jobs.marks_of(s, [job.id for job in rows])
    return [_job_view(s, job, marks[job.id]) for job in rows]


def job_view(s: Session, job: JobRow) -> dict[str, Any]:
    """The members of a `JobView`."""
    return job_views(s, [job])[0]


def _job_view(s: Session, job: JobRow, marks: jobs.JobMarks) -> dict[str, Any]:
    inputs = inputs_of_job(s, job.id)
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state,
        "reason": job.reason,
        "spec": job.spec,
        "positions": [position._asdict() for position in jobs.positions(s, job.id, inputs)],
        "caught_up": jobs.is_caught_up(s, job.id, inputs, marks),
        "stream_time": marks.stream_time,
        "error": job.error,
        "generation": job.generation,
        "shortage": (job.shortage or None) if job.state in STAFFED else None,
        "is_flushing": marks.is_flushing,
        "is_replaying": marks.is_replaying,
        "tasks": jobs.task_summary(s, job.id),
        "copies": _copies(s, job),
        "stores": marks.stores,
        "version": job.etag,
        "spec_version": job.spec_version,
        "change": _change_view(job),
        "created_at": job.created_at.isoformat(),
    }


def _copies(s: Session, job: JobRow) -> dict[str, Any] | None:
    wanted = job.spec.get("standby_replicas", 0)
    return replicas.copy_summary(s, job.id, wanted) if wanted else None


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
