"""The overview over HTTP: what all jobs and streams of users do now, since when, and beside what they did a day ago.

Knows the shape of the answer. Refuses to know what of it needs somebody: whoever asks judges that.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import answer
from service.api.document import router_of
from service.auth import Reader
from service.catalog import samples
from service.catalog.engine import now_ms
from service.catalog.recently import JobChanges, changes_since
from service.catalog.tables import JobRow, StreamRow
from service.marks import DAY_MS, DROPPED
from service.problems import declared
from service.series import HOUR_MS, MINUTE_MS, FigureSample

router = router_of("operations")

JOB_TOTALS: Final = ("records_in", "records_out", "dropped")


class DropTotalView(BaseModel):
    """Records that an operator dropped for one reason."""

    operator: str
    reason: Annotated[str, Field(description="Why, as in `…/dropped`.")]
    records: Annotated[int, Field(description="How many.")]


class JobHourView(BaseModel):
    """What a job did in an hour, and how it stood at the end of it."""

    records_in: Annotated[int, Field(description="Records read of users' streams.")]
    records_out: Annotated[int, Field(description="Records given out.")]
    dropped: Annotated[int, Field(description="Records dropped.")]
    dropped_by: Annotated[list[DropTotalView], Field(description="The same by operator and reason, the most first.")]
    lag: Annotated[int | None, Field(description="Records that were there and not read.")]
    store_bytes: Annotated[int | None, Field(description="Bytes of its stores; null: not known.")]


class JobChangesView(BaseModel):
    """What became of a job since the moment that the present is compared with, or in the last 24 hours."""

    is_new: Annotated[bool, Field(description="It was made then.")]
    failures: Annotated[int, Field(description="How often it failed.")]
    failed_ms: Annotated[int | None, Field(description="When it failed last, ms.")]
    starts: Annotated[int, Field(description="How often it was started again.")]
    former_version: Annotated[int | None, Field(description="The version that it had before; null: the present one.")]
    rebalances: Annotated[int, Field(description="How often its tasks were given out anew.")]


class JobOverviewView(BaseModel):
    """A job now, since when, and a day ago."""

    job: str
    records_in_rate: Annotated[float | None, Field(description="Records read a second, over the last minute.")]
    records_out_rate: Annotated[float | None, Field(description="Records given out a second, over the last minute.")]
    dropped_rate: Annotated[float | None, Field(description="Records dropped a second, over the last minute.")]
    busy: Annotated[float | None, Field(description="Seconds of work a second, over the last minute.")]
    behind_since_ms: Annotated[
        int | None, Field(description="Since when it needs longer than 10 s for what is there; null: it does not.")
    ]
    ahead_since_ms: Annotated[
        int | None, Field(description="Since when its stream time is more than a minute ahead of the clock.")
    ]
    dropping_since_ms: Annotated[
        int | None,
        Field(description="Since when it drops records, duplicates apart, with pauses of at most 10 min in between."),
    ]
    dropped_ms: Annotated[int | None, Field(description="When it last did so, ms.")]
    read_ms: Annotated[int | None, Field(description="When it was last seen to have read something, ms.")]
    last_hour: Annotated[JobHourView, Field(description="The last hour, or what is known of it.")]
    before: Annotated[
        JobHourView | None, Field(description="The same hour a day ago, or the first one; null: it was not there.")
    ]
    changes: Annotated[JobChangesView, Field(description="What became of it meanwhile.")]


class StreamOverviewView(BaseModel):
    """A stream of users now, and a day ago."""

    stream: str
    records_rate: Annotated[float | None, Field(description="Records appended a second, over the last minute.")]
    bytes_rate: Annotated[float | None, Field(description="Bytes appended a second, over the last minute.")]
    published_ms: Annotated[int | None, Field(description="When something was last appended, ms; null: never.")]
    usual_pause_ms: Annotated[
        int | None,
        Field(
            description="How long nothing comes at most, usually: the second longest pause of late. Null: not known."
        ),
    ]
    last_hour: Annotated[int, Field(description="Records appended in the last hour.")]
    before: Annotated[int | None, Field(description="The same hour a day ago, or the first one; null: not known.")]


class OverviewView(BaseModel):
    """All jobs and streams of users, by name, as they were sampled last."""

    at_ms: Annotated[int | None, Field(description="When that was, ms; null: never yet, and there is nothing here.")]
    compared_with_ms: Annotated[
        int | None, Field(description="What `before` ends at, ms: a day ago, or later; null: too little is known.")
    ]
    jobs: Annotated[list[JobOverviewView], Field(description="The jobs, by name.")]
    streams: Annotated[list[StreamOverviewView], Field(description="The streams, by name.")]


class Looks(NamedTuple):
    """The samples that say it, and what became of jobs."""

    latest: FigureSample
    minute_ago: FigureSample
    hour_ago: FigureSample
    then: FigureSample | None
    before_then: FigureSample | None
    since_ms: int
    jobs: Mapping[str, tuple[str, int]]  # id → name, when it was made
    streams: Mapping[str, str]
    changes: Mapping[str, JobChanges]


@router.get("/v1/overview", responses={200: {"model": OverviewView}, **declared(401, 403)})
def get_overview(request: Request, _: Reader) -> Response:
    """Show all jobs and streams at once: rates, since when something is so, what changed since yesterday."""
    looks = request.state.catalog.read(_look)
    if looks is None:
        return answer({"at_ms": None, "compared_with_ms": None, "jobs": [], "streams": []})
    return answer(
        {
            "at_ms": looks.latest.at_ms,
            "compared_with_ms": None if looks.then is None else looks.then.at_ms,
            "jobs": [_job(looks, job_id) for job_id in _in_order(looks, "records_in", looks.jobs)],
            "streams": [_stream(looks, stream_id) for stream_id in _in_order(looks, "published_ms", looks.streams)],
        }
    )


def _in_order(looks: Looks, name: str, owners: Mapping[str, object]) -> list[str]:
    """Those that were sampled, as `owners` has them."""
    sampled = frozenset(looks.latest.layout.owners.get(name, ()))
    return [owner for owner in owners if owner in sampled]


def _job(looks: Looks, job_id: str) -> dict[str, Any]:
    latest = looks.latest
    name, made_ms = looks.jobs[job_id]
    changes = looks.changes.get(job_id, JobChanges())
    busy = _rate(looks, "busy_us", job_id)
    return {
        "job": name,
        **{f"{total}_rate": _rate(looks, total, job_id) for total in JOB_TOTALS},
        "busy": None if busy is None else busy / 1e6,
        "behind_since_ms": latest.get("behind_ms", job_id),
        "ahead_since_ms": latest.get("ahead_ms", job_id),
        "dropping_since_ms": latest.get("dropping_ms", job_id),
        "dropped_ms": latest.get("dropped_ms", job_id),
        "read_ms": latest.get("read_ms", job_id),
        "last_hour": _hour(looks.hour_ago, latest, job_id),
        "before": _before(looks, job_id),
        "changes": {
            "is_new": made_ms >= looks.since_ms,
            "failures": changes.failures,
            "failed_ms": changes.failed_ms,
            "starts": changes.starts,
            "former_version": changes.former_version,
            "rebalances": changes.rebalances,
        },
    }


def _before(looks: Looks, job_id: str) -> dict[str, Any] | None:
    if looks.then is None or looks.before_then is None or looks.then.get("records_in", job_id) is None:
        return None
    return _hour(looks.before_then, looks.then, job_id)


def _hour(begin: FigureSample, end: FigureSample, job_id: str) -> dict[str, Any]:
    drops = []
    for name in end.layout.names():
        if name.startswith(DROPPED) and (records := _rise(begin, end, name, job_id)):
            _, operator, reason = name.split("/")
            drops.append({"operator": operator, "reason": reason, "records": records})
    return {
        **{name: _rise(begin, end, name, job_id) for name in JOB_TOTALS},
        "dropped_by": sorted(drops, key=lambda drop: -drop["records"]),
        "lag": end.get("lag", job_id),
        "store_bytes": end.get("store_bytes", job_id),
    }


def _stream(looks: Looks, stream_id: str) -> dict[str, Any]:
    latest, then, before = looks.latest, looks.then, None
    if then is not None and looks.before_then is not None and then.get("appended_records", stream_id) is not None:
        before = _rise(looks.before_then, then, "appended_records", stream_id)
    return {
        "stream": looks.streams[stream_id],
        "records_rate": _rate(looks, "appended_records", stream_id),
        "bytes_rate": _rate(looks, "appended_bytes", stream_id),
        "published_ms": latest.get("published_ms", stream_id),
        "usual_pause_ms": latest.get("usual_pause_ms", stream_id),
        "last_hour": _rise(looks.hour_ago, latest, "appended_records", stream_id),
        "before": before,
    }


def _rise(begin: FigureSample, end: FigureSample, name: str, owner: str) -> int:
    """What a counter rose by; of one that began anew in between, what it has counted since."""
    value, before = end.total(name, owner), begin.total(name, owner)
    return value - before if value >= before else value


def _rate(looks: Looks, name: str, owner: str) -> float | None:
    begin, end = looks.minute_ago, looks.latest
    if begin.at_ms == end.at_ms or end.total(name, owner) < begin.total(name, owner):
        return None
    return (end.total(name, owner) - begin.total(name, owner)) * 1000 / (end.at_ms - begin.at_ms)


# ---------------------------------------------------------------- in a transaction


def _look(s: Session) -> Looks | None:
    now, first = now_ms(s), samples.first_ms(s)
    if first is None:
        return None
    then = max(now - DAY_MS, first + HOUR_MS)
    is_compared = then <= now - HOUR_MS
    wanted = [now + MINUTE_MS, max(now - MINUTE_MS, first), max(now - HOUR_MS, first), then, max(then - HOUR_MS, first)]
    latest, minute_ago, hour_ago, compared, before = samples.moments(s, wanted)
    if latest is None or minute_ago is None or hour_ago is None:
        return None
    since = then if is_compared else now - DAY_MS
    jobs = select(JobRow.id, JobRow.name, JobRow.created_at).order_by(JobRow.name)
    streams = select(StreamRow.id, StreamRow.name).where(StreamRow.kind == "user").order_by(StreamRow.name)
    return Looks(
        latest,
        minute_ago,
        hour_ago,
        compared if is_compared else None,
        before if is_compared else None,
        since,
        {job_id: (name, int(made.timestamp() * 1000)) for job_id, name, made in s.execute(jobs)},
        dict(s.execute(streams).all()),
        changes_since(s, since),
    )
