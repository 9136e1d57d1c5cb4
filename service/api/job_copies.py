"""Copies of jobs over HTTP: a second job beside a first one, for a trial.

Knows the shape of the request. Refuses to know which rows of a job its copy has too (`service.catalog.job_copies`).
"""

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import LOCATION, answer, read_json
from service.api.document import router_of, takes
from service.api.job_creation import CreatedJobView
from service.api.job_views import job_view
from service.auth import Writer
from service.catalog import job_copies, job_states, jobs
from service.catalog.shared_sinks import shared_sinks
from service.problems import declared
from service.streams.operators.fields import JOB_NAME, Spec
from service.streams.topology import graph
from service.streams.topology.complaints import validated
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec, Sink

router = router_of("jobs")


class CopyRequest(Spec):
    """What a copy is called and where its results go; all else is as the first job has it."""

    name: Annotated[str, Field(pattern=JOB_NAME)]
    sink: Annotated[
        Sink | None, Field(description="Streams that the first job does not write; null: the copy only keeps stores.")
    ]
    start_paused: bool = False


@router.post(
    "/v1/jobs/{job:name}:copy",
    status_code=201,
    responses={201: {"model": CreatedJobView, "headers": LOCATION}, **declared(400, 401, 403, 404, 409, 413, 415, 422)},
    openapi_extra=takes(CopyRequest, {"name": "visits_trial", "sink": "visits-trial", "start_paused": True}),
)
async def copy_job(request: Request, job: str, caller: Writer) -> Response:
    """Make a second job that goes on where this one stands, with stores that hold the same, and sinks of its own.

    Positions, stores and what lies between sub-topologies are of one moment; counters and history are its own. The
    first goes on as it is. Change the copy with `PUT` to try another version beside the first.
    """
    asked = validated(CopyRequest, await read_json(request))
    view = await run_in_threadpool(request.state.catalog.write, _copy, job, asked, caller.name)
    return answer(view, 201, headers={"Location": f"/v1/jobs/{asked.name}"})


def _copy(s: Session, name: str, asked: CopyRequest, who: str) -> dict[str, Any]:
    first = job_states.lock_job(s, name=name)
    former, made = JobSpec.parse(first.spec), Topology.from_json(first.topology)
    spec = JobSpec.parse({**first.spec, **asked.model_dump(mode="json", include={"name", "sink"})})
    counts = {source.name: source.partitions for source in jobs.streams_of(s, first.id, "source")}
    topology = graph.over_same_stores(graph.compile_again(spec, counts, former, made), made)
    warnings = [asdict(each) for each in shared_sinks(s, spec)]
    copied = job_copies.copy_job(s, first, spec, topology, is_paused=asked.start_paused, who=who)
    s.flush()
    view = job_view(s, copied)
    return {**view, "warnings": warnings} if warnings else view
