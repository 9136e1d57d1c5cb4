"""Jobs over HTTP: list them, look into one, change one.

Knows the shapes of requests and answers. Making and deleting jobs is `job_creation`'s, moving them on `job_verbs`'.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Header, Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from service import coordinator
from service.api.bodies import UNCHANGED, accepts, answer, expected_etag, page, read_json, with_tag
from service.api.document import router_of, takes
from service.api.job_views import (
    JobErrorView,
    JobPositionView,
    JobState,
    JobView,
    find_job_view,
    job_views,
    require_tag,
    tagged_job,
)
from service.api.job_waiting import Waiting, settled_job
from service.api.models import Cursor, Limit, PageView, first_row, require_name, rows_page, short_page
from service.api.moments import Moment
from service.api.topology_pictures import picture, places
from service.api.topology_views import TopologyView
from service.auth import Reader, Writer
from service.catalog import job_states, jobs
from service.catalog.tables import JobTransitionRow
from service.problems import declared
from service.protocol import AdvanceReason
from service.streams.errors import InvalidSpec, Problem
from service.streams.operators.fields import JOB_NAME
from service.streams.topology import graph
from service.streams.topology.change import JobChange
from service.streams.topology.describe import describe
from service.streams.topology.dropped import BEYOND, BOUNDS
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec
from service.streams.topology.starts import Start

router = router_of("jobs")

SVG = "image/svg+xml"
STYLE_ALONE = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}  # of a picture on its own


class ReplayProgressView(BaseModel):
    """How far a task replays dropped records."""

    position: int
    end: int


class AdvancedView(BaseModel):
    """How stream time was moved without a record."""

    to: int | None
    reason: AdvanceReason
    at_ms: int


class JobTaskView(BaseModel):
    """A task, its owner and how far it is."""

    task: str
    id: str
    epoch: int
    version: int
    slot: str | None
    instance: str | None
    stream_time: int | None
    is_closed: Annotated[bool, Field(description="Nothing is open in its stores, as its last commit found.")]
    is_flushing: bool
    replay: Annotated[
        ReplayProgressView | None, Field(description="How far it replays dropped records; null: it does not.")
    ]
    advanced: Annotated[AdvancedView | None, Field(description="The last time that closing moved stream time.")]
    positions: list[JobPositionView]


class MissedBelowView(BaseModel):
    """Records that missed going on by less than `ms`, and not by less than the bound before."""

    ms: Annotated[int | None, Field(description="null: by the last bound or more.")]
    records: int


class MissedView(BaseModel):
    """By how many ms records missed going on: `late` ones their window, of sessions themselves; duplicates the end of
    the interval.
    """

    records: int
    max_ms: int
    average_ms: float
    below: Annotated[list[MissedBelowView], Field(description="In order; bounds with no records are left out.")]


class DroppedCountView(BaseModel):
    """Records that an operator dropped for one reason, since the job was made."""

    operator: str
    reason: str
    records: int
    missed: Annotated[
        MissedView | None, Field(description="By how much; null: time would not have let them go on, or is not known.")
    ]


class DroppedView(PageView[DroppedCountView]):
    """Dropped records of a job, counted by operator and reason."""

    stream: Annotated[str | None, Field(description="Where the records are; null: the job does not keep them.")]


class TransitionDetailsView(JobChange):
    """What was asked for, as the kind of the change has it: of `spec`, what of the specification."""

    version: int | None = None
    renames: dict[str, str] | None = None
    restart: list[str] | None = None
    start: Start | None = None
    stream_time: int | None = None
    job: str | None = None
    stream: str | None = None
    partition: int | None = None
    offset: int | None = None
    operator: str | None = None
    reason: list[str] | None = None
    from_timestamp: int | None = None
    to_timestamp: int | None = None


class TransitionView(BaseModel):
    """A change of a job: of its state, or one that leaves the state as it is."""

    at: Moment
    from_state: str | None
    to_state: str
    reason: str
    who: str
    error: JobErrorView | None
    kind: Annotated[
        job_states.Kind,
        Field(
            description="Of its state, specification, version; a reset, of all or of time; a flush, replay, skip, copy."
        ),
    ]
    details: Annotated[
        TransitionDetailsView | None, Field(description="What was asked for, of kinds but state and flush.")
    ]


@router.get("/v1/jobs", responses={200: {"model": PageView[JobView]}, **declared(401, 403, 422)})
def list_jobs(
    request: Request,
    _: Reader,
    state: Annotated[JobState | None, Query(description="Only jobs in this state.")] = None,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List jobs by name, all or those in one state."""
    require_name(cursor, JOB_NAME)
    return answer(page(request.state.catalog.read(_views, limit + 1, cursor, state), limit=limit))


