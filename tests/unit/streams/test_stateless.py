"""filter, map_values, select_key: one edge per test."""

import json

import pytest

from service.streams.errors import ExpressionFailed
from service.streams.expressions import run as expressions
from service.streams.records import RECORD_SCHEMA
from tests.task import Task, batch_of, causes, job, outputs

WINDOWED = {"key": "a", "value": {"v": 1}, "timestamp": 5, "window": {"start": 0, "end": 10}}


def run(operator, *records):
    return Task(job([operator])).run(batch_of(records))


def record(value, key="a"):
    return {"key": key, "value": value, "timestamp": 1}


def mapped(value, **select):
    """The raw text of the mapped value."""
    result = run({"op": "map_values", "select": select}, record(value))
    return result.outputs[0][1].column("value")[0].as_py()


def test_a_filter_lets_through_what_is_true_and_neither_false_nor_null():
    condition = {"op": "filter", "where": "(value->>'v')::bigint >= 3"}
    result = run(condition, record({"v": 2}), record({"v": 3}), record({}), record(None))
    assert [each["value"] for each in outputs(result)] == [{"v": 3}]
    assert result.dropped == []


def test_a_filter_may_ask_for_null_values():
    assert outputs(run({"op": "filter", "where": "value IS NULL"}, record(None), record({})))[0]["value"] is None


def test_a_filter_sees_the_window_and_leaves_it():
    assert outputs(run({"op": "filter", "where": "window_end - window_start = 10"}, WINDOWED)) == [WINDOWED]


def test_select_key_drops_the_window():
    (out,) = outputs(run({"op": "select_key", "key": "value->>'v'"}, WINDOWED))
    assert (out["key"], out["window"], out["value"]) == ("1", None, {"v": 1})


def test_select_key_gives_null_keys_and_integers_as_their_text():
    (null,) = outputs(run({"op": "select_key", "key": "value->>'nope'"}, record({})))
    (number,) = outputs(run({"op": "select_key", "key": "timestamp"}, record({})))
    assert (null["key"], number["key"]) == (None, "1")


def test_map_values_keeps_key_timestamp_and_window():
    (out,) = outputs(run({"op": "map_values", "select": {"n": "timestamp"}}, WINDOWED))
    assert out == {**WINDOWED, "value": {"n": 5}}


@pytest.mark.parametrize("number", [0, -1, 2**53 + 1, 2**63 - 1, -(2**63)])
def test_map_values_keeps_integers_exact_to_64_bits(number):
    assert mapped({"v": number}, n="(value->>'v')::bigint") == f'{{"n":{number}}}'


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.1, "0.1"), (1.0, "1.0"), (-0.0, "-0.0"), (1e300, "1e+300"), (0.30000000000000004, "0.30000000000000004")],
)
def test_map_values_writes_doubles_that_read_back_the_same(number, text):
    written = mapped({"v": number}, n="(value->>'v')::double")
    assert written == f'{{"n":{text}}}'
    assert json.loads(written)["n"] == number


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_map_values_writes_words_for_doubles_that_json_does_not_have(word):
    written = mapped({"v": word}, n="(value->>'v')::double")
    assert written == f'{{"n":"{word}"}}'
    assert mapped(json.loads(written), n="(value->>'n')::double") == written


def test_map_values_writes_decimals_with_their_digits():
    assert mapped({"v": "12.10"}, n="(value->>'v')::decimal(9,2)") == '{"n":12.10}'


def test_map_values_keeps_json_as_json_and_text_as_text():
    value = {"v": {"a": [1, None, "x"]}}
    assert json.loads(mapped(value, j="value->'v'", t="value->>'v'")) == {"j": value["v"], "t": '{"a":[1,null,"x"]}'}


@pytest.mark.parametrize("text", ["", "plain", 'q"uote', "back\\slash", "line\nfeed", "\x00\x1f", "é€𝄞", "</script>"])
def test_map_values_quotes_text(text):
    assert json.loads(mapped({"v": text}, t="value->>'v'")) == {"t": text}


def test_map_values_quotes_field_names_and_keeps_their_order():
    assert mapped({}, **{'b"': "true", "a": "false", "é": "null"}) == '{"b\\"":true,"a":false,"é":null}'


def test_map_values_of_a_null_value_is_an_object_of_what_the_expressions_give():
    assert mapped(None, k="key", v="value->>'v'") == '{"k":"a","v":null}'


