"""Versions of jobs over HTTP: change one with its state, go back to a former version, list them, look into one.

Knows the shapes of requests and answers. Refuses to know what a change means (`service.streams.topology.versions`) and
which rows are kept (`service.catalog.job_versions`).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

from fastapi import Header, Path, Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service import coordinator
from service.api.bodies import ETAG, UNCHANGED, answer, expected_etag, read_json, tagged, with_tag
from service.api.document import router_of, takes
from service.api.job_creation import EXAMPLE, CreatedJobView
from service.api.job_views import find_job_view, require_tag, tagged_job
from service.api.job_waiting import Waiting, settled_job
from service.api.models import MAX_ROW_ID, Cursor, Limit, PageView, first_row
from service.api.moments import Moment
from service.api.start_records import first_records
from service.api.topology_views import TopologyView
from service.auth import Reader, Writer
from service.catalog import job_changes, job_creation, job_states, job_versions, jobs
from service.catalog.job_changes import BufferBound
from service.catalog.shared_sinks import shared_sinks
from service.catalog.start_positions import FirstRecords
from service.catalog.tables import JobRow, JobVersionRow
from service.faults import fault_point
from service.lookups import Lookups
from service.positions import RowCursor, opaque
from service.problems import ProblemItemView, declared
from service.streams.errors import IncompatibleChange, Problem, StoreNotReadable
from service.streams.operators.fields import OperatorName, Spec
from service.streams.topology import versions
from service.streams.topology.complaints import pointer, validated
from service.streams.topology.spec import MAX_OPERATORS, JobSpec
from service.streams.topology.starts import Start
from service.streams.topology.versions import LeftStore

router = router_of("jobs")


class ChangeRequest(JobSpec):
    """A whole specification of a job that is there, under its name, and what the names in it do not say."""

    renames: Annotated[
        dict[OperatorName, OperatorName],
        Field(max_length=MAX_OPERATORS, default_factory=dict, description="Operators with stores: former name → name."),
    ]
    restart: Annotated[
        list[OperatorName],
        Field(
            max_length=MAX_OPERATORS,
            default_factory=list,
            description="Operators whose stores begin empty, at the stream time of each task.",
        ),
    ]


class RollbackRequest(Spec):
    """The version to go back to; `restart` as in a change."""

    version: Annotated[int, Field(ge=1, le=MAX_ROW_ID)]
    restart: Annotated[list[OperatorName], Field(max_length=MAX_OPERATORS, default_factory=list)]


class OperatorVerdictView(BaseModel):
    """What a change means for an operator and its store."""

    operator: str
    op: str
    former: Annotated[str | None, Field(description="The operator of the version before; null: it is a new one.")]
    store: Annotated[str | None, Field(description="What it keeps, or kept; null: nothing.")]
    verdict: versions.OperatorVerdict
    detail: str
    open_windows: Annotated[
        int | None,
        Field(
            description="In a dry run, of one that begins empty and waits for windows to close: how many windows were "
            "begun before it, and come out only if they change again. Null: none are meant, or `detail` says why it is "
            "not known; not more than were counted in 2 s."
        ),
    ] = None


class SinkVerdictView(BaseModel):
    """What a change means for the records of a sink."""

    stream: str
    verdict: versions.SinkVerdict
    detail: str


class SourceVerdictView(BaseModel):
    """What a change means for the records of a source."""

    stream: str
    verdict: versions.SourceVerdict
    detail: str


class ChangeVerdictView(BaseModel):
    """What a change would mean; nothing is changed."""

    version: Annotated[int, Field(description="What it would be called.")]
    spec: Annotated[JobSpec, Field(description="The specification that it would have, with its defaults.")]
    is_possible: bool
    operators: list[OperatorVerdictView]
    sinks: list[SinkVerdictView]
    sources: list[SourceVerdictView]
    errors: Annotated[list[ProblemItemView], Field(description="Why it is not possible, each with a way out.")]
    warnings: Annotated[
        list[ProblemItemView], Field(description="Sinks it begins to write that others wrote or write.")
    ]


class JobVersionView(BaseModel):
    """A version of a job, present or former."""

    version: int
    is_present: bool
    at: Moment
    who: str
    kind: Annotated[job_versions.Kind, Field(description="What made it.")]
    reason: str
    operators: Annotated[list[OperatorVerdictView], Field(description="What it meant for each operator, of a change.")]
    sinks: Annotated[list[SinkVerdictView], Field(description="What it meant for the records of sinks, of a change.")]


class JobVersionSpecView(JobVersionView):
    """A version of a job with its specification and topology."""

    spec: JobSpec
    topology: TopologyView


CHANGED: dict[int | str, dict[str, Any]] = {
    200: {
        "model": CreatedJobView | ChangeVerdictView,
        "description": "It is that version; or what it would mean (`dry_run`), without an ETag",
        "headers": {"ETag": {**ETAG["ETag"], "required": False}},
    },
    202: {**with_tag(CreatedJobView), "description": "It becomes that version as soon as what is on its way is read"},
    **declared(400, 401, 403, 404, 409, 412, 413, 415, 422, 428),
}
IfMatch = Annotated[str | None, Header(alias="If-Match", description="The ETag of what is changed.")]
DryRun = Annotated[bool, Query(description="Say what it would mean, and change nothing.")]


@router.put("/v1/jobs/{job:name}", responses=CHANGED, openapi_extra=takes(ChangeRequest, EXAMPLE))
async def put_job(
    request: Request,
    job: str,
    caller: Writer,
    waiting: Annotated[Waiting, Query()],
    dry_run: DryRun = False,
    _if_match: IfMatch = None,
) -> Response:
    """Give a job another specification, over the same stores and positions: nothing is read or written twice.

    At once, where nothing is on its way through the job; else it reads what is there (state `changing`), and becomes
    the new version then. What its stores can not bear is refused, each with a way out, and changes nothing.
    """
    tag = expected_etag(request)
    asked = ChangeRequest.parse(await read_json(request))
    wanted = _Wanted("put", "changed", asked.renames, asked.restart)
    spec = JobSpec.parse(asked.model_dump(mode="json", exclude={"renames", "restart"}))
    return await _ask(request, job, tag, waiting, caller.name, lambda s, found: (spec, wanted), dry_run=dry_run)


@router.post("/v1/jobs/{job:name}:rollback", responses=CHANGED, openapi_extra=takes(RollbackRequest, {"version": 1}))
async def roll_back_job(
    request: Request,
    job: str,
    caller: Writer,
    waiting: Annotated[Waiting, Query()],
    dry_run: DryRun = False,
    _if_match: IfMatch = None,
) -> Response:
    """Give a job the specification of a former version, over its stores as they are: a new version, as with `PUT`."""
    tag = expected_etag(request)
    asked = validated(RollbackRequest, await read_json(request))
    chosen = partial(_former, asked=asked)
    return await _ask(request, job, tag, waiting, caller.name, chosen, dry_run=dry_run)


@router.get(
    "/v1/jobs/{job:name}/versions", responses={200: {"model": PageView[JobVersionView]}, **declared(401, 403, 404, 422)}
)
def list_job_versions(request: Request, job: str, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List a job's versions, latest first: when, by whom, what changed."""
    return answer(request.state.catalog.read(_versions, job, limit, cursor))


