"""Jobs over HTTP: submit, look, wait, pause, stop, delete, simulate.

Knows the shapes of requests and answers. Refuses to know states and their order (`service.catalog.job_states`) and what
a specification means (`service.streams.topology`).
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from service import coordinator
from service.api.bodies import (
    UNCHANGED,
    accepts,
    answer,
    expected_etag,
    json_bytes,
    page,
    read_json,
    read_model,
    tagged,
)
from service.api.document import takes
from service.api.models import Cursor, Limit, PageView, first_row, require_name, rows_page, short_page
from service.auth import MAY, Admin, Reader, Writer
from service.catalog import job_creation, job_states, jobs, segments, start_positions, streams
from service.catalog.engine import progress_topic
from service.catalog.tables import JobRow, JobTransitionRow
from service.problems import ProblemError, Refusal, declared
from service.simulate import BareSimulateRequest, SimulateRequest
from service.storage.segments import offsets_of, part_of
from service.streams.errors import InvalidSpec, Problem, StaleTag
from service.streams.operators.fields import JOB_NAME
from service.streams.records import Chunk
from service.streams.topology import graph
from service.streams.topology.change import JobChange
from service.streams.topology.complaints import errors_below, pointer
from service.streams.topology.describe import describe
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec

router = APIRouter(tags=["jobs"])

ENDED = frozenset({job_states.FAILED, job_states.STOPPED})  # nothing more comes
SMALL_SIMULATION_BYTES = 256 << 10  # what a reader may ask for
LOOK_AGAIN_S = 1.0  # at least this often while waiting, should a wake-up of another process be lost
EXAMPLE = {
    "name": "unique_clicks",
    "source": "clicks",
    "operators": [
        {"op": "filter", "where": "value->>'kind' = 'click'"},
        {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 600_000},
    ],
    "sink": "clicks-once",
}


JobState = Literal["starting", "running", "rebalancing", "paused", "draining", "stopped", "failed"]


class JobPositionView(BaseModel):
    """The job's position in one partition of a source."""

    stream: str
    partition: int
    position: int
    end: int
    lag: int


class JobView(BaseModel):
    """A job as it stands, from one snapshot of the catalog."""

    id: str
    name: str
    state: JobState
    reason: str
    spec: dict[str, Any]
    positions: list[JobPositionView]
    caught_up: Annotated[bool, Field(description="Every position is at its end, and every replica has applied it.")]
    stream_time: int | None
    error: dict[str, Any] | None
    generation: int
    is_flushing: Annotated[bool, Field(description="A flush was asked for and is not done.")]
    is_replaying: Annotated[bool, Field(description="Dropped records are still to be taken in again.")]
    stores: list[str]
    version: Annotated[int, Field(description="Rises with every change of state or specification.")]
    created_at: str


class CompiledView(BaseModel):
    """A specification with its defaults, and its topology."""

    spec: dict[str, Any]
    topology: dict[str, Any]


class SimulationView(BaseModel):
    """Outputs in the order in which operators forwarded them, entries of stores, dropped records."""

    outputs: list[dict[str, Any]]
    stores: dict[str, list[dict[str, Any]]]
    dropped: list[dict[str, Any]]
    stream_time: dict[str, int]


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
        dict[str, int] | None, Field(description="How far it replays dropped records: `position`, `end`.")
    ]
    advanced: Annotated[dict[str, Any] | None, Field(description="The last time that closing moved stream time.")]
    positions: list[JobPositionView]


class DroppedCountView(BaseModel):
    """Records that an operator dropped for one reason, since the job was made."""

    operator: str
    reason: str
    records: int


class DroppedView(PageView[DroppedCountView]):
    """Dropped records of a job, counted by operator and reason."""

    stream: Annotated[str | None, Field(description="Where the records are; null: the job does not keep them.")]


class TransitionView(BaseModel):
    """A change of state."""

    at: str
    from_state: str | None
    to_state: str
    reason: str
    who: str
    error: dict[str, Any] | None


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


class ValidateRequest(BaseModel, extra="forbid"):
    """A job to compile, as `:simulate` takes it."""

    job: JobSpec


class SkipRequest(BaseModel, extra="forbid"):
    """The record to pass over; `stream` may be left out where the job has one source."""

    partition: Annotated[int, Field(ge=0, lt=2**31, strict=True)]
    offset: Annotated[int, Field(ge=0, lt=2**63, strict=True)]
    stream: str | None = None


