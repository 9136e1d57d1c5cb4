"""What is not over yet in a store, by when it will be: equal to the oracle, with an index and without, and honest where
too much lies there to be looked at.
"""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.stores import pending, reading
from service.streams.stores.pending import Ending, Pending, read_pending
from service.streams.topology.graph import form_of
from tests import naive, naive_suppress, strategies
from tests.task import DictState, Task, cut, job, run_all

ALL = 1_000_000
FIRSTS = 3
WINDOWED = ("tumbling", "hopping", "sliding", "session")


class View(DictState):
    position = 7


def pending_in(task: Task, place: int, *, most: int = ALL, has_indexes: bool) -> Pending:
    node = task.topology.sub_topologies[0].nodes[place]
    assert node.store is not None
    found = reading.read(
        read_pending(form_of(node), 0, FIRSTS, has_indexes=has_indexes, most=most),
        {0: View(task.states[node.store.name])},
    )
    assert found is not None
    return found


def check(task: Task, place: int, times: list[int], delay: int, most: int) -> None:
    """`times` of all that is open, as the oracle has it, each over when stream time is `delay` later."""
    expected = [
        Ending(min(time + delay, 2**63 - 1), time, number, True) for time, number in sorted(Counter(times).items())
    ]
    for has_indexes in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(pending, "LEAST_AT_ONCE", 2)
            whole = pending_in(task, place, has_indexes=has_indexes)
            part = pending_in(task, place, most=most, has_indexes=has_indexes)
        assert (whole.number, whole.is_all, whole.first) == (len(times), True, expected[:FIRSTS])
        assert whole.last_at == (expected[-1].at if expected else None)
        assert part.number <= len(times)
        assert part.number == len(times) or not part.is_all
        if part.first is not None:
            assert len(part.first) == min(FIRSTS, len(expected)) or len(times) > most
            for due, exactly in zip(part.first, expected, strict=False):
                assert due == exactly or (due[:2] == exactly[:2] and due.number <= exactly.number and not due.is_all)
            assert all(due.is_all for due in part.first[:-1])
            assert part.last_at == whole.last_at


@given(
    strategies.aggregations(kinds=("tumbling", "hopping", "sliding", "session")),
    strategies.arrivals(),
    strategies.batch_sizes,
    st.integers(1, 20),
)
def test_open_windows_are_those_of_the_oracle(
    operator: dict[str, Any], records: list[dict[str, Any]], sizes: list[int], most: int
) -> None:
    oracle = naive.machine_of([operator], 0)
    for record in records:
        oracle.feed({"window": None, **record})
    task = Task(job([operator]))
    run_all(task, cut(records, sizes))
    ends = [end for _, _, end in oracle.groups if not oracle.is_closed(end)]
    check(task, 0, ends, oracle.delay + (oracle.type in ("session", "sliding")), most)


@given(strategies.distincts(), strategies.arrivals(), strategies.batch_sizes, st.integers(1, 20))
def test_open_windows_of_distinct_are_those_of_the_oracle(
    operator: dict[str, Any], records: list[dict[str, Any]], sizes: list[int], most: int
) -> None:
    oracle = naive_suppress.Distinct(operator)
    for record in records:
        oracle.feed({"window": None, **record})
    task = Task(job([operator]))
    run_all(task, cut(records, sizes))
    window, delay = operator["window"], naive_suppress.closing_delay(operator["window"])
    if window["type"] == "session":
        ends = [end for sessions in oracle.sessions.values() for _, end in sessions if end >= oracle.close]
    else:
        ends = [start + window["size_ms"] for _, start in oracle.seen if start + window["size_ms"] > oracle.close]
    check(task, 0, ends, delay + (window["type"] == "session"), most)


@given(strategies.windows | st.none(), st.data(), strategies.arrivals(), strategies.batch_sizes, st.integers(1, 20))
def test_what_suppress_holds_back_is_what_the_oracle_holds_back(
    window: dict[str, Any] | None, data: st.DataObject, records: list[dict[str, Any]], sizes: list[int], most: int
) -> None:
    aggregate = {"op": "aggregate", "name": "agg", "window": window, "aggregates": {"n": {"fn": "count"}}}
    held = data.draw(strategies.suppressions(is_final=window is not None and data.draw(st.booleans())))
    operators = [aggregate, {**held, "buffer": {}}]
    oracle = naive.Closing(operators)
    for record in records:
        oracle.feed(record)
    task = Task(job(operators))
    run_all(task, cut(records, sizes))
    buffer = oracle.machines[1]
    check(task, 1, [time for time, _ in buffer.buffer.values()], buffer.wait + buffer.is_strict, most)
    assert pending_in(task, 1, has_indexes=False).bytes == buffer.bytes()


@given(strategies.deduplications(), strategies.arrivals(), strategies.batch_sizes, st.booleans(), st.integers(1, 20))
def test_what_deduplicate_remembers_is_what_the_oracle_remembers(
    operator: dict[str, Any], records: list[dict[str, Any]], sizes: list[int], forget: bool, most: int
) -> None:
    oracle = naive.Deduplicate(naive.identity_of(operator), operator["interval_ms"])
    for record in records:
        oracle.feed({"window": None, **record})
    task = Task(job([operator]), forget=forget)
    run_all(task, cut(records, sizes))
    stamps = [at for at in oracle.stored.values() if oracle.obs - at <= operator["interval_ms"]]
    check(task, 0, stamps, operator["interval_ms"] + 1, most)


def test_nothing_of_a_table_is_ever_over() -> None:
    task = Task(job([{"op": "aggregate", "name": "agg", "window": None, "aggregates": {"n": {"fn": "count"}}}]))
    node = task.topology.sub_topologies[0].nodes[0]
    assert reading.read(read_pending(form_of(node), 0, FIRSTS, has_indexes=True), {}) is None
