"""`fields` of a stream: which values are of which kind, member by member."""

from __future__ import annotations

from collections.abc import Sequence
from json import dumps

import pyarrow as pa
import pytest

from service.payloads.fields import bad_fields


def faults(values: Sequence[str | None], fields: dict[str, str]) -> list[tuple[int, str]]:
    return [(row, member) for row, member, _ in bad_fields(pa.array(values, pa.utf8()), fields, 100)]


GOOD = {
    "string": ['""', '"a"'],
    "long": ["0", "-0", "9223372036854775807", "-9223372036854775808"],
    "double": ["0", "1.5", "-2", "18446744073709551616", "1e300"],
    "boolean": ["true", "false"],
    "json": ['""', "0", "1.5", "true", "[]", "{}"],
}
BAD = {
    "string": ["1", "true", "[]", "{}", "null"],
    "long": ["1.0", "1e2", "9223372036854775808", "-9223372036854775809", '"1"', "true", "null"],
    "double": ['"1"', "false", "[]", "1e999", "null"],
    "boolean": ["0", '"true"', "null"],
    "json": ["null"],
}


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind in GOOD for text in GOOD[kind]])
def test_a_member_of_the_kind_is_accepted(kind: str, text: str) -> None:
    assert faults([f'{{"a":{text}}}'], {"a": kind}) == []
    assert faults([f'{{"a":{text}}}'], {"a": f"{kind}?"}) == []


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind in BAD for text in BAD[kind]])
def test_a_member_of_another_kind_is_refused(kind: str, text: str) -> None:
    assert faults([f'{{"a":{text}}}'], {"a": kind}) == [(0, "value/a")]
    if text != "null":
        assert faults([f'{{"a":{text}}}'], {"a": f"{kind}?"}) == [(0, "value/a")]


@pytest.mark.parametrize("kind", list(GOOD))
def test_a_nullable_member_may_be_null_or_absent(kind: str) -> None:
    assert faults(['{"a":null}', "{}", None], {"a": f"{kind}?"}) == []
    assert faults(["{}", None], {"a": kind}) == [(0, "value/a"), (1, "value/a")]


def test_other_members_are_allowed() -> None:
    assert faults(['{"a":1,"b":{"a":"x"}}'], {"a": "long"}) == []


@pytest.mark.parametrize("text", ["[]", "5", '"a"', '[{"a":1}]'])
def test_a_value_that_is_no_object_is_refused_whole(text: str) -> None:
    assert faults([text], {"a": "long?"}) == [(0, "value")]


@pytest.mark.parametrize("name", ["a.b", "a/b", "a~b", "$", "$.a", "0", "*", "it's", 'q"q', "é", "a b", "#-1", "-"])
def test_any_name_means_itself(name: str) -> None:
    pointer = name.replace("~", "~0").replace("/", "~1")
    assert faults([dumps({name: 1}), dumps({name: "x"})], {name: "long"}) == [(1, f"value/{pointer}")]


def test_the_first_bad_values_are_told_in_order() -> None:
    values = ['{"a":1}', '{"a":""}'] * 300
    found = faults(values, {"a": "long"})
    assert found == [(row, "value/a") for row in range(1, 200, 2)]


def test_what_is_wrong_is_said() -> None:
    said = {d for _, _, d in bad_fields(pa.array(["{}", '{"a":"x"}', '{"a":1e99}']), {"a": "long"}, 9)}
    assert said == {
        "is missing: must be an integer of 64 bits",
        "must be an integer of 64 bits, not a string",
        "must be an integer of 64 bits, not a number",
    }
