"""What every format has in common: a record means the same, and the same rules are broken the same way."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from service.payloads import ARROW, JSON, NDJSON, Rules, decode, media_type_of
from service.payloads.columns import MAX_PROBLEMS
from service.payloads.rules import MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_VALUE_BYTES
from service.streams.errors import UnsupportedMediaType
from service.streams.records import RECORD_SCHEMA
from tests.unit.ingest.bodies import FORMATS, NOW, PREFIX, RULES, body_of, complaints, ipc, pointers, rows

every_format = pytest.mark.parametrize("media_type", FORMATS)


@every_format
def test_records_come_out_as_they_were_sent_in_order(media_type: str) -> None:
    records: list[dict[str, Any]] = [
        {"key": "u1", "value": {"id": 1}, "timestamp": 5, "headers": {"trace": "a"}},
        {"key": None, "value": "text", "timestamp": 4, "headers": None},
        {"key": "ü", "value": [1, 2.5], "timestamp": NOW, "headers": {}},
    ]
    payload = decode(media_type, body_of(media_type, records), RULES)
    assert payload.records.schema == RECORD_SCHEMA
    assert payload.partitions is None
    assert [row["key"] for row in rows(payload)] == [b"u1", None, "ü".encode()]
    assert [json.loads(row["value"]) for row in rows(payload)] == [{"id": 1}, "text", [1, 2.5]]
    assert [row["timestamp"] for row in rows(payload)] == [5, 4, NOW]
    assert json.loads(rows(payload)[0]["headers"]) == {"trace": "a"}
    assert rows(payload)[1]["headers"] is None
    assert {row["window_start"] for row in rows(payload)} == {None}


@every_format
def test_what_is_absent_is_null_and_the_timestamp_its_arrival(media_type: str) -> None:
    records: list[dict[str, Any]] = [{"value": None, "key": "a"}, {"key": "b", "timestamp": 1}]
    payload = decode(media_type, body_of(media_type, records), RULES)
    assert [(row["value"], row["timestamp"]) for row in rows(payload)] == [(None, NOW), (None, 1)]


@every_format
def test_a_json_null_is_a_null_value(media_type: str) -> None:
    body = {
        JSON: b'{"records":[{"value": null }]}',
        NDJSON: b'{"value": null }',
        ARROW: body_of(ARROW, [{"key": "a"}]),
    }
    assert rows(decode(media_type, body[media_type], RULES))[0]["value"] is None


@every_format
def test_given_partitions_are_kept_beside_the_records(media_type: str) -> None:
    records: list[dict[str, Any]] = [{"key": "a", "partition": 3}, {"key": "b", "partition": None}]
    payload = decode(media_type, body_of(media_type, records), RULES)
    assert payload.partitions is not None
    assert payload.partitions.tolist() == [3, -1]


@every_format
def test_a_partition_out_of_range_is_pointed_at(media_type: str) -> None:
    records: list[dict[str, Any]] = [
        {"key": "a", "partition": 4},
        {"key": "b", "partition": 0},
        {"key": "c", "partition": -1},
    ]
    prefix = PREFIX[media_type]
    assert pointers(media_type, body_of(media_type, records)) == [f"{prefix}0/partition", f"{prefix}2/partition"]


@every_format
def test_timestamps_below_zero_or_too_far_ahead_are_pointed_at(media_type: str) -> None:
    rules = Rules(partitions=1, now_ms=NOW, max_future_ms=10)
    records: list[dict[str, Any]] = [{"timestamp": at} for at in (0, -1, NOW + 10, NOW + 11)]
    prefix = PREFIX[media_type]
    found = complaints(media_type, body_of(media_type, records), rules)
    assert [pointer for pointer, _ in found] == [f"{prefix}1/timestamp", f"{prefix}3/timestamp"]
    assert "negative" in found[0][1]
    assert "10 ms ahead" in found[1][1]


@every_format
def test_keys_values_and_headers_have_a_size_limit(media_type: str) -> None:
    records: list[dict[str, Any]] = [
        {"key": "k" * MAX_KEY_BYTES, "value": 1},
        {"key": "k" * (MAX_KEY_BYTES + 1), "value": "v" * MAX_VALUE_BYTES},
        {"key": "k", "value": "v" * (MAX_VALUE_BYTES - 2), "headers": {"h": "x" * MAX_HEADERS_BYTES}},
    ]
    prefix = PREFIX[media_type]
    expected = [f"{prefix}1/key", f"{prefix}1/value", f"{prefix}2/headers"]
    assert pointers(media_type, body_of(media_type, records)) == expected


@every_format
def test_an_empty_body_is_refused(media_type: str) -> None:
    assert complaints(media_type, b"") == [("", "the body is empty")]


@every_format
def test_a_body_without_records_is_refused(media_type: str) -> None:
    nothing = pa.table({"key": pa.array([], pa.utf8())})
    empty = {JSON: b'{"records":[]}', NDJSON: b"\n \n", ARROW: ipc(nothing)}
    assert complaints(media_type, empty[media_type]) == [("", "there are no records")]


@every_format
def test_no_more_than_a_hundred_problems_are_told(media_type: str) -> None:
    records: list[dict[str, Any]] = [{"timestamp": -1}] * (MAX_PROBLEMS + 50)
    assert len(complaints(media_type, body_of(media_type, records))) == MAX_PROBLEMS


@every_format
def test_fields_are_checked_with_a_pointer_into_the_value(media_type: str) -> None:
    rules = Rules(partitions=1, now_ms=NOW, fields={"id": "string", "n": "long?"})
    records: list[dict[str, Any]] = [
        {"value": {"id": "a", "n": 1}},
        {"value": {"id": 5, "n": 1.5}},
        {"value": {"n": None}},
    ]
    prefix = PREFIX[media_type]
    expected = [f"{prefix}1/value/id", f"{prefix}1/value/n", f"{prefix}2/value/id"]
    assert pointers(media_type, body_of(media_type, records), rules) == expected


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", JSON),
        ("Application/JSON; charset=UTF-8", JSON),
        ('application/x-ndjson;charset="utf-8"', NDJSON),
        ("application/vnd.apache.arrow.stream", ARROW),
    ],
)
def test_a_content_type_names_a_format(content_type: str, expected: str) -> None:
    assert media_type_of(content_type) == expected


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/json; charset=latin-1", "application/xml"])
def test_other_content_types_are_refused(content_type: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        media_type_of(content_type)
