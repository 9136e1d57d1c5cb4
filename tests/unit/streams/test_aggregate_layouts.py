"""Stored entries of an aggregate whose functions changed: one edge a test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from service.streams.layouts import store_keys
from service.streams.operators import functions, installed_aggregators, into_sessions, stored_results
from service.streams.operators.aggregate import AggregateSpec
from service.streams.operators.aggregate_layouts import MAX_LAYOUTS, TooManyLayouts
from service.streams.topology.graph import Topology
from tests.aggregate_versions import taking_over, versions_of
from tests.task import Task, batch_of, held, job, outputs

Record = dict[str, Any]

V, T = "(value->>'v')::bigint", "value->>'v'"
COUNT, SUM, MAX = {"fn": "count"}, {"fn": "sum", "of": V}, {"fn": "max", "of": V}
LAST, ALL = {"fn": "last", "of": T}, {"fn": "collect", "of": T}
TUMBLING = {"type": "tumbling", "size_ms": 100}
SESSION = {"type": "session", "gap_ms": 10, "grace_ms": 1000}


def aggregate(aggregates: Record, window: Record | None = TUMBLING, **fields: Any) -> Record:
    return {"op": "aggregate", "name": "agg", "window": window, "aggregates": aggregates, **fields}


def spec_of(aggregates: Record, **fields: Any) -> AggregateSpec:
    return AggregateSpec.model_validate(aggregate(aggregates, **fields))


def ran(operator: Record, *versions: tuple[Record, Sequence[tuple[Any, int]]]) -> tuple[Task, list[Record]]:
    """A task after all versions, each with its functions and the (value, timestamp) of its records of one key; and what
    came out in the last one.
    """
    topologies = versions_of({**operator, **versions[0][0]}, [fields for fields, _ in versions[1:]])
    task, out = Task(topologies[0]), list[Record]()
    for i, (_, given) in enumerate(versions):
        task = taking_over(task, topologies[i]) if i else task
        batch = [{"key": "a", "value": {"v": value}, "timestamp": at} for value, at in given]
        out = outputs(task.run(batch_of(batch)))
    return task, out


def of(aggregates: Record) -> Record:
    return {"aggregates": aggregates}


def values(out: list[Record]) -> list[Any]:
    return [record["value"] for record in out]


def looked_up(task: Task) -> list[Any]:
    """The values in the store, which both ways of reading agree on."""
    few = [json.loads(value) for _, _, value, _ in held(task)["t-agg"]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_results, "FEW", 0)
        assert few == [json.loads(value) for _, _, value, _ in held(task)["t-agg"]]
    return few


# ---------------------------------------------------------------- which layouts there are


@pytest.mark.parametrize(
    ("new", "are_others"),
    [
        ({"n": COUNT, "s": SUM}, False),
        ({"s": SUM, "n": COUNT}, True),
        ({"n": COUNT}, True),
        ({"n": COUNT, "s": MAX}, True),
        ({"n": COUNT, "s": {"fn": "sum", "of": "(value->>'w')::bigint"}}, True),
        ({"n": COUNT, "total": SUM}, True),
        ({"n": COUNT, "s": SUM, "m": MAX}, True),
    ],
)
def test_other_functions_or_another_order_are_another_layout(new: Record, are_others: bool) -> None:
    old = {"n": COUNT, "s": SUM}
    expected = [{"id": 1, "aggregates": old}, {"id": 2, "aggregates": new}] if are_others else None
    assert spec_of(old).layouts_after(spec_of(new), None) == expected


def test_what_else_changes_needs_no_layout() -> None:
    grace = {**TUMBLING, "grace_ms": 5}
    assert spec_of({"n": COUNT}).layouts_after(spec_of({"n": COUNT}, updates="last_per_batch"), None) is None
    layouts = spec_of({"n": COUNT}).layouts_after(spec_of({"s": SUM}), None)
    assert spec_of({"s": SUM}).layouts_after(spec_of({"s": SUM}, window=grace), layouts) == layouts


def test_functions_that_come_back_are_a_new_layout() -> None:
    layouts = spec_of({"n": COUNT}).layouts_after(spec_of({"s": SUM}), None)
    back = spec_of({"s": SUM}).layouts_after(spec_of({"n": COUNT}), layouts) or []
    assert [layout["id"] for layout in back] == [1, 2, 3]
    assert back[0]["aggregates"] == back[2]["aggregates"]


def test_a_store_that_has_had_all_layouts_is_not_given_another() -> None:
    layouts, specs = None, [spec_of({"n": COUNT}), spec_of({"s": SUM})]
    for i in range(MAX_LAYOUTS - 1):
        layouts = specs[i % 2].layouts_after(specs[1 - i % 2], layouts)
    assert layouts is not None
    assert [layout["id"] for layout in layouts] == list(range(1, 256))
    assert specs[0].layouts_after(specs[0], layouts) == layouts
    with pytest.raises(TooManyLayouts, match="changed 254 times"):
        specs[0].layouts_after(specs[1], layouts)


def test_a_topology_from_before_there_were_layouts_is_read_and_one_with_them_comes_back_whole() -> None:
    stored = job([aggregate({"n": COUNT})]).to_json()
    del stored["sub_topologies"][0]["nodes"][0]["store"]["layouts"]
    assert Topology.from_json(stored).stores()[0].layouts is None
    topology = versions_of(aggregate({"n": COUNT}), [of({"s": SUM, "n": COUNT})])[1]
    assert Topology.from_json(json.loads(json.dumps(topology.to_json()))) == topology
    assert [*(topology.stores()[0].layouts or [])[1]["aggregates"]] == ["s", "n"]


# ---------------------------------------------------------------- what a group knows


def test_a_function_that_came_later_is_null_in_windows_that_were_there_and_not_in_new_ones() -> None:
    task, out = ran(
        aggregate({}), (of({"n": COUNT}), [(1, 5)]), (of({"s": SUM, "n": COUNT}), [(2, 6), (3, 105), (4, 7)])
    )
    assert values(out) == [{"s": None, "n": 2}, {"s": 3, "n": 1}]
    assert looked_up(task) == [{"s": None, "n": 2}, {"s": 3, "n": 1}]


def test_a_window_that_nothing_touched_is_looked_up_as_the_present_version_has_it() -> None:
    task, _ = ran(aggregate({}), (of({"n": COUNT, "l": LAST}), [("x", 5)]), (of({"s": SUM, "l": LAST}), []))
    assert looked_up(task) == [{"s": None, "l": "x"}]


def test_a_function_that_was_away_for_a_version_is_null_though_no_record_came_meanwhile() -> None:
    task, out = ran(
        aggregate({}),
        (of({"n": COUNT, "s": SUM}), [(1, 5)]),
        (of({"n": COUNT}), []),
        (of({"n": COUNT, "s": SUM}), [(2, 6), (3, 7)]),
    )
    assert values(out) == [{"n": 2, "s": None}, {"n": 3, "s": None}]
    assert looked_up(task) == [{"n": 3, "s": None}]


def test_a_function_under_the_same_name_is_another_one_where_it_is_of_something_else() -> None:
    other = {"fn": "sum", "of": "(value->>'v')::bigint + 1"}
    _, out = ran(aggregate({}), (of({"s": SUM}), [(1, 5)]), (of({"s": other}), [(2, 6), (2, 105)]))
    assert values(out) == [{"s": None}, {"s": 3}]


def test_closings_say_null_for_what_is_missing() -> None:
    _, out = ran(
        aggregate({}, emit="on_window_close"),
        (of({"n": COUNT, "all": ALL}), [("x", 5)]),
        (of({"all": ALL, "m": MAX, "l": LAST}), [("2", 105), ("3", 205)]),
    )
    assert values(out) == [{"all": ["x"], "m": None, "l": None}, {"all": ["2"], "m": 2, "l": "2"}]


def test_a_table_keeps_what_stays_in_another_order() -> None:
    task, out = ran(
        aggregate({}, window=None),
        (of({"n": COUNT, "all": ALL, "s": SUM, "l": LAST}), [("1", 5)]),
        (of({"l": LAST, "s": SUM, "n": COUNT}), [("2", 6)]),
    )
    assert values(out) == [{"l": "2", "s": 3, "n": 2}] == looked_up(task)


def test_texts_that_are_missing_take_no_room() -> None:
    task, _ = ran(
        aggregate({}, window=SESSION),
        (of({"n": COUNT}), [(1, 100)]),
        (of({"n": COUNT, "all": ALL}), [("x" * 5000, 120), (3, 110)]),
    )
    assert looked_up(task) == [{"n": 3, "all": None}]
    assert max(len(value) for value in task.states["t-agg"].values()) < 200


def test_what_is_missing_neither_overflows_nor_grows_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(functions, "MAX_AGGREGATE_BYTES", 10)
    most = 2**63 - 1
    _, out = ran(
        aggregate({}), (of({"n": COUNT}), [(1, 5)]), (of({"s": SUM, "all": ALL}), [(most, 6), (most, 7), (most, 8)])
    )
    assert values(out) == [{"s": None, "all": None}] * 3


def test_what_lies_in_a_layout_that_the_store_never_had_is_not_read_as_if_it_were_known() -> None:
    task, _ = ran(aggregate({}), (of({"n": COUNT}), [(1, 5)]), (of({"n": COUNT, "s": SUM}), []))
    state = task.states["t-agg"]
    entry = next(key for key in state if key[:1] == store_keys.WINDOW)
    state[entry] = b"\x07" + state[entry][1:]
    with pytest.raises(KeyError):
        task.run(batch_of([{"key": "a", "value": {"v": 1}, "timestamp": 6}]))


def test_windows_close_in_parts_where_only_a_former_version_had_texts() -> None:
    layouts = versions_of(aggregate({"all": ALL, "n": COUNT}), [of({"n": COUNT})])[1]
    assert Task(layouts).chain._places[0].operator.aggregates.has_objects  # type: ignore[union-attr]


# ---------------------------------------------------------------- many functions


@pytest.mark.parametrize("count", [63, 64, 65, 128, 130, 256])
def test_any_of_many_functions_may_be_missing(count: int) -> None:
    names = [f"f{i}" for i in range(count)]
    was = {name: SUM for i, name in enumerate(names) if i % 3 != 0}
    now = dict.fromkeys(reversed(names), SUM)
    later = dict.fromkeys(names[1:], SUM) | {"last": COUNT}
    task, out = ran(
        aggregate({}, window={**TUMBLING, "grace_ms": 1000}),
        (of(was), [(1, 5)]),
        (of(now), [(2, 6), (5, 105)]),
        (of(later), [(4, 7), (1, 106), (9, 205)]),
    )
    expected = [
        {name: 7 if name in was else None for name in names[1:]} | {"last": None},
        dict.fromkeys(names[1:], 6) | {"last": None},
        dict.fromkeys(names[1:], 9) | {"last": 1},
    ]
    assert values(out) == expected
    assert looked_up(task) == expected


# ---------------------------------------------------------------- sessions


def test_a_session_that_merges_with_one_from_before_misses_what_that_misses() -> None:
    task, out = ran(
        aggregate({}, window=SESSION),
        (of({"n": COUNT}), [(1, 100)]),
        (of({"n": COUNT, "s": SUM}), [(2, 120), (3, 140)]),
        (of({"s": SUM, "n": COUNT, "m": MAX}), [(4, 110), (5, 150), (6, 170)]),
    )
    assert [value for value in values(out) if value is not None] == [
        {"s": None, "n": 3, "m": None},
        {"s": 8, "n": 2, "m": None},
        {"s": 6, "n": 1, "m": 6},
    ]
    assert looked_up(task) == [{"s": None, "n": 3, "m": None}, {"s": 8, "n": 2, "m": None}, {"s": 6, "n": 1, "m": 6}]


def test_a_session_that_began_later_but_lies_earlier_misses_what_the_one_misses_that_it_merges_with() -> None:
    task, out = ran(
        aggregate({}, window=SESSION),
        (of({"n": COUNT}), [(1, 120)]),
        (of({"n": COUNT, "s": SUM}), [(2, 100), (3, 110), (4, 121)]),
    )
    assert [value for value in values(out) if value is not None] == [
        {"n": 1, "s": 2},
        {"n": 3, "s": None},
        {"n": 4, "s": None},
    ]
    assert looked_up(task) == [{"n": 4, "s": None}]


@pytest.mark.parametrize("aggregates", [{"n": COUNT, "s": SUM}, {"n": COUNT, "l": LAST}])
def test_more_sessions_than_are_packed_are_each_read_in_their_layout(aggregates: Record) -> None:
    many = 2 * into_sessions.MOST_HOT + 10
    window = {**SESSION, "grace_ms": 100_000}
    one = [(i, 100 * i) for i in range(many)]
    other = [(i, 100 * i + 5) for i in range(many, 2 * many)]
    late = [(7, 100 * i + 3) for i in range(0, 2 * many, 3)]
    task, out = ran(
        aggregate({}, window=window),
        (of({"n": COUNT}), one),
        (of(aggregates), other),
        (of(aggregates | {"m": MAX}), late),
    )
    (name,) = aggregates.keys() - {"n"}
    expected = []
    for i in range(2 * many):
        is_new, was_late = i >= many, i % 3 == 0
        known = 7 if was_late and name == "l" else i + 7 * was_late
        expected.append(
            {"n": 1 + was_late, name: (known if name == "s" else str(known)) if is_new else None, "m": None}
        )
    assert looked_up(task) == expected
    assert values(out)[1::2] == expected[::3]
    firsts = {value[0] for key, value in task.states["t-agg"].items() if key[:1] == store_keys.SESSION}
    assert firsts == {1, 2, 3}, "each was touched by the last version, or by none since"


# ---------------------------------------------------------------- installed aggregators


class Strict:
    """Fails where it is asked to go on with what it did not begin."""

    def initializer(self) -> Any:
        return {"n": 0, "keys": []}

    def aggregator(self, key: str, value: Any, aggregate: Any) -> Any:
        return {"n": aggregate["n"] + value, "keys": [*aggregate["keys"], key]}

    def merger(self, key: str, one: Any, other: Any) -> Any:
        return {"n": one["n"] + other["n"], "keys": one["keys"] + other["keys"]}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Record]:
    """An aggregator that is installed, as a function."""
    point = EntryPoint("strict", f"{__name__}:Strict", installed_aggregators.GROUP)
    monkeypatch.setattr(installed_aggregators, "entry_points", lambda group: [point])
    installed_aggregators.aggregator_named.cache_clear()
    yield {"fn": "custom", "aggregator": "strict", "of": V}
    installed_aggregators.aggregator_named.cache_clear()


@pytest.mark.parametrize("window", [TUMBLING, SESSION])
def test_an_installed_aggregator_is_not_asked_where_it_is_missing(installed: Record, window: Record) -> None:
    task, out = ran(
        aggregate({}, window=window),
        (of({"n": COUNT}), [(1, 5)]),
        (of({"x": installed, "n": COUNT}), [(2, 18), (3, 10), (4, 300), (5, 301)]),
    )
    assert values(out)[-1] == {"x": {"n": 9, "keys": ["a", "a"]}, "n": 2}
    assert looked_up(task) == [{"x": None, "n": 3}, {"x": {"n": 9, "keys": ["a", "a"]}, "n": 2}]


def test_closings_of_an_installed_aggregator_that_is_missing_are_null(installed: Record) -> None:
    _, out = ran(
        aggregate({}, emit="on_window_close"),
        (of({"n": COUNT}), [(1, 5)]),
        (of({"x": installed}), [(2, 6), (3, 105), (4, 205)]),
    )
    assert values(out) == [{"x": None}, {"x": {"n": 3, "keys": ["a"]}}]


def test_an_installed_aggregator_goes_on_where_it_was_before(installed: Record) -> None:
    window = {"type": "sliding", "time_difference_ms": 50, "grace_ms": 100}
    _, out = ran(
        aggregate({}, window=window),
        (of({"n": COUNT, "x": installed}), [(1, 60)]),
        (of({"x": installed, "m": MAX}), [(2, 70)]),
    )
    assert values(out) == [{"x": {"n": 2, "keys": ["a"]}, "m": 2}, {"x": {"n": 3, "keys": ["a", "a"]}, "m": None}]