@router.get("/v1/jobs/{job:name}", responses={200: with_tag(JobView), **UNCHANGED, **declared(401, 403, 404, 422)})
async def get_job(
    request: Request,
    job: str,
    _: Reader,
    waiting: Annotated[Waiting, Query()],
) -> Response:
    """Show a job; with `wait` when it is so, or when nothing more comes: it failed, stopped, or time is up."""
    return tagged_job(request, await settled_job(request, job, waiting))


@router.patch(
    "/v1/jobs/{job:name}",
    responses={200: with_tag(JobView), **declared(400, 401, 403, 404, 409, 412, 413, 415, 422, 428)},
    openapi_extra=takes(JobChange, {"buffers": {"final": {"max_records": 1_000_000}}}),
)
async def change_job(
    request: Request,
    job: str,
    caller: Writer,
    _if_match: Annotated[str | None, Header(alias="If-Match", description="The ETag of what is changed.")] = None,
) -> Response:
    """Change how much a job takes at once, how often, when silence closes, what buffers may hold: also while it runs.

    `parallelism`, `keep_dropped` and `on_error` change while it is stopped or failed. Stores stay in any case.

    An ETag stays good for this while the job's `version` does, whatever is posted to its sources meanwhile.
    """
    tag = expected_etag(request)
    change = JobChange.parse(await read_json(request))
    view = await run_in_threadpool(request.state.catalog.write, _change_spec, job, tag, change, caller.name)
    return tagged_job(request, view)


@router.get(
    "/v1/jobs/{job:name}/topology",
    responses={
        200: {
            "model": TopologyView,
            "content": {"text/plain": {"schema": {"type": "string"}}, SVG: {"schema": {"type": "string"}}},
            "description": "As JSON, as describe() text, or as a picture",
        },
        **declared(401, 403, 404, 406, 422),
    },
)
def get_topology(
    request: Request,
    job: str,
    _: Reader,
    layout: Annotated[bool, Query(description="In JSON, also where boxes of a picture lie, and its arrows.")] = False,
) -> Response:
    """Show a job's topology: JSON; for `Accept: text/plain` Kafka Streams' describe() text, for `image/svg+xml` a
    picture of it.
    """
    kind = accepts(request, "application/json", "text/plain", SVG)
    topology = request.state.catalog.read(jobs.get_job, job).topology
    if kind == "text/plain":
        return PlainTextResponse(describe(Topology.from_json(topology)))
    if kind == SVG:
        return Response(picture(Topology.from_json(topology)), media_type=SVG, headers=STYLE_ALONE)
    return answer(topology | {"layout": places(Topology.from_json(topology))} if layout else topology)


@router.get(
    "/v1/jobs/{job:name}/tasks", responses={200: {"model": PageView[JobTaskView]}, **declared(401, 403, 404, 422)}
)
def list_tasks(request: Request, job: str, _: Reader, limit: Limit = 1000, cursor: Cursor = None) -> Response:
    """List a job's tasks: owner, epoch, positions."""
    found = request.state.catalog.read(_tasks, job)
    return answer(short_page(found, lambda task: str(task["task"]), limit=limit, cursor=cursor))


