"""Resets of jobs over HTTP: to which start.

Knows the shape of the request. Refuses to know what of a job begins anew (`service.catalog.job_resets`).
"""

from typing import Any

from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service import coordinator
from service.api.bodies import read_json, with_tag
from service.api.document import router_of, takes
from service.api.job_views import JobView, find_job_view, tagged_job
from service.api.start_records import first_records
from service.auth import Writer
from service.catalog import jobs
from service.catalog.start_positions import FirstRecords
from service.problems import declared
from service.streams.topology.starts import START, ResetRequest, Start

router = router_of("jobs")


@router.post(
    "/v1/jobs/{job:name}:reset",
    responses={200: with_tag(JobView), **declared(400, 401, 403, 404, 409, 413, 415, 422)},
    openapi_extra=takes(ResetRequest, {"start": {"offsets": {"0": 4711}}}, is_required=False),
)
async def reset_job(request: Request, job: str, caller: Writer) -> Response:
    """Set a stopped or failed job back to a start: it reads from there once it is restarted, its stores are empty.

    Without a body, or a `start` in it, that of its specification counts. Stores, their changelogs and counters begin
    anew; sinks keep what they hold, and so does the stream of dropped records. The job is stopped then. Repeated, it
    does the same again.
    """
    asked = ResetRequest.parse(await read_json(request) if await request.body() else {})
    return tagged_job(request, await run_in_threadpool(_reset, request, job, asked, caller.name))


def _reset(request: Request, name: str, asked: ResetRequest, who: str) -> dict[str, Any]:
    sources, own = request.state.catalog.read(_read_from, name)
    start = own if asked.start is None else asked.start
    records = first_records(request, sources, start)
    view: dict[str, Any] = request.state.catalog.write(_carry_out, name, start, records, who)
    return view


def _read_from(s: Session, name: str) -> tuple[list[str], Start]:
    """The sources of a job, and where its specification has it start."""
    job = jobs.get_job(s, name)
    return [stream.name for stream in jobs.streams_of(s, job.id, "source")], START.validate_python(job.spec["start"])


def _carry_out(s: Session, name: str, start: Start, records: FirstRecords, who: str) -> dict[str, Any]:
    coordinator.reset_job(s, name, start, records, who=who)
    return find_job_view(s, name)
