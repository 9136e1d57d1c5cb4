"""An aggregate whose functions change, again and again, over one store: equal to the oracle, in what comes out and in
what lookups find; whatever the versions, wherever they begin, however the input is cut.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.operators import into_sessions, stored_results
from tests import naive_windows, strategies
from tests.aggregate_versions import Versions, taking_over, versions_of
from tests.task import Task, cut, held, job, outputs, parts

Record = dict[str, Any]

STORE = "t-agg"


@st.composite
def changes(draw: st.DrawFn, operator: Record) -> list[Record]:
    """The fields of later versions: some functions go, some come, one becomes another, all in another order."""
    found, aggregates = [], operator["aggregates"]
    for _ in range(draw(st.integers(1, 4))):
        names = draw(st.lists(st.sampled_from([f"f{i}" for i in range(6)]), min_size=1, max_size=5, unique=True))
        own = st.sampled_from(strategies.FUNCTIONS)
        aggregates = {
            name: aggregates[name] if name in aggregates and draw(st.integers(0, 3)) else draw(own) for name in names
        }
        found.append({"aggregates": aggregates})
    return found


@st.composite
def meeting(draw: st.DrawFn) -> list[Record]:
    """Records of one key in any order of time: their sessions meet."""
    values = st.fixed_dictionaries({"v": st.integers(-9, 9), "d": st.none(), "id": strategies.texts})
    times = draw(st.lists(st.integers(0, 30), min_size=8, max_size=20))
    return [{"key": "a", "value": draw(values), "timestamp": at} for at in times]


@st.composite
def histories(draw: st.DrawFn, *, large: bool = False) -> tuple[Record, list[Record], list[list[Record]]]:
    """An operator, the fields of its later versions, and the records that each version gets."""
    if draw(st.integers(0, 3)):
        operator, records = draw(strategies.aggregations()), draw(strategies.arrivals(large=large))
    else:
        operator, records = draw(strategies.aggregations(kinds=("session",))), draw(meeting())
        operator["window"]["grace_ms"] = 20
    later = draw(changes(operator))
    bounds = sorted(draw(st.lists(st.integers(0, len(records)), min_size=len(later), max_size=len(later))))
    return operator, later, [records[a:b] for a, b in zip([0, *bounds], [*bounds, len(records)], strict=True)]


@pytest.fixture(params=[(2, stored_results.FEW), pytest.param((32, 0), marks=pytest.mark.thorough)], autouse=True)
def bounds(request: pytest.FixtureRequest) -> Iterator[None]:
    """How many sessions of a key are packed, and how many values are read one by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(into_sessions, "MOST_HOT", request.param[0])
        patch.setattr(stored_results, "FEW", request.param[1])
        yield


def lookups(oracle: Versions) -> list[tuple[Any, ...]]:
    """What the oracle holds, as lookups give it."""

    def order(who: Any) -> Any:
        key, start, end = who
        return key.encode(), (end, start) if oracle.type == "session" else (start,)

    updates = [oracle.update(who) for who in sorted(oracle.groups, key=order)]
    return [(each["key"], each["window"], each["value"], each["timestamp"]) for each in updates]


def found_in(task: Task) -> list[tuple[Any, ...]]:
    windows = [
        None if window == (None, None) else dict(zip(("start", "end"), window, strict=True))
        for _, window, _, _ in held(task)[STORE]
    ]
    return [
        (key, window, json.loads(value), timestamp)
        for (key, _, value, timestamp), window in zip(held(task)[STORE], windows, strict=True)
    ]


@given(histories(), strategies.batch_sizes, st.booleans(), st.data())
def test_every_version_equals_the_oracle_which_keeps_what_saw_all_of_a_group(
    history: tuple[Record, list[Record], list[list[Record]]], sizes: list[int], forget: bool, data: st.DataObject
) -> None:
    operator, later, records = history
    topologies = versions_of(operator, later)
    task, oracle = Task(topologies[0], forget=forget), Versions(operator)
    for version, given_now in enumerate(records):
        if version:
            task = taking_over(task, topologies[version])
            oracle.change(later[version - 1])
            assert forget or found_in(task) == lookups(oracle)
        for batch in cut(given_now, sizes):
            expected = [out for record in given_now[: batch.rows.num_rows] for out in oracle.feed(record)]
            given_now = given_now[batch.rows.num_rows :]
            assert outputs(task.run(batch)) == expected
        if data.draw(st.integers(0, 4)) == 0:
            to = max(0, oracle.obs + data.draw(st.integers(-3, 30)))
            assert outputs(task.advance(to, "idle")) == oracle.advance(to)
        assert forget or found_in(task) == lookups(oracle)
    horizon = oracle.horizon()
    if horizon is not None:
        assert outputs(task.advance(horizon)) == oracle.advance(horizon)


@given(histories(large=True), strategies.batch_sizes)
def test_a_sum_overflows_only_where_it_is_not_missing(
    history: tuple[Record, list[Record], list[list[Record]]], sizes: list[int]
) -> None:
    operator, later, records = history
    total = {"s": {"fn": "sum", "of": "(value->>'v')::bigint"}}
    later = [{"aggregates": {**each["aggregates"], **(total if i % 2 == 0 else {})}} for i, each in enumerate(later)]
    topologies = versions_of(operator, later)
    task, oracle = Task(topologies[0], on_error="drop"), Versions(operator)
    for version, given_now in enumerate(records):
        if version:
            task = taking_over(task, topologies[version])
            oracle.change(later[version - 1])
        results = [result for batch in cut(given_now, sizes) for result in parts(task, batch)]
        expected = [out for record in given_now for out in oracle.feed_or_drop(record)]
        assert [out for result in results for out in outputs(result)] == expected


@given(histories(), strategies.batch_sizes)
def test_last_per_batch_is_the_net_change_in_all_versions(
    history: tuple[Record, list[Record], list[list[Record]]], sizes: list[int]
) -> None:
    operator, later, records = history
    every = {**operator, "emit": "on_update", "updates": "every"}
    found: list[list[list[Record]]] = []
    for updates in "every", "last_per_batch":
        topologies = versions_of({**every, "updates": updates}, later)
        task, said = Task(topologies[0]), list[list[Record]]()
        for version, given_now in enumerate(records):
            task = taking_over(task, topologies[version]) if version else task
            said += [outputs(task.run(batch)) for batch in cut(given_now, sizes)]
        found.append(said)
    assert found[1] == naive_windows.last_per_batch(found[0])


@given(strategies.aggregations(), strategies.arrivals(), strategies.batch_sizes)
def test_a_store_that_never_had_another_layout_is_written_as_ever(
    operator: Record, records: list[Record], sizes: list[int]
) -> None:
    topologies = versions_of(operator, [{"updates": "last_per_batch"}])
    assert topologies[1].stores()[0].layouts is None
    one, two = Task(job([operator])), Task(topologies[0])
    for batch in cut(records, sizes):
        one.run(batch)
        two.run(batch)
    assert one.states == two.states
    assert {value[0] for key, value in one.states[STORE].items() if key[:1] in (b"w", b"k", b"s", b"h")} <= {1}