@router.get(
    "/v1/jobs/{job:name}/versions/{version}",
    responses={200: with_tag(JobVersionSpecView), **UNCHANGED, **declared(401, 403, 404, 422)},
)
def get_job_version(
    request: Request, job: str, version: Annotated[int, Path(ge=1, le=MAX_ROW_ID)], _: Reader
) -> Response:
    """Show a version of a job with its specification: what `:rollback` would go back to."""
    return tagged(request, request.state.catalog.read(_version, job, version))


class _Wanted(NamedTuple):
    """How a specification was asked for."""

    kind: job_versions.Kind
    reason: str
    renames: Mapping[str, str]
    restart: Sequence[str]
    left: Mapping[str, LeftStore] = MappingProxyType({})

    def compared(self, s: Session, job: JobRow, spec: JobSpec) -> versions.Comparison:
        """What it means for a job. Raises InvalidSpec."""
        return job_changes.compare(s, job, spec, renames=self.renames, restart=self.restart, left=self.left)


Choose = Callable[[Session, JobRow], tuple[JobSpec, _Wanted]]


async def _ask(
    request: Request, job: str, tag: str, waiting: Waiting, who: str, choose: Choose, *, dry_run: bool
) -> Response:
    """Change a job, or say what that would mean."""
    catalog = request.state.catalog
    if dry_run:
        view, unseen = await run_in_threadpool(catalog.read, _compare, job, tag, choose)
        for operator in view["operators"]:
            if operator["operator"] in unseen:
                operator |= await _open_windows(request.state.lookups, operator, unseen[operator["operator"]])
        return answer(view)
    view = await run_in_threadpool(_write_change, request, job, tag, choose, who)
    fault_point("change.after")
    if waiting.wait:
        view = {**view, **await settled_job(request, job, waiting)}
    shown = tagged_job(request, view)
    shown.status_code = 202 if view["state"] == job_states.CHANGING else shown.status_code
    return shown


def _write_change(request: Request, job: str, tag: str, choose: Choose, who: str) -> dict[str, Any]:
    """Change a job; where sources that are added begin at a timestamp, their first records are looked for before."""
    catalog = request.state.catalog
    records = first_records(request, *catalog.read(_added_sources, job, tag, choose))
    view: dict[str, Any] = catalog.write(_change, job, tag, choose, who, records)
    return view


async def _open_windows(lookups: Lookups, operator: Mapping[str, Any], store: str) -> dict[str, Any]:
    """What a verdict says besides, of an operator that has not seen how the open windows of a store were begun."""
    try:
        found = await lookups.reader.count_open(await lookups.stores.as_of_now(store))
    except StoreNotReadable as error:
        return {"detail": f"{operator['detail']}; how many windows are open in {store!r} is not known: {error.reason}"}
    count = f"{found.number}" if found.is_all else f"at least {found.number}"
    detail = f"of {count} window(s) open in {store!r} nothing comes out unless they change again"
    return {"detail": f"{operator['detail']}; {detail}", "open_windows": found.number}


