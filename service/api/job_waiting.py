"""Answers that wait until a job is in the state asked for.

Knows how long, and what ends a wait early. Refuses to know what changes a job meanwhile.
"""

import time
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from service.api.job_views import find_job_view
from service.catalog import job_states, jobs
from service.catalog.engine import progress_topic

ENDED = frozenset({job_states.FAILED, job_states.STOPPED})  # nothing more comes
LOOK_AGAIN_S = 1.0  # at least this often while waiting, should a wake-up of another process be lost


class Waiting(BaseModel):
    """What an answer waits for, and how long."""

    wait: Annotated[
        Literal["running", "stopped", "caught_up"] | None,
        Field(description="Answer when it is so, when the job failed or stopped, or when `timeout_ms` have passed."),
    ] = None
    timeout_ms: Annotated[int, Field(ge=0, le=60_000)] = 10_000


class WaitingForStop(BaseModel):
    """Whether to wait for a job that drains, and how long."""

    wait: Annotated[Literal["stopped"] | None, Field(description="Wait until the job is stopped, then delete it.")] = (
        None
    )
    timeout_ms: Annotated[int, Field(ge=0, le=60_000)] = 10_000


async def settled_job(request: Request, job: str, waiting: Waiting) -> dict[str, Any]:
    """The members of a `JobView`, when the job is what is waited for. Raises UnknownJob."""
    if waiting.wait:
        await until_settled(request, job, waiting.wait, waiting.timeout_ms)
    view: dict[str, Any] = await run_in_threadpool(request.state.catalog.read, find_job_view, job)
    return view


async def until_settled(request: Request, job: str, wanted: str, timeout_ms: int) -> None:
    """Return when a job is in the state wanted or nothing more comes, at the latest after `timeout_ms`.

    Raises UnknownJob.
    """
    catalog, hub = request.state.catalog, request.state.hub
    until = time.monotonic() + timeout_ms / 1000
    while True:
        seen = hub.seen
        job_id, is_settled = await run_in_threadpool(catalog.read, _is_settled, job, wanted)
        left = until - time.monotonic()
        if is_settled or left <= 0 or hub.is_closed:
            return
        await hub.wait([progress_topic(job_id)], seen, min(left, LOOK_AGAIN_S))


def _is_settled(s: Session, name: str, wanted: str) -> tuple[str, bool]:
    """A job's id, and whether it is what is waited for, or nothing more comes."""
    job = jobs.get_job(s, name)
    is_so = jobs.is_caught_up(s, job.id) if wanted == "caught_up" else job.state == wanted
    return job.id, is_so or job.state in ENDED
