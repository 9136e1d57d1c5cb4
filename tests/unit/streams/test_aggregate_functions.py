"""What functions compute, and how they fail: one edge per test."""

import json
from importlib.metadata import EntryPoint

import pytest

from service.streams.errors import AggregateTooLarge, AggregatorFailed, ExpressionFailed, IntegerOverflow
from service.streams.operators import functions, installed_aggregators
from service.streams.topology.spec import JobSpec
from tests.task import Task, batch_of, cut, dropped, job, outputs, parts, run_all

SESSION = {"type": "session", "gap_ms": 5}
V = "(value->>'v')::bigint"


def task(fn, of=None, window=None, **fields):
    spec = {"fn": fn, **fields, **({} if of is None else {"of": of})}
    return Task(job([{"op": "aggregate", "name": "agg", "window": window, "aggregates": {"x": spec}}]))


def records(*values, key="a"):
    return [{"key": key, "value": {"v": value}, "timestamp": 10 + i} for i, value in enumerate(values)]


def texts(running, *values):
    """The JSON of `x` after each record, as it is written."""
    batch = running.run(batch_of(records(*values))).outputs[0][1]
    return [text.removeprefix('{"x":').removesuffix("}") for text in batch.column("value").to_pylist()]


def last(fn, of, *values):
    """The JSON after the last record: whole, and with a commit and a restore after each record."""
    whole = texts(task(fn, of), *values)[-1]
    running = task(fn, of)
    parts = run_all(running, cut(records(*values), [1] * len(values)))
    assert parts[-1]["value"] == {"x": json.loads(whole)}
    return whole


# ---------------------------------------------------------------- numbers


def test_sums_of_integers_are_exact_to_64_bits():
    assert last("sum", V, 2**53, 1, 2**62) == str(2**62 + 2**53 + 1)
    assert last("sum", V, -(2**63)) == str(-(2**63))


@pytest.mark.parametrize("values", [(2**62, 2**62), (-(2**63), -1)])
def test_a_sum_that_passes_64_bits_fails_and_never_wraps(values):
    with pytest.raises(IntegerOverflow) as failed:
        texts(task("sum", V), *values)
    assert (failed.value.operator, failed.value.aggregate, failed.value.key, failed.value.offset) == (
        "agg",
        "x",
        "a",
        1,
    )
    assert failed.value.code == "integer_overflow"


def test_a_sum_fails_at_the_record_whatever_the_cut():
    running = task("sum", V)
    with pytest.raises(IntegerOverflow) as failed:
        run_all(running, cut(records(2**62, 2**61, 2**62, -(2**62)), [1, 1, 1, 1]))
    assert failed.value.offset == 2


def test_an_unsigned_value_that_passes_64_bits_fails():
    with pytest.raises(IntegerOverflow) as failed:
        texts(task("max", "(value->>'v')::ubigint"), 1, 2**64 - 1)
    assert failed.value.offset == 1


def test_merging_sessions_can_overflow_too():
    running = task("sum", V, {**SESSION, "grace_ms": 100})
    far = [(2**62, 10), (2**62, 20), (0, 15)]
    with pytest.raises(IntegerOverflow) as failed:
        running.run(batch_of([{"key": "é", "value": {"v": value}, "timestamp": at} for value, at in far]))
    assert (failed.value.key, failed.value.offset) == ("é", 2)


@pytest.mark.parametrize(
    ("values", "total"),
    [((2**63 - 1, 5, -10), 2**63 - 6), ((-(2**63), -(2**62), 2**62), -(2**63)), ((2**62, 2**62, -1), 2**63 - 1)],
)
def test_merging_sessions_may_pass_64_bits_on_the_way_where_the_result_does_not(values, total):
    first, second, joins = values
    given = [{"key": "a", "value": {"v": v}, "timestamp": at} for v, at in ((first, 10), (second, 20), (joins, 15))]
    for sizes in ([], [1, 1, 1]):
        running = task("sum", V, {**SESSION, "grace_ms": 100})
        assert run_all(running, cut(given, sizes))[-1]["value"] == {"x": total}


