"""Stream time set back over HTTP: to when, and what that means for each operator.

Knows the shapes of the request and its answer. Refuses to know what a lower time means for rows and stores
(`service.catalog.time_resets`, `service.streams.operators.adoption`).
"""

from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service import coordinator
from service.api.bodies import answer, read_json
from service.api.document import router_of, takes
from service.auth import Admin
from service.catalog import jobs, time_resets
from service.catalog.adoptions import version_of
from service.catalog.tables import JobRow, TaskRow
from service.catalog.time_resets import TimeReset
from service.problems import declared
from service.streams.operators.fields import MAX_INT64, Spec
from service.streams.topology.complaints import validated

router = router_of("jobs")

DryRun = Annotated[bool, Query(description="Only say what it would mean.")]


class TimeResetRequest(Spec):
    """The stream time to go back to."""

    stream_time: Annotated[
        int, Field(ge=0, le=MAX_INT64, strict=True, description="ms; tasks that are not ahead of it stay as they are.")
    ]


class TaskTimeView(BaseModel):
    """A task that is set back, and the stream time that it had."""

    task: str
    was: int


class OperatorTimeView(BaseModel):
    """What a lower stream time means for an operator with a store."""

    operator: str
    closed_to: Annotated[
        int | None, Field(description="ms; windows that end before it are, or may be, final and stay so; null: none.")
    ]
    detail: str


class TimeResetView(BaseModel):
    """What a stream time that was set back, or would be, means."""

    job: str
    stream_time: int
    tasks: Annotated[list[TaskTimeView], Field(description="Those that are ahead of it.")]
    operators: list[OperatorTimeView]


@router.post(
    "/v1/jobs/{job:name}:reset-time",
    responses={200: {"model": TimeResetView}, **declared(400, 401, 403, 404, 409, 413, 415, 422)},
    openapi_extra=takes(TimeResetRequest, {"stream_time": 1700000000000}),
)
async def reset_job_time(request: Request, job: str, caller: Admin, dry_run: DryRun = False) -> Response:
    """Set the stream time of a stopped or failed job back, where a record from far ahead had moved it.

    Positions, stores and sinks stay. What was closed stays closed and what was over stays absent. Stream time is never
    raised: `:flush` closes what is open.
    """
    asked = validated(TimeResetRequest, await read_json(request))
    catalog = request.state.catalog
    if dry_run:
        return answer(await run_in_threadpool(catalog.read, _compare, job, asked.stream_time))
    return answer(await run_in_threadpool(catalog.write, _carry_out, job, asked.stream_time, caller.name))


def _compare(s: Session, name: str, stream_time: int) -> dict[str, Any]:
    job = jobs.get_job(s, name)
    time_resets.require_quiet(s, job)
    tasks = s.scalars(select(TaskRow).where(TaskRow.job_id == job.id)).all()
    return _shown(job, stream_time, time_resets.ahead_of(stream_time, tasks))


def _carry_out(s: Session, name: str, stream_time: int, who: str) -> dict[str, Any]:
    found = coordinator.reset_time(s, name, stream_time, who=who)
    return _shown(jobs.get_job(s, name), stream_time, found)


def _shown(job: JobRow, stream_time: int, found: list[TimeReset]) -> dict[str, Any]:
    was = max((each.was for each in found), default=None)
    return {
        "job": job.name,
        "stream_time": stream_time,
        "tasks": [each._asdict() for each in found],
        "operators": [] if was is None else list(_operators(job, stream_time, was)),
    }


def _operators(job: JobRow, stream_time: int, was: int) -> Iterator[dict[str, Any]]:
    version = version_of(job)
    operators = {store.name: store.operator for store in version.topology.stores()}
    for store, handover in version.handovers().items():
        closed_to, detail = None, "goes on from the lower time"
        if handover.delay_ms is not None:
            closed_to = max(was - handover.delay_ms, 0)
            detail = (
                f"windows that end before {closed_to} stay closed; PUT of the same specification with `restart: "
                f'["{operators[store]}"]` begins it anew, with the windows from {stream_time} on'
            )
        elif handover.kept_ms is not None:
            detail = f"entries before {max(was - handover.kept_ms, 0)} are over and stay so; it goes on with the others"
        yield {"operator": operators[store], "closed_to": closed_to, "detail": detail}
