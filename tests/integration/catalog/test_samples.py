"""Samples of jobs and streams: what is in them, which of them are kept for how long, who takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.catalog import samples
from service.catalog.engine import Catalog, now_ms
from service.catalog.tables import PartitionRow, SampleRow, StreamRow, TaskRow
from service.metric_families import Size
from service.sampler import Sampler
from service.series import COARSE_KEPT_MS, FINE_KEPT_MS, HOUR_MS, MINUTE_MS, Figures, sample_of
from tests.integration.catalog.world import job_at_work, make_stream, post, statements

EVERY_MS = 10_000
BEGIN = 1_700_000_000_000 - 1_700_000_000_000 % HOUR_MS


def keep(catalog: Catalog, at_ms: int, figures: Figures) -> bool:
    return catalog.write(samples.keep, sample_of(at_ms, figures), EVERY_MS)


def periods(catalog: Catalog) -> list[int]:
    return catalog.read(lambda s: list(s.scalars(select(SampleRow.period_ms).order_by(SampleRow.period_ms))))


def test_a_look_has_the_counters_of_jobs_and_what_came_into_streams(catalog: Catalog) -> None:
    job, worker = job_at_work(catalog)
    clicks = catalog.read(lambda s: s.scalars(select(StreamRow).where(StreamRow.name == "clicks")).one().id)
    post(catalog, clicks, {0: 5})
    counters = {"records_in": 10, "records_out": 8, "dropped": {"once": {"duplicate": 2}}}
    counters |= {"batch_us": {"count": 2, "sum": 700, "max": 500}}
    catalog.write(lambda s: s.execute(update(TaskRow).values(counters=counters, stream_time=7)))
    looked = catalog.read(samples.look)
    of_job = {name: of[job.id] for name, of in looked.figures.items() if job.id in of}
    assert of_job == {
        "records_in": 20,
        "records_out": 16,
        "dropped": 4,
        "dropped/once/duplicate": 4,
        "batches": 4,
        "busy_us": 1_400,
        "lag": 5,
        "stream_time": 7,
    }
    of_stream = {name: of[clicks] for name, of in looked.figures.items() if clicks in of}
    published = of_stream.pop("published_ms")
    assert of_stream == {"appended_records": 25, "appended_bytes": 8 * 25}
    assert 0 <= looked.at_ms - published < MINUTE_MS
    assert {(at.store_id, at.partition) for at in looked.stores} == {
        (worker.joined.stores["visits-once"].id, partition) for partition in (0, 1)
    }
    assert set(looked.figures["appended_records"]) == {clicks, *sinks(catalog)}  # no changelog, no dropped records


def sinks(catalog: Catalog) -> list[str]:
    return catalog.read(lambda s: list(s.scalars(select(StreamRow.id).where(StreamRow.name == "visits-out"))))


def test_what_came_is_counted_also_of_what_retention_took(catalog: Catalog) -> None:
    clicks = make_stream(catalog, partitions=1)
    post(catalog, clicks, {0: 5})
    catalog.write(lambda s: s.execute(update(PartitionRow).values(start_offset=5, bytes=0, records=0)))
    post(catalog, clicks, {0: 2})
    assert catalog.read(samples.look).figures["appended_bytes"] == {clicks.id: 8 * 7}


def test_a_period_has_one_sample_and_a_later_one_leaves_no_place_for_an_earlier(catalog: Catalog) -> None:
    assert keep(catalog, BEGIN, {"in": {"a": 1}})
    assert not keep(catalog, BEGIN + 9_999, {"in": {"a": 2}})
    assert keep(catalog, BEGIN + 10_500, {"in": {"a": 3}})
    assert not keep(catalog, BEGIN + 5_000, {"in": {"a": 4}})
    _, last = catalog.read(samples.last)
    assert last is not None
    assert (last.period_ms, last.sample.at_ms, last.sample.get("in", "a")) == (BEGIN + 10_000, BEGIN + 10_500, 3)


def test_a_history_is_what_was_kept_whatever_it_is_told_against(catalog: Catalog) -> None:
    told = {BEGIN + i * EVERY_MS: {"in": {"a": i * 7}} for i in range(4)}
    told |= {BEGIN + i * EVERY_MS: {"in": {"a": i * 7, "b": 1}} for i in range(4, 6)}  # another job: another base
    for at_ms, figures in told.items():
        keep(catalog, at_ms, figures)
    found = catalog.read(samples.history, BEGIN + EVERY_MS, BEGIN + 5 * EVERY_MS, is_coarse=False)
    assert found.periods_ms == [BEGIN + i * EVERY_MS for i in range(1, 6)]
    assert [sample.get("in", "a") for sample in found.samples] == [7, 14, 21, 28, 35]
    assert [sample.get("in", "b") for sample in found.samples] == [None, None, None, 1, 1]
    bases = catalog.read(lambda s: s.scalar(select(func.count(SampleRow.base_ms.distinct()))))
    assert bases == 2
    assert [
        None if at is None else at.get("in", "a") for at in catalog.read(samples.moments, [BEGIN - 1, BEGIN + 15_000])
    ] == [None, 7]


def test_of_the_last_hour_all_stays_of_a_day_one_a_minute_and_then_nothing(catalog: Catalog) -> None:
    hours = range(30)
    for hour in hours:
        for second in (0, 10, 20, 70):
            keep(catalog, BEGIN + hour * HOUR_MS + second * 1_000, {"in": {"a": hour * 100 + second}})
    kept, end = periods(catalog), BEGIN + 29 * HOUR_MS + 70_000
    fine = [at for at in kept if at >= end - FINE_KEPT_MS]
    assert [at - BEGIN - 29 * HOUR_MS for at in fine] == [
        -HOUR_MS + 10_000,
        -HOUR_MS + 20_000,
        -HOUR_MS + 70_000,
        0,
        10_000,
        20_000,
        70_000,
    ]
    assert {(at - BEGIN) % HOUR_MS for at in set(kept) - set(fine)} == {0, 70_000}
    assert kept[0] <= end - COARSE_KEPT_MS
    assert kept[0] >= end - COARSE_KEPT_MS - 2 * HOUR_MS
    found = catalog.read(samples.history, kept[0], end, is_coarse=True)  # every base is still there
    assert [sample.get("in", "a") for sample in found.samples][-2:] == [2_900, 2_970]


def test_a_day_of_50_jobs_and_200_streams_takes_a_few_megabytes(catalog: Catalog) -> None:
    """Ten minutes of it, in which all of them are at work, and what that comes to."""
    names = ("records_in", "records_out", "dropped", "dropped/o/late", "batches", "busy_us", "lag", "stream_time")
    names += ("store_bytes", "store_entries", "behind_ms", "ahead_ms", "dropped_ms", "dropping_ms", "read_ms")
    of_streams = ("appended_records", "appended_bytes", "published_ms", "pause_ms", "usual_pause_ms")
    for i in range(60):
        figures = {name: {f"{j:032x}": 10**6 * j + (17 + 1_000 * j % 997) * i for j in range(50)} for name in names}
        figures |= {name: {f"{j:031x}s": 10**6 * j + 19 * i * j for j in range(200)} for name in of_streams}
        keep(catalog, BEGIN + i * EVERY_MS, figures)
    sizes = catalog.read(
        lambda s: s.execute(select(SampleRow.base_ms == SampleRow.period_ms, func.length(SampleRow.content))).all()
    )
    [base] = [size for is_base, size in sizes if is_base]
    others = [size for is_base, size in sizes if not is_base]
    day = 26 * base + (360 + 26 * 60) * sum(others) / len(others)
    assert day < 8e6, (base, sum(others) / len(others))


async def no_sizes(wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Size]:
    return {place: Size(3, 4_096) for place in wanted}


def test_of_several_processes_one_takes_the_sample_of_a_period(catalog: Catalog) -> None:
    job, _ = job_at_work(catalog)
    both = [Sampler(catalog, no_sizes, 60_000), Sampler(catalog, no_sizes, 60_000)]

    async def round_of_both() -> list[bool]:
        return list(await asyncio.gather(*(each.run_once() for each in both)))

    assert sorted(asyncio.run(round_of_both())) == [False, True]
    with statements(catalog) as asked:
        assert asyncio.run(round_of_both()) == [False, False]
    assert asked == []  # they know when the next period begins
    _, last = catalog.read(samples.last)
    assert last is not None
    assert [last.sample.get(name, job.id) for name in ("records_in", "store_entries", "store_bytes")] == [20, 6, 8_192]
    assert last.sample.get("behind_ms", job.id) is None


def test_a_round_takes_a_few_statements_however_many_jobs_there_are(catalog: Catalog) -> None:
    job_at_work(catalog)
    asyncio.run(Sampler(catalog, no_sizes, 100).run_once())
    with statements(catalog) as asked:
        while not asyncio.run(Sampler(catalog, no_sizes, 100).run_once()):
            asked.clear()
    assert len(asked) <= 12, asked


def test_only_stores_of_tasks_that_committed_are_measured_again(catalog: Catalog) -> None:
    _, worker = job_at_work(catalog)
    wanted: list[tuple[str, int]] = []

    async def note(places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Size]:
        wanted.extend(places)
        return await no_sizes(wanted)

    sampler = Sampler(catalog, note, 100)
    looked = catalog.read(samples.look)
    asyncio.run(sampler._measure(looked.stores))
    assert len(wanted) == 2
    wanted.clear()
    clicks = catalog.read(lambda s: s.scalars(select(StreamRow).where(StreamRow.name == "clicks")).one().id)
    post(catalog, clicks, {1: 1})
    worker.run()
    asyncio.run(sampler._measure(catalog.read(samples.look).stores))
    assert [partition for _, partition in wanted] == [1]


def test_stores_that_there_was_no_time_for_come_first(catalog: Catalog) -> None:
    job_at_work(catalog)
    wanted: list[list[tuple[str, int]]] = []

    async def one(places: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Size]:
        wanted.append(list(places))
        return await no_sizes(wanted[-1][:1])

    sampler = Sampler(catalog, one, 100)
    stores = catalog.read(samples.look).stores
    for more in range(3):
        asyncio.run(sampler._measure([each._replace(version=each.version + more) for each in stores]))
    assert len(wanted[0]) == 2
    assert wanted == [wanted[0], wanted[0][::-1], wanted[0]]


def test_a_clock_that_was_set_back_does_not_stop_the_samples(catalog: Catalog) -> None:
    def later(s: Session) -> None:
        samples.keep(s, sample_of(now_ms(s) + 10 * HOUR_MS, {"in": {"a": 1}}), EVERY_MS)

    catalog.write(later)
    sampler = Sampler(catalog, no_sizes, 100)
    assert not asyncio.run(sampler.run_once())
    assert periods(catalog) == []
    assert asyncio.run(sampler.run_once())


@pytest.mark.parametrize("reading", ["unknown", "known"])
def test_a_store_that_can_not_be_read_here_has_no_size(catalog: Catalog, reading: str) -> None:
    job, _ = job_at_work(catalog)

    async def half(wanted: Iterable[tuple[str, int]]) -> dict[tuple[str, int], Size]:
        found = await no_sizes(wanted)
        return found if reading == "known" else {place: size for place, size in found.items() if place[1] == 0}

    assert asyncio.run(Sampler(catalog, half, 60_000).run_once())
    _, last = catalog.read(samples.last)
    assert last is not None
    assert last.sample.get("store_entries", job.id) == (6 if reading == "known" else None)