def lenient(*values, **fields):
    """Outputs, and what was dropped as (reason, offset), of a sum over these where failing records are dropped."""
    aggregates = {"x": {"fn": "sum", "of": V}, "n": {"fn": "count"}}
    operator = {"op": "aggregate", "name": "agg", "aggregates": aggregates, **fields}
    running = Task(job([operator]), on_error="drop")
    found = parts(running, batch_of(records(*values)))
    out = [(record["value"]["x"], record["value"]["n"]) for result in found for record in outputs(result)]
    return out, [(reason, at) for result in found for _, reason, at in dropped(result)]


def test_on_error_drop_covers_an_overflow_and_the_other_functions_of_the_record_have_not_seen_it():
    out, gone = lenient(2**63 - 1, 1, -1, 1, 1, 7)
    assert out == [(2**63 - 1, 1), (2**63 - 2, 2), (2**63 - 1, 3)]
    assert gone == [("integer_overflow", at) for at in (1, 4, 5)]


def test_a_dead_letter_says_which_sum_overflowed():
    operator = {"op": "aggregate", "name": "agg", "aggregates": {"x": {"fn": "sum", "of": V}}}
    running = Task(job([operator]), on_error="dead_letter")
    found = [each for result in parts(running, batch_of(records(2**63 - 1, 1, "x"))) for each in result.dropped]
    assert {each.reason: each.errors[0].split(":")[0] for each in found} == {
        "integer_overflow": "aggregate 'x'",
        "expression_failed": "x",
    }


def test_a_record_that_overflows_does_not_move_time():
    window = {"type": "tumbling", "size_ms": 2}
    out, gone = lenient(2**63 - 1, 1, 3, window=window, emit="on_window_close")
    assert (out, gone) == ([(2**63 - 1, 1)], [("integer_overflow", 1)])


def test_many_records_that_overflow_are_dropped_in_few_passes(monkeypatch):
    passes = []
    fold = functions.fold.add_integers
    monkeypatch.setattr(functions.fold, "add_integers", lambda *given: passes.append(len(given[0])) or fold(*given))
    out, gone = lenient(2**63 - 1, *[1] * 150)
    assert (len(out), len(gone)) == (1, 150)
    assert len(passes) <= 3 * 150


def test_sums_of_doubles_are_doubles():
    assert last("sum", "(value->>'v')::double", 1, 2) == "3.0"
    assert last("sum", "(value->>'v')::double", 0.1, 0.2) == "0.30000000000000004"


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
@pytest.mark.parametrize("fn", ["sum", "mean", "min", "max", "first", "last", "collect"])
def test_a_double_that_json_does_not_have_is_a_word(fn, word):
    shown = last(fn, "(value->>'v')::double", word)
    assert shown == (f'["{word}"]' if fn == "collect" else f'"{word}"')


def test_sums_of_decimals_are_exact():
    assert last("sum", "(value->>'v')::decimal(38, 2)", "0.10", "0.20", "-1000000000000000000000000.00") == (
        "-999999999999999999999999.70"
    )
    assert last("mean", "(value->>'v')::decimal(9, 2)", "0.10", "0.20") == "0.15"
    assert last("min", "(value->>'v')::decimal(9, 3)", "0.001", "-0.5") == "-0.500"


def test_a_mean_of_integers_is_the_double_nearest_to_it():
    assert last("mean", V, 1, 2) == "1.5"
    assert float(last("mean", V, 2**63 - 1, 2**63 - 1, 2**63 - 2)) == (3 * 2**63 - 4) / 3
    assert float(last("mean", V, -(2**63), -(2**63), -1)) == (-(2**64) - 1) / 3
    assert float(last("mean", V, 2**62, -(2**62), 5)) == 5 / 3


