"""Many threads, and on Postgres several processes' worth of catalogs: offsets never overlap, nobody deadlocks."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest
from sqlalchemy import select

from service.catalog import engine, jobs, segments, streams
from service.catalog.engine import Catalog
from service.catalog.tables import ChunkRow
from service.streams.errors import InstanceGone
from service.streams.records import Published
from tests.integration.catalog.world import (
    SlotDouble,
    batch,
    chunk,
    ends,
    expire_instance,
    expire_slot,
    join,
    make_job,
    make_stream,
    post,
    register,
    slot,
    state_of,
    tick,
)


@pytest.fixture
def deadlocks(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """What was undone and run again. Two that make the same row may race; nobody should ever deadlock."""
    undone: list[BaseException] = []
    was_undone = engine._was_undone

    def note(error: BaseException) -> bool:
        if answer := was_undone(error):
            undone.append(error)
        return answer

    monkeypatch.setattr(engine, "_was_undone", note)
    return undone


def assert_gapless(published: list[Published], stream_id: str, partition: int) -> int:
    """The ranges of a partition follow each other without gap or overlap; where they end."""
    ranges = sorted(
        (at.first_offset, at.end_offset) for at in published if (at.stream_id, at.partition) == (stream_id, partition)
    )
    assert all(before[1] == after[0] for before, after in pairwise([(0, 0), *ranges]))
    return ranges[-1][1] if ranges else 0


def test_publishers_of_many_partitions_never_interleave(
    open_catalog: Callable[[], Catalog], deadlocks: list[BaseException]
) -> None:
    catalogs = [open_catalog() for _ in range(2)]
    targets = [make_stream(catalogs[0], name) for name in ("a", "b", "c")]

    def publish_many(seed: int) -> list[Published]:
        chance = random.Random(seed)
        catalog = catalogs[seed % 2]
        done = []
        for _ in range(20):
            pairs = [(chance.choice(targets), chance.randrange(4)) for _ in range(6)]
            chunks = [chunk(stream, p, chance.randint(1, 9)) for stream, p in pairs]
            done += catalog.write(segments.publish, register(catalog), bytes=1, chunks=chunks)
        return done

    with ThreadPoolExecutor(6) as pool:
        published = [at for done in pool.map(publish_many, range(6)) for at in done]
    assert deadlocks == []
    for stream in targets:
        reached = [assert_gapless(published, stream.id, p) for p in range(4)]
        assert reached == ends(catalogs[0], stream.name)
    rows = catalogs[0].read(lambda s: s.execute(select(ChunkRow.first_offset, ChunkRow.end_offset)).all())
    assert len(rows) == len(published)


def test_committers_publishers_and_a_collector_together(
    open_catalog: Callable[[], Catalog], deadlocks: list[BaseException]
) -> None:
    """Two slots run a job while its source grows and retention works: every record passes exactly once."""
    catalogs = [open_catalog() for _ in range(2)]
    clicks = make_stream(catalogs[0])
    job = make_job(catalogs[0])
    catalogs[0].write(streams.update_stream, "clicks", retention_ms=0)
    slots = [slot(catalogs[i], join(catalogs[i], str(i)), job) for i in range(2)]
    is_posted = threading.Event()

    def publish_many(catalog: Catalog) -> int:
        for _ in range(25):
            post(catalog, clicks, dict.fromkeys(range(4), 3))
        return 25 * 4 * 3

    def run(worker: SlotDouble) -> int:
        done = 0
        while not is_posted.is_set() or not worker.catalog.read(_is_read, job.id):
            done += worker.run()
        return done

    def collect(catalog: Catalog) -> None:
        while not is_posted.is_set():
            catalog.write(segments.truncate_by_retention)
            catalog.write(segments.drop_unreferenced)

    with ThreadPoolExecutor(5) as pool:
        runners = [pool.submit(run, worker) for worker in slots]
        collecting = pool.submit(collect, catalogs[1])
        posted = sum(pool.map(publish_many, catalogs))
        is_posted.set()
        collecting.result()
        assert sum(runner.result() for runner in runners) == posted
    assert deadlocks == []
    assert sum(ends(catalogs[0], "visits-out")) == posted


def _is_read(s: engine.Session, job_id: str) -> bool:
    return all(at.lag == 0 for at in jobs.positions(s, job_id))


def test_slots_that_come_and_go_never_run_a_record_twice(
    open_catalog: Callable[[], Catalog], deadlocks: list[BaseException]
) -> None:
    """Slots are replaced, evicted and moved under load, and zombies go on committing."""
    catalogs = [open_catalog() for _ in range(2)]
    clicks = make_stream(catalogs[0])
    job = make_job(catalogs[0], max_batch_records=5)
    tick(catalogs[0])
    posted = sum(sum(at.end_offset - at.first_offset for at in post(catalogs[0], clicks, {p: 60})) for p in range(4))

    def live_and_die(index: int) -> int:
        chance = random.Random(index)
        catalog = catalogs[index % 2]
        done = 0
        while not catalog.read(_is_read, job.id):
            instance = join(catalog, str(index), incarnation=str(chance.randint(1, 2)))
            worker = slot(catalog, instance, job)
            done += _some_batches(worker, chance.randint(1, 6))
            fate = chance.random()
            if fate < 0.3:
                expire_slot(catalog, worker.id)
            elif fate < 0.6:
                expire_instance(catalog, instance)
            tick(catalog)
        return done

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(live_and_die, range(4))) == posted
    assert deadlocks == []
    assert sum(ends(catalogs[0], "visits-out")) == posted
    assert state_of(catalogs[0]) in {"running", "rebalancing"}


def _some_batches(worker: SlotDouble, polls: int) -> int:
    """Poll and commit; whoever else may own the tasks by then. How many records were accepted."""
    done = 0
    for _ in range(polls):
        try:
            tasks = [task for task in worker.tasks() if task.work]
        except InstanceGone:
            return done
        commits = [batch(worker.catalog, task, worker.joined) for task in tasks]
        for commit, verdict in zip(commits, worker.commit(*commits), strict=True):
            if verdict.status == "accepted":
                done += commit.positions[0].end - commit.positions[0].start
    return done
