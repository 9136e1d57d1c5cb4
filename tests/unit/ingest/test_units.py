"""Times in another unit than milliseconds: what they look like, and what is said of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from service.payloads import JSON, NDJSON, Rules, decode
from service.payloads.rows import small_rows
from service.payloads.units import milliseconds_of, odd_times, unit_of
from service.streams.errors import InvalidRecords, Problem

NOW = 1_700_000_000_000
RULES = Rules(partitions=4, now_ms=NOW)
FAR = Rules(partitions=4, now_ms=NOW, max_future_ms=2**53)


@pytest.mark.parametrize(
    ("timestamp", "unit"),
    [
        (0, None),
        (999_999_999, None),
        (1_000_000_000, "seconds"),
        (1_700_000_000, "seconds"),
        (9_999_999_999, "seconds"),
        (10_000_000_000, None),
        (NOW, None),
        (999_999_999_999_999, None),
        (NOW * 1_000, "microseconds"),
        (10**16, None),
        (NOW * 1_000_000, "nanoseconds"),
    ],
)
def test_a_time_of_our_days_shows_its_unit(timestamp: int, unit: str | None) -> None:
    assert unit_of(timestamp) == unit
    assert [row for row, _ in odd_times(pa.array([NOW, timestamp]))] == ([1] if unit else [])


def test_seconds_are_taken_with_a_warning_at_the_first_of_each_unit() -> None:
    lines = [b'{"timestamp":%d}' % t for t in (NOW, 1_700_000_000, 1_700_000_001, NOW * 1_000)]
    assert decode(NDJSON, b"\n".join(lines), FAR).warnings == (
        Problem("/1/timestamp", "1700000000 looks like seconds, as 2 of 4 do: send milliseconds"),
        Problem("/3/timestamp", "1700000000000000 looks like microseconds, as 1 of 4 do: send milliseconds"),
    )
    body = b'{"records":[{"timestamp":1700000000}]}'
    assert [each.pointer for each in decode(JSON, body, RULES).warnings] == ["/records/0/timestamp"]
    assert decode(JSON, b'{"records":[{"timestamp":5},{}]}', RULES).warnings == ()


def test_what_gets_a_warning_is_not_plain() -> None:
    assert small_rows(b'{"timestamp":1700000000}', RULES, is_ndjson=True) is None
    assert small_rows(b'{"timestamp":1700000000000}', RULES, is_ndjson=True) is not None


def refused(media_type: str, body: str) -> list[Problem]:
    with pytest.raises(InvalidRecords) as error:
        decode(media_type, body.encode(), RULES)
    return list(error.value.errors)


def test_microseconds_too_far_ahead_are_named() -> None:
    (problem,) = refused(JSON, '{"records":[{"timestamp":1700000000000000}]}')
    assert problem.pointer == "/records/0/timestamp"
    assert problem.detail.endswith("it looks like microseconds: send milliseconds")


@pytest.mark.parametrize(
    ("given", "detail"),
    [
        ('"2023-11-14T22:13:20Z"', ": send 1700000000000"),
        ('"2023-11-14T23:13:20.123+01:00"', ": send 1700000000123"),
        ('"2023-11-14 22:13:20"', ": send 1700000000000"),
        ('"2023-11-14"', ": send 1699920000000"),
        ('"1969-12-31T23:59:59Z"', ""),
        ('"yesterday"', ""),
        ('"1700000000000"', ""),
        ("1700000000000.5", ""),
        ("true", ""),
    ],
)
def test_a_time_that_is_no_integer_is_answered_with_what_to_send(given: str, detail: str) -> None:
    wanted = "must be milliseconds since 1970-01-01T00:00Z, as an integer" + detail
    record = f'{{"key":"u1","timestamp":{given},"value":1}}'
    assert refused(JSON, f'{{"records":[{record}]}}') == [Problem("/records/0/timestamp", wanted)]
    assert refused(NDJSON, f"{record}\n") == [Problem("/0/timestamp", wanted)]


def test_iso_times_are_utc_where_they_name_no_zone() -> None:
    assert milliseconds_of("1970-01-01T00:00:00.001") == milliseconds_of("1970-01-01T01:00:00.001+01:00") == 1
    assert milliseconds_of("9999-12-31T23:59:59.999Z") == 253_402_300_799_999


@pytest.mark.parametrize("body", ['{"key":"u1","value":{"a":1}}', '[{"key":"u1"}]', '{"value":1,"timestamp":2}'])
def test_records_that_are_in_no_list_are_answered_with_how_they_are_sent(body: str) -> None:
    (problem,) = refused(JSON, body)
    assert problem.pointer == ""
    assert problem.detail.startswith('records are sent as {"records": [{"key": …')
