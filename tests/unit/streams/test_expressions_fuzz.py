"""Whatever text gets in: it gives values or fails cleanly, touches nothing, and means the same in every batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.streams.errors import ExpressionFailed, InvalidExpression
from service.streams.expressions import Expression, evaluate, evaluate_lenient
from service.streams.expressions.session import session
from tests.unit.streams.records_of import batch_of

Record = tuple[str | None, bytes | None, int]  # value, key, timestamp

VALUES = [
    *(None, "null", "1", "-3", "2.5", "1e400", "true", '"x"', '"2020-02-29"', '"é€𝄞"', '"\\u0000"'),
    *("[]", "[1,[2]]", '{"a":1}', '{"a":"7","b":"y"}', '{"a":{"b":2}}', '{"a.b":3,"a":null}'),
    *('{"a":9223372036854775807}', '{"a":"' + "z" * 300 + '"}'),
]
KEYS = [None, b"", b"k", b"7", b"2020-02-29", "é€𝄞".encode(), b"a\0b", b"\xff", b"k" * 500]
TIMES = [0, 1, -5, 2**62]
RECORDS = st.lists(st.tuples(st.sampled_from(VALUES), st.sampled_from(KEYS), st.sampled_from(TIMES)), max_size=6)

SYMBOLS = r"""
( ) ( ) ( ) [ ] { } , . ; : :: -> ->> => := + - * / // % || = <> < >= ~ !~ ~~ ^@ ! @ # & | << ? $1 $$ ' " --
/* */
"""
WORDS = r"""
key value timestamp window_start "key" 'a' '$.a' '*' 1 1.5 1e9 0x1F x'00' true null e'\n' NOT AND OR IS
DISTINCT FROM IN LIKE ILIKE ESCAPE SIMILAR TO BETWEEN CASE WHEN THEN ELSE END CAST( TRY_CAST( AS int varchar
json decimal(9,2) timestamptz SELECT WHERE GROUP BY ORDER LIMIT UNION ALL VALUES LAMBDA x WITH EXISTS(
INTERVAL DAY EXTRACT( SUBSTRING( FOR TRIM( COALESCE( TRY( OVER FILTER( COLUMNS(* EXCLUDE COLLATE AT TIME ZONE
lower( nullif( replace( concat( to_json( regexp_matches( split_part( range( now() random() read_text( getenv(
current_setting( sum( set_config( batch_0 main. FROM '/etc/passwd' COPY ATTACH SET threads = PRAGMA PIVOT
"""
TOKENS = st.sampled_from([*SYMBOLS.split(), *WORDS.split()])
SOUP = st.builds(str.join, st.sampled_from([" ", "", "\n"]), st.lists(TOKENS, max_size=12))

ONE = """
({})::int
({})::varchar
({})::json
({})::decimal(9,2)
try_cast({} AS date)
({})->>'a'
try({})
({})->'a'->>'b'
NOT ({})
({}) IS NULL
upper({})
length({})
to_json({})
json_array({})
-({})
replace({}, 'a', 'bbb')
translate({}, 'a', '€')
md5({})
split_part({}, 'k', 1)
epoch_ms({})
abs({})
({}) LIKE '%a%'
regexp_extract({}, '[a-z]+')
strftime({}, '%Y')
round({})
({}) IN (1, null)
date_trunc('month', ({})::timestamp)
"""
TWO = """
({}) || ({})
({}) + ({})
({}) // ({})
({}) = ({})
({}) < ({})
({}) AND ({})
({}) OR ({})
coalesce({}, {})
nullif({}, {})
concat({}, {})
json_object({}, {})
greatest({}, {})
({}) ^@ ({})
"""
THREE = """
CASE WHEN {} THEN {} ELSE {} END
if({}, {}, {})
({}) BETWEEN ({}) AND ({})
substring({}, {}, {})
"""


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Expressions over expressions; half of them make no sense, the others are let in."""
    return st.one_of(
        st.builds(str.format, st.sampled_from(ONE.strip().splitlines()), inner),
        st.builds(str.format, st.sampled_from(TWO.strip().splitlines()), inner, inner),
        st.builds(str.format, st.sampled_from(THREE.strip().splitlines()), inner, inner, inner),
    )


LEAVES = "key value timestamp window_end value->>'a' value->'a' 'k' '7' 1 0 2.5 true null"
GRAMMAR = st.recursive(st.sampled_from(LEAVES.split()), _grown, max_leaves=8)
FUZZED = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture
def nothing_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No file appears, no setting, table or function of the engine changes."""
    monkeypatch.chdir(tmp_path)
    before = _state_of_the_engine()
    yield
    assert _state_of_the_engine() == before
    assert os.listdir(tmp_path) == []


def _state_of_the_engine() -> list[object]:
    queries = [
        "SELECT name, value FROM duckdb_settings() ORDER BY ALL",
        "FROM duckdb_tables()",
        "SELECT count(*) FROM duckdb_functions()",
        "SELECT view_name FROM duckdb_views() WHERE NOT internal AND view_name NOT LIKE 'batch\\_%' ESCAPE '\\'",
        "SELECT database_name, path FROM duckdb_databases()",
        "FROM duckdb_prepared_statements()",
        "FROM duckdb_variables()",
    ]
    with session() as lent:
        return [lent._connection.execute(query).fetchall() for query in queries]


@pytest.mark.usefixtures("nothing_changes")
@FUZZED
@given(text=st.one_of(SOUP, st.text(max_size=30), st.tuples(GRAMMAR, SOUP).map(" ".join)), records=RECORDS)
def test_any_text_is_refused_or_evaluates_or_fails_cleanly(text: str, records: list[Record]) -> None:
    try:
        expression = Expression(text)
    except InvalidExpression:
        return
    batch = _batch(records)
    found, failed = evaluate_lenient({"it": expression}, batch)
    assert found["it"].type == expression.type
    assert len(found) == len(failed) == len(records)


@pytest.mark.usefixtures("nothing_changes")
@FUZZED
@given(text=GRAMMAR, records=RECORDS)
def test_a_result_depends_on_its_record_alone(text: str, records: list[Record]) -> None:
    try:
        expressions = {"it": Expression(text), "beside": Expression("(value->>'$')::int")}
    except InvalidExpression:
        return
    alone = [_result(expressions, [record]) for record in records]
    fails = ["failed" in one for one in alone]
    if any(fails):
        with pytest.raises(ExpressionFailed) as failure:
            evaluate(expressions, _batch(records))
        assert failure.value.row == fails.index(True)
    found, failed = evaluate_lenient(expressions, _batch(records))
    assert failed.tolist() == fails
    expected = [None if "failed" in one else one["it"] for one in alone]
    assert repr(found["it"].to_pylist()) == repr(expected)  # repr: nan is nan


@FUZZED
@given(text=GRAMMAR, records=RECORDS)
def test_no_result_is_larger_than_the_bound_from_its_text(text: str, records: list[Record]) -> None:
    try:
        expression = Expression(text)
    except InvalidExpression:
        return
    for record in records:
        (result,) = evaluate_lenient({"it": expression}, _batch([record]))[0]["it"].to_pylist()
        size = len((record[0] or "").encode()) + len(record[1] or b"")
        made = len(result.encode()) if isinstance(result, str) else 0
        assert made <= expression.work_per_byte * size + expression.work_fixed


def _batch(records: list[Record]) -> object:
    values, keys, timestamps = ([record[i] for record in records] for i in range(3))
    return batch_of(values, keys, timestamps)  # type: ignore[arg-type]


def _result(expressions: dict[str, Expression], records: list[Record]) -> dict[str, object]:
    try:
        (row,) = evaluate(expressions, _batch(records)).to_pylist()
    except ExpressionFailed:
        return {"failed": True}
    return dict(row)