# ---------------------------------------------------------------- before there is one


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
    "/v1/jobs:simulate",
    responses={200: {"model": SimulationView}, **declared(400, 401, 403, 413, 415, 422, 429)},
    openapi_extra=takes(
        SimulateRequest,
        {
            "job": {"operators": [{"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000}]},
            "records": [
                {"key": "u1", "value": {"id": "a"}, "timestamp": 1_700_000_000_000},
                {"key": "u1", "value": {"id": "a"}, "timestamp": 1_700_000_001_000},
            ],
        },
        other=BareSimulateRequest,
    ),
)
async def simulate_job(request: Request, caller: Reader) -> Response:
    """Run operators over the records of the request: no Spark, nothing kept.

    The job is the member `job`, or its members stand beside the records.

    At most 100,000 records; more than 256 KiB need the role writer. An answer has at most 100,000 outputs, dropped
    records and entries of stores, of 64 MiB, and is made within 30 s and 1 GiB of memory. What passes that is refused
    while it runs. Two simulations run at once; others wait 10 s for their turn, then they are refused (429).
    """
    body = await json_bytes(request)
    if len(body) > SMALL_SIMULATION_BYTES and caller.role not in MAY["writer"]:
        detail = f"a simulation of more than {SMALL_SIMULATION_BYTES} bytes needs the role writer"
        raise ProblemError(403, "forbidden", f"{detail}; the key has the role {caller.role}")
    found = await request.state.simulations.run(body)
    return found.answer(request) if isinstance(found, Refusal) else Response(found, media_type="application/json")


@router.post(
    "/v1/jobs",
    status_code=201,
    responses={
        200: {"model": JobView, "description": "An equal job was there already"},
        201: {"model": JobView},
        **declared(400, 401, 403, 409, 413, 415, 422),
    },
    openapi_extra=takes(JobSpec, EXAMPLE),
)
async def create_job(request: Request, caller: Writer, waiting: Annotated[Waiting, Query()]) -> Response:
    """Make a job and start it."""
    spec = JobSpec.parse(await read_json(request))
    view, is_new = await run_in_threadpool(_create, request, spec, caller.name)
    if waiting.wait:
        view = await _settled(request, spec.name, waiting)
    return answer(view, 201 if is_new else 200, headers={"Location": f"/v1/jobs/{spec.name}"})


# ---------------------------------------------------------------- looking


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


@router.get("/v1/jobs/{job:name}", responses={200: {"model": JobView}, **UNCHANGED, **declared(401, 403, 404, 422)})
async def get_job(
    request: Request,
    job: str,
    _: Reader,
    waiting: Annotated[Waiting, Query()],
) -> Response:
    """Show a job; with `wait` when it is so, or when nothing more comes: it failed, stopped, or time is up."""
    return _tagged(request, await _settled(request, job, waiting))


@router.patch(
    "/v1/jobs/{job:name}",
    responses={200: {"model": JobView}, **declared(400, 401, 403, 404, 409, 412, 413, 415, 422, 428)},
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
    return _tagged(request, view)


@router.get(
    "/v1/jobs/{job:name}/topology",
    responses={
        200: {"content": {"application/json": {}, "text/plain": {}}, "description": "As JSON, or as describe() text"},
        **declared(401, 403, 404, 406),
    },
)
def get_topology(request: Request, job: str, _: Reader) -> Response:
    """Show a job's topology: JSON, or Kafka Streams' describe() text for `Accept: text/plain`."""
    kind = accepts(request, "application/json", "text/plain")
    topology = request.state.catalog.read(jobs.get_job, job).topology
    if kind == "text/plain":
        return PlainTextResponse(describe(Topology.from_json(topology)))
    return answer(topology)


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
    """List a job's changes of state, latest first: why, and by whom."""
    return answer(request.state.catalog.read(_transitions, job, limit, cursor))


# ---------------------------------------------------------------- verbs

VERB: dict[str, Any] = {"responses": {200: {"model": JobView}, **declared(401, 403, 404, 409, 422)}}


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
    responses={200: {"model": JobView}, **declared(400, 401, 403, 404, 409, 413, 415, 422)},
    openapi_extra=takes(SkipRequest, {"partition": 0, "offset": 4711}),
)
async def skip_record(request: Request, job: str, _: Admin) -> Response:
    """Let a failed job pass over one record; it runs again after `:restart`."""
    wanted = await read_model(request, SkipRequest)
    view = await run_in_threadpool(request.state.catalog.write, _skip, job, wanted)
    return _tagged(request, view)


@router.delete("/v1/jobs/{job:name}", status_code=204, responses=declared(401, 403, 404, 409, 422))
async def delete_job(request: Request, job: str, _: Writer, waiting: Annotated[WaitingForStop, Query()]) -> Response:
    """Delete a stopped job with its stores and internal streams; its sinks stay. One that drains can be waited for."""
    if waiting.wait:
        await _until_settled(request, job, waiting.wait, waiting.timeout_ms)
    await run_in_threadpool(request.state.catalog.write, job_creation.delete_job, job)
    return Response(status_code=204)


async def _ask(
    request: Request, job: str, waiting: Waiting, work: Callable[..., dict[str, Any]], *how: str
) -> Response:
    """Do what a verb says, then wait for what comes of it."""
    view = await run_in_threadpool(request.state.catalog.write, work, job, *how)
    return _tagged(request, await _settled(request, job, waiting) if waiting.wait else view)


async def _settled(request: Request, job: str, waiting: Waiting) -> dict[str, Any]:
    """The job, when it is what is waited for."""
    if waiting.wait:
        await _until_settled(request, job, waiting.wait, waiting.timeout_ms)
    view: dict[str, Any] = await run_in_threadpool(request.state.catalog.read, _view_of, job)
    return view


async def _until_settled(request: Request, job: str, wanted: str, timeout_ms: int) -> None:
    catalog, hub = request.state.catalog, request.state.hub
    until = time.monotonic() + timeout_ms / 1000
    while True:
        seen = hub.seen
        job_id, is_settled = await run_in_threadpool(catalog.read, _is_settled, job, wanted)
        left = until - time.monotonic()
        if is_settled or left <= 0 or hub.is_closed:
            return
        await hub.wait([progress_topic(job_id)], seen, min(left, LOOK_AGAIN_S))


def _only_job(body: dict[str, Any]) -> object:
    """The one member of a body. 422 where others stand beside it."""
    if others := [name for name in body if name != "job"]:
        items = [{"pointer": pointer(name), "detail": "is not a known field beside job"} for name in others]
        raise ProblemError(422, "invalid_spec", items[0]["detail"], items)
    return body["job"]


# ---------------------------------------------------------------- in a transaction


def _is_settled(s: Session, name: str, wanted: str) -> tuple[str, bool]:
    """A job's id, and whether it is what is waited for, or nothing more comes."""
    job = jobs.get_job(s, name)
    is_so = jobs.is_caught_up(s, job.id) if wanted == "caught_up" else job.state == wanted
    return job.id, is_so or job.state in ENDED


def _compile(s: Session, spec: JobSpec) -> Topology:
    found = {name: streams.find_stream(s, name) for name in spec.sources}
    known = {name: stream for name, stream in found.items() if stream is not None}
    if logs := [name for name, stream in known.items() if stream.kind == "changelog"]:
        raise InvalidSpec([Problem("/source", f"{name!r} is a changelog: its entries are no records") for name in logs])
    custom = {name for name, stream in known.items() if stream.custom_partitioning}
    topology = graph.compile(spec, {name: stream.partitions for name, stream in known.items()}, custom)
    graph.require_one_sub_topology(spec, topology)
    return topology


def _validate(s: Session, spec: JobSpec) -> Topology:
    topology = _compile(s, spec)
    job_creation.find_equal(s, spec, topology)
    return topology


def _create(request: Request, spec: JobSpec, who: str) -> tuple[dict[str, Any], bool]:
    start = _start_at_timestamp(request, spec)
    made: tuple[dict[str, Any], bool] = request.state.catalog.write(_submit, spec, who, start)
    return made


def _submit(s: Session, spec: JobSpec, who: str, start: job_creation.Start) -> tuple[dict[str, Any], bool]:
    job, is_new = job_creation.create_job(s, spec, _compile(s, spec), who=who, start=start)
    return _view(s, job), is_new


def _start_at_timestamp(request: Request, spec: JobSpec) -> dict[tuple[str, int], int]:
    """The first record of each partition from a timestamp on; the catalog alone knows only its chunk."""
    timestamp = getattr(spec.start, "timestamp", None)
    if timestamp is None:
        return {}
    found = {}
    for name, partition, chunk in request.state.catalog.read(_chunks_at, spec, timestamp):
        part = part_of(chunk, request.state.storage.read_chunk(chunk), chunk.first_offset)
        row = int((part.records.column("timestamp").to_numpy() >= timestamp).argmax())
        found[name, partition] = int(offsets_of(part)[row])
    return found


def _chunks_at(s: Session, spec: JobSpec, timestamp: int) -> list[tuple[str, int, Chunk]]:
    found = []
    for name in spec.sources:
        stream = streams.find_stream(s, name)
        for partition in range(stream.partitions if stream is not None else 0):
            first = start_positions.chunk_at_timestamp(s, stream.id, partition, timestamp)  # type: ignore[union-attr]
            if first is not None:
                chunk = segments.chunks_from(s, stream.id, partition, first, 1).chunks[0]  # type: ignore[union-attr]
                found.append((name, partition, chunk))
    return found


def _change(s: Session, name: str, verb: str, who: str) -> dict[str, Any]:
    coordinator.change_job(s, name, verb, who=who)
    return _view_of(s, name)


def _change_spec(s: Session, name: str, tag: str, change: JobChange, who: str) -> dict[str, Any]:
    job = job_states.lock_job(s, name=name)
    before = JobSpec.parse(job.spec)
    if change.needs_stop(before):
        job_states.require_changeable(job)
    if tag.rpartition("-")[0] != _version(job.id, job.etag):
        raise StaleTag(name)
    spec = change.applied_to(before)
    counts = {source.name: source.partitions for source in jobs.streams_of(s, job.id, "source")}
    try:
        topology = graph.compile(spec, counts)  # who chose partitions since it was made is no reason to refuse this
    except InvalidSpec as error:  # a sink is where dropped records would go: nothing else of it is changed here
        raise InvalidSpec([Problem("/keep_dropped", each.detail) for each in error.errors]) from error
    coordinator.change_spec(s, job, spec, topology, reason=f"changed: {change.to_text()}", who=who)
    return _view_of(s, name)


def _flush(s: Session, name: str, who: str) -> dict[str, Any]:
    job_states.flush_job(s, name, who=who)
    return _view_of(s, name)


def _skip(s: Session, name: str, wanted: SkipRequest) -> dict[str, Any]:
    job_states.skip_record(s, name, partition=wanted.partition, offset=wanted.offset, stream=wanted.stream)
    return _view_of(s, name)


def _tagged(request: Request, view: dict[str, Any]) -> Response:
    return tagged(request, view, _version(view["id"], view["version"]))


def _version(job_id: str, version: int) -> str:
    """The part of a job's entity tag that only requests change; a job made again under the name has another."""
    return f"{job_id[:12]}-{version}"


def _view_of(s: Session, name: str) -> dict[str, Any]:
    return _view(s, jobs.get_job(s, name))


def _views(s: Session, limit: int, after: str | None, state: str | None) -> list[dict[str, Any]]:
    return [_view(s, job) for job in jobs.list_jobs(s, limit=limit, after=after, state=state)]


def _view(s: Session, job: JobRow) -> dict[str, Any]:
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
        "is_flushing": jobs.is_flushing(s, job.id),
        "is_replaying": jobs.is_replaying(s, job.id),
        "stores": [store.name for store in jobs.stores_of(s, job.id)],
        "version": job.etag,
        "created_at": job.created_at.isoformat(),
    }


def _tasks(s: Session, name: str) -> list[dict[str, Any]]:
    found = jobs.tasks_of(s, jobs.get_job(s, name).id)
    return [{**task, "stream_time": task["stream_time"] if task["stream_time"] >= 0 else None} for task in found]


def _dropped(s: Session, name: str) -> tuple[list[dict[str, Any]], str | None]:
    job = jobs.get_job(s, name)
    counted = jobs.metrics(s, job.id).get("dropped", {})
    items = [
        {"operator": operator, "reason": reason, "records": records}
        for operator, reasons in sorted(counted.items())
        for reason, records in sorted(reasons.items())
    ]
    streams = (sub_topology["dropped"] for sub_topology in job.topology["sub_topologies"])
    return items, next((stream for stream in streams if stream is not None), None)


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
    }
