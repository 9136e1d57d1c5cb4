"""Expressions over batches: what they give, which row fails and why, and what they can not use up."""

from __future__ import annotations

import datetime as dt
import json
import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest

from service.streams.errors import ExpressionFailed
from service.streams.expressions import Expression, evaluate, evaluate_lenient, run
from service.streams.expressions import session as sessions
from tests.unit.streams.records_of import batch_of

SLOW = "md5(" * 60 + "key" + ")" * 60  # 0.1 ms a row


def results(text: str, batch: pa.RecordBatch) -> list[object]:
    return list(evaluate({"it": Expression(text)}, batch)["it"].to_pylist())


def failure(text: str, batch: pa.RecordBatch) -> ExpressionFailed:
    with pytest.raises(ExpressionFailed) as failed:
        evaluate({"it": Expression(text)}, batch)
    return failed.value


@pytest.fixture
def short_of_time(monkeypatch: pytest.MonkeyPatch) -> Iterator[float]:
    """An engine whose queries may take 0.2 s."""
    monkeypatch.setattr(sessions, "TIME_LIMIT_S", 0.2)
    sessions.close_engine()
    yield 0.2
    sessions.close_engine()


# What comes out


def test_a_name_with_a_dot_is_one_field() -> None:
    batch = batch_of(['{"a.b":7,"a":{"b":5},"$.a":8,"x[0]":9,"x":[1]}'])
    assert results("value->>'a.b'", batch) == ["7"]
    assert results("value->'a'->>'b'", batch) == ["5"]
    assert results("value->>'x[0]'", batch) == ["9"]
    assert results("json_extract_string(value, 'a.b')", batch) == ["7"]


def test_a_dollar_begins_a_path_and_a_slash_a_pointer() -> None:
    batch = batch_of(['{"a.b":7,"a":{"b":5},"$.a":8,"/a/b":9,"x":[1,2],"":3}'])
    assert results("value->>'$.a.b'", batch) == ["5"]
    assert results("value->>'$.\"a.b\"'", batch) == ["7"]
    assert results("value->>'$.\"$.a\"'", batch) == ["8"]
    assert results("value->>'/a/b'", batch) == ["5"]
    assert results("value->>'/~1a~1b'", batch) == ["9"]
    assert results("value->>'$.x[#-1]'", batch) == ["2"]
    assert results("value->>'/'", batch) == ["3"]
    assert results("value->>''", batch) == results("value", batch)


def test_values_come_out_with_their_types() -> None:
    batch = batch_of(['{"n":3,"p":1.10,"big":12345678901234567890123,"t":"2020-02-29"}'], [b"k"], [1_582_934_400_000])
    assert results("(value->>'n')::bigint + 1", batch) == [4]
    assert results("(value->>'p')::decimal(10, 2)", batch) == [Decimal("1.10")]
    assert results("value->>'big'", batch) == ["12345678901234567890123"]
    assert results("(value->>'t')::date", batch) == [dt.date(2020, 2, 29)]
    assert results("epoch_ms(timestamp)", batch) == [dt.datetime(2020, 2, 29)]
    assert results("value->'n'", batch) == ["3"]
    assert results("null", batch) == [None]


def test_a_timestamp_is_utc_whatever_the_host_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    sessions.close_engine()
    try:
        assert results("epoch_ms(timestamp)::varchar", batch_of([None])) == ["1970-01-01 00:00:00"]
        assert results("strftime(epoch_ms(timestamp), '%H %z')", batch_of([None])) == ["00 +00"]
    finally:
        monkeypatch.undo()
        time.tzset()
        sessions.close_engine()


def test_json_is_marked_as_such_and_kept_as_written() -> None:
    column = evaluate({"it": Expression("value")}, batch_of(['{"a" : [1,  2]}', None]))["it"]
    assert column.type == pa.json_(pa.utf8())
    assert column.to_pylist() == ['{"a" : [1,  2]}', None]


def test_missing_keys_values_and_fields_are_null() -> None:
    batch = batch_of([None, "{}", "null", '{"a":null}', "[]", "5"])
    assert results("value->>'a'", batch) == [None] * 6
    assert results("key", batch) == [None] * 6
    assert results("key = 'x'", batch) == [None] * 6


def test_a_trailing_comment_ends_with_the_expression() -> None:
    names = {"a": Expression("1 -- , 2 AS b"), "b": Expression("key /* x */ -- y")}
    assert evaluate(names, batch_of([None], [b"k"])).to_pydict() == {"a": [1], "b": ["k"]}


