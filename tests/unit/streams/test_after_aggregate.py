"""What follows an aggregate is a table of updates: one edge per test (semantics.md, After an aggregate)."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from service.streams.errors import ExpressionFailed, InvalidSpec
from service.streams.expressions import run
from service.streams.operators.filter import Filter, FilterSpec
from service.streams.operators.map_values import MapValues, MapValuesSpec
from service.streams.operators.upstream import PLAIN, Upstream
from service.streams.topology import graph
from service.streams.topology.spec import JobSpec
from tests.task import Task, batch_of, cut, dropped, job, outputs, parts, rows_of, run_all, shown

TABLE = Upstream(is_table=True)
TUMBLING = {"type": "tumbling", "size_ms": 10}
SESSION = {"type": "session", "gap_ms": 5}
AT_LEAST_2 = {"op": "filter", "where": "(value->>'n')::bigint >= 2"}
UNDER_2 = {"op": "filter", "where": "(value->>'n')::bigint < 2"}
AS_TEXT = {"op": "map_values", "select": {"v": "'v' || (value->>'n')"}}


def count(window=TUMBLING, **fields):
    return {"op": "aggregate", "name": "agg", "window": window, "aggregates": {"n": {"fn": "count"}}, **fields}


def final(**fields):
    return {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}, **fields}


def record(key, timestamp, value=None):
    return {"key": key, "value": {"v": 1} if value is None else value, "timestamp": timestamp}


def update(key, value, timestamp=1, window=(0, 10)):
    return {"key": key, "value": value, "timestamp": timestamp, "window": {"start": window[0], "end": window[1]}}


def ran(operators, *records):
    """(key, window start, value, timestamp) of what comes out of the job."""
    out = outputs(Task(job(operators)).run(batch_of([record(*each) for each in records])))
    return [(r["key"], r["window"] and r["window"]["start"], r["value"], r["timestamp"]) for r in out]


# ---------------------------------------------------------------- filter


def filtered(*updates, where="(value->>'n')::bigint >= 2", upstream=TABLE, on_error="fail"):
    operator = Filter(FilterSpec(op="filter", where=where), "f", on_error, upstream)
    return operator.process(rows_of(updates))


def test_a_value_that_fails_a_filter_becomes_a_tombstone():
    """KTable.filter: whoever holds the older value must learn that it does not count any more."""
    step = filtered(update("a", {"n": 1}, 3), update("a", {"n": 2}, 4))
    assert shown(step.forward) == [update("a", None, 3), update("a", {"n": 2}, 4)]
    assert step.dropped == []


def test_a_value_for_which_a_condition_is_null_becomes_a_tombstone():
    assert shown(filtered(update("a", {})).forward) == [update("a", None)]


@pytest.mark.parametrize("where", ["value is not null", "false", "(value->>'n')::bigint >= 2", "key::bigint = 1"])
def test_a_tombstone_passes_every_filter_unseen(where):
    assert shown(filtered(update("a", None), where=where).forward) == [update("a", None)]


def test_a_filter_on_a_plain_stream_leaves_records_out():
    step = filtered(update("a", {"n": 1}), update("a", None), update("a", {"n": 2}), upstream=PLAIN)
    assert shown(step.forward) == [update("a", {"n": 2})]


def test_values_on_which_a_condition_fails_are_dropped_and_tombstones_are_not():
    updates = [update("a", None, 1), update("b", {"n": "x"}, 2), update("c", {"n": 1}, 3), update("d", None, 4)]
    step = filtered(*updates, on_error="drop")
    assert shown(step.forward) == [update("a", None, 1), update("c", None, 3), update("d", None, 4)]
    assert [(each.reason, each.rows.column("ordinal").to_pylist()) for each in step.dropped] == [
        ("expression_failed", [1])
    ]


# ---------------------------------------------------------------- map_values


def test_what_distinct_needs_closed_does_not_close_the_aggregate_behind_it():
    """A day of distinct is closed; the aggregate's own windows asked for no more than their grace."""
    distinct = {"op": "distinct", "name": "daily", "window": {"type": "tumbling", "size_ms": 1000, "grace_ms": 500}}
    plain = {"op": "select_key", "key": "key"}
    window = {"type": "session", "gap_ms": 10}
    counted = {"op": "aggregate", "name": "visits", "window": window, "aggregates": {"n": {"fn": "count"}}}
    task = Task(job([distinct, plain, counted | {"emit": "on_window_close"}]))
    assert run_all(task, [batch_of([{"key": "a", "value": {}, "timestamp": 5}])]) == []
    assert [(out["key"], out["value"]) for result in task.close() for out in outputs(result)] == [("a", {"n": 1})]
    later = [{"key": key, "value": {}, "timestamp": at} for key, at in (("a", 999), ("b", 1001), ("b", 2000))]
    results = parts(task, batch_of(later, 1))
    assert [(out["key"], out["timestamp"]) for result in results for out in outputs(result)] == [("b", 1001)]
    assert [drop for result in results for drop in dropped(result)] == [("daily", "closed_idle", 1)]