def test_min_and_max_of_booleans_dates_and_timestamps():
    assert last("max", "(value->>'v')::boolean", False, True) == "true"
    assert last("min", "(value->>'v')::date", "2024-02-29", "1969-12-31") == '"1969-12-31"'
    assert last("max", "(value->>'v')::timestamp", "2024-02-29 00:00:01", "2023-01-01").startswith(
        '"2024-02-29 00:00:01'
    )


def test_a_float_keeps_its_own_digits():
    assert last("max", "(value->>'v')::float", 0.1) == "0.1"


def test_nan_is_greater_than_every_number():
    assert last("min", "(value->>'v')::double", "nan", 1) == "1.0"
    assert last("max", "(value->>'v')::double", "nan", 1) == '"NaN"'


# ---------------------------------------------------------------- texts, JSON, nulls


def test_texts_are_compared_by_code_points():
    assert last("max", "value->>'v'", "é", "z", "😀", "") == '"😀"'
    assert last("min", "value->>'v'", "b", "B", 'a"') == '"B"'


def test_texts_are_quoted_as_json():
    assert last("first", "value->>'v'", 'say "\\\n"', "x") == json.dumps('say "\\\n"')


def test_collect_keeps_values_of_every_type_in_order():
    assert last("collect", V, 2, 1, 2) == "[2,1,2]"
    assert last("collect", "value->'v'", {"b": [1]}, None, "x") == '[{"b":[1]},"x"]'
    assert last("collect", "(value->>'v')::double", 1, "nan") == '[1.0,"NaN"]'
    assert last("collect", "value->>'v'", "a,b", '"') == '["a,b","\\""]'


@pytest.mark.parametrize(
    ("fn", "empty"),
    [
        ("sum", "null"),
        ("min", "null"),
        ("max", "null"),
        ("mean", "null"),
        ("first", "null"),
        ("last", "null"),
        ("collect", "[]"),
    ],
)
@pytest.mark.parametrize("of", [V, "(value->>'v')::double", "(value->>'v')::decimal(9,2)", "value->>'v'"])
def test_what_has_seen_only_nulls_is_empty(fn, empty, of):
    if fn in ("sum", "mean") and of == "value->>'v'":
        return
    assert last(fn, of, None, None) == empty


def test_nulls_are_skipped_and_do_not_override():
    assert last("last", V, 1, None) == "1"
    assert last("first", V, None, 2, 3) == "2"
    assert last("first", "value->>'v'", None, "x", "y") == '"x"'


@pytest.mark.parametrize(("fn", "shown"), [("first", "1"), ("last", "1"), ("collect", "[1]")])
def test_a_null_of_json_is_skipped_as_one_of_sql_is(fn, shown):
    assert last(fn, "value->'v'", None, 1, None) == shown
    assert last(fn, "value->'v'", None) == ("[]" if fn == "collect" else "null")


def test_values_stand_in_the_order_of_the_specification():
    aggregates = {name: {"fn": "count"} for name in ("z", "a", 'q"')}
    running = Task(job([{"op": "aggregate", "name": "agg", "aggregates": aggregates}]))
    out = running.run(batch_of(records(1))).outputs[0][1]
    assert out.column("value").to_pylist() == ['{"z":1,"a":1,"q\\"":1}']


def test_an_expression_fails_with_its_record_or_drops_it():
    with pytest.raises(ExpressionFailed) as failed:
        texts(task("sum", V), 1, "x")
    assert failed.value.offset == 1
    dropping = Task(job([{"op": "aggregate", "name": "agg", "aggregates": {"x": {"fn": "sum", "of": V}}}]), "drop")
    result = dropping.run(batch_of(records(1, "x", 2)))
    assert [out["value"]["x"] for out in outputs(result)] == [1, 3]
    assert [(each.reason, each.rows.num_rows) for each in result.dropped] == [("expression_failed", 1)]


