"""JSON and NDJSON: the fast way in accepts, the slow one explains, and both agree."""

from __future__ import annotations

import random

import pytest

from service.payloads import JSON, NDJSON, decode
from service.payloads.json_bodies import SLICE_BYTES
from tests.unit.ingest.bodies import RULES, body_of, complaints, pointers, rows


@pytest.mark.parametrize(
    ("record", "pointer"),
    [
        (b'{"key":1}', "/key"),
        (b'{"timestamp":"1"}', "/timestamp"),
        (b'{"timestamp":1.5}', "/timestamp"),
        (b'{"timestamp":true}', "/timestamp"),
        (b'{"timestamp":9223372036854775808}', "/timestamp"),
        (b'{"partition":"0"}', "/partition"),
        (b'{"headers":{"a":1}}', "/headers"),
        (b'{"headers":[]}', "/headers"),
        (b'{"offset":1}', "/offset"),
        (b'{"a/b~c":1}', "/a~1b~0c"),
        (b"5", ""),
        (b"null", ""),
        (b"[]", ""),
    ],
)
def test_a_bad_record_is_pointed_at_among_good_ones(record: bytes, pointer: str) -> None:
    assert pointers(JSON, b'{"records":[{},' + record + b",{}]}") == [f"/records/1{pointer}"]
    assert pointers(NDJSON, b"{}\n" + record + b"\n{}") == [f"/1{pointer}"]


@pytest.mark.parametrize(
    "value",
    [
        b"NaN",
        b"Infinity",
        b"{",
        b'{"a":1,}',
        b"[1,]",
        b"01",
        b"1.",
        b"'a'",
        b'"\\x"',
        b'"\t"',
        b'"\\ud800"',
        b'"\xff"',
        b'{"\xff":1}',
        b"//",
    ],
)
def test_what_is_not_strict_json_is_refused_and_its_line_named(value: bytes) -> None:
    assert pointers(NDJSON, b'{}\n{"value":' + value + b"}\n") == ["/1"]
    assert complaints(JSON, b'{"records":[{"value":' + value + b"}]}")


def test_a_value_keeps_the_text_that_was_sent() -> None:
    text = b'{ "b": 1.50, "a": 123456789012345678901234567890, "a": "\\u00e9\xc3\xa9" }'
    payload = decode(NDJSON, b'{"value": ' + text + b" }", RULES)
    assert rows(payload)[0]["value"].encode() == text


def test_a_deep_value_is_refused_without_harm() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    assert complaints(NDJSON, b'{"value":' + deep + b"}") == [("/0", "nested too deeply")]
    assert complaints(JSON, b'{"records":[{"value":' + deep + b"}]}")


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        (b'{"records":1}', "/records"),
        (b'{"rows":[]}', "/rows"),
        (b'{"records":[],"more":1}', "/more"),
        (b"{}", ""),
        (b"[]", ""),
        (b'{"records":[{}', ""),
        (b"\xff", ""),
    ],
)
def test_a_document_of_another_shape_is_refused(body: bytes, pointer: str) -> None:
    assert pointers(JSON, body) == [pointer]


def test_blank_lines_and_carriage_returns_are_tolerated_and_counted() -> None:
    body = b'\r\n\n{"key":"a"}\r\n \n{"key":"b"}'
    assert [row["key"] for row in rows(decode(NDJSON, body, RULES))] == [b"a", b"b"]
    assert pointers(NDJSON, body + b'\n\n{"timestamp":-1}') == ["/6/timestamp"]


@pytest.mark.parametrize("body", [b"{} {}", b"{}{}", b'{"key":\n"a"}', b"{},\n{}"])
def test_one_line_is_one_record(body: bytes) -> None:
    assert complaints(NDJSON, body)


def test_a_body_of_many_slices_is_one_batch_and_lines_keep_their_numbers() -> None:
    rng = random.Random(1)
    records = [{"key": f"k{i}", "value": "x" * rng.randrange(400), "timestamp": i} for i in range(12_000)]
    body = body_of(NDJSON, records)
    assert len(body) > 2 * SLICE_BYTES
    assert [row["timestamp"] for row in rows(decode(NDJSON, body, RULES))] == list(range(12_000))
    lines = body.split(b"\n")
    lines[11] = lines[11_000] = b"oops"
    lines[5_000] = b""
    assert pointers(NDJSON, b"\n".join(lines)) == ["/11", "/11000"]


def test_both_ways_in_give_the_same_records() -> None:
    records = [{"key": f"k{i}", "value": {"n": i}, "timestamp": i, "partition": i % 4} for i in range(50)]
    fast = decode(NDJSON, body_of(NDJSON, records), RULES)
    slow = decode(NDJSON, b"\n" + body_of(NDJSON, records), RULES)  # a blank line: line by line
    assert fast.records.equals(slow.records)