def test_results_carry_any_name() -> None:
    names = {'we"ird; --': Expression("1"), "c0": Expression("2"), "": Expression("3")}
    assert evaluate(names, batch_of([None])).to_pylist() == [{'we"ird; --': 1, "c0": 2, "": 3}]


def test_rows_keep_their_order_over_many_vectors() -> None:
    batch = batch_of([f'{{"n":{n}}}' for n in range(200_000)])
    assert results("(value->>'n')::bigint = timestamp", batch).count(True) == 200_000


def test_an_empty_batch_gives_empty_columns() -> None:
    names = {"a": Expression("value->'x'"), "b": Expression("(value->>'n')::bigint"), "c": Expression("true")}
    for batch in (batch_of([]), batch_of(["1"]).slice(1)):
        assert evaluate(names, batch).schema.types == [pa.json_(pa.utf8()), pa.int64(), pa.bool_()]
        assert evaluate_lenient(names, batch)[0].num_rows == 0


def test_an_expression_of_no_column_has_a_result_per_row() -> None:
    assert results("1", batch_of([None] * 3)) == [1, 1, 1]


def test_a_slice_of_a_batch_is_read_from_where_it_begins() -> None:
    batch = batch_of(['"a"', '"b"', '"c"'], [b"x", b"\xff", b"z"]).slice(2)
    assert results("key || (value->>'$')", batch) == ["zc"]


def test_a_conversion_behind_a_case_runs_only_where_the_case_lets_it() -> None:
    batch = batch_of(
        ['"7"' if n % 1000 == 0 else '"no"' for n in range(50_000)],
        [b"n" if n % 1000 == 0 else b"t" for n in range(50_000)],
    )
    for text in (
        "CASE WHEN key = 'n' THEN (value->>'$')::int END",
        "CASE WHEN key = 'n' AND (value->>'$')::int > 1 THEN 7 END",
        "CASE WHEN key = 't' THEN null ELSE (value->>'$')::int END",
        "coalesce(CASE WHEN key = 't' THEN 0 END, (value->>'$')::int) + 0",
    ):
        assert sum(n or 0 for n in results(text, batch)) == 50 * 7  # type: ignore[misc]


# Which row fails


def test_the_first_failing_row_is_named_with_duckdbs_message() -> None:
    values = [f'{{"n":{n}}}' for n in range(5_000)]
    values[4_321] = values[4_900] = '{"n":"abc"}'
    failed = failure("(value->>'n')::bigint", batch_of(values))
    assert (failed.row, failed.operator) == (4_321, "it")
    assert failed.detail == "it: Conversion Error: Could not convert string 'abc' to INT64"


@pytest.mark.parametrize("row", [0, 1, 2_047, 2_048, 4_999])
def test_a_failing_row_is_found_anywhere(row: int) -> None:
    values = ["1"] * 5_000
    values[row] = '"x"'
    assert failure("(value->>'$')::int", batch_of(values)).row == row


def test_the_failing_expression_of_many_is_named() -> None:
    names = {
        "good": Expression("value"),
        "bad": Expression("1 // (value->>'$')::int"),
        "worse": Expression("value::date"),
    }
    with pytest.raises(ExpressionFailed) as failed:
        evaluate(names, batch_of(["1", "0"])[:1])
    assert failed.value.operator == "worse"
    with pytest.raises(ExpressionFailed) as failed:
        evaluate({name: names[name] for name in ("good", "bad")}, batch_of(["1", "0"]))
    assert (failed.value.operator, failed.value.row) == ("bad", 1)
    assert failed.value.detail.startswith("bad: Invalid Input Error: Division by zero")
    assert "SET" not in failed.value.detail


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("(value->>'$')::tinyint", "300"),
        ("(value->>'$')::bigint + 9223372036854775807", "1"),
        ("(value->>'$')::decimal(4, 2)", "1000"),
        ("1 % (value->>'$')::int", "0"),
        ("(value->>'$')::date", '"2020-13-01"'),
        ("(value->>'$')::boolean", '"perhaps"'),
        ("(value->>'$')::json", '"{"'),
        ("chr((value->>'$')::int)", "-1"),
        ("value->>'a'", '{"a":"\\ud800"}'),
    ],
)
def test_a_bad_record_fails_alone(text: str, value: str) -> None:
    batch = batch_of(["null", value, "null"])
    assert failure(text, batch).row == 1
    found, failed = evaluate_lenient({"it": Expression(text)}, batch)
    assert failed.tolist() == [False, True, False]
    assert found["it"].to_pylist() == [None, None, None]


