"""Series over HTTP: what a job, a stream, or all of them did over the last 24 hours, for charts.

Knows the shapes of requests and answers, and how far a range may go. Refuses to know how figures are kept
(`service.catalog.samples`) and compared (`service.series`).
"""

from typing import Annotated, Any, Final, NamedTuple

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import answer
from service.api.document import router_of
from service.api.streams import NamedStream
from service.auth import Reader
from service.catalog import jobs, samples
from service.catalog.engine import now_ms
from service.catalog.streams import get_stream
from service.marks import DROPPED
from service.problems import declared, refused
from service.series import FINE_KEPT_MS, HOUR_MS, MINUTE_MS, Grid, History

router = router_of("operations")

LEAST_STEP_MS: Final = 10_000
DAY_MS: Final = 86_400_000
MAX_MS: Final = 2**53 - 1
MAX_POINTS: Final = 1_500

Rates = list[float | None]
Levels = list[int | None]


class SeriesQuery(BaseModel):
    """Which time, and how many points."""

    from_ms: Annotated[int | None, Field(ge=0, le=MAX_MS, description="Where it begins, ms.")] = None
    span_ms: Annotated[
        int | None,
        Field(
            ge=LEAST_STEP_MS,
            le=2 * DAY_MS,
            description="Without `from_ms`: how long before the end it begins, ms; an hour without either.",
        ),
    ] = None
    until_ms: Annotated[int | None, Field(ge=0, le=MAX_MS, description="Where it ends, ms; without it now.")] = None
    step_ms: Annotated[
        int | None,
        Field(
            ge=LEAST_STEP_MS,
            le=DAY_MS,
            description="From point to point, ms; at least a minute where the range begins more than an hour ago. "
            "Without it that, or 10 s, or as often as figures are noted (`MILLRACE_SAMPLE_EVERY_MS`).",
        ),
    ] = None


class SeriesView(BaseModel):
    """Points in order. Each says what happened since the one before it, or how it stood then; null: nobody looked, or
    what is counted began anew in between.
    """

    from_ms: Annotated[int, Field(description="Where the first point's time begins, ms; a whole step.")]
    until_ms: Annotated[int, Field(description="The last point, ms.")]
    step_ms: Annotated[int, Field(description="From point to point, ms.")]
    at_ms: Annotated[list[int], Field(description="The points, ms.")]


class DropSeriesView(BaseModel):
    """Records that an operator of a job dropped for one reason."""

    operator: str
    reason: Annotated[str, Field(description="Why, as in `…/dropped`.")]
    records: Annotated[Rates, Field(description="Records a second.")]
    total: Annotated[int, Field(description="How many in all, over the whole range.")]


class JobSeriesView(SeriesView):
    """A job over time."""

    records_in: Annotated[Rates, Field(description="Records read of users' streams, a second.")]
    records_out: Annotated[Rates, Field(description="Records given out, a second.")]
    dropped: Annotated[Rates, Field(description="Records dropped, a second.")]
    dropped_by: Annotated[list[DropSeriesView], Field(description="The same by operator and reason.")]
    busy: Annotated[Rates, Field(description="Seconds of work a second, of all tasks together.")]
    batch_ms: Annotated[Rates, Field(description="How long a batch took on average, ms.")]
    lag: Annotated[Levels, Field(description="Records that are there and not read yet.")]
    stream_time: Annotated[Levels, Field(description="The highest stream time of its tasks, ms.")]
    store_bytes: Annotated[Levels, Field(description="Bytes that its stores take; null: not known.")]
    store_entries: Annotated[Levels, Field(description="Entries of its stores; null: not known.")]
    totals: Annotated[dict[str, int], Field(description="Records over the whole range, by name.")]


class StreamSeriesView(SeriesView):
    """A stream of users over time."""

    records: Annotated[Rates, Field(description="Records appended, a second.")]
    bytes: Annotated[Rates, Field(description="Bytes appended, as they are stored, a second.")]
    totals: Annotated[dict[str, int], Field(description="Records and bytes over the whole range, by name.")]


class ServiceSeriesView(SeriesView):
    """All jobs and users' streams over time, together."""

    appended_records: Annotated[Rates, Field(description="Records appended to users' streams, a second.")]
    appended_bytes: Annotated[Rates, Field(description="Bytes appended to users' streams, a second.")]
    records_in: Annotated[Rates, Field(description="Records that jobs read of users' streams, a second.")]
    records_out: Annotated[Rates, Field(description="Records that jobs gave out, a second.")]
    dropped: Annotated[Rates, Field(description="Records that jobs dropped, a second.")]
    busy: Annotated[Rates, Field(description="Seconds of work a second, of all jobs together.")]
    lag: Annotated[Levels, Field(description="Records that jobs have not read yet.")]
    store_bytes: Annotated[Levels, Field(description="Bytes of all stores of which it is known.")]


class Seen(NamedTuple):
    """The samples of a range, and the points that are asked for."""

    history: History
    grid: Grid

    def points(self) -> dict[str, Any]:
        grid = self.grid
        return {
            "from_ms": grid.from_ms,
            "until_ms": grid.until_ms,
            "step_ms": grid.step_ms,
            "at_ms": grid.moments,
        }


