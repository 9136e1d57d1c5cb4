"""A job that becomes another version, again and again, at any point of any run: each task gives what the operators of
each version make of the records that it took under it, over the same state, however it was cut, killed and restored.
Between versions stream time may be set back.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs

from service.protocol import Adoption
from service.storage.segments import Storage
from service.streams.operators.adoption import adopt
from service.streams.partitioner import split_by_partition
from service.streams.records import as_records
from service.streams.topology.chain import Chain, ChainResult
from tests.task import NOTHING, DictState, batch_of, shown
from tests.whole_job import TaskAtWork, WholeJob

Record = dict[str, Any]

TIMES = st.integers(0, 12)
CONDITIONS = st.sampled_from(["true", "key <> 'a'", "(value->>'n')::bigint > 1"])


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    """A folder as an object store is one: what is written need not be synced."""
    folder = tmp_path_factory.mktemp("segments")
    return Storage(fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem()), "")


def chain_of(data: st.DataObject, shape: dict[str, Any]) -> list[Record]:
    """A version of a job of a shape: whatever may change over the same stores is drawn."""
    chain: list[Record] = []
    if data.draw(st.booleans(), "filtered"):
        chain.append({"op": "filter", "where": data.draw(CONDITIONS)})
    if shape["once"]:
        chain.append({"op": shape["once"], "name": "once", "interval_ms": data.draw(TIMES)})
        if shape["once"] != "deduplicate_by_key":
            chain[-1]["id"] = "value->>'n'"
    chain.append(_aggregate(data, shape))
    if shape["is_suppressed"]:
        chain.append({"op": "suppress", "name": "final", "until": "window_closes"})
    if data.draw(st.booleans(), "mapped"):
        chain.append({"op": "map_values", "select": {"n": "(value->>'n')::bigint"}})
    return chain


def _aggregate(data: st.DataObject, shape: dict[str, Any]) -> Record:
    window = {**shape["window"], "grace_ms": data.draw(TIMES), "retention_ms": data.draw(TIMES)}
    if window["type"] == "session":
        window["gap_ms"] = data.draw(st.integers(1, 6))
    if shape["is_distinct"]:
        return {"op": "distinct", "name": "counted", "window": window}
    functions = {"n": {"fn": "count"}, "last": {"fn": "last", "of": "value->>'n'"}}
    names = data.draw(st.lists(st.sampled_from(list(functions)), min_size=1, max_size=2, unique=True))
    chosen = {name: functions[name] for name in names}
    return {"op": "aggregate", "name": "counted", "window": window, "aggregates": chosen, "emit": shape["emit"]}


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    """What of a job never changes while its stores go on."""
    window = draw(
        st.sampled_from(
            [
                {"type": "tumbling", "size_ms": 5},
                {"type": "hopping", "size_ms": 6, "advance_ms": 2},
                {"type": "sliding", "time_difference_ms": 4},
                {"type": "session"},
            ]
        )
    )
    is_distinct = window["type"] in {"tumbling", "session"} and draw(st.booleans())
    emit = draw(st.sampled_from(["on_update", "on_window_close"]))
    return {
        "window": window,
        "is_distinct": is_distinct,
        "emit": emit,
        "is_suppressed": not is_distinct and emit == "on_update" and draw(st.booleans()),
        "once": draw(st.sampled_from([None, "deduplicate_by_key", "deduplicate_by_key_value", "deduplicate"])),
    }


records = st.lists(
    st.builds(
        lambda key, n, timestamp: {"key": key, "value": {"n": n}, "timestamp": timestamp},
        st.sampled_from("abc"),
        st.integers(0, 4),
        st.integers(0, 40),
    ),
    max_size=14,
)


randoms = st.integers(0, 2**32).map(Random)


@given(st.data(), shapes(), st.integers(1, 3), randoms, st.none() | st.just(1), st.booleans())
def test_each_version_goes_on_with_the_state_of_the_one_before(
    storage: Storage,
    data: st.DataObject,
    shape: dict[str, Any],
    partitions: int,
    rng: Random,
    at_once: int | None,
    forgets: bool,
) -> None:
    job = WholeJob(storage, chain_of(data, shape), {"in": partitions}, at_once=at_once, forgets=forgets)
    for _ in range(data.draw(st.integers(1, 4), "versions")):
        for partition in range(partitions):
            given_now = data.draw(records)
            if given_now:
                job.post("in", partition, given_now)
        for _ in range(rng.randrange(20)):
            job.turn(rng.choice(job.tasks), rng, rng.randint(1, 5), kill=0.2)
        come_to_rest(job, rng)
        to = data.draw(st.none() | st.integers(0, 40), "set back to")
        if to is not None:
            job.set_back(to)
        names = sorted({store.operator for store in job.topology.stores()})
        job.change(chain_of(data, shape), data.draw(st.sets(st.sampled_from(names), max_size=1), "restart"))
    job.drain(rng, 5)
    for task in job.tasks:
        assert (task.sunk, task.moved) == expected(job, task)


def come_to_rest(job: WholeJob, rng: Random) -> None:
    """Backlogs are done; where tasks go on with what others give, all that is there is read."""
    if len(job.topology.sub_topologies) > 1:
        job.drain(rng, 5)
    while any(task.has_backlog for task in job.tasks):
        for task in job.tasks:
            if task.has_backlog:
                job.turn(task, rng, 5, kill=0.2)


def expected(job: WholeJob, task: TaskAtWork) -> tuple[dict[int, list[Record]], dict[int, list[Record]]]:
    """What goes to the sink and to other tasks where the records of each version are one batch."""
    told = _Undisturbed(job, task)
    for era, end in zip(task.eras, [*(era.since for era in task.eras[1:]), len(task.taken)], strict=True):
        if era.adoption is not None:
            told.adopt(era.adoption)
        told.run(era.chain, [taken.record for taken in task.taken[era.since : end]])
    return told.sunk, told.moved


class _Undisturbed:
    """A task that nobody kills, and that takes all at once."""

    def __init__(self, job: WholeJob, task: TaskAtWork) -> None:
        self._job, self._own = job, task.partition
        self._stores = {store.name: replace(store, interval_ms=None) for store in job.topology.stores()}
        self._states: dict[str, DictState] = defaultdict(DictState)
        self.sunk: dict[int, list[Record]] = {}
        self.moved: dict[int, list[Record]] = {}

    def adopt(self, adoption: Adoption) -> None:
        """Go over to another version."""
        for name, handover in adoption.stores.items():
            if handover.begins_at is not None:
                self._states[name] = DictState()
            self._replay({name: adopt(self._states[name], handover)})

    def run(self, chain: Chain, taken: list[Record]) -> None:
        """Run records, and what was too much of them at once."""
        while taken:
            result = chain.run(batch_of(taken), self._states)
            self._keep(result)
            taken = taken[result.taken :]
            while chain.has_backlog(self._states):
                self._keep(chain.go_on(self._states, NOTHING))

    def _keep(self, result: ChainResult) -> None:
        self._replay(result.changes)
        for _, rows in result.outputs:
            for target, places in split_by_partition(rows.column("key"), self._job.sink_partitions, self._own):
                self.sunk.setdefault(target, []).extend(shown(rows.take(pa.array(places))))
        for each in result.repartitioned:
            for target, places in split_by_partition(each.keys, each.targets, self._own):
                self.moved.setdefault(target, []).extend(shown(as_records(each.rows).take(pa.array(places))))

    def _replay(self, changes: Mapping[str, pa.RecordBatch | None]) -> None:
        for name, batch in changes.items():
            if batch is not None:
                self._states[name].replay(batch, self._stores[name])
