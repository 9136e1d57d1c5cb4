"""What an aggregate may be: every refusal with the pointer to what is wrong."""

import pytest

from service.streams.errors import InvalidSpec
from service.streams.topology import graph
from service.streams.topology.spec import JobSpec

COUNT = {"n": {"fn": "count"}}
V = "(value->>'v')::bigint"


def aggregate(**fields):
    return {"op": "aggregate", "name": "agg", "window": None, "aggregates": COUNT, **fields}


def parsed(**fields):
    return JobSpec.parse({"name": "t", "source": "in", "operators": [aggregate(**fields)]})


def refused(**fields):
    """Pointer below the operator -> words."""
    with pytest.raises(InvalidSpec) as failed:
        parsed(**fields)
    return {error.pointer.removeprefix("/operators/0"): error.detail for error in failed.value.errors}


def windowed(**window):
    return refused(window=window)


def function(**spec):
    return refused(aggregates={"x": spec})


def test_everything_that_has_a_default_may_be_left_out():
    body = {"op": "aggregate", "name": "agg", "aggregates": COUNT}
    (operator,) = JobSpec.parse({"name": "t", "source": "in", "operators": [body]}).operators
    assert (operator.window, operator.emit, operator.updates) == (None, "on_update", "every")


def test_windows_have_no_grace_and_a_day_of_retention():
    window = parsed(window={"type": "session", "gap_ms": 1}).operators[0].window
    assert (window.grace_ms, window.retention_ms) == (0, 86_400_000)


def test_a_name_and_aggregates_are_required():
    assert refused(name=None).keys() == {"/name"}
    assert refused(aggregates={}).keys() == {"/aggregates"}
    assert refused(aggregates=None).keys() == {"/aggregates"}
    assert refused(aggregates={"": {"fn": "count"}}).keys() == {"/aggregates/"}


def test_unknown_fields_are_refused_at_every_level():
    assert refused(gap_ms=1).keys() == {"/gap_ms"}
    assert windowed(type="session", gap_ms=1, size_ms=2).keys() == {"/window/size_ms"}
    assert function(fn="count", distinct=True).keys() == {"/aggregates/x/distinct"}


@pytest.mark.parametrize(
    ("window", "pointer"),
    [
        ({"type": "session"}, "/window/gap_ms"),
        ({"type": "session", "gap_ms": 0}, "/window/gap_ms"),
        ({"type": "session", "gap_ms": "5"}, "/window/gap_ms"),
        ({"type": "session", "gap_ms": True}, "/window/gap_ms"),
        ({"type": "session", "gap_ms": 1.0}, "/window/gap_ms"),
        ({"type": "session", "gap_ms": 2**63}, "/window/gap_ms"),
        ({"type": "tumbling", "size_ms": 0}, "/window/size_ms"),
        ({"type": "tumbling", "size_ms": 1, "grace_ms": -1}, "/window/grace_ms"),
        ({"type": "tumbling", "size_ms": 1, "grace_ms": None}, "/window/grace_ms"),
        ({"type": "tumbling", "size_ms": 1, "retention_ms": -1}, "/window/retention_ms"),
        ({"type": "hopping", "size_ms": 5}, "/window/advance_ms"),
        ({"type": "hopping", "size_ms": 5, "advance_ms": 0}, "/window/advance_ms"),
        ({"type": "hopping", "size_ms": 5, "advance_ms": 6}, "/window/advance_ms"),
        ({"type": "hopping", "size_ms": 1001, "advance_ms": 1}, "/window/advance_ms"),
        ({"type": "sliding", "time_difference_ms": 0}, "/window/time_difference_ms"),
        ({"type": "global"}, "/window/type"),
        ({"size_ms": 5}, "/window/type"),
        (5, "/window"),
        ([], "/window"),
    ],
)
def test_windows_are_pointed_into(window, pointer):
    assert refused(window=window).keys() == {pointer}


def test_a_thousand_windows_may_overlap():
    assert parsed(window={"type": "hopping", "size_ms": 1000, "advance_ms": 1})


