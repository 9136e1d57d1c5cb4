"""Metrics of a job as JSON: the same figures as `/metrics`, with rates.

Knows the shape of the answer. Refuses to know names and meanings of figures (`service.metric_families`).
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any, Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, create_model
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import answer
from service.api.document import router_of
from service.api.moments import Moment
from service.auth import Reader
from service.catalog import jobs, totals
from service.catalog.engine import now_ms
from service.catalog.totals import OperatorStore, TaskTotals
from service.metric_families import OPERATOR_FAMILIES, Size, of_operator, of_task, with_rates
from service.problems import declared
from service.streams import measures
from service.streams.measures import Reading

router = router_of("jobs")

LEAST_S: Final = 0.001  # a job that was made in this very moment has rates, too

Sizes = dict[tuple[str, int], Size]

_FIELDS: dict[str, Any] = {
    name: (float | None, Field(default=None, description=family.meaning))
    for family in OPERATOR_FAMILIES
    for name in family.samples
}
_RATES: dict[str, Any] = {
    family.name + "_rate": (float | None, Field(default=None, description="Per second, since the job was made"))
    for family in OPERATOR_FAMILIES
    if family.kind == "counter"
}
OperatorMetricsView = create_model(
    "OperatorMetricsView",
    __doc__="Metrics of an operator: the samples of `/metrics` without their prefix, and rates. "
    "Samples without a value yet are left out.",
    __config__=ConfigDict(extra="forbid"),
    **_FIELDS,
    **_RATES,
)


class FlowView(BaseModel):
    """What went through an operator, a sink or a repartition stream since the job was made."""

    records_in: int
    records_out: int
    busy_seconds: Annotated[
        float, Field(description="How long it took over them, of batches that were committed; of all tasks, their sum.")
    ]


class CountersView(BaseModel):
    """Counters of a task, or of all tasks of a job together, since the job was made."""

    task_lag_records: Annotated[int, Field(description="Records that were not read yet.")]
    records_in: int
    records_out: int
    dropped: Annotated[dict[str, dict[str, int]], Field(description="Records by operator and reason.")]
    batch_seconds_count: int | None = None
    batch_seconds_sum: float | None = None
    batch_seconds_max: float | None = None
    flow: Annotated[
        dict[str, FlowView],
        Field(description="Operators by name; sinks as `sink-0`, repartition streams as `<operator>-repartition`."),
    ]
    operators: Annotated[dict[str, OperatorMetricsView], Field(description="The operators with state, by name.")]


class FiguresView(BaseModel):
    """Figures of some values; one that says nothing of them is left out."""

    count: int | None = None
    sum: int | None = None
    min: int | None = None
    max: int | None = None
    last: int | None = None


class MissedFiguresView(BaseModel):
    """By how many ms records missed going on."""

    count: int
    sum: int
    max: int
    below: Annotated[
        dict[str, int],
        Field(description="How many by less than so many ms, and not less than the bound before; `beyond` the last."),
    ]


class FlowFiguresView(BaseModel):
    """What went through an operator, a sink or a repartition stream."""

    records_in: int
    records_out: int
    busy_us: int


class TotalCountersView(BaseModel):
    """The counters of the job's commits; one that counted nothing is left out."""

    records_in: int | None = None
    repartitioned_in: int | None = None
    records_out: int | None = None
    dropped: dict[str, dict[str, int]] | None = None
    missed_by_ms: dict[str, dict[str, MissedFiguresView]] | None = None
    flow: dict[str, FlowFiguresView] | None = None
    advances: dict[str, int] | None = None
    batch_us: FiguresView | None = None
    operators: dict[str, dict[str, int | FiguresView]] | None = None


class JobMetricsView(CountersView):
    """The same of a job and, by name, of each of its tasks. Of several tasks, sums and current values are added up,
    least and highest ones are those of any task, averages are over all. Rates are per second since the job was made.
    """

    since: Annotated[Moment, Field(description="When the job was made.")]
    records_in_rate: float
    records_out_rate: float
    lag: Annotated[int, Field(description="As task_lag_records.")]
    tasks: dict[str, CountersView]
    counters: Annotated[TotalCountersView, Field(description="The counters of the job's commits, as they are.")]


class _Job(NamedTuple):
    made: datetime
    age_s: float
    tasks: list[TaskTotals]
    stores: list[OperatorStore]


@router.get("/v1/jobs/{job:name}/metrics", responses={200: {"model": JobMetricsView}, **declared(401, 403, 404)})
async def get_job_metrics(request: Request, job: str, _: Reader) -> Response:
    """Show a job's metrics: lateness, drops, buffers, stores, lag, batch times."""
    found = await run_in_threadpool(request.state.catalog.read, _look, job)
    sizes = await request.state.lookups.reader.sizes(totals.store_partitions(found.tasks, found.stores))
    return answer(_described(found, sizes))


def _look(s: Session, name: str) -> _Job:
    job = jobs.get_job(s, name)
    age_s = now_ms(s) / 1000 - job.created_at.timestamp()
    return _Job(job.created_at, max(age_s, LEAST_S), totals.task_totals(s, job.id), totals.operator_stores(s, job.id))


def _described(job: _Job, sizes: Sizes) -> dict[str, Any]:
    total: Reading = {}
    for task in job.tasks:
        total = measures.beside(total, jobs.of_job(task.counters, reads_user=task.reads_user))
    lag = sum(task.lag.of_users for task in job.tasks)
    together = {store.id: _together(store, job.tasks, sizes) for store in job.stores}
    counted = _counted(job, total, lag, job.stores, together)
    return {
        **counted,
        "since": job.made.isoformat(),
        "records_in_rate": counted["records_in"] / job.age_s,
        "records_out_rate": counted["records_out"] / job.age_s,
        "lag": lag,
        "tasks": {task.task: _of_task(job, task, sizes) for task in job.tasks},
        "counters": total,
    }


def _of_task(job: _Job, task: TaskTotals, sizes: Sizes) -> dict[str, Any]:
    stores = [store for store in job.stores if store.sub_topology == task.sub_topology]
    own = {store.id: sizes.get((store.id, task.partition)) for store in stores}
    return _counted(job, task.counters, task.lag.records, stores, own)


def _counted(
    job: _Job, counters: Reading, lag: int, stores: Iterable[OperatorStore], sizes: dict[str, Size | None]
) -> dict[str, Any]:
    dropped, measured = counters.get("dropped", {}), counters.get("operators", {})
    return {
        **of_task(counters, lag),
        "records_in": counters.get("records_in", 0),
        "records_out": counters.get("records_out", 0),
        "dropped": dropped,
        "flow": {
            name: {
                "records_in": flow["records_in"],
                "records_out": flow["records_out"],
                "busy_seconds": flow["busy_us"] / 1e6,
            }
            for name, flow in counters.get("flow", {}).items()
        },
        "operators": {
            store.operator: with_rates(
                of_operator(
                    store, measured.get(store.operator, {}), dropped.get(store.operator, {}), sizes.get(store.id)
                ),
                job.age_s,
            )
            for store in stores
        },
    }


def _together(store: OperatorStore, tasks: Iterable[TaskTotals], sizes: Sizes) -> Size | None:
    """The size of a store; None where that of some partition is unknown."""
    parts = [sizes.get((store.id, task.partition)) for task in tasks if task.sub_topology == store.sub_topology]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    return Size(sum(part.entries for part in known), sum(part.bytes for part in known))
