"""Sources that a job begins and ceases to read, at any point of any run: each task takes each record of what it reads
once, in the order of time but for what was not there, or not read, when it looked.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from service.storage.segments import Storage
from tests.whole_job import WholeJob

Record = dict[str, Any]
STREAMS = ["first", "second", "third"]
ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 5}
BY_ID = {"op": "deduplicate", "name": "by_id", "id": "value->>'id'", "interval_ms": 8}
COUNT = {
    "op": "aggregate",
    "name": "counted",
    "window": {"type": "tumbling", "size_ms": 5, "grace_ms": 3},
    "aggregates": {"n": {"fn": "count"}},
}

chains = st.sampled_from([[ONCE], [COUNT], [BY_ID], [ONCE, {"op": "repartition", "name": "moved"}, COUNT]])
choices = st.lists(st.sampled_from(STREAMS), min_size=1, max_size=3, unique=True)
randoms = st.integers(0, 2**32).map(Random)
records = st.lists(
    st.builds(
        lambda key, n, timestamp: {"key": key, "value": {"id": str(n)}, "timestamp": timestamp},
        st.sampled_from("abc"),
        st.integers(0, 4),
        st.integers(0, 30),
    ),
    max_size=6,
)


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A folder as an object store is one: what is written need not be synced."""
    folder = tmp_path_factory.mktemp("segments")
    return Storage(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "")


@given(st.data(), chains, st.lists(choices, min_size=2, max_size=4), st.integers(1, 3), randoms)
def test_the_order_is_a_function_of_what_is_read(
    storage: Storage,
    data: st.DataObject,
    operators: list[Record],
    versions: list[list[str]],
    partitions: int,
    rng: Random,
) -> None:
    everything = dict.fromkeys(STREAMS, partitions)
    job = WholeJob(storage, operators, dict.fromkeys(versions[0], partitions), others=everything)
    for sources in versions:
        if set(job.sources) - set(sources):
            job.drain(rng, 5)
        job.change_sources(dict.fromkeys(sources, partitions))
        for stream in STREAMS:
            for partition in range(partitions):
                given_now = data.draw(records)
                if given_now:
                    job.post(stream, partition, given_now)
        for _ in range(rng.randrange(20)):
            job.turn(rng.choice(job.tasks), rng, rng.randint(1, 5), kill=0.2)
    job.drain(rng, 5)
    job.check()