@router.get("/v1/series", responses={200: {"model": ServiceSeriesView}, **declared(401, 403, 422)})
def get_series(request: Request, _: Reader, asked: Annotated[SeriesQuery, Query()]) -> Response:
    """Show what went in and out of all streams and jobs over time: up to the last 24 hours."""
    history, grid = seen = request.state.catalog.read(_seen, asked, _every_ms(request))
    busy = history.summed_rates("busy_us", grid)
    names = ("appended_records", "appended_bytes", "records_in", "records_out", "dropped")
    return answer(
        seen.points()
        | {name: history.summed_rates(name, grid) for name in names}
        | {"busy": _scaled(busy), "lag": history.summed_levels("lag", grid)}
        | {"store_bytes": history.summed_levels("store_bytes", grid)}
    )


@router.get("/v1/jobs/{job:name}/series", responses={200: {"model": JobSeriesView}, **declared(401, 403, 404, 422)})
def get_job_series(request: Request, job: str, _: Reader, asked: Annotated[SeriesQuery, Query()]) -> Response:
    """Show a job's rates, lag, stream time, stores over time: up to the last 24 hours."""
    job_id, seen = request.state.catalog.read(_of_job, job, asked, _every_ms(request))
    return answer(_job_series(job_id, seen))


@router.get(
    "/v1/streams/{stream:name}/series", responses={200: {"model": StreamSeriesView}, **declared(401, 403, 404, 422)}
)
def get_stream_series(
    request: Request, stream: NamedStream, _: Reader, asked: Annotated[SeriesQuery, Query()]
) -> Response:
    """Show what was appended to a stream of users over time: up to the last 24 hours."""
    stream_id, seen = request.state.catalog.read(_of_stream, stream, asked, _every_ms(request))
    history, grid = seen
    names = {"records": "appended_records", "bytes": "appended_bytes"}
    return answer(
        seen.points()
        | {shown: history.rates(name, stream_id, grid) for shown, name in names.items()}
        | {"totals": {shown: history.rise(name, stream_id) for shown, name in names.items()}}
    )


def _job_series(job_id: str, seen: Seen) -> dict[str, Any]:
    history, grid = seen
    counters = ("records_in", "records_out", "dropped")
    busy, batches = history.rates("busy_us", job_id, grid), history.rates("batches", job_id, grid)
    return (
        seen.points()
        | {name: history.rates(name, job_id, grid) for name in counters}
        | {"dropped_by": [_drops(job_id, seen, name) for name in history.names(DROPPED, job_id)]}
        | {"busy": _scaled(busy)}
        | {"batch_ms": [us / n / 1000 if us is not None and n else None for us, n in zip(busy, batches, strict=True)]}
        | {name: history.levels(name, job_id, grid) for name in ("lag", "stream_time", "store_bytes", "store_entries")}
        | {"totals": {name: history.rise(name, job_id) for name in counters}}
    )


def _drops(job_id: str, seen: Seen, name: str) -> dict[str, Any]:
    _, operator, reason = name.split("/")
    rates = seen.history.rates(name, job_id, seen.grid)
    return {"operator": operator, "reason": reason, "records": rates, "total": seen.history.rise(name, job_id)}


def _scaled(us: Rates) -> Rates:
    return [None if value is None else value / 1e6 for value in us]


def _every_ms(request: Request) -> int:
    every_ms: int = request.state.settings.sample_every_ms
    return every_ms


# ---------------------------------------------------------------- in a transaction


def _of_job(s: Session, name: str, asked: SeriesQuery, every_ms: int) -> tuple[str, Seen]:
    return jobs.get_job(s, name).id, _seen(s, asked, every_ms)


def _of_stream(s: Session, name: str, asked: SeriesQuery, every_ms: int) -> tuple[str, Seen]:
    return get_stream(s, name).id, _seen(s, asked, every_ms)


def _seen(s: Session, asked: SeriesQuery, every_ms: int) -> Seen:
    """Of figures that are noted so often. 422 where the range is empty, or has too many points."""
    now = now_ms(s)
    until = now if asked.until_ms is None else asked.until_ms
    if asked.from_ms is not None and asked.span_ms is not None:
        raise refused("invalid_request", "?span_ms", "says where it begins, as from_ms does: one of them is enough")
    begin = max(0, until - (asked.span_ms or HOUR_MS)) if asked.from_ms is None else asked.from_ms
    if begin >= until:
        raise refused("invalid_request", "?from_ms", "is not before the end")
    least = LEAST_STEP_MS if begin > now - FINE_KEPT_MS else MINUTE_MS
    step = max(least, asked.step_ms or every_ms)
    grid = Grid.over(begin, until, step)
    if (grid.until_ms - grid.from_ms) // step > MAX_POINTS:
        detail = f"more than {MAX_POINTS} points: a longer step, or a shorter range"
        raise refused(
            "invalid_request", "?step_ms" if asked.step_ms else "?span_ms" if asked.span_ms else "?from_ms", detail
        )
    is_coarse = step % MINUTE_MS == 0
    found = samples.history(s, grid.from_ms - step, grid.until_ms, is_coarse=is_coarse)
    return Seen(found.since(grid.from_ms), grid)
