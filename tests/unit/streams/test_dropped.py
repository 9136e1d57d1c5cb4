"""Dropped records: counted by operator and reason, kept with the reason in their headers."""

from __future__ import annotations

import json

import pyarrow as pa

from service.streams.records import TASK_SCHEMA, Dropped
from service.streams.topology.dropped import counted, kept
from tests.task import batch_of

ORIGINS = batch_of([{"key": "k", "value": {}, "timestamp": 1}] * 5, 5).origins  # offsets 5 to 9


def rows(*records: tuple[int, str | None]) -> pa.RecordBatch:
    fields = [
        {"key": b"k", "value": "{}", "timestamp": offset, "window_start": None, "window_end": None}
        | {"headers": headers, "ordinal": offset - 5}
        for offset, headers in records
    ]
    return pa.RecordBatch.from_pylist(fields, TASK_SCHEMA)


def test_counts_go_by_operator_and_reason() -> None:
    dropped = [Dropped("a", "late", rows((1, None), (2, None))), Dropped("a", "null_key", rows((3, None)))]
    assert counted([*dropped, Dropped("a", "late", rows((4, None)))]) == {"a": {"late": 3, "null_key": 1}}


def test_kept_records_come_in_the_order_of_their_offsets_and_say_why() -> None:
    dropped = [Dropped("b", "late", rows((7, None), (9, "{}"))), Dropped("a", "null_key", rows((8, '{"x": "y"}')))]
    found = kept(dropped, ORIGINS)
    assert found.column("timestamp").to_pylist() == [7, 8, 9]
    assert [json.loads(headers) for headers in found.column("headers").to_pylist()] == [
        {"millrace-operator": "b", "millrace-reason": "late", "millrace-offset": "7"},
        {"millrace-operator": "a", "millrace-reason": "null_key", "millrace-offset": "8", "x": "y"},
        {"millrace-operator": "b", "millrace-reason": "late", "millrace-offset": "9"},
    ]


def test_a_record_that_failed_says_at_what() -> None:
    failed = Dropped("a", "expression_failed", rows((5, None), (6, '{"millrace-error": "mine"}')), ['no "x"', "né"])
    found = [json.loads(headers) for headers in kept([failed], ORIGINS).column("headers").to_pylist()]
    assert [headers["millrace-error"] for headers in found] == ['no "x"', "né"]


def test_headers_of_our_names_are_ours_alone() -> None:
    before = '{"millrace-operator": "mine", "millrace-reason": "late", "x": "y", "millrace-other": "z"}'
    [headers] = kept([Dropped("a", "late", rows((5, before)))], ORIGINS).column("headers").to_pylist()
    told = {"millrace-operator": "a", "millrace-reason": "late", "millrace-offset": "5"}
    assert json.loads(headers, object_pairs_hook=list) == [*told.items(), ("x", "y"), ("millrace-other", "z")]