def test_a_key_that_is_not_utf8_fails_only_what_reads_it() -> None:
    batch = batch_of(["1", "2", "3"], [b"a", b"\xff\xfe", None])
    failed = failure("upper(key)", batch)
    assert (failed.row, failed.detail) == (1, "it: reads the key, which is not valid UTF-8")
    assert results("value->>'$'", batch) == ["1", "2", "3"]


def test_a_key_may_hold_zero_bytes() -> None:
    assert results("key || '|' || strlen(key)", batch_of([None] * 2, [b"a\0b", b""])) == ["a\0b|3", "|0"]


# on_error = drop


def test_rows_that_fail_are_marked_and_the_others_keep_their_results() -> None:
    values = ['"x"' if n % 7 == 3 else "null" if n % 7 == 5 else str(n) for n in range(10_000)]
    names = {"n": Expression("(value->>'$')::int"), "text": Expression("value->>'$'"), "json": Expression("value")}
    found, failed = evaluate_lenient(names, batch_of(values))
    assert failed.tolist() == [n % 7 == 3 for n in range(10_000)]
    expected = [None if n % 7 in {3, 5} else n for n in range(10_000)]
    assert found["n"].to_pylist() == expected
    assert found["text"].to_pylist() == [None if n is None else str(n) for n in expected]
    assert found["json"].to_pylist() == [None if n % 7 == 3 else values[n] for n in range(10_000)]
    assert found.schema == evaluate(names, batch_of(["1"])).schema


def test_a_row_fails_when_any_of_its_expressions_does() -> None:
    names = {"a": Expression("(value->>'a')::int"), "b": Expression("(value->>'b')::int"), "k": Expression("key")}
    batch = batch_of(
        ['{"a":"x","b":1}', '{"a":1,"b":"x"}', '{"a":1,"b":2}', '{"a":1,"b":2}'], [b"k", b"k", b"\xff", b"k"]
    )
    found, failed = evaluate_lenient(names, batch)
    assert failed.tolist() == [True, True, True, False]
    assert found.to_pydict() == {"a": [None, None, None, 1], "b": [None, None, None, 2], "k": [None, None, None, "k"]}


def test_a_shared_subexpression_does_not_escape_its_try() -> None:
    names = {"a": Expression("try((value->>'$')::int)"), "b": Expression("try((value->>'$')::int + 1)")}
    assert evaluate(names, batch_of(["1", '"x"'])).to_pydict() == {"a": [1, None], "b": [2, None]}


def test_dropping_every_row_of_a_batch_stays_affordable() -> None:
    began = time.process_time()
    _, failed = evaluate_lenient({"it": Expression("(value->>'$')::int")}, batch_of(['"x"'] * 20_000))
    assert failed.all()
    assert time.process_time() - began < 5  # 0.2 s; one query per row would take 15 s


# What it can not use up


def test_an_expression_that_runs_away_in_time_is_interrupted(short_of_time: float) -> None:
    batch = batch_of([None] * 100_000, [b"k"] * 100_000)
    for evaluated in (evaluate, evaluate_lenient):
        began = time.process_time()
        with pytest.raises(ExpressionFailed, match=f"took longer than {short_of_time:g} s"):
            evaluated({"it": Expression(SLOW)}, batch)
        assert time.process_time() - began < 3  # to its end it takes 10 s
    assert results("key", batch.slice(0, 1)) == ["k"]


