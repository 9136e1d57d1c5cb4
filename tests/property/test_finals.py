"""Final means final: suppress behind a windowed aggregate, through the whole chain."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests import naive, strategies
from tests.task import Task, batch_of, check_replay, cut, job, outputs, run_all

small = st.integers(1, 6)
graces = st.sampled_from([0, 1, 5])
windows = st.one_of(
    st.fixed_dictionaries({"type": st.just("tumbling"), "size_ms": small, "grace_ms": graces}),
    st.fixed_dictionaries({"type": st.just("session"), "gap_ms": small, "grace_ms": graces}),
    st.fixed_dictionaries({"type": st.just("sliding"), "time_difference_ms": small, "grace_ms": graces}),
    st.fixed_dictionaries(
        {
            "type": st.just("hopping"),
            "size_ms": st.just(6),
            "advance_ms": st.sampled_from([2, 3, 4]),
            "grace_ms": graces,
        }
    ),
)
BETWEEN = [
    {"op": "filter", "where": "(value->>'n')::bigint < 3"},
    {"op": "map_values", "select": {"n": "(value->>'n')::bigint", "w": "window_start"}},
]


@st.composite
def finals(draw: st.DrawFn) -> list[dict[str, Any]]:
    """An aggregate, something or nothing, and suppress until its windows close."""
    aggregate = {"op": "aggregate", "name": "agg", "window": draw(windows), "aggregates": {"n": {"fn": "count"}}}
    between = draw(st.lists(st.sampled_from(BETWEEN), max_size=1))
    return [aggregate, *between, {"op": "suppress", "name": "final", "until": "window_closes"}]


def said(records):
    return [(record["key"], *record["window"].values()) for record in records]


def test_the_expressions_are_known_to_the_oracle():
    assert BETWEEN[0]["where"] in naive.EXPRESSIONS
    assert set(BETWEEN[1]["select"].values()) <= set(naive.EXPRESSIONS)


@given(finals(), strategies.records, strategies.batch_sizes)
def test_finals_equal_the_oracle_and_come_once_however_the_input_is_cut(operators, records, sizes):
    reference = naive.run(operators, records)
    whole, parts = Task(job(operators)), Task(job(operators))
    assert run_all(whole, [batch_of(records)]) == reference
    assert run_all(parts, cut(records, sizes)) == reference
    assert len(set(said(reference))) == len(reference)


@given(finals(), strategies.records, strategies.batch_sizes, st.data())
def test_a_replay_from_any_commit_says_no_final_twice(operators, records, sizes, data):
    topology, batches = job(operators), cut(records, sizes)
    check_replay(topology, batches, crash=data.draw(st.integers(0, len(batches))))


@given(finals(), strategies.records, strategies.batch_sizes, st.data())
def test_after_idle_close_no_final_is_said_again(operators, records, sizes, data):
    """All that is open closes at the horizon; whatever comes later, no window is final twice."""
    task, batches, out = Task(job(operators)), cut(records, sizes), []
    idle = data.draw(st.integers(0, len(batches)))
    out += run_all(task, batches[:idle])
    horizon = task.chain.horizon(task.states)
    if horizon is not None:
        out += outputs(task.advance(horizon, "idle"))
        assert task.chain.horizon(task.states) is None
    out += run_all(task, batches[idle:])
    assert len(set(said(out))) == len(out)


@given(finals(), strategies.records)
def test_idle_close_says_what_a_later_record_would_have_said(operators, records):
    """A record long after all others, of a key of its own, closes as much as the horizon does."""
    by_hand, by_record = Task(job(operators)), Task(job(operators))
    first = run_all(by_hand, [batch_of(records)])
    assert run_all(by_record, [batch_of(records)]) == first
    horizon = by_hand.chain.horizon(by_hand.states)
    if horizon is None:
        return
    closed = outputs(by_hand.advance(horizon))
    at_last = horizon + 20 + max(record["timestamp"] for record in records)
    later = run_all(by_record, [batch_of([{"key": "another", "value": {}, "timestamp": at_last}], len(records))])
    assert closed == [record for record in later if record["key"] != "another"]