def test_map_values_writes_dates_as_text():
    assert json.loads(mapped({"v": "2020-02-03"}, d="(value->>'v')::date")) == {"d": "2020-02-03"}


@pytest.mark.parametrize(
    "operator",
    [
        {"op": "filter", "where": "true"},
        {"op": "map_values", "select": {"n": "1"}},
        {"op": "select_key", "key": "'k'"},
    ],
)
def test_every_operator_gives_records_of_the_one_schema(operator):
    assert run(operator, WINDOWED).outputs[0][1].schema.equals(RECORD_SCHEMA, check_metadata=True)


BAD = {"op": "filter", "name": "strict", "where": "(value->>'v')::bigint > 0"}
MIXED = [record({"v": "1"}), record({"v": "x"}), record({"v": "2"}), record({"v": "y"})]


def test_a_failing_expression_names_operator_and_source_offset():
    with pytest.raises(ExpressionFailed) as failed:
        Task(job([{"op": "filter", "where": "timestamp = 1"}, BAD])).run(batch_of(MIXED, first_offset=70))
    assert (failed.value.operator, failed.value.offset) == ("strict", 71)


def test_offsets_of_failures_are_those_of_the_source_also_after_a_filter():
    first = {"op": "filter", "where": "value->>'v' <> '1'"}
    with pytest.raises(ExpressionFailed) as failed:
        Task(job([first, BAD])).run(batch_of(MIXED, first_offset=70))
    assert failed.value.offset == 71


@pytest.mark.parametrize(
    "operator",
    [
        BAD,
        {"op": "map_values", "name": "strict", "select": {"v": "(value->>'v')::bigint"}},
        {"op": "select_key", "name": "strict", "key": "(value->>'v')::bigint"},
        {"op": "deduplicate", "name": "strict", "id": "(value->>'v')::bigint", "interval_ms": 5},
        {"op": "deduplicate_by_key_value", "name": "strict", "id": "(value->>'v')::bigint", "interval_ms": 5},
    ],
)
def test_failing_records_are_dropped_where_the_job_says_so(operator):
    result = Task(job([operator]), on_error="drop").run(batch_of(MIXED, first_offset=70))
    (dropped,) = result.dropped
    assert (dropped.operator, dropped.reason) == ("strict", "expression_failed")
    assert dropped.rows.column("ordinal").to_pylist() == [1, 3]
    assert len(outputs(result)) == 2


def test_a_dead_letter_says_what_its_operator_failed_at():
    result = Task(job([BAD]), on_error="dead_letter").run(batch_of(MIXED, first_offset=70))
    (dropped,) = result.dropped
    assert (dropped.reason, dropped.rows.column("ordinal").to_pylist()) == ("expression_failed", [1, 3])
    assert [error.split(":")[0] for error in dropped.errors] == ["where", "where"]
    assert all("INT64" in error for error in dropped.errors)


def test_of_very_many_failing_records_not_all_are_looked_into(monkeypatch):
    monkeypatch.setattr(expressions, "MAX_EXPLAINED", 1)
    result = Task(job([BAD]), on_error="dead_letter").run(batch_of(MIXED))
    first, second = result.dropped[0].errors
    assert "INT64" in first
    assert second == expressions.UNEXPLAINED


def test_sinks_take_what_their_condition_lets_through_in_the_order_of_the_spec():
    sinks = [{"stream": "low", "where": "(value->>'v')::bigint < 3"}, {"stream": "all"}]
    result = Task(job([], sink=sinks)).run(batch_of([record({"v": 5}), record({"v": 1})], first_offset=8))
    assert [(stream, records.num_rows) for stream, records in result.outputs] == [("low", 1), ("all", 2)]
    assert [causes(result, sink) for sink in (0, 1)] == [[9], [8, 9]]


def test_a_job_without_operators_passes_everything_and_its_stream_time():
    result = Task(job([])).run(batch_of([WINDOWED, record(None)]))
    assert outputs(result) == [WINDOWED, {**record(None), "window": None}]
    assert result.stream_time == 5


def test_an_empty_batch_gives_empty_outputs():
    result = Task(job([BAD])).run(batch_of([]))
    assert (outputs(result), result.changes, result.stream_time) == ([], {}, -1)