def test_on_window_close_needs_a_window():
    assert refused(emit="on_window_close") == {"/emit": "on_window_close needs a window"}
    assert refused(emit="later").keys() == {"/emit"}
    assert refused(updates="some").keys() == {"/updates"}


@pytest.mark.parametrize("fn", ["sum", "min", "max", "mean", "first", "last", "collect"])
def test_all_functions_but_count_need_an_expression(fn):
    assert function(fn=fn) == {"/aggregates/x/of": f"is required: {fn} of what?"}
    assert function(fn=fn, of=None).keys() == {"/aggregates/x/of"}


def test_count_takes_no_expression():
    assert function(fn="count", of="key").keys() == {"/aggregates/x/of"}


@pytest.mark.parametrize("fn", ["sum", "mean"])
@pytest.mark.parametrize("of", ["key", "value", "value->>'v'", "true", "(value->>'v')::date", "null"])
def test_sums_need_numbers(fn, of):
    assert function(fn=fn, of=of).keys() == {"/aggregates/x/of"}


@pytest.mark.parametrize("of", ["value", "value->'v'", "null"])
def test_extremes_need_an_order(of):
    assert function(fn="max", of=of).keys() == {"/aggregates/x/of"}


def test_functions_and_expressions_that_do_not_exist_are_pointed_to():
    assert function(fn="median", of=V).keys() == {"/aggregates/x/fn"}
    assert function(of=V).keys() == {"/aggregates/x/fn"}
    assert function(fn="sum", of="random()").keys() == {"/aggregates/x/of"}
    assert function(fn="sum", of="nope").keys() == {"/aggregates/x/of"}
    assert function(fn="sum", of="").keys() == {"/aggregates/x/of"}
    assert refused(aggregates={"a/b": {"fn": "sum"}}).keys() == {"/aggregates/a~1b/of"}
    assert refused(aggregates={"x": "count"}).keys() == {"/aggregates/x"}


def test_all_problems_are_told_at_once():
    found = refused(window={"type": "session", "gap_ms": 0}, aggregates={"x": {"fn": "sum"}, "y": {"fn": "no"}})
    assert found.keys() == {"/window/gap_ms", "/aggregates/x/of", "/aggregates/y/fn"}


@pytest.mark.parametrize(
    ("window", "kind", "interval_ms"),
    [
        (None, "key_value", None),
        ({"type": "session", "gap_ms": 3, "grace_ms": 2, "retention_ms": 10}, "session", 15),
        ({"type": "tumbling", "size_ms": 3, "grace_ms": 2, "retention_ms": 10}, "window", 15),
        ({"type": "hopping", "size_ms": 3, "advance_ms": 1, "retention_ms": 10}, "window", 13),
        ({"type": "sliding", "time_difference_ms": 3, "grace_ms": 2, "retention_ms": 10}, "window", 15),
        ({"type": "sliding", "time_difference_ms": 30, "grace_ms": 2, "retention_ms": 10}, "window", 92),
        ({"type": "tumbling", "size_ms": 2**63 - 1, "grace_ms": 2}, "window", 2**63 - 1),
    ],
)
def test_its_store_keeps_windows_for_the_retention_after_their_close(window, kind, interval_ms):
    (store,) = graph.compile(parsed(window=window), {"in": 4}).stores()
    assert (store.name, store.kind, store.type, store.interval_ms) == ("t-agg", "aggregate", kind, interval_ms)


def test_the_topology_reads_its_own_json():
    topology = graph.compile(parsed(window={"type": "session", "gap_ms": 3}), {"in": 1})
    assert graph.Topology.from_json(topology.to_json()) == topology


def test_after_select_key_an_aggregate_is_behind_a_repartition():
    operators = [{"op": "select_key", "key": "value->>'id'"}, aggregate()]
    spec = JobSpec.parse({"name": "t", "source": "in", "operators": operators})
    assert [len(graph.compile(spec, {"in": count}).sub_topologies) for count in (1, 2)] == [1, 2]
