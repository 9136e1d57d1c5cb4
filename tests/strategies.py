"""Hypothesis strategies of this project, in one place."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

Record = dict[str, Any]

# few keys that often meet, and those that break byte layouts: empty, NUL, at and over the inline limit
texts = st.sampled_from(["a", "b", "c", "", "\x00", "a\x00", "é", "x" * 399, "x" * 400, "x" * 401, "x" * 5000])
ids = st.one_of(st.none(), texts, st.integers(-2, 2), st.booleans())


@st.composite
def record_lists(draw: st.DrawFn, *, failing: bool = False) -> list[Record]:
    """Records of few keys that meet within short times; with `failing`, some `v` are no numbers."""
    keys = st.sampled_from([None, *draw(st.lists(texts, min_size=1, max_size=3, unique=True))])
    some_ids = st.sampled_from(draw(st.lists(ids, min_size=1, max_size=3)))
    v = st.one_of(st.none(), st.integers(-5, 5), *([st.just("x")] if failing else []))
    values = st.one_of(st.fixed_dictionaries({"id": some_ids, "v": v}), st.sampled_from([None, {}]))
    timestamps = st.integers(0, draw(st.sampled_from([8, 25, 2**40])))
    each = st.fixed_dictionaries({"key": keys, "value": values, "timestamp": timestamps})
    at_least = draw(st.sampled_from([0, 20]))  # left alone, Hypothesis makes lists of about five
    return draw(st.lists(each, min_size=at_least, max_size=40))


records = record_lists()
intervals = st.one_of(st.integers(0, 6), st.integers(0, 20), st.sampled_from([2**40, 2**63 - 1]))
batch_sizes = st.lists(st.integers(1, 12), max_size=40)


@st.composite
def deduplications(draw: st.DrawFn, name: str = "once") -> Record:
    """The JSON of one of the three operators."""
    op = draw(st.sampled_from(["deduplicate_by_key", "deduplicate_by_key_value", "deduplicate"]))
    operator = {"op": op, "name": name, "interval_ms": draw(intervals)}
    if op != "deduplicate_by_key":
        operator["id"] = draw(st.sampled_from(["value->>'id'", "(value->>'v')::bigint"]))
    return operator


stateless = st.sampled_from(
    [
        {"op": "filter", "where": "(value->>'v')::bigint >= 3"},
        {"op": "select_key", "key": "value->>'id'"},
        {"op": "select_key", "key": "(value->>'v')::bigint"},
        {"op": "map_values", "select": {"id": "value->>'id'", "v": "(value->>'v')::bigint"}},
        {"op": "map_values", "select": {"id": "key", "was": "value", "at": "timestamp"}},
    ]
)


@st.composite
def chains(draw: st.DrawFn) -> list[Record]:
    """Operators of a job: stateless ones around up to two deduplications."""
    parts = draw(st.lists(st.one_of(stateless, st.just("stateful")), max_size=4))
    return [draw(deduplications(name=f"once_{i}")) if part == "stateful" else part for i, part in enumerate(parts)]
