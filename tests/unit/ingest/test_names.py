"""A member that is given twice is refused, in every format of JSON, and pointed at."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.payloads import JSON, NDJSON, decode
from tests.unit.ingest.bodies import RULES, complaints, rows

TWICE = "is given more than once"


@pytest.mark.parametrize(
    ("record", "pointer"),
    [
        ('{"key":"a","key":"b"}', "/key"),
        ('{"key":"a","key":"a"}', "/key"),
        ('{"key":null,"key":"a"}', "/key"),
        ('{"key":null,"key":null}', "/key"),
        ('{"key":"\\u003a","k\\u0065y":"\\u003a"}', "/key"),
        ('{"key":"a","value":{"key":1},"key":"b"}', "/key"),
        ('{"key" : "a" , "key" : "b:c"}', "/key"),
        ('{"value":1,"value":{"a":"b:c"}}', "/value"),
        ('{"value":null,"value":null}', "/value"),
        ('{"timestamp":1,"timestamp":2}', "/timestamp"),
        ('{"partition":1,"value":":","partition":2}', "/partition"),
        ('{"headers":{},"headers":{}}', "/headers"),
        ('{"headers":{"a":"1","a":"2"}}', "/headers/a"),
        ('{"headers":{"a/b":"1","c":"2","a\\/b":"1"}}', "/headers/a~1b"),
    ],
)
def test_a_member_that_is_given_twice_is_pointed_at(record: str, pointer: str) -> None:
    for good in ('{"key":"a:b"}', '{"key":null,"value":null,"headers":{"a":"b"}}', '{"value":"\\n:"}'):
        body = f'{{"records":[{good},{record},{good}]}}'.encode()
        assert complaints(JSON, body) == [(f"/records/1{pointer}", TWICE)]
        assert complaints(NDJSON, f"{good}\n{record}\n{good}".encode()) == [(f"/1{pointer}", TWICE)]


def test_the_records_themselves_may_be_given_once() -> None:
    assert complaints(JSON, b'{"records":[{"key":"a"}],"records":[{"key":"b"}]}') == [("/records", TWICE)]


def test_values_are_any_json_and_stay_what_was_sent() -> None:
    value = '{"a":1,"a":{"b":2,"b":[{"c":":","c":null}]}}'
    assert rows(decode(NDJSON, f'{{"value":{value}}}'.encode(), RULES))[0]["value"] == value


MEMBERS = st.fixed_dictionaries(
    {},
    optional={
        "key": st.none() | st.text(alphabet='a:\\"é\n', max_size=4),
        "value": st.recursive(st.none() | st.text(alphabet='a:\\"', max_size=3), lambda v: st.lists(v, max_size=2)),
        "timestamp": st.none() | st.integers(0, 10),
        "partition": st.none() | st.integers(0, 3),
        "headers": st.none() | st.dictionaries(st.text(alphabet="a:/", max_size=2), st.text(alphabet=":b", max_size=2)),
    },
)
WRITTEN = st.tuples(st.booleans(), st.sampled_from([(",", ":"), (", ", ": "), (" ,\t", " : ")]))


@given(st.lists(MEMBERS, min_size=1, max_size=4), WRITTEN, st.data())
def test_records_pass_unless_one_has_a_member_twice(
    records: list[dict[str, object]], written: tuple[bool, tuple[str, str]], data: st.DataObject
) -> None:
    ascii_only, separators = written
    texts = [json.dumps(record, ensure_ascii=ascii_only, separators=separators) for record in records]
    assert complaints(NDJSON, "\n".join(texts).encode()) == []
    assert complaints(JSON, f'{{"records":[{",".join(texts)}]}}'.encode()) == []
    at = data.draw(st.integers(0, len(records) - 1))
    if not records[at]:
        return
    name = data.draw(st.sampled_from(sorted(records[at])))
    again = json.dumps({name: data.draw(st.sampled_from([records[at][name], None]))}, separators=separators)
    texts[at] = texts[at][:-1] + separators[0] + again[1:]
    assert complaints(NDJSON, "\n".join(texts).encode()) == [(f"/{at}/{name}", TWICE)]
    assert complaints(JSON, f'{{"records":[{",".join(texts)}]}}'.encode()) == [(f"/records/{at}/{name}", TWICE)]