def mapped(*updates, upstream=TABLE, on_error="fail", **select):
    operator = MapValues(MapValuesSpec(op="map_values", select=select), "m", on_error, upstream)
    return operator.process(rows_of(updates))


def test_a_tombstone_passes_map_values_untouched():
    step = mapped(update("a", None, 1), update("a", {"n": 1}, 2), update("a", None, 3), k="key", n="value->>'n'")
    assert shown(step.forward) == [
        update("a", None, 1),
        update("a", {"k": "a", "n": "1"}, 2),
        update("a", None, 3),
    ]


def test_a_null_value_of_a_plain_stream_is_mapped_like_any_other():
    step = mapped(update("a", None), upstream=PLAIN, n="value->>'n'")
    assert shown(step.forward) == [update("a", {"n": None})]


def test_values_on_which_an_expression_fails_are_dropped_and_tombstones_are_not():
    step = mapped(update("a", None), update("b", {"n": "x"}), on_error="drop", n="(value->>'n')::bigint")
    assert shown(step.forward) == [update("a", None)]
    assert step.dropped[0].rows.column("ordinal").to_pylist() == [1]


def test_a_limit_that_is_met_behind_tombstones_names_the_operator_and_the_record(monkeypatch):
    monkeypatch.setattr(run, "MAX_RESULT_BYTES", 4)
    operator = MapValues(MapValuesSpec(op="map_values", select={"long": "'too long'"}), "m", "drop", TABLE)
    with pytest.raises(ExpressionFailed) as failed:
        operator.process(rows_of([update("a", None), update("a", {"n": 1})]))
    assert (failed.value.operator, failed.value.ordinal) == ("m", 1)


def test_values_of_any_type_are_taken_past_tombstones():
    step = mapped(update("a", None), update("a", {"n": 1}), j="value", t="timestamp", b="true", d="0.5::double")
    assert shown(step.forward)[1]["value"] == {"j": {"n": 1}, "t": 1, "b": True, "d": 0.5}


# ---------------------------------------------------------------- who is a table


@pytest.mark.parametrize(
    ("operators", "is_table", "window_type"),
    [
        ([], False, None),
        ([count()], True, "tumbling"),
        ([count(None)], True, None),
        ([count(SESSION), AT_LEAST_2, AS_TEXT], True, "session"),
        ([count(SESSION), final()], True, "session"),
        ([count(), {"op": "select_key", "key": "key"}], False, None),
        ([count(), {"op": "deduplicate_by_key", "name": "d", "interval_ms": 1}], False, None),
        ([{"op": "distinct", "name": "d", "window": SESSION}], False, "session"),
        ([count(), {"op": "select_key", "key": "key"}, count(None, name="other")], True, None),
    ],
)
def test_what_reaches_an_operator_depends_on_those_before_it(operators, is_table, window_type):
    found = job([*operators, AT_LEAST_2]).sub_topologies[0].nodes[-1].upstream
    assert (found.is_table, found.window_type) == (is_table, window_type)


def test_what_reaches_an_operator_is_kept_with_the_topology():
    compiled = job([count(SESSION), final(), AT_LEAST_2])
    again = graph.Topology.from_json(compiled.to_json())
    assert again == compiled
    assert [node.upstream.is_table for node in again.sub_topologies[0].nodes] == [False, True, True]


def test_a_topology_from_before_there_were_tables_is_still_read():
    stored = job([{"op": "filter", "where": "true"}]).to_json()
    del stored["sub_topologies"][0]["nodes"][0]["upstream"]
    assert graph.Topology.from_json(stored).sub_topologies[0].nodes[0].upstream == PLAIN


# ---------------------------------------------------------------- with the aggregate


def test_count_filter_map_final():
    """Vector V12: at z@10 only b comes out, as the filter made a tombstone of a's second count."""
    records = [("a", 1), ("b", 1), ("a", 2), ("z", 10), ("z", 20)]
    assert ran([count(), UNDER_2, AS_TEXT, final()], *records) == [("b", 0, {"v": "v1"}, 1), ("z", 10, {"v": "v1"}, 10)]


def test_the_tombstones_of_a_session_pass_filter_and_map_values():
    records = [("a", 1), ("a", 3)]
    assert ran([count(SESSION), AT_LEAST_2, AS_TEXT], *records) == [
        ("a", 1, None, 1),
        ("a", 1, None, 1),
        ("a", 1, {"v": "v2"}, 3),
    ]