@router.get("/v1/jobs/{job:name}/dropped", responses={200: {"model": DroppedView}, **declared(401, 403, 404, 422)})
def list_dropped(request: Request, job: str, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """Count dropped records by operator and reason; with `keep_dropped` the records are in `stream`."""
    items, stream = request.state.catalog.read(_dropped, job)
    counts = short_page(items, lambda count: f"{count['operator']}/{count['reason']}", limit=limit, cursor=cursor)
    return answer({**counts, "stream": stream})


@router.get(
    "/v1/jobs/{job:name}/errors", responses={200: {"model": PageView[TransitionView]}, **declared(401, 403, 404, 422)}
)
def list_job_errors(request: Request, job: str, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List why a job failed, latest first: operator, partition, offset, error."""
    return answer(request.state.catalog.read(_transitions, job, limit, cursor, errors_only=True))


@router.get(
    "/v1/jobs/{job:name}/history", responses={200: {"model": PageView[TransitionView]}, **declared(401, 403, 404, 422)}
)
def list_job_history(request: Request, job: str, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List a job's changes, latest first, of state and specification, resets, flushes, replays, skips: why, by whom."""
    return answer(request.state.catalog.read(_transitions, job, limit, cursor))


# ---------------------------------------------------------------- in a transaction


def _views(s: Session, limit: int, after: str | None, state: str | None) -> list[dict[str, Any]]:
    return job_views(s, jobs.list_jobs(s, limit=limit, after=after, state=state))


def _change_spec(s: Session, name: str, tag: str, change: JobChange, who: str) -> dict[str, Any]:
    job = job_states.lock_job(s, name=name)
    before = JobSpec.parse(job.spec)
    if change.needs_stop(before):
        job_states.require_changeable(job)
    require_tag(job, tag)
    spec = change.applied_to(before)
    counts = {source.name: source.partitions for source in jobs.streams_of(s, job.id, "source")}
    try:
        made = Topology.from_json(job.topology)
        topology = graph.over_same_stores(graph.compile_again(spec, counts, before, made), made)
    except InvalidSpec as error:  # a sink is where dropped records would go: nothing else of it is changed here
        raise InvalidSpec([Problem("/keep_dropped", each.detail) for each in error.errors]) from error
    reason, details = f"changed: {change.to_text()}", change.to_json()
    coordinator.change_spec(s, job, spec, topology, reason=reason, who=who, details=details)
    return find_job_view(s, name)


def _tasks(s: Session, name: str) -> list[dict[str, Any]]:
    found = jobs.tasks_of(s, jobs.get_job(s, name).id)
    return [{**task, "stream_time": task["stream_time"] if task["stream_time"] >= 0 else None} for task in found]


def _dropped(s: Session, name: str) -> tuple[list[dict[str, Any]], str | None]:
    job = jobs.get_job(s, name)
    counters = jobs.metrics(s, job.id)
    counted, missed = counters.get("dropped", {}), counters.get("missed_by_ms", {})
    items = [
        {
            "operator": operator,
            "reason": reason,
            "records": records,
            "missed": _missed(missed.get(operator, {}).get(reason)),
        }
        for operator, reasons in sorted(counted.items())
        for reason, records in sorted(reasons.items())
    ]
    streams = (sub_topology["dropped"] for sub_topology in job.topology["sub_topologies"])
    return items, next((stream for stream in streams if stream is not None), None)


def _missed(figures: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if figures is None:
        return None
    bounds = [(str(bound), bound) for bound in BOUNDS] + [(BEYOND, None)]
    below = figures["below"]
    return {
        "records": figures["count"],
        "max_ms": figures["max"],
        "average_ms": figures["sum"] / figures["count"],
        "below": [{"ms": ms, "records": below[name]} for name, ms in bounds if name in below],
    }


def _transitions(s: Session, name: str, limit: int, cursor: str | None, *, errors_only: bool = False) -> dict[str, Any]:
    job_id = jobs.get_job(s, name).id
    of = f"{'errors' if errors_only else 'history'}/{job_id}"
    before = first_row(of, cursor)
    rows = jobs.transitions_of(s, job_id, errors_only=errors_only, limit=limit + 1, before=before)
    return rows_page(of, rows, _shown, limit=limit)


def _shown(row: JobTransitionRow) -> dict[str, Any]:
    return {
        "at": datetime.fromtimestamp(row.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "from_state": row.from_state,
        "to_state": row.to_state,
        "reason": row.reason,
        "who": row.who,
        "error": row.error,
        "kind": row.kind,
        "details": row.details,
    }
