"""Hypothesis strategies of this project, in one place."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Record = dict[str, Any]

# few keys that often meet, and those that break byte layouts: empty, NUL, at and over the inline limit
texts = st.sampled_from(["a", "b", "c", "", "\x00", "a\x00", "é", "x" * 399, "x" * 400, "x" * 401, "x" * 5000])
ids = st.one_of(st.none(), texts, st.integers(-2, 2), st.booleans())
values = st.one_of(
    st.none(),
    st.fixed_dictionaries({"id": ids, "v": st.one_of(st.none(), st.integers(-5, 5))}),
    st.just({}),
)
timestamps = st.one_of(st.integers(0, 30), st.integers(0, 2**40))

records = st.lists(
    st.fixed_dictionaries({"key": st.one_of(st.none(), texts), "value": values, "timestamp": timestamps}),
    max_size=40,
)
intervals = st.one_of(st.integers(0, 20), st.sampled_from([2**40, 2**63 - 1]))
batch_sizes = st.lists(st.integers(1, 12), max_size=40)


@st.composite
def deduplications(draw: st.DrawFn, name: str = "once") -> Record:
    """The JSON of one of the three operators."""
    op = draw(st.sampled_from(["deduplicate_by_key", "deduplicate_by_key_value", "deduplicate"]))
    operator = {"op": op, "name": name, "interval_ms": draw(intervals)}
    return operator if op == "deduplicate_by_key" else {**operator, "id": "value->>'id'"}


stateless = st.sampled_from(
    [
        {"op": "filter", "where": "(value->>'v')::bigint >= 3"},
        {"op": "select_key", "key": "value->>'id'"},
        {"op": "map_values", "select": {"id": "value->>'id'", "v": "(value->>'v')::bigint"}},
        {"op": "map_values", "select": {"id": "key", "was": "value", "at": "timestamp"}},
    ]
)


@st.composite
def chains(draw: st.DrawFn) -> list[Record]:
    """Operators of a job: stateless ones around up to two deduplications."""
    parts = draw(st.lists(st.one_of(stateless, st.just("stateful")), max_size=4))
    return [draw(deduplications(name=f"once_{i}")) if part == "stateful" else part for i, part in enumerate(parts)]
