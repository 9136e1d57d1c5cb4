"""`fields` as columns: what fits is there, as Python reads it; what does not is null."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.payloads.answers import PAGE_SCHEMA
from service.payloads.fields import COLUMN_TYPES, bad_fields, columns_of
from service.payloads.typed import typed_columns, typed_schema
from tests.unit.ingest.test_fields import BAD, GOOD


def column(texts: list[str | None], kind: str, name: str = "a") -> list[Any]:
    [found] = columns_of(pa.array(texts, pa.utf8()), {name: kind})
    assert found.type == COLUMN_TYPES[kind.removesuffix("?")]
    values: list[Any] = found.to_pylist()
    return values


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind in GOOD for text in GOOD[kind]])
def test_a_member_of_the_kind_is_in_its_column(kind: str, text: str) -> None:
    for each in (kind, f"{kind}?"):
        [found] = column([f'{{"a":{text}}}'], each)
        assert found == (text if kind == "json" else json.loads(text))


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind in BAD for text in BAD[kind]])
def test_any_other_is_null(kind: str, text: str) -> None:
    for each in (kind, f"{kind}?"):
        assert column([f'{{"a":{text}}}'], each) == [None]


def test_a_value_without_the_member_is_null() -> None:
    assert column([None, "null", "{}", "1", '"a"', '{"b":1}'], "json") == [None] * 6


def test_an_element_of_a_list_is_no_member() -> None:
    assert column(["[1,2]", '{"0":3}'], "long", name="0") == [None, 3]


@pytest.mark.parametrize("name", ["a", "a.b", "$.a", "/a", "~1", "it's", "ü", "", " "])
def test_a_member_is_found_by_its_very_name(name: str) -> None:
    assert column([json.dumps({name: 7}), json.dumps({name + "x": 8})], "long", name) == [7, None]


def test_a_text_is_what_its_escapes_say() -> None:
    assert column([r'{"a":"\u00e9\n\"\ud83d\ude00"}'], "string") == ['é\n"😀']


def test_rows_stay_in_order_over_many() -> None:
    numbers = list(range(10_000))
    fields = {"n": "long", "t": "string?"}
    found = columns_of(pa.array([f'{{"n":{n},"t":"{n}"}}' for n in numbers], pa.utf8()), fields)
    assert [each.to_pylist() for each in found] == [numbers, [str(n) for n in numbers]]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
MEMBERS = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(st.text(max_size=2), SCALARS, max_size=2)
VALUES = st.none() | MEMBERS | st.dictionaries(st.sampled_from("abc"), MEMBERS)
KINDS = st.sampled_from([f"{kind}{mark}" for kind in COLUMN_TYPES for mark in ("", "?")])


@given(st.lists(VALUES, max_size=6), st.dictionaries(st.sampled_from("abc"), KINDS, min_size=1))
def test_a_column_has_what_ingest_would_take(values: list[Any], fields: dict[str, str]) -> None:
    """And null for what it would refuse, whatever the other members are."""
    texts = [None if value is None else json.dumps(value) for value in values]
    found = columns_of(pa.array(texts, pa.utf8()), fields)
    for (name, kind), shown in zip(fields.items(), found, strict=True):
        bad = {row for row, _, _ in bad_fields(pa.array(texts, pa.utf8()), {name: kind}, 100)}
        for row, (value, member) in enumerate(zip(values, shown.to_pylist(), strict=True)):
            given_member = value.get(name) if isinstance(value, dict) else None
            if row in bad or given_member is None:
                assert member is None
            elif kind.startswith("json"):
                assert json.loads(member) == given_member
            elif kind.startswith("double"):
                assert member == float(given_member)
            else:
                assert member == given_member
                assert type(member) is not float or math.isfinite(member)


def test_times_are_timestamps_and_fields_have_names_of_their_own() -> None:
    fields = {"offset": "long", "value": "json?"}
    page = pa.RecordBatch.from_pylist(
        [{"partition": 1, "offset": 2, "value": '{"offset":5,"value":[1]}', "timestamp": 7, "window_end": 9}],
        schema=PAGE_SCHEMA,
    )
    found = pa.RecordBatch.from_arrays(typed_columns(page, fields), schema=typed_schema(fields))
    assert found.schema.field("timestamp").type == pa.timestamp("ms")
    [row] = found.to_pylist()
    assert (row["partition"], row["offset"], row["value.offset"], row["value.value"]) == (1, 2, 5, "[1]")
    assert found.column("timestamp").cast(pa.int64()).to_pylist() == [7]
    assert found.column("window_start").null_count == 1