# ---------------------------------------------------------------- in a transaction


def _former(s: Session, job: JobRow, asked: RollbackRequest) -> tuple[JobSpec, _Wanted]:
    """The specification of a former version, and what its operators are called now."""
    row = job_versions.get_version(s, job, asked.version)
    names = job_versions.former_names(s, job.id, asked.version, [store.operator for store in jobs.stores_of(s, job.id)])
    renames = {now: was for now, was in names.items() if now != was}
    left, reason = job_changes.left_stores(s, job, asked.version), f"rollback to version {asked.version}"
    return JobSpec.parse(row.spec), _Wanted("rollback", reason, renames, asked.restart, left)


def _compare(s: Session, name: str, tag: str, choose: Choose) -> tuple[dict[str, Any], dict[str, str]]:
    """The verdicts, and by operator the store whose open windows it has not seen."""
    job = jobs.get_job(s, name)
    require_tag(job, tag)
    spec, wanted = choose(s, job)
    found = wanted.compared(s, job, spec)
    tasks = jobs.task_rows(s, job.id)
    full = job_changes.too_full(jobs.stores_of(s, job.id), tasks, job_changes.bounds_of(found))
    problems = [*found.problems, *_over(spec, wanted, found, full)]
    view = {
        "version": job.spec_version + 1,
        "spec": spec.to_json(),
        "is_possible": not problems,
        "operators": [asdict(each) for each in found.operators],
        "sinks": [asdict(each) for each in found.sinks],
        "sources": [asdict(each) for each in found.sources],
        "errors": [asdict(each) for each in problems],
        "warnings": [asdict(each) for each in shared_sinks(s, spec, job)],
    }
    return view, found.unseen


def _added_sources(s: Session, name: str, tag: str, choose: Choose) -> tuple[list[str], Start]:
    """The sources that a job has not read so far, and where it begins to."""
    job = jobs.get_job(s, name)
    require_tag(job, tag)
    spec, _ = choose(s, job)
    had = {stream.name for stream in jobs.streams_of(s, job.id, "source")}
    return [source for source in spec.sources if source not in had], spec.start


def _change(s: Session, name: str, tag: str, choose: Choose, who: str, records: FirstRecords) -> dict[str, Any]:
    job = job_states.lock_job(s, name=name)
    require_tag(job, tag)
    spec, wanted = choose(s, job)
    if job_creation.has_spec(job, spec) and not wanted.restart:
        return find_job_view(s, name)
    if spec.parallelism != job.parallelism:
        job_states.require_changeable(job)
    found = wanted.compared(s, job, spec)
    if found.problems:
        raise IncompatibleChange(found.problems)
    job_creation.require_user_sinks(s, spec)
    warnings = [asdict(each) for each in shared_sinks(s, spec, job)]
    how = {name: value for name, value in wanted._asdict().items() if name != "left"}
    asked = job_changes.wanted(s, job, spec, found, who=who, records=records, **how)
    full = coordinator.change_version(s, job, asked)
    if full:
        raise IncompatibleChange(_over(spec, wanted, found, full))
    s.flush()
    view = find_job_view(s, name)
    return {**view, "warnings": warnings} if warnings else view


def _over(spec: JobSpec, wanted: _Wanted, found: versions.Comparison, full: Iterable[BufferBound]) -> list[Problem]:
    """Bounds that buffers are over, as problems of the operators that have, or had, these buffers."""
    operators = {each.store: each for each in found.operators if each.store is not None}
    now = {was: name for name, was in found.inherited.items()}
    formers = {f"{spec.name}-{was}": name for was, name in now.items()}
    problems = []
    for bound in full:
        name = formers.get(bound.store) or (operators[bound.store].operator if bound.store in operators else "")
        place = spec.operator_names.index(name) if name in spec.operator_names else None
        at = "/operators" if place is None else pointer("operators", place)
        problems.append(Problem(at, f"{bound.detail}; `:flush` the job, or let the buffer empty, and ask again"))
    return problems


def _versions(s: Session, name: str, limit: int, cursor: str | None) -> dict[str, Any]:
    job = jobs.get_job(s, name)
    of = f"versions/{job.id}"
    rows = job_versions.versions_of(s, job.id, limit=limit + 1, before=first_row(of, cursor))
    following = opaque(RowCursor(of, rows[limit - 1].version)) if len(rows) > limit else None
    return {"items": [_shown(job, row) for row in rows[:limit]], "next": following}


def _version(s: Session, name: str, version: int) -> dict[str, Any]:
    job = jobs.get_job(s, name)
    row = job_versions.get_version(s, job, version)
    return {**_shown(job, row), "spec": row.spec, "topology": row.topology}


def _shown(job: JobRow, row: JobVersionRow) -> dict[str, Any]:
    details = row.details or {}
    return {
        "version": row.version,
        "is_present": row.version == job.spec_version,
        "at": datetime.fromtimestamp(row.at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
        "who": row.who,
        "kind": row.kind,
        "reason": row.reason,
        "operators": details.get("operators", []),
        "sinks": details.get("sinks", []),
    }