# ---------------------------------------------------------------- bounds


def test_collect_fails_loudly_where_it_would_pass_its_bound():
    values = ["x" * 100_000] * 11
    with pytest.raises(AggregateTooLarge) as failed:
        texts(task("collect", "value->>'v'"), *values)
    assert (failed.value.operator, failed.value.key, failed.value.offset) == ("agg", "a", 10)
    assert failed.value.code == "aggregate_too_large"
    assert len(texts(task("collect", "value->>'v'"), *values[:10])) == 10


def test_the_bound_counts_bytes_of_json_exactly():
    fits = "é" * ((1 << 19) - 2)
    assert len(last("collect", "value->>'v'", fits).encode()) == 1 << 20
    with pytest.raises(AggregateTooLarge):
        last("collect", "value->>'v'", fits + "x")


def test_the_bound_is_met_at_the_same_record_whatever_the_cut():
    for sizes in ([4], [1, 1, 1, 1]):
        with pytest.raises(AggregateTooLarge) as failed:
            run_all(task("collect", "value->>'v'"), cut(records(*["x" * 400_000] * 4), sizes))
        assert failed.value.offset == 2


def test_sessions_that_merge_can_pass_the_bound():
    running = task("collect", "value->>'v'", {**SESSION, "grace_ms": 100})
    far = [("x" * 600_000, 10), ("x" * 600_000, 20), (None, 15)]
    with pytest.raises(AggregateTooLarge) as failed:
        running.run(batch_of([{"key": "a", "value": {"v": value}, "timestamp": at} for value, at in far]))
    assert failed.value.offset == 2


# ---------------------------------------------------------------- installed aggregators


class Concat:
    """KIP-94: session results are merged from the initial one on (S4 of the long form)."""

    def initializer(self):
        return "0"

    def aggregator(self, key, value, aggregate):
        return f"{aggregate}+{value}"

    def merger(self, key, one, other):
        return f"{one}+{other}"


class Noting(Concat):
    """Changes what it is given, and keeps the keys."""

    def initializer(self):
        return []

    def aggregator(self, key, value, aggregate):
        aggregate.append([key, value])
        return aggregate

    def merger(self, key, one, other):
        return one + other


class Unmerging:
    """Lacks what sessions need."""

    def initializer(self):
        return 0

    def aggregator(self, key, value, aggregate):
        if value == "raise":
            raise ValueError("no")
        return {1} if value == "set" else aggregate + value


CONCAT, NOTES = Concat, Noting()
NOTHING = object()


@pytest.fixture
def installed(monkeypatch):
    here = "tests.unit.streams.test_aggregate_functions"
    names = {"concat": "CONCAT", "notes": "NOTES", "add": "Unmerging", "nothing": "NOTHING", "missing": "MISSING"}
    points = [EntryPoint(name, f"{here}:{attribute}", installed_aggregators.GROUP) for name, attribute in names.items()]
    monkeypatch.setattr(
        installed_aggregators, "entry_points", lambda group: points if group == installed_aggregators.GROUP else []
    )
    installed_aggregators.aggregator_named.cache_clear()
    yield names
    installed_aggregators.aggregator_named.cache_clear()


def refused(**spec):
    body = {"name": "t", "source": "in", "operators": []}
    window = spec.pop("window", None)
    body["operators"] = [{"op": "aggregate", "name": "agg", "window": window, "aggregates": {"x": spec}}]
    with pytest.raises(Exception, match="not valid") as failed:
        JobSpec.parse(body)
    return [(error.pointer, error.detail) for error in failed.value.errors]


def test_installed_aggregators_are_listed(installed):
    assert list(installed_aggregators.installed()) == sorted(installed)
    assert installed_aggregators.installed()["concat"].endswith("test_aggregate_functions:CONCAT")


