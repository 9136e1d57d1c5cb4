"""Verbs of jobs over HTTP: pause, resume, stop, restart, flush, skip a record.

Knows the shapes of requests and answers. Refuses to know states and their order (`service.catalog.job_states`).
"""

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service import coordinator
from service.api.bodies import read_model, with_tag
from service.api.document import router_of, takes
from service.api.job_views import JobView, find_job_view, tagged_job
from service.api.job_waiting import Waiting, settled_job
from service.auth import Admin, Writer
from service.catalog import job_states
from service.problems import declared

router = router_of("jobs")

VERB: dict[str, Any] = {"responses": {200: with_tag(JobView), **declared(401, 403, 404, 409, 422)}}


class SkipRequest(BaseModel, extra="forbid"):
    """The record to pass over; without `stream`: of the stream that the job failed at, as its error says."""

    partition: Annotated[int, Field(ge=0, lt=2**31, strict=True)]
    offset: Annotated[int, Field(ge=0, lt=2**63, strict=True)]
    stream: str | None = None


@router.post("/v1/jobs/{job:name}:pause", **VERB)
async def pause_job(request: Request, job: str, caller: Writer, waiting: Annotated[Waiting, Query()]) -> Response:
    """Hand out no more work; tasks stay where they are."""
    return await _ask(request, job, waiting, _change, "pause", caller.name)


@router.post("/v1/jobs/{job:name}:resume", **VERB)
async def resume_job(request: Request, job: str, caller: Writer, waiting: Annotated[Waiting, Query()]) -> Response:
    """Go on after a pause."""
    return await _ask(request, job, waiting, _change, "resume", caller.name)


@router.post("/v1/jobs/{job:name}:stop", **VERB)
async def stop_job(request: Request, job: str, caller: Writer, waiting: Annotated[Waiting, Query()]) -> Response:
    """Drain: batches under way are committed, then the slots leave."""
    return await _ask(request, job, waiting, _change, "stop", caller.name)


@router.post("/v1/jobs/{job:name}:restart", **VERB)
async def restart_job(request: Request, job: str, caller: Writer, waiting: Annotated[Waiting, Query()]) -> Response:
    """Start a stopped or failed job where it stood."""
    return await _ask(request, job, waiting, _change, "restart", caller.name)


@router.post("/v1/jobs/{job:name}:flush", **VERB)
async def flush_job(request: Request, job: str, caller: Writer, waiting: Annotated[Waiting, Query()]) -> Response:
    """Close every window, session and buffer once the present input is read; `wait=caught_up` waits for it."""
    return await _ask(request, job, waiting, _flush, caller.name)


@router.post(
    "/v1/jobs/{job:name}:skip",
    responses={200: with_tag(JobView), **declared(400, 401, 403, 404, 409, 413, 415, 422)},
    openapi_extra=takes(SkipRequest, {"partition": 0, "offset": 4711}),
)
async def skip_record(request: Request, job: str, caller: Admin) -> Response:
    """Let a failed job pass over one record; it runs again after `:restart`."""
    wanted = await read_model(request, SkipRequest)
    view = await run_in_threadpool(request.state.catalog.write, _skip, job, wanted, caller.name)
    return tagged_job(request, view)


async def _ask(
    request: Request, job: str, waiting: Waiting, work: Callable[..., dict[str, Any]], *how: str
) -> Response:
    """Do what a verb says, then wait for what comes of it."""
    view = await run_in_threadpool(request.state.catalog.write, work, job, *how)
    return tagged_job(request, await settled_job(request, job, waiting) if waiting.wait else view)


def _change(s: Session, name: str, verb: str, who: str) -> dict[str, Any]:
    coordinator.change_job(s, name, verb, who=who)
    return find_job_view(s, name)


def _flush(s: Session, name: str, who: str) -> dict[str, Any]:
    job_states.flush_job(s, name, who=who)
    return find_job_view(s, name)


def _skip(s: Session, name: str, wanted: SkipRequest, who: str) -> dict[str, Any]:
    job_states.skip_record(s, name, partition=wanted.partition, offset=wanted.offset, stream=wanted.stream, who=who)
    return find_job_view(s, name)