def test_many_short_queries_share_one_time_limit(short_of_time: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_WORK_BYTES", 1 << 20)
    batch = batch_of([None] * 50_000, [b"k"] * 50_000)
    with pytest.raises(ExpressionFailed, match=r"took longer than 0.2 s") as failed:
        evaluate({"it": Expression(SLOW)}, batch)
    assert failed.value.row > 0


def test_a_record_too_large_for_its_expression_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_WORK_BYTES", 10_000)
    batch = batch_of(['"a"', json.dumps("x" * 5_000), '"b"'])
    names = {"it": Expression("(value->>'$') || (value->>'$')")}
    with pytest.raises(ExpressionFailed, match="the record is too large for this expression") as failed:
        evaluate(names, batch)
    assert failed.value.row == 1
    found, dropped = evaluate_lenient(names, batch)
    assert dropped.tolist() == [False, True, False]
    assert found["it"].to_pylist() == ["aa", None, "bb"]


def test_results_without_bound_end_the_evaluation_not_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_WORK_BYTES", 1 << 20)
    monkeypatch.setattr(run, "MAX_RESULT_BYTES", 4 << 20)
    batch = batch_of([json.dumps("x" * 1_000)] * 1_000)
    names = {"it": Expression("||".join(["(value->>'$')"] * 20))}
    for evaluated in (evaluate, evaluate_lenient):
        with pytest.raises(ExpressionFailed, match="the results of the batch pass 4,194,304 bytes"):
            evaluated(names, batch)


def test_the_largest_growth_that_is_admitted_stays_below_its_bound() -> None:
    text = "||".join(["replace(value->>'$', 'a', 'bbbbbbbb')"] * 8)
    expression, value = Expression(text), json.dumps("a" * 10_000)
    (grown,) = results(text, batch_of([value]))
    assert isinstance(grown, str)
    assert 8 * 8 * 10_000 == len(grown) <= expression.work_per_byte * len(value) + expression.work_fixed


@pytest.mark.parametrize(
    "text",
    [
        "value->>'$' LIKE '%a%a_%a%a_b%a'",
        "value->>'$' ILIKE '%a%A_%a%ab%'",
        "contains(value->>'$', value->>'$')",
        "regexp_matches(value->>'$', '(a*)*b')",
        "regexp_matches(value->>'$', '(a|aa)+$')",
        "trim(value->>'$', value->>'$')",
        "split_part(value->>'$', 'a', 9)",
        "strip_accents(reverse(upper(value->>'$')))",
    ],
)
def test_time_follows_the_size_of_the_record(text: str) -> None:
    began = time.process_time()
    results(text, batch_of([json.dumps("a" * 300_000)]))
    assert time.process_time() - began < 4


def test_a_deeply_nested_value_does_not_end_the_process() -> None:
    batch = batch_of(["[" * 500_000 + "]" * 500_000])
    for text in (
        "value->>'$[0]'",
        "value::varchar",
        "json_object('v', value)",
        "json_array_length(value)",
        "value = '1'::json",
    ):
        assert len(results(text, batch)) == 1
    assert failure("value::bigint", batch).row == 0


def test_a_fatal_error_of_the_engine_costs_one_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Expression("key")

    def give_up(self: object, items: str, source: object) -> None:
        raise duckdb.FatalException("FATAL Error: the database has been invalidated")

    with monkeypatch.context() as patched:
        patched.setattr(sessions.Session, "_bind", give_up)
        with pytest.raises(ExpressionFailed, match="stopped the engine"):
            evaluate_lenient({"it": broken}, batch_of(["1", "2"]))
    engine = sessions._engines.get(os.getpid())
    assert engine is None
    assert results("key", batch_of(["1"], [b"k"])) == ["k"]


# Side by side


def test_threads_evaluate_at_the_same_time() -> None:
    batches = [batch_of([f'{{"n":{n}}}' for n in range(start, start + 3_000)]) for start in range(0, 24_000, 3_000)]
    expression, barrier = Expression("(value->>'n')::int"), threading.Barrier(4)

    def work(batch: pa.RecordBatch) -> list[object]:
        barrier.wait(10)
        return list(evaluate({"it": expression}, batch)["it"].to_pylist())

    with ThreadPoolExecutor(4) as pool:
        assert [n for found in pool.map(work, batches) for n in found] == list(range(24_000))


def test_threads_that_end_leave_no_session_behind() -> None:
    evaluated = Expression("key")
    for _ in range(5):
        thread = threading.Thread(target=evaluate, args=({"it": evaluated}, batch_of([None])))
        thread.start()
        thread.join()
    assert len(sessions._engines[os.getpid()].idle) <= 4


def test_a_forked_child_opens_an_engine_of_its_own() -> None:
    expression = Expression("key || '!'")
    evaluate({"it": expression}, batch_of([None]))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:  # pragma: no cover
        found = evaluate({"it": expression}, batch_of([None], [b"child"]))["it"].to_pylist()
        os.write(writing, f"{found} {len(sessions._engines)}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"['child!'] 2"
    assert results("key || '!'", batch_of([None], [b"parent"])) == ["parent!"]


def test_more_expressions_than_a_session_keeps_bound_still_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sessions.close_engine()  # its sessions have others bound
    monkeypatch.setattr(sessions, "MAX_BOUND", 8)
    batch = batch_of([None])
    for n in range(sessions.MAX_BOUND + 10):
        assert results(f"timestamp + {n}", batch) == [n]
    with sessions.session() as lent:
        assert len(lent._bound) == sessions.MAX_BOUND
