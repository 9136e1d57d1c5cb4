"""Samples of all jobs and users' streams: taken, kept, swept and read.

It knows where each figure stands in the catalog, and which rows a sample is. It refuses to know how figures are packed
and compared (`service.series`), and when a sample is due (`service.sampler`).

    names of a job's       records_in, records_out, dropped, dropped/<operator>/<reason>, batches, busy_us: counters;
                           lag, stream_time, store_bytes, store_entries: levels
    names of a stream's    appended_records, appended_bytes: counters; published_ms: a level
    beside them            marks (`service.marks`)

Owners are ids: what is made again under a name begins anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

from sqlalchemy import bindparam, delete, func, select
from sqlalchemy.orm import Session

from service.catalog.driver import Prepared
from service.catalog.engine import now_ms
from service.catalog.inputs import inputs_of_all, lag_of
from service.catalog.jobs import READS_USER, of_job
from service.catalog.tables import PartitionRow, SampleRow, StoreRow, StreamRow, TaskRow
from service.series import (
    COARSE_KEPT_MS,
    FINE_KEPT_MS,
    HOUR_MS,
    MINUTE_MS,
    UNKNOWN,
    FigureSample,
    History,
    is_first_of,
    pack,
    pack_base,
    period_of,
    unpack,
    unpack_base,
)

JOB_COUNTERS: Final = ("records_in", "records_out", "dropped", "batches", "busy_us")
_TASKS = Prepared(
    select(TaskRow.job_id, TaskRow.id, TaskRow.counters, TaskRow.stream_time, READS_USER.label("reads_user"))
    .add_columns(TaskRow.sub_topology, TaskRow.partition, TaskRow.version)
    .order_by(TaskRow.job_id)
)
_STORES = Prepared(select(StoreRow.job_id, StoreRow.id, StoreRow.sub_topology).where(StoreRow.is_removed.is_(False)))
_STREAMS = Prepared(
    select(PartitionRow.stream_id, func.sum(PartitionRow.end_offset).label("records"))
    .add_columns(func.sum(PartitionRow.appended_bytes).label("bytes"))
    .add_columns(func.max(PartitionRow.published_ms).label("published_ms"))
    .join(StreamRow, StreamRow.id == PartitionRow.stream_id)
    .where(StreamRow.kind == "user")
    .group_by(PartitionRow.stream_id)
)
_ROW = select(SampleRow.period_ms, SampleRow.at_ms, SampleRow.base_ms, SampleRow.content)
_LAST = Prepared(_ROW.order_by(SampleRow.period_ms.desc()).limit(1))
_RANGE = Prepared(
    _ROW.where(SampleRow.period_ms.between(bindparam("from_ms"), bindparam("until_ms"))).order_by(SampleRow.period_ms)
)
_COARSE = Prepared(
    _ROW.where(SampleRow.period_ms.between(bindparam("from_ms"), bindparam("until_ms")), SampleRow.is_coarse).order_by(
        SampleRow.period_ms
    )
)
_BASES = Prepared(_ROW.where(SampleRow.period_ms.in_(bindparam("periods", expanding=True))))
_FIRST = Prepared(select(func.min(SampleRow.period_ms).label("period_ms")))


class SizedPartition(NamedTuple):
    """A partition of a store, and how often its task has committed: until it commits again it stays as it is."""

    job_id: str
    store_id: str
    partition: int
    version: int


class Looked(NamedTuple):
    """What the catalog holds at a moment: figures (name → owner → value), and the stores, of unknown size."""

    at_ms: int
    figures: dict[str, dict[str, int]]
    stores: list[SizedPartition]


class KeptSample(NamedTuple):
    """The sample that was kept last, the begin of its period, and the one that it is packed against."""

    period_ms: int
    base_ms: int
    sample: FigureSample
    base: FigureSample


# ---------------------------------------------------------------- taken


def look(s: Session) -> Looked:
    """All figures, from one snapshot."""
    at = now_ms(s)
    figures: dict[str, dict[str, int]] = {name: {} for name in (*JOB_COUNTERS, "lag", "stream_time")}
    inputs = inputs_of_all(s)
    tasks: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for row in _TASKS.rows(s):
        _add_task(figures, row)
        _add(figures, "lag", row.job_id, lag_of(inputs[row.id]).of_users)
        tasks.setdefault((row.job_id, row.sub_topology), []).append((row.partition, row.version))
    for row in _STREAMS.rows(s):
        published = UNKNOWN if row.published_ms is None else row.published_ms
        streams = {"appended_records": row.records, "appended_bytes": row.bytes, "published_ms": published}
        for name, value in streams.items():
            figures.setdefault(name, {})[row.stream_id] = int(value)
    stores = [
        SizedPartition(row.job_id, row.id, *task)
        for row in _STORES.rows(s)
        for task in tasks.get((row.job_id, row.sub_topology), ())
    ]
    return Looked(at, figures, stores)


def _add_task(figures: dict[str, dict[str, int]], row: Any) -> None:
    counted = of_job(row.counters, reads_user=row.reads_user)
    batches = counted.get("batch_us", {})
    values = {name: counted.get(name, 0) for name in ("records_in", "records_out")}
    values |= {"batches": batches.get("count", 0), "busy_us": batches.get("sum", 0), "dropped": 0}
    for operator, reasons in counted.get("dropped", {}).items():
        for reason, records in reasons.items():
            values[f"dropped/{operator}/{reason}"] = records
            values["dropped"] += records
    for name, value in values.items():
        _add(figures, name, row.job_id, value)
    times = figures["stream_time"]
    times[row.job_id] = max(times.get(row.job_id, UNKNOWN), row.stream_time)


def _add(figures: dict[str, dict[str, int]], name: str, owner: str, value: int) -> None:
    of = figures.setdefault(name, {})
    of[owner] = of.get(owner, 0) + value


# ---------------------------------------------------------------- kept


def last(s: Session) -> tuple[int, KeptSample | None]:
    """The time of the database, and the sample that was kept last."""
    rows = _LAST.rows(s)
    return now_ms(s), _kept(s, rows[0]) if rows else None


def _kept(s: Session, row: Any) -> KeptSample:
    base = _bases(s, [row.base_ms])[row.base_ms]
    sample = base if row.base_ms == row.period_ms else unpack(row.at_ms, row.content, base)
    return KeptSample(row.period_ms, row.base_ms, sample, base)


def keep(s: Session, sample: FigureSample, every_ms: int) -> bool:
    """Keep a sample as that of its period, and let go what is too old; False where the period has one already, or a
    later one has: another process was faster, or the clock was set back.
    """
    period = period_of(sample.at_ms, every_ms)
    rows = _LAST.rows(s)
    if rows and rows[0].period_ms >= period:
        return False
    former = _kept(s, rows[0]) if rows else None
    last_ms = None if former is None else former.period_ms
    is_coarse = is_first_of(period, last_ms, MINUTE_MS)
    if former is None or is_first_of(period, last_ms, HOUR_MS) or former.base.layout.owners != sample.layout.owners:
        base_ms, content = period, pack_base(sample)
    else:
        base_ms, content = former.base_ms, pack(sample, former.base)
    s.add(SampleRow(period_ms=period, at_ms=sample.at_ms, base_ms=base_ms, is_coarse=is_coarse, content=content))
    if is_coarse:
        sweep(s, period)
    return True


def sweep(s: Session, period_ms: int) -> None:
    """Let go what is older than it needs to be: of the last hour every sample stays, of a day one a minute."""
    is_fine = ~SampleRow.is_coarse & (SampleRow.base_ms != SampleRow.period_ms)
    s.execute(delete(SampleRow).where(is_fine, SampleRow.period_ms < period_ms - FINE_KEPT_MS))
    # With a base all goes that is packed against it, which is up to an hour younger.
    s.execute(delete(SampleRow).where(SampleRow.base_ms < period_ms - COARSE_KEPT_MS - HOUR_MS))


def forget_future(s: Session) -> None:
    """Let go of samples that are later than now: the clock was set back, and nothing would be kept until then."""
    s.execute(delete(SampleRow).where(SampleRow.period_ms > now_ms(s) + MINUTE_MS))


# ---------------------------------------------------------------- read


def history(s: Session, from_ms: int, until_ms: int, *, is_coarse: bool) -> History:
    """The samples of a range, all or one a minute."""
    query = _COARSE if is_coarse else _RANGE
    return _history(s, query.rows(s, from_ms=from_ms, until_ms=until_ms))


def moments(s: Session, at_ms: Iterable[int]) -> list[FigureSample | None]:
    """The last sample at or before each of these moments; None: there is none."""
    wanted = list(at_ms)
    periods = [s.scalar(select(func.max(SampleRow.period_ms)).where(SampleRow.period_ms <= at)) for at in wanted]
    known = {period for period in periods if period is not None}
    found = _history(s, _BASES.rows(s, periods=sorted(known)) if known else [])
    by_period = dict(zip(found.periods_ms, found.samples, strict=True))
    return [None if period is None else by_period[period] for period in periods]


def first_ms(s: Session) -> int | None:
    """The begin of the period of the oldest sample."""
    found: int | None = _FIRST.rows(s)[0].period_ms
    return found


def _history(s: Session, rows: Collection[Any]) -> History:
    bases = _bases(s, {row.base_ms for row in rows})
    ordered = sorted(rows, key=lambda row: row.period_ms)
    samples = [
        bases[row.base_ms] if row.base_ms == row.period_ms else unpack(row.at_ms, row.content, bases[row.base_ms])
        for row in ordered
    ]
    return History([row.period_ms for row in ordered], samples)


def _bases(s: Session, periods: Collection[int]) -> Mapping[int, FigureSample]:
    rows = _BASES.rows(s, periods=sorted(periods)) if periods else []
    return {row.period_ms: unpack_base(row.at_ms, row.content) for row in rows}