@pytest.mark.parametrize("finals", [[count(), final()], [count(emit="on_window_close")]])
def test_behind_final_results_a_filter_leaves_out_what_fails(finals):
    """Each window comes once: there is nothing to take back."""
    records = [("a", 1), ("b", 2), ("b", 3), ("t", 10)]
    assert ran([*finals, AT_LEAST_2], *records) == [("b", 0, {"n": 2}, 3)]
    assert ran([*finals, AS_TEXT, {"op": "filter", "where": "value->>'v' = 'v2'"}], *records) == [
        ("b", 0, {"v": "v2"}, 3)
    ]


def test_a_table_of_final_results_takes_back_what_a_filter_refuses():
    again = {**count(None), "name": "again"}
    assert ran([count(emit="on_window_close"), again, UNDER_2], ("a", 1), ("a", 11), ("t", 20)) == [
        ("a", None, {"n": 1}, 1),
        ("a", None, None, 11),
    ]


@pytest.mark.parametrize(
    ("operators", "expected"),
    [
        ([count()], [("a", {"n": 1}), ("a", None), ("b", {"n": 1})]),
        ([count(), AS_TEXT, {"op": "map_values", "select": {"n": "2"}}], [("a", None), ("a", None), ("b", None)]),
        ([count(emit="on_window_close")], [("b", {"n": 1})]),
        ([], [("a", {"n": 1}), ("b", {"n": 1})]),
    ],
    ids=["table", "mapped", "final", "plain"],
)
def test_the_where_of_a_sink_does_what_a_filter_does_there(operators, expected):
    """On a table that updates whoever keeps its rows must learn that one is no more."""
    where = "(value->>'n')::bigint < 2"
    task = Task(job(operators, sink=[{"stream": "low", "where": where}, {"stream": "all"}]))
    records = [("a", 1, {"n": 1}), ("a", 2, {"n": 2}), ("b", 11, {"n": 1})]
    records += [("t", 20, {"n": 5})] if operators and operators[0].get("emit") else []
    result = task.run(batch_of([record(*each) for each in records]))
    assert [(r["key"], r["value"]) for r in shown(result.outputs[0][1])] == expected