def test_an_installed_aggregator_merges_sessions_from_the_initial_one_on(installed):
    running = task("custom", V, {**SESSION, "grace_ms": 99}, aggregator="concat")
    given = [(1, 10), (2, 15), (3, 30), (4, 22), (5, 26)]
    batch = batch_of([{"key": "a", "value": {"v": value}, "timestamp": at} for value, at in given])
    assert outputs(running.run(batch))[-1]["value"] == {"x": "0+0+4+0+3+5"}
    assert outputs(running.run(batch_of(records(6), 5)))[-1]["value"] == {"x": "0+0+0+1+2+6"}


def test_an_installed_aggregator_gets_keys_and_whole_values_and_may_change_its_aggregate(installed):
    running = task("custom", window={"type": "sliding", "time_difference_ms": 5}, aggregator="notes")
    batch = [{"key": "é", "value": {"v": at}, "timestamp": at} for at in (10, 12, 11)]
    expected = outputs(running.run(batch_of(batch)))
    assert expected[-1]["value"] == {"x": [["é", {"v": 12}]]}
    again = task("custom", window={"type": "sliding", "time_difference_ms": 5}, aggregator="notes")
    assert run_all(again, cut(batch, [1, 1, 1])) == expected


def test_a_late_record_that_only_makes_a_copy_of_a_window_asks_an_installed_aggregator_nothing(installed):
    """Its own windows, and those it is in, are closed: but for the one right after it."""
    running = task("custom", V, {"type": "sliding", "time_difference_ms": 10, "grace_ms": 0}, aggregator="concat")
    for key, at in [("a", 20), ("a", 25), ("b", 26), ("a", 16)]:
        out = outputs(running.run(batch_of([{"key": key, "value": {"v": at}, "timestamp": at}])))
    assert [(record["window"]["start"], record["value"]) for record in out] == [(17, {"x": "0+20+25"})]


def test_what_an_installed_aggregator_says_is_cut_where_it_is_too_much(installed, monkeypatch):
    monkeypatch.setattr(functions, "MAX_SAID", 10)
    found = parts(task("custom", V, aggregator="concat"), batch_of(records(1, 2, 3)))
    assert [[out["value"]["x"] for out in outputs(result)] for result in found] == [["0+1"], ["0+1+2"], ["0+1+2+3"]]


def test_an_installed_aggregator_without_an_expression_gets_null_values_too(installed):
    running = task("custom", window={"type": "tumbling", "size_ms": 10}, aggregator="notes")
    out = run_all(running, [batch_of([{"key": "a", "value": None, "timestamp": 1}])])
    assert out[0]["value"] == {"x": [["a", None]]}


@pytest.mark.parametrize(("value", "words"), [("raise", "ValueError: no"), ("set", "TypeError")])
def test_an_aggregator_that_raises_or_gives_no_json_fails_with_its_record(installed, value, words):
    with pytest.raises(AggregatorFailed, match=words) as failed:
        texts(task("custom", "value->>'v'", aggregator="add"), None, value)
    assert (failed.value.offset, failed.value.code) == (1, "aggregator_failed")


def test_aggregators_that_are_unknown_or_unfit_are_refused(installed):
    pointer = "/operators/0/aggregates/x/aggregator"
    assert refused(fn="custom", aggregator="nope") == [
        (pointer, "'nope' is not installed; installed: add, concat, missing, notes, nothing")
    ]
    assert refused(fn="custom")[0][0] == pointer
    assert refused(fn="count", aggregator="concat") == [(pointer, "belongs to custom, not to count")]
    assert "has no initializer and no aggregator" in refused(fn="custom", aggregator="nothing")[0][1]
    assert "can not be loaded" in refused(fn="custom", aggregator="missing")[0][1]
    assert refused(fn="custom", aggregator="add", window=SESSION) == [
        ("/operators/0/aggregates", "x: the aggregator 'add' has no merger, which sessions need")
    ]
