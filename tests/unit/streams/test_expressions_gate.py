"""What the gate lets in and what it refuses; each way out of an expression has a test of its own."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from service.streams.errors import InvalidExpression
from service.streams.expressions import Expression, evaluate, gate
from service.streams.expressions.allowed import FUNCTIONS
from service.streams.expressions.session import session
from tests.unit.streams.records_of import batch_of

ONE = batch_of(['{"a":1}'], [b"k"])


def refusal(text: str) -> str:
    with pytest.raises(InvalidExpression) as refused:
        Expression(text)
    return refused.value.detail


# What an expression is


@pytest.mark.parametrize(
    ("text", "kind", "columns"),
    [
        ("(value->>'n')::bigint >= 3", pa.bool_(), {"value"}),
        ("value->>'id'", pa.utf8(), {"value"}),
        ("value->'a'->>'b'", pa.utf8(), {"value"}),
        ("value->'items'->0", pa.json_(), {"value"}),
        ("KEY || \"Key\" || 'x'", pa.utf8(), {"key"}),
        ("timestamp // 1000", pa.int64(), {"timestamp"}),
        ("window_end - window_start", pa.int64(), {"window_start", "window_end"}),
        ("CASE key WHEN 'a' THEN 1.5 WHEN 'b' THEN 2 END", pa.decimal128(11, 1), {"key"}),
        ("coalesce(key, 'none') NOT IN ('a', 'b') OR key LIKE 'x%' AND NOT key IS NULL", pa.bool_(), {"key"}),
        ("date_trunc('day', epoch_ms(timestamp))", pa.timestamp("us"), {"timestamp"}),
        ("extract(year FROM epoch_ms(timestamp))", pa.int64(), {"timestamp"}),
        ("(value->>'day')::date", pa.date32(), {"value"}),
        ("try_cast(value->>'price' AS decimal(10, 2))", pa.decimal128(10, 2), {"value"}),
        ("try(1 // (value->>'n')::int)", pa.int32(), {"value"}),
        ("key SIMILAR TO '[a-z]+' AND key BETWEEN 'a' AND 'z'", pa.bool_(), {"key"}),
        ("json_object('k', key, 'v', value->'a')", pa.json_(), {"key", "value"}),
        ("if(value->>'a' IS DISTINCT FROM 'x', upper(key), left(key, 3))", pa.utf8(), {"key", "value"}),
        ("null", pa.null(), set()),
        ("true -- always", pa.bool_(), set()),
        ("/* nothing */ 1 /* more */", pa.int32(), set()),
        ("key\n||\n'$$'", pa.utf8(), {"key"}),
    ],
)
def test_a_scalar_expression_has_a_type_and_columns(text: str, kind: pa.DataType, columns: set[str]) -> None:
    expression = Expression(text)
    assert (expression.type, expression.columns) == (kind, columns)
    assert evaluate({"it": expression}, ONE).schema == pa.schema([("it", kind)])


def test_every_allowed_function_is_a_consistent_scalar_of_duckdb() -> None:
    known = dict(
        duckdb.sql(
            "SELECT function_name, bool_and(function_type = 'scalar' AND stability = 'CONSISTENT'"
            " AND NOT has_side_effects OR function_type = 'macro') FROM duckdb_functions() GROUP BY 1"
        ).fetchall()
    )
    assert {name for name in FUNCTIONS if not known.get(name)} == {"->"}  # the binder makes it json_extract


def test_every_allowed_macro_expands_to_allowed_functions_only() -> None:
    bodies = dict(
        duckdb.sql(
            "SELECT function_name, macro_definition FROM duckdb_functions() WHERE function_type = 'macro'"
        ).fetchall()
    )
    macros = {name: bodies[name] for name in FUNCTIONS if name in bodies}
    assert macros == {
        "if": "CASE  WHEN (a) THEN (b) ELSE c END",
        "nullif": "CASE  WHEN ((a = b)) THEN (NULL) ELSE a END",
        "split_part": '"if"(((string IS NOT NULL) AND ("delimiter" IS NOT NULL) AND ("position" IS NOT NULL)),'
        ' COALESCE(string_split(string, "delimiter")["position"], \'\'), NULL)',
    }


# What is more or less than one scalar expression


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("", "SELECT clause without selection list"),
        ("-- only a comment", "SELECT clause without selection list"),
        ("1, 2", "one expression is expected, these are 2"),
        ("1,", "the text means something else inside brackets"),
        ("1; (2)", "syntax error"),
        ("1; SELECT 2", "SELECT is not available"),
        ("1; DROP TABLE x", "DROP is not available"),
        ("1) AS x, (2", 'syntax error at or near ")"'),
        ("1 -- \n) FROM x --", 'syntax error at or near ")"'),
        ("1 /*", 'unterminated /* comment at or near "/*'),
        ("'open", "unterminated string literal"),
        ("$$open", "syntax error"),
        ("1 FROM x", "clauses are not part of an expression"),
        ("1 FROM 'file.csv'", "clauses are not part of an expression"),
        ("1 WHERE true", "WHERE is not available"),
        ("1 GROUP BY ALL", "GROUP is not available"),
        ("1 HAVING true", "HAVING is not available"),
        ("1 QUALIFY true", "QUALIFY is not available"),
        ("1 USING SAMPLE 3", "USING is not available"),
        ("1 ORDER BY 1", "ORDER is not available"),
        ("1 LIMIT 1", "LIMIT is not available"),
        ("DISTINCT key", "clauses are not part of an expression"),
        ("ALL key", "ALL is not available"),
        ("1 WINDOW w AS ()", "WINDOW is not available"),
        ("1 INTO x", "INTO is not available"),
        ("1 UNION SELECT 2", "UNION is not available"),
        ("key AS k", "a name (k) is not part of an expression"),
        ("k: key", "a name (k) is not part of an expression"),
        ("0x1F", "a name (x1F) is not part of an expression"),  # DuckDB reads 0 AS x1F
        ("*", "* is not available"),
        ("COLUMNS(*)", "COLUMNS is not available"),
        ("COLUMNS('.*')", "COLUMNS is not available"),
        ("#1", "positional reference is not available"),
        ("DEFAULT", "DEFAULT is not available"),
        ("$1", "parameter"),
        ("?", "parameter"),
        ("$x", "parameter"),
    ],
)
def test_more_or_less_than_one_expression_is_refused(text: str, detail: str) -> None:
    assert detail in refusal(text)


@pytest.mark.parametrize("text", ["SUMMARIZE batch", "DESCRIBE batch", "PRAGMA version", "SET threads = 4"])
def test_a_statement_is_refused(text: str) -> None:
    refusal(text)
    refusal(f"1; {text}")


@pytest.mark.parametrize("text", ["\0", "key \0", "\ud800", "'\udfff'"])
def test_what_is_not_text_is_refused(text: str) -> None:
    assert refusal(text) == "holds a character that is not text"


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("1; SELECT 2", "one expression is expected, this is more than one statement"),
        ("1; DROP TABLE x", "Only SELECT statements can be serialized to json!"),
        ("1 WHERE true", "clauses are not part of an expression"),
        ("1 GROUP BY ALL", "clauses are not part of an expression"),
        ("1 HAVING true", "clauses are not part of an expression"),
        ("1 QUALIFY true", "clauses are not part of an expression"),
        ("1 USING SAMPLE 3", "clauses are not part of an expression"),
        ("1 ORDER BY 1", "clauses are not part of an expression"),
        ("1 LIMIT 1", "clauses are not part of an expression"),
        ("1 UNION SELECT 2", "this is a query"),
        ("COLUMNS(*)", "* is not available"),
        ("(SELECT 1)", "a subquery is not available"),
        ("key IN (SELECT 1)", "a subquery is not available"),
        ("EXISTS (FROM batch)", "a subquery is not available"),
        ("ARRAY(SELECT 1)", "a subquery is not available"),
        ("(PIVOT batch ON key)", "Only SELECT statements can be serialized to json!"),
        ("DEFAULT", "default is not available"),
        ("lag(key) OVER (ORDER BY timestamp)", "a window function is not available"),
        ("lower(key) FILTER (WHERE true)", "lower is not an aggregate"),
        ("lower(key ORDER BY 1)", "lower is not an aggregate"),
        ("lambda x: x", "a lambda is not available"),
        ("key COLLATE de", "collate is not available"),
        ("timestamp AT TIME ZONE 'UTC'", "AT TIME ZONE is not available"),
        ("INTERVAL 1 DAY", "an interval is not available"),
    ],
)
def test_what_the_words_let_through_the_tree_does_not(monkeypatch: pytest.MonkeyPatch, text: str, detail: str) -> None:
    monkeypatch.setattr(gate, "check_words", lambda text: None)
    assert detail in refusal(text)


def test_a_space_that_only_the_parser_sees_does_not_hide_a_word() -> None:
    assert refusal("\N{NO-BREAK SPACE}SELECT\N{IDEOGRAPHIC SPACE}1").endswith("is not a column")


# What an expression can not reach


@pytest.mark.parametrize(
    "text",
    [
        "read_text('/etc/passwd')",
        "read_blob('/etc/passwd')",
        "read_csv('/etc/passwd')",
        "read_json('/etc/passwd')",
        "parquet_scan('/etc/passwd')",
        "glob('/etc/*')",
        "(SELECT content FROM read_text('/etc/passwd'))",
        "(FROM '/etc/passwd')",
        "getenv('HOME')",
    ],
)
def test_an_expression_can_not_read_a_file(text: str) -> None:
    assert "is not available" in refusal(text)


def test_a_file_stays_closed_even_to_what_passed_the_gate(tmp_path: Path) -> None:
    secret, planted = tmp_path / "secret.csv", tmp_path / "planted"
    secret.write_text("a\n1\n")
    with session() as lent:
        for text in (
            f"(SELECT content FROM read_text('{secret}'))",
            f"(SELECT a FROM '{secret}')",
            f"(SELECT file FROM glob('{tmp_path}/*'))",
        ):
            with pytest.raises((duckdb.PermissionException, duckdb.CatalogException)):
                lent.run(text, _ticks())
        for statement in (f"COPY (SELECT 1) TO '{planted}'", f"ATTACH '{planted}' AS db", "INSTALL httpfs"):
            with pytest.raises(duckdb.Error):
                lent._connection.execute(statement)
    assert os.listdir(tmp_path) == ["secret.csv"]


@pytest.mark.parametrize("function", ["read_csv", "read_json", "read_parquet", "read_text"])
def test_an_expression_can_not_open_the_network(function: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.05)
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        refusal(f"{function}('{url}')")
        refusal(f"(SELECT 1 FROM {function}('{url}'))")
        with session() as lent, pytest.raises(duckdb.Error):
            lent.run(f"(SELECT 1 FROM {function}('{url}'))", _ticks())
        with pytest.raises(TimeoutError):
            server.accept()


@pytest.mark.parametrize(
    "text", ["range(9)", "generate_series(1, 9)", "unnest([1, 2])", "duckdb_settings()", "query('SELECT 1')"]
)
def test_an_expression_can_not_call_a_table_function(text: str) -> None:
    assert "is not available" in refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "(SELECT 1)",
        "1 + (SELECT 1)",
        "EXISTS (SELECT 1)",
        "key IN (SELECT 'a')",
        "key = ANY (SELECT 'a')",
        "key = ANY ('{a}')",
        "ARRAY(SELECT 1)",
        "(FROM batch)",
        "(VALUES (1))",
        "(WITH c AS (SELECT 1) SELECT * FROM c)",
        "coalesce(key, lower((TABLE batch)))",
        "CASE WHEN true THEN (SELECT 1) END",
        "cast((SELECT 1) AS int)",
        "1 BETWEEN 0 AND (SELECT 1)",
        "1::decimal((SELECT 1), 1)",
    ],
)
def test_an_expression_can_not_run_a_subquery(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "text",
    [
        "set_config('threads', '4', false)",
        "current_setting('threads')",
        "getvariable('x')",
        "SET threads = 4",
        "pragma_version()",
    ],
)
def test_an_expression_can_not_set_or_read_an_option(text: str) -> None:
    refusal(text)


def test_options_stay_locked_even_to_what_passed_the_gate() -> None:
    with session() as lent:
        for statement in (
            "SET threads = 4",
            "RESET threads",
            "SET TimeZone = 'Asia/Tokyo'",
            "SET lock_configuration = false",
        ):
            with pytest.raises(duckdb.InvalidInputException, match="configuration has been locked"):
                lent._connection.execute(statement)


@pytest.mark.parametrize(
    "text",
    [
        "now()",
        "current_timestamp",
        "current_date",
        "get_current_timestamp()",
        "transaction_timestamp()",
        "today()",
        "age(epoch_ms(timestamp))",  # with one argument: against today
        "random()",
        "uuid()",
        "gen_random_uuid()",
        "setseed(0.5)",
        "nextval('s')",
        "txid_current()",
        "current_user",
        "current_database()",
        "current_query()",
        "version()",
        "sleep_ms(1000)",
        "error('x')",
    ],
)
def test_an_expression_can_not_be_volatile(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "text", ["'now'::timestamp", "'today'::date", "'now'::date", "'tomorrow'::date", "'yesterday'::timestamp"]
)
def test_no_cast_reads_a_clock(text: str) -> None:
    with session() as lent, pytest.raises(duckdb.ConversionException):
        lent.run(text, _ticks())


@pytest.mark.parametrize(
    "text",
    [
        "now()::varchar",
        "strptime(key, '%z')",
        "key::timestamptz",
        "TIMESTAMPTZ '2020-01-01'",
        "timestamp AT TIME ZONE 'Asia/Tokyo'",
        "timezone('UTC', epoch_ms(timestamp))",
        "key COLLATE de",
        "icu_sort_key(key, 'de')",
        "INTERVAL 1 DAY",
        "key::interval",
        "TIME '00:00'",
    ],
)
def test_nothing_depends_on_a_locale_or_a_time_zone(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "text",
    ["sum(1)", "count(*)", "string_agg(key, ',')", "max(key) FILTER (WHERE true)", "grouping(key)", "any_value(key)"],
)
def test_an_aggregate_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "text", ["lower(DISTINCT key)", "lower(key) FILTER (WHERE true)", "lower(key ORDER BY 1)", "lower(s := key)"]
)
def test_a_function_is_not_dressed_as_an_aggregate(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize("text", ["row_number() OVER ()", "lag(key) OVER (ORDER BY timestamp)", "lower(key) OVER ()"])
def test_a_window_function_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "text", ["list_transform([1], lambda x: x + 1)", "[x FOR x IN [1, 2]]", "x -> x + 1", "lambda x: x"]
)
def test_a_lambda_is_refused(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "text",
    ["[1, 2]", "{'a': 1}", "MAP {'a': 1}", "(1, 2)", "row(1, 2)", "value['a']", "value[1:2]", "x'00'", "1::int[]"],
)
def test_nothing_but_scalars_is_made(text: str) -> None:
    assert "is not available" in refusal(text)


@pytest.mark.parametrize("text", ["main.lower(key)", "db.main.lower(key)", "key.lower()", "lower.x(key)"])
def test_a_function_has_no_schema(text: str) -> None:
    assert "by its bare name" in refusal(text)


@pytest.mark.parametrize(
    "text", ["headers", "offset_", "x", "batch_0.key", "main.batch_0.key", "rowid", '"no such"', "c0", "x0"]
)
def test_only_the_five_columns_exist(text: str) -> None:
    assert "is not a column" in refusal(text)


def test_a_field_of_the_value_is_not_a_column_of_it() -> None:
    assert refusal("value.user") == "write value->>'user' for a field of the value"


@pytest.mark.parametrize(
    "text",
    [
        "1::hugeint",
        "1::uuid",
        "key::blob",
        "1::bit",
        "1::mytype",
        "1::main.bigint",
        "1::struct(a int)",
        "1::enum('a')",
        "key::varchar(5)",
    ],
)
def test_a_cast_goes_to_a_plain_scalar_type(text: str) -> None:
    refusal(text)


@pytest.mark.parametrize(
    "text", ["timestamp::timestamp", "timestamp::date", "1.5::date", "epoch_ms(timestamp)::bigint"]
)
def test_a_cast_that_duckdb_does_not_have_is_refused_before_any_record(text: str) -> None:
    assert "Unimplemented type for cast" in refusal(text)


@pytest.mark.parametrize("text", ["9223372036854775808", "1::ubigint + 1::bigint"])
def test_a_huge_integer_is_refused_with_advice(text: str) -> None:
    assert refusal(text) == "gives HUGEINT, which is not available: cast it to BIGINT or DECIMAL"


def test_a_type_error_is_told_in_duckdbs_words() -> None:
    assert refusal("key + 1").startswith(
        "Binder Error: No function matches the given name and argument types '+(VARCHAR"
    )


@pytest.mark.parametrize(
    "text", ["value->>'$.a[*]'", "value->'$.*'", "value->>'$..b'", "value->>'*'", "json_type(value, '$.a[*]')"]
)
def test_a_path_with_wildcards_is_refused(text: str) -> None:
    assert refusal(text) == "a path with wildcards gives a list: name one field"


@pytest.mark.parametrize("text", ["value->>key", "value->'a'='b'", "value->('$.' || '*')", "json_extract(value, key)"])
def test_what_stands_right_of_an_arrow_is_a_literal(text: str) -> None:
    assert "needs a literal on its right" in refusal(text)


# What runs away


@pytest.mark.parametrize(
    "text",
    [
        "repeat('x', 1500000000)",
        "lpad(key, 1000000000, 'x')",
        "rpad(key, 1000000000, 'x')",
        "printf('%1000000000d', 1)",
        "format('{:1000000000}', 1)",
        "bar(1, 0, 1, 1000000000)",
        "regexp_replace(key, '.', '\\0\\0', 'g')",
        "range(1000000000)",
        "array_resize([1], 1000000000)",
        "1000!",
        "levenshtein(key, key)",
    ],
)
def test_what_grows_or_takes_time_without_bound_is_refused(text: str) -> None:
    assert "is not available" in refusal(text)


def test_nested_growth_is_refused() -> None:
    assert Expression("replace(replace(key, 'a', 'bbbb'), 'b', 'cccc')")
    nested = "key"
    for _ in range(8):
        nested = f"replace({nested}, 'a', 'aaaa')"
    assert refusal(nested).startswith("could make too much of one record")


def test_what_replaces_is_a_literal() -> None:
    assert "needs a literal" in refusal("replace(key, 'a', key)")


def test_nested_quoting_is_refused() -> None:
    nested = "key"
    for _ in range(6):
        nested = f"to_json({nested})::varchar"
    assert refusal(nested).startswith("could make too much of one record")


def test_objects_inside_objects_are_not_quoting() -> None:
    nested = "key"
    for _ in range(6):
        nested = f"json_object('k', {nested})"
    assert evaluate({"it": Expression(nested)}, ONE)["it"].to_pylist() == ['{"k":' * 6 + '"k"' + "}" * 6]


@pytest.mark.parametrize("pattern", ["(.{1,1000}){1,1000}y", r"\pL{1000}", "((a{50}){50}){50}"])
def test_a_regular_expression_with_too_many_states_is_refused(pattern: str) -> None:
    assert "regular expression too large" in refusal(f"regexp_matches(key, '{pattern}')")


def test_common_regular_expressions_are_not_too_large() -> None:
    assert Expression("key SIMILAR TO '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}'")
    assert Expression(r"regexp_extract(key, '(\d{1,3}\.){3}\d{1,3}')")


def test_a_pattern_is_a_literal() -> None:
    assert "needs a literal" in refusal("regexp_matches(key, value->>'pattern')")
    assert "needs a literal" in refusal("key LIKE value->>'pattern'")


def test_what_a_case_compares_is_short_since_each_when_copies_it() -> None:
    assert Expression("CASE value->'a'->>'b' WHEN '1' THEN 'x' WHEN '2' THEN 'y' END")
    nested = "key"
    for _ in range(30):  # DuckDB's parser would make 2^30 nodes
        nested = f"CASE {nested} WHEN 'a' THEN 'b' WHEN 'c' THEN 'd' END"
    assert refusal(nested) == "a CASE compares too much: write CASE WHEN … = … THEN"


@pytest.mark.parametrize("form", ["({}) BETWEEN true AND false", "({}) IN (true, false)", "({}) NOT IN (true, false)"])
def test_what_the_planner_copies_counts_as_often(form: str) -> None:
    nested = "true"
    for _ in range(30):
        nested = form.format(nested)
    assert "larger than 1000" in refusal(nested)


def test_a_macro_counts_as_often_as_it_copies() -> None:
    assert Expression("nullif(nullif(key, 'a'), 'b')")
    assert "larger than 1000" in refusal("nullif(" * 30 + "key" + ", 'x')" * 30)  # DuckDB would plan 2^30 nodes
    assert "larger than 1000" in refusal("split_part(" * 6 + "key" + ", 'x', 1)" * 6)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 4_000,
        "[" * 4_000,
        "(" * 2_000 + "1" + ")" * 2_000,
        "1" + " + 1" * 1_000,
        "NOT " * 1_000 + "true",
        "CASE WHEN true THEN " * 100 + "1" + " END" * 100,
        "value" + "->'a'" * 700,
        "lower(" * 65 + "key" + ")" * 65,
        "1" + "::int" * 800,
        "a." * 2_000 + "a",
        "'" + "x" * 4_096,
        "key IN (" + ", ".join(["'a'"] * 600) + ")",
    ],
)
def test_a_text_that_is_large_or_deep_is_refused_soon(text: str) -> None:
    began = time.process_time()
    refusal(text)
    assert time.process_time() - began < 2


def test_the_worst_text_for_the_parser_does_not_end_a_thread_with_a_small_stack() -> None:
    refused: list[str] = []
    before = threading.stack_size(2 << 20)
    try:
        thread = threading.Thread(
            target=lambda: refused.extend(map(refusal, ("NOT " * 1_000 + "true", "- " * 2_000 + "1")))
        )
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert refused == ["nested deeper than 64 levels", "more than 16 operators in a row"]


def _ticks() -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"timestamp": [1]})