def test_the_alert_of_kip_328_fires_for_windows_with_too_little_in_them_alone():
    page = (Path(__file__).parents[3] / "docs" / "operators.md").read_text()
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)```", page, re.DOTALL)]
    (alerts,) = [block for block in blocks if block.get("name") == "alerts"]
    few = [("few", 1), ("few", 119_999)]
    healthy = [("healthy", t) for t in (1, 2, 3, 4)]
    assert ran(alerts["operators"], *few, *healthy, ("later", 500_000)) == [("few", 0, {"n": 2}, 119_999)]


def test_select_key_makes_it_a_plain_stream_without_a_window():
    by_count = {"op": "select_key", "key": "value->>'n'"}
    assert ran([count(), by_count, AT_LEAST_2], ("a", 1), ("a", 2)) == [("2", None, {"n": 2}, 2)]


def test_a_tombstone_under_a_new_key_is_a_plain_null():
    records = [("a", 1), ("a", 3)]
    by_key = {"op": "select_key", "key": "key || '!'"}
    assert ran([count(SESSION), by_key, AS_TEXT], *records) == [
        ("a!", None, {"v": "v1"}, 1),
        ("a!", None, {"v": None}, 1),
        ("a!", None, {"v": "v2"}, 3),
    ]


def test_windows_can_be_asked_for_in_expressions():
    last = {"op": "filter", "where": "window_end = 20 and window_start = 10"}
    assert ran([count(), last], ("a", 1), ("a", 12)) == [("a", 0, None, 1), ("a", 10, {"n": 1}, 12)]


def test_two_windows_of_a_key_are_two_identities():
    limited = {"op": "suppress", "name": "s", "until": "time_limit", "time_limit_ms": 10}
    records = [("a", 1), ("a", 11), ("a", 12), ("t", 21)]
    assert ran([count({**TUMBLING, "grace_ms": 50}), limited], *records) == [
        ("a", 0, {"n": 1}, 1),
        ("a", 10, {"n": 2}, 12),
    ]


def test_the_contract_s_example_job():
    visits = {
        "op": "aggregate",
        "name": "visits",
        "window": {"type": "session", "gap_ms": 30, "grace_ms": 5},
        "aggregates": {"n": {"fn": "count"}, "spent": {"fn": "sum", "of": "(value->>'amount')::double"}},
    }
    spill = final(buffer={"max_bytes": 50, "when_full": "spill_to_disk"})
    at_least_3 = {"op": "filter", "where": "(value->>'n')::bigint >= 3"}
    records = [("u1", t, {"amount": 1.5}) for t in (1, 2, 3)] + [("u2", 4, {"amount": 2}), ("u3", 100, {"amount": 2})]
    expected = [("u1", 1, {"n": 3, "spent": 4.5}, 3)]
    assert ran([visits, spill, at_least_3], *records) == expected


def test_flush_closes_the_aggregate_and_then_what_waits_behind_it():
    on_close = count({**TUMBLING, "grace_ms": 3}, emit="on_window_close")
    limited = {"op": "suppress", "name": "s", "until": "time_limit", "time_limit_ms": 4}
    task = Task(job([on_close, limited, AS_TEXT]))
    assert run_all(task, [batch_of([record("a", 8), record("b", 9)])]) == []
    horizon = task.chain.horizon(task.states)
    assert horizon == 13
    result = task.advance(horizon)
    finals = [(r["key"], r["value"], r["timestamp"]) for r in outputs(result)]
    assert finals == [("a", {"v": "v1"}, 8), ("b", {"v": "v1"}, 9)]
    assert result.outputs[0][1].column("headers").to_pylist() == ['{"millrace-closed-by":"flush"}'] * 2
    assert task.chain.horizon(task.states) is None


def test_records_for_what_flush_has_closed_are_dropped_and_say_so():
    task = Task(job([count(), final()]))
    run_all(task, [batch_of([record("a", 8)])])
    task.advance(10, "idle")
    result = task.run(batch_of([record("a", 9), record("b", 12)], 1))
    assert outputs(result) == []
    assert [(each.operator, each.reason, each.rows.num_rows) for each in result.dropped] == [("agg", "closed_idle", 1)]


@pytest.mark.parametrize("sizes", [[1] * 9, [2, 3], [9]])
def test_net_changes_are_those_of_a_batch(sizes):
    """last_per_batch: a session born and gone inside a batch gives nothing; the cut shows."""
    records = [record("a", t) for t in (1, 4, 8)]
    out = run_all(Task(job([count(SESSION, updates="last_per_batch")])), cut(records, sizes))
    values = [(r["window"]["start"], r["window"]["end"], r["value"]) for r in out]
    assert values[-1] == (1, 8, {"n": 3})
    if sizes == [9]:
        assert values == [(1, 8, {"n": 3})]
    if sizes == [2, 3]:
        assert values == [(1, 4, {"n": 2}), (1, 4, None), (1, 8, {"n": 3})]


def test_a_job_of_all_of_them_is_admitted():
    operators = [count(SESSION), AT_LEAST_2, AS_TEXT, final(), {**final(), "name": "again"}]
    assert len(JobSpec.parse({"name": "t", "source": "in", "operators": operators}).operators) == 5


@pytest.mark.parametrize("window", [TUMBLING, SESSION])
def test_what_comes_out_on_close_is_net_already(window):
    """last_per_batch changes nothing there: each window is said once."""
    records = [record("a", t) for t in (1, 3, 20, 22, 60)]
    every = run_all(Task(job([count(window, emit="on_window_close")])), cut(records, [2, 3]))
    net = run_all(Task(job([count(window, emit="on_window_close", updates="last_per_batch")])), cut(records, [2, 3]))
    assert net == every
    assert len(every) == 2


def saying(headers, one):
    """A batch of one record with these headers."""
    batch = batch_of([one])
    at = batch.rows.schema.get_field_index("headers")
    return replace(batch, rows=batch.rows.set_column(at, batch.rows.schema.field(at), pa.array([headers], pa.utf8())))


@pytest.mark.parametrize("said", ['{"millrace-closed-by":"made up"}', '{"millrace-closed-by":"idle","x":"y"}'])
def test_why_a_result_came_out_is_never_taken_from_the_records_it_came_of(said):
    task = Task(job([count(), {"op": "suppress", "name": "hold", "until": "time_limit", "time_limit_ms": 5}]))
    task.run(saying(said, update("a", {"n": 1}, timestamp=0)))
    flushed = task.advance(100).outputs[0][1]
    [headers] = [json.loads(text) for text in flushed.column("headers").to_pylist()]
    assert headers == {"millrace-closed-by": "flush"} | ({"x": "y"} if "x" in said else {})


def test_an_operator_that_closes_nothing_lets_headers_pass():
    task = Task(job([AT_LEAST_2]))
    said = '{"millrace-closed-by":"idle"}'
    result = task.run(saying(said, update("a", {"n": 2})))
    assert result.outputs[0][1].column("headers").to_pylist() == [said]


def test_no_window_closes_behind_a_deduplicate():
    """It lets one update of several windows through: whether that was the last of its window nobody knows."""
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1}
    with pytest.raises(InvalidSpec) as refused:
        job([count(), once, final()])
    assert [problem.pointer for problem in refused.value.errors] == ["/operators/2/until"]
