"""Jobs of several sub-topologies, task by task in any order: the order of records is a function of the inputs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from service.storage.segments import Storage
from tests import naive
from tests.property.test_repartition import SOURCES, arrivals, chains
from tests.whole_job import HowFar, WholeJob

Record = dict[str, Any]
ONCE = {"op": "deduplicate", "name": "once", "id": "value->>'id'", "interval_ms": 8}
AGAIN = {"op": "deduplicate_by_key", "name": "again", "interval_ms": 3}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A folder as an object store is one: what is written need not be synced."""
    folder = tmp_path_factory.mktemp("segments")
    return Storage(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "")


counts = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(lambda found: dict(zip(SOURCES, found, strict=False)))
randoms = st.integers(0, 2**32).map(Random)


def posted(job: WholeJob, records: list[Record]) -> None:
    """Records go to the partitions of their sources, all of one at once."""
    for name, count in job.sources.items():
        for partition in range(count):
            own = [each for each in records if each["stream"] == name and each["partition"] % count == partition]
            if own:
                job.post(name, partition, [_fed(each) for each in own])


def _fed(record: Record) -> Record:
    return {name: record[name] for name in ("key", "value", "timestamp")}


@given(st.data(), chains, counts, randoms, st.integers(1, 12), st.sampled_from([0.0, 0.2]), st.none() | st.just(1))
def test_a_backlog_comes_out_in_the_order_of_the_oracle_however_its_tasks_run(
    storage: Storage,
    data: st.DataObject,
    operators: list[Record],
    sources: dict[str, int],
    rng: Random,
    most: int,
    kill: float,
    at_once: int | None,
) -> None:
    job = WholeJob(storage, operators, sources, at_once=at_once)
    posted(job, data.draw(arrivals(list(sources))))
    for _ in range(rng.randrange(40)):
        job.turn(rng.choice(job.tasks), rng, rng.randint(1, most), kill)
    job.drain(rng, most)
    job.check()
    assert job.results() == job.expected()


@given(st.data(), chains, counts, randoms, st.integers(0, 6), st.none() | st.just(1))
def test_what_comes_bit_by_bit_is_in_order_but_for_what_was_posted_behind_a_look(
    storage: Storage,
    data: st.DataObject,
    operators: list[Record],
    sources: dict[str, int],
    rng: Random,
    idle: int,
    at_once: int | None,
) -> None:
    """A task may look at what there is, and run it when others have gone on."""
    job = WholeJob(storage, operators, sources, idle=idle, at_once=at_once)
    records = data.draw(arrivals(list(sources)))
    while records:
        count = rng.randint(1, 5)
        posted(job, records[:count])
        records = records[count:]
        looks = {}
        for _ in range(rng.randrange(12)):
            task = rng.choice(job.tasks)
            assigned = looks.pop(task.name, None) or job.assigned(task, rng.randint(1, 6))
            if rng.random() < 0.3:
                looks[task.name] = assigned
            else:
                job.carry_out(task, assigned, rng, kill=0.1)
    job.drain(rng, 6)
    job.check()


SPARSE = "sparse"  # the only key for its target, at every stage
BUSY = [key for key in map(str, range(40)) if naive.partition_of(key, 4) != naive.partition_of(SPARSE, 4)]


def outstanding(storage: Storage, *, knows_bounds: bool = True) -> list[int]:
    """Under input that is never read to its end, round after round how many records of one key, of which a few come in
    one partition, are on their way through three stages. One source partition of four never gets a record.
    """
    meeting = [{"op": "repartition", "name": "moved"}, AGAIN, ONCE]
    job, rng, found, sent = WholeJob(storage, meeting, {"in": 4}), Random(1), list[int](), 0
    last = next(each for each in job.tasks if each.name == (2, naive.partition_of(SPARSE, 4)))
    if not knows_bounds:
        job.how_far = lambda: {name: HowFar(-1, each.is_caught_up) for name, each in WholeJob.how_far(job).items()}
    for at in range(32):
        for partition in range(3):
            keys = rng.choices(BUSY, k=2 if at else 6)
            if partition == 0 and at % 4 == 0:
                keys[-1], sent = SPARSE, sent + 1
            own = [{"key": key, "value": {"id": key}, "timestamp": 100 * at + i} for i, key in enumerate(keys)]
            job.post("in", partition, own)
        for task in rng.sample(job.tasks, len(job.tasks)):
            job.turn(task, rng, 1_000 if task.sub.id else 2)
        found.append(sent - len(last.taken))
    job.drain(rng, 1_000)
    job.check()
    assert sent == len(last.taken)
    return found


def test_under_steady_input_a_target_that_gets_little_does_not_fall_behind(storage: Storage) -> None:
    assert max(outstanding(storage)) <= 3


def test_that_is_as_tasks_say_how_far_they_are(storage: Storage) -> None:
    """The control: waiting for a record from each input, a target with few would wait for ever."""
    assert outstanding(storage, knows_bounds=False)[-1] == 8
