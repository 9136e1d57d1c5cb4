"""Making and deleting jobs over HTTP: compile a specification, keep it and start it, remove a stopped job.

Knows what is compiled and kept of a body. Refuses to know what a specification means (`service.streams.topology`).
"""

from dataclasses import asdict
from typing import Annotated, Any, NamedTuple

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import LOCATION, answer, read_json
from service.api.document import name_union, router_of, takes
from service.api.job_views import JobView, job_view
from service.api.job_waiting import Waiting, WaitingForStop, settled_job, until_settled
from service.api.start_records import first_records
from service.api.topology_views import TopologyView
from service.auth import Reader, Writer
from service.catalog import job_creation, streams
from service.catalog.job_creation import UNREADABLE
from service.catalog.shared_sinks import shared_sinks
from service.catalog.start_positions import FirstRecords
from service.problems import ProblemError, ProblemItemView, declared
from service.streams.errors import InvalidSpec, Problem
from service.streams.operators import AnyOperator
from service.streams.operators.distinct import DistinctWindow
from service.streams.operators.windows import WindowSpec
from service.streams.topology import graph
from service.streams.topology.complaints import errors_below, pointer
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec, Sink, Source
from service.streams.topology.starts import Start

router = router_of("jobs")

name_union("Operator", AnyOperator, "An operator; `op` says which.")
name_union("Window", WindowSpec, "A window; `type` says which.")
name_union("DistinctWindow", DistinctWindow, "A window of `distinct`.")
name_union("Source", Source, "The stream to read, or several.")
name_union("Sink", Sink, "The stream that all results go to, or several, each with what goes there.")
name_union("Start", Start, "Where to begin to read.")

EXAMPLE = {
    "name": "unique_clicks",
    "source": "clicks",
    "operators": [
        {"op": "filter", "where": "value->>'kind' = 'click'"},
        {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 600_000},
    ],
    "sink": "clicks-once",
}


class CompiledView(BaseModel):
    """A specification with its defaults, and its topology."""

    spec: JobSpec
    topology: TopologyView


class CreatedJobView(JobView):
    """A new job."""

    warnings: Annotated[
        list[ProblemItemView] | None,
        Field(description="Places of what was taken, and may be meant otherwise: sinks that others wrote or write."),
    ] = None


class ValidateRequest(BaseModel, extra="forbid"):
    """A job to compile, as `:simulate` takes it."""

    job: JobSpec


@router.post(
    "/v1/jobs:validate",
    responses={200: {"model": CompiledView}, **declared(400, 401, 403, 409, 413, 415, 422)},
    openapi_extra=takes(JobSpec, EXAMPLE, other=ValidateRequest),
)
async def validate_job(request: Request, _: Reader) -> Response:
    """Compile a job, which is the body or its member `job`, and keep nothing; refusals are those of `POST /v1/jobs`."""
    body = await read_json(request)
    is_member = isinstance(body, dict) and "job" in body
    with errors_below("/job" if is_member else ""):
        spec = JobSpec.parse(_only_job(body) if is_member else body)
        topology = await run_in_threadpool(request.state.catalog.read, _validate, spec)
    return answer({"spec": spec.to_json(), "topology": topology.to_json()})


@router.post(
    "/v1/jobs",
    status_code=201,
    responses={
        200: {"model": JobView, "description": "An equal job was there already", "headers": LOCATION},
        201: {"model": CreatedJobView, "headers": LOCATION},
        **declared(400, 401, 403, 409, 413, 415, 422),
    },
    openapi_extra=takes(JobSpec, EXAMPLE),
)
async def create_job(request: Request, caller: Writer, waiting: Annotated[Waiting, Query()]) -> Response:
    """Make a job and start it."""
    spec = JobSpec.parse(await read_json(request))
    view, is_new, warnings = await run_in_threadpool(_create, request, spec, caller.name)
    if waiting.wait:
        view = await settled_job(request, spec.name, waiting)
    if warnings:
        view = {**view, "warnings": warnings}
    return answer(view, 201 if is_new else 200, headers={"Location": f"/v1/jobs/{spec.name}"})


@router.delete("/v1/jobs/{job:name}", status_code=204, responses=declared(401, 403, 404, 409, 422))
async def delete_job(request: Request, job: str, _: Writer, waiting: Annotated[WaitingForStop, Query()]) -> Response:
    """Delete a stopped job with its stores and internal streams; its sinks stay. One that drains can be waited for."""
    if waiting.wait:
        await until_settled(request, job, waiting.wait, waiting.timeout_ms)
    await run_in_threadpool(request.state.catalog.write, job_creation.delete_job, job)
    return Response(status_code=204)


def _only_job(body: dict[str, Any]) -> object:
    """The one member of a body. 422 where others stand beside it."""
    if others := [name for name in body if name != "job"]:
        items = [{"pointer": pointer(name), "detail": "is not a known field beside job"} for name in others]
        raise ProblemError(422, "invalid_spec", items[0]["detail"], items)
    return body["job"]


# ---------------------------------------------------------------- in a transaction


def _compile(s: Session, spec: JobSpec) -> Topology:
    found = {name: streams.find_stream(s, name) for name in spec.sources}
    known = {name: stream for name, stream in found.items() if stream is not None}
    refused = [(name, UNREADABLE[stream.kind]) for name, stream in known.items() if stream.kind in UNREADABLE]
    if refused:
        raise InvalidSpec([Problem("/source", f"{name!r} is a {why}") for name, why in refused])
    custom = {name for name, stream in known.items() if stream.custom_partitioning}
    return graph.compile(spec, {name: stream.partitions for name, stream in known.items()}, custom)


def _validate(s: Session, spec: JobSpec) -> Topology:
    topology = _compile(s, spec)
    job_creation.find_equal(s, spec, topology)
    return topology


class _Created(NamedTuple):
    view: dict[str, Any]
    is_new: bool
    warnings: list[dict[str, str]]


def _create(request: Request, spec: JobSpec, who: str) -> _Created:
    records = first_records(request, spec.sources, spec.start)
    made: _Created = request.state.catalog.write(_submit, spec, who, records)
    return made


def _submit(s: Session, spec: JobSpec, who: str, records: FirstRecords) -> _Created:
    warnings = [asdict(each) for each in shared_sinks(s, spec)]
    job, is_new = job_creation.create_job(s, spec, _compile(s, spec), who=who, records=records)
    return _Created(job_view(s, job), is_new, warnings if is_new else [])
