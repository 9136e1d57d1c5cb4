"""aggregate is a deterministic function of (state, ordered records): equal to the oracle, however it is run."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.operators import into_sessions
from tests import naive, naive_windows, strategies
from tests.task import Task, batch_of, check_replay, cut, held, job, outputs, parts, run_all

STORE = "t-agg"
WINDOWED = ("tumbling", "hopping", "sliding", "session")


@pytest.fixture(params=[2, pytest.param(32, marks=pytest.mark.thorough)], autouse=True)
def most_hot(request):
    """How many sessions of a key are packed: with few, most tests meet those that are not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(into_sessions, "MOST_HOT", request.param)
        yield


def advanced(task, to):
    """What comes out when time is moved."""
    result = task.advance(to, "idle")
    return outputs(result), dropped(result)


def dropped(result):
    return [(each.reason, row["timestamp"]) for each in result.dropped for row in each.rows.to_pylist()]


@given(strategies.aggregations(), strategies.arrivals(), strategies.batch_sizes, st.booleans(), st.data())
def test_aggregate_equals_the_oracle_however_it_is_cut_and_whenever_time_is_moved(
    operator, records, sizes, forget, data
):
    task = Task(job([operator]), forget=forget)
    oracle = naive_windows.Aggregate(operator, naive.EXPRESSIONS)
    at = 0
    for batch in cut(records, sizes):
        if data.draw(st.integers(0, 9)) == 0:
            to = max(0, oracle.obs + data.draw(st.integers(-3, 30)))
            oracle.dropped.clear()
            assert advanced(task, to) == (oracle.advance(to), [])
        oracle.dropped.clear()
        expected = [out for record in records[at : at + batch.rows.num_rows] for out in oracle.feed(record)]
        at += batch.rows.num_rows
        result = task.run(batch)
        assert outputs(result) == expected
        assert Counter(dropped(result)) == Counter(oracle.dropped)
        assert task.chain.horizon(task.states) == oracle.horizon()


@given(strategies.aggregations(), strategies.arrivals(large=True), strategies.batch_sizes)
def test_a_record_at_which_a_sum_overflows_is_dropped_as_if_it_had_never_been(operator, records, sizes):
    operator["aggregates"]["s"] = {"fn": "sum", "of": "(value->>'v')::bigint"}
    task = Task(job([operator]), on_error="drop")
    oracle = naive_windows.Aggregate(operator, naive.EXPRESSIONS)
    expected = [out for record in records for out in oracle.feed_or_drop(record)]
    results = [result for batch in cut(records, sizes) for result in parts(task, batch)]
    assert [out for result in results for out in outputs(result)] == expected
    assert Counter(drop for result in results for drop in dropped(result)) == Counter(oracle.dropped)


@given(strategies.aggregations(), strategies.arrivals(), strategies.batch_sizes)
def test_the_store_holds_what_the_oracle_holds(operator, records, sizes):
    task = Task(job([operator]))
    oracle = naive_windows.Aggregate(operator, naive.EXPRESSIONS)
    for record in records:
        oracle.feed(record)
    run_all(task, cut(records, sizes))

    def order(who):
        key, start, end = who
        return key.encode(), (end, start) if oracle.type == "session" else (start,)

    groups = sorted(oracle.groups, key=order)
    found = held(task)[STORE]
    assert [(key, window) for key, window, _, _ in found] == [(who[0], (who[1], who[2])) for who in groups]
    assert [timestamp for *_, timestamp in found] == [oracle.update(who)["timestamp"] for who in groups]
    assert [json.loads(value) for _, _, value, _ in found] == [oracle.update(who)["value"] for who in groups]


@given(strategies.aggregations(kinds=WINDOWED), strategies.arrivals(), strategies.batch_sizes)
def test_a_final_is_never_followed_by_another_for_the_same_window(operator, records, sizes):
    task = Task(job([{**operator, "emit": "on_window_close"}]))
    finals = run_all(task, cut(records, sizes)) + advanced(task, 10_000)[0]
    assert len({(final["key"], *final["window"].values()) for final in finals}) == len(finals)
    assert task.chain.horizon(task.states) is None


@given(strategies.aggregations(kinds=WINDOWED), strategies.arrivals(), strategies.batch_sizes)
def test_finals_are_the_last_updates_of_their_windows(operator, records, sizes):
    updates = Task(job([{**operator, "emit": "on_update"}]))
    closing = Task(job([{**operator, "emit": "on_window_close"}]))
    last = {}
    for update in run_all(updates, [batch_of(records)]):
        last[(update["key"], *update["window"].values())] = update
    finals = run_all(closing, cut(records, sizes)) + advanced(closing, 10_000)[0]
    alive = [update for update in last.values() if update["value"] is not None]
    assert sorted(finals, key=str) == sorted(alive, key=str)


@given(strategies.aggregations(), strategies.arrivals(), strategies.batch_sizes)
def test_last_per_batch_is_the_net_change_of_each_batch(operator, records, sizes):
    every = {**operator, "emit": "on_update", "updates": "every"}
    batches = cut(records, sizes)
    one, two = Task(job([every])), Task(job([{**every, "updates": "last_per_batch"}]))
    updates = [outputs(one.run(batch)) for batch in batches]
    assert [outputs(two.run(batch)) for batch in batches] == naive_windows.last_per_batch(updates)


@given(strategies.aggregations(), strategies.arrivals(), strategies.batch_sizes, st.data())
def test_a_replay_from_any_commit_continues_as_if_nothing_had_happened(operator, records, sizes, data):
    topology = job([operator])
    batches = cut(records, sizes)
    check_replay(topology, batches, crash=data.draw(st.integers(0, len(batches))))


@given(strategies.aggregations(kinds=WINDOWED), strategies.aggregations(name="then"), strategies.arrivals(), st.data())
def test_two_aggregates_in_a_row_equal_the_oracle(first, second, records, data):
    specs = {name: {"fn": "count"} for name in second["aggregates"]}
    operators = [first, {**second, "aggregates": specs}]
    task = Task(job(operators))
    assert run_all(task, cut(records, data.draw(strategies.batch_sizes))) == naive.run(operators, records)
