"""Kept records to take in again: which of them, as they were before they were dropped, and how many at once."""

from __future__ import annotations

import pyarrow as pa
import pytest

from service.streams import inputs
from service.streams.inputs import Batch, Input, InputPosition, Part, Unread
from service.streams.records import RECORD_SCHEMA, Dropped
from service.streams.topology.dropped import kept
from service.streams.topology.replays import Replayed, Wanted, select_kept

RECORDS = [
    {"key": b"k", "value": "{}", "timestamp": at, "headers": '{"own": "é"}' if at == 2 else None} for at in range(5)
]


def batch_of(records: pa.RecordBatch) -> Batch:
    return inputs.batch_of([Unread(Input("kept", 0), InputPosition(0), records.num_rows, [Part(records, 0)])])


def replay_of(wanted: Wanted, operators: frozenset[str] = frozenset({"a", "b"})) -> Replayed:
    """Of five records: `a` dropped 0 and 1 as late and 2 as a duplicate, `b` dropped 3 and 4 as late."""
    batch = batch_of(pa.RecordBatch.from_pylist(RECORDS, RECORD_SCHEMA))
    dropped = [
        Dropped("a", "late", batch.rows.slice(0, 2)),
        Dropped("a", "duplicate", batch.rows.slice(2, 1)),
        Dropped("b", "late", batch.rows.slice(3), ["no", "no"]),
    ]
    return select_kept(batch_of(kept(dropped, batch.origins)), wanted, operators)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Wanted(), [0, 1, 2, 3, 4]),
        (Wanted(reason=["late"]), [0, 1, 3, 4]),
        (Wanted(reason=["late", "duplicate"], operator="a"), [0, 1, 2]),
        (Wanted(from_timestamp=1, to_timestamp=3), [1, 2, 3]),
        (Wanted(from_timestamp=4), [4]),
        (Wanted(operator="c"), []),
    ],
)
def test_what_is_wanted_is_chosen(wanted: Wanted, expected: list[int]) -> None:
    assert replay_of(wanted).batch.rows.column("timestamp").to_pylist() == expected


def test_only_our_headers_are_taken_off() -> None:
    headers = replay_of(Wanted()).batch.rows.column("headers").to_pylist()
    assert headers == [None, None, '{"own": "é"}', None, None]


def test_what_other_operators_dropped_is_passed_over() -> None:
    assert replay_of(Wanted(), frozenset({"b"})).operators == ["b", "b"]
    nothing = replay_of(Wanted(), frozenset())
    assert (nothing.operator, nothing.first.rows.num_rows) == (None, 0)
    assert nothing.batch.positions(0)[0].offset == 5


def test_the_records_of_one_operator_go_in_together_and_the_others_after_them() -> None:
    found = replay_of(Wanted(from_timestamp=1))
    assert (found.operator, found.first.rows.column("timestamp").to_pylist()) == ("a", [1, 2])
    assert found.batch.positions(2)[0].offset == 3
