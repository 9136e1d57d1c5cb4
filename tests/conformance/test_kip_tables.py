"""The tables of the KIPs themselves, line by line, where semantics.md follows them; where it does not, both are said.

KIP-655 (deduplicate, and its first proposal, distinct), KIP-328 (suppress). Each is run whole and record by record.
"""

from __future__ import annotations

from typing import Any

import pytest

from service.simulate import SimulateRequest, simulate

Record = dict[str, Any]

CUTS = pytest.mark.parametrize("batch_records", [None, 1])


def outputs(operators: list[Record], records: list[Record], batch_records: int | None) -> list[Record]:
    body = {"job": {"operators": operators}, "records": records, "batch_records": batch_records}
    found: list[Record] = simulate(SimulateRequest.model_validate(body))["outputs"]
    return found


# ---------------------------------------------------------------- KIP-655, "Examples" of deduplicate

SECOND = 1_000
INTERVAL = 10 * SECOND
Line = tuple[str, int, str]  # key, second, forwarded or dropped

KIP_655: dict[str, list[Line]] = {
    "example 1: a dropped record moves stream time, the interval stays where it was": [
        ("k", 20, "forwarded"),
        ("k", 25, "dropped"),
        ("k", 11, "dropped"),
        ("k", 9, "forwarded"),
    ],
    "example 2: a late duplicate is found while the entry lives": [
        ("k1", 10, "forwarded"),
        ("k2", 20, "forwarded"),
        ("k1", 9, "dropped"),
    ],
    "example 3: an entry that stream time has passed is purged": [
        ("k1", 10, "forwarded"),
        ("k2", 21, "forwarded"),
        ("k1", 9, "forwarded"),
    ],
    "duplicate sequence": [("k", 100, "forwarded"), ("k", 108, "dropped"), ("k", 111, "forwarded")],
    "duplicate sequence, reversed": [("k", 100, "forwarded"), ("k", 92, "dropped"), ("k", 89, "forwarded")],
    "bounds are inclusive": [("k", 5, "forwarded"), ("k", 15, "dropped"), ("k", 16, "forwarded")],
    "bounds are inclusive, reversed": [("k", 15, "forwarded"), ("k", 5, "dropped"), ("k", 4, "forwarded")],
}


@CUTS
@pytest.mark.parametrize("table", KIP_655)
@pytest.mark.parametrize("op", ["deduplicate_by_key", "deduplicate_by_key_value", "deduplicate"])
def test_kip_655_examples(op: str, table: str, batch_records: int | None) -> None:
    identity = {} if op == "deduplicate_by_key" else {"id": "value->>'id'"}
    operator = {"op": op, "name": "once", "interval_ms": INTERVAL, **identity}
    lines = KIP_655[table]
    records = [{"key": key, "value": {"id": key}, "timestamp": second * SECOND} for key, second, _ in lines]
    found = [(out["key"], out["timestamp"]) for out in outputs([operator], records, batch_records)]
    assert found == [(key, second * SECOND) for key, second, verdict in lines if verdict == "forwarded"]


# ---------------------------------------------------------------- KIP-655, the first proposal: distinct

ORDER = [4, 5, 6, 23, 22, 24, 34, 33, 32, 7, 22, 35]  # seconds, in the order of arrival
DISTINCT: dict[str, tuple[Record, list[tuple[int, int, int]]]] = {
    "tumbling, 10 s": ({"type": "tumbling", "size_ms": 10_000}, [(0, 10, 4), (20, 30, 23), (30, 40, 34)]),
    "session, gap 10 s": ({"type": "session", "gap_ms": 10_000}, [(4, 4, 4), (23, 23, 23)]),
    "session, gap 9 s": ({"type": "session", "gap_ms": 9_000}, [(4, 4, 4), (23, 23, 23), (34, 34, 34)]),
}


@CUTS
@pytest.mark.parametrize("table", DISTINCT)
def test_kip_655_distinct(table: str, batch_records: int | None) -> None:
    window, expected = DISTINCT[table]
    operator = {"op": "distinct", "name": "first", "window": {**window, "grace_ms": 60_000}}
    records = [{"key": "k", "value": second, "timestamp": second * SECOND} for second in ORDER]
    found = outputs([operator], records, batch_records)
    shown = [(out["window"]["start"] // SECOND, out["window"]["end"] // SECOND, out["value"]) for out in found]
    assert shown == expected


# ---------------------------------------------------------------- KIP-328, "Eviction" tables of suppress
#
# A line is one record (key, value, timestamp) and what comes out then. The KIP's bytes are characters; ours are those
# of semantics.md: key and compact JSON value, so each text counts for its two quotation marks more.

Update = tuple[str, str, int]
Lines = list[tuple[Update, list[Update]]]

FOLLOWED: dict[str, tuple[Record, Lines]] = {
    "a later record takes the place of an earlier one, whatever their times": (
        {"time_limit_ms": 100},
        [(("A", "x", 1), []), (("A", "w", 0), [])],
    ),
    "2 records, no late events": (
        {"time_limit_ms": 100, "buffer": {"max_records": 2}},
        [(("A", "w", 0), []), (("A", "x", 1), []), (("B", "y", 2), []), (("C", "z", 3), [("A", "x", 1)])],
    ),
    "3 bytes, no late events": (
        {"time_limit_ms": 100, "buffer": {"max_bytes": 9}},
        [(("A", "xx", 0), []), (("A", "yy", 1), []), (("B", "zz", 2), [("A", "yy", 1)])],
    ),
    "a record for which two have to go": (
        {"time_limit_ms": 100, "buffer": {"max_bytes": 8}},
        [(("A", "x", 0), []), (("B", "y", 1), []), (("C", "big", 2), [("A", "x", 0), ("B", "y", 1)])],
    ),
    "a record that is too big to fit": (
        {"time_limit_ms": 100, "buffer": {"max_bytes": 8}},
        [
            (("A", "x", 0), []),
            (("B", "y", 1), []),
            (("C", "enormous", 2), [("A", "x", 0), ("B", "y", 1), ("C", "enormous", 2)]),
        ],
    ),
}
# What the KIP's tables say beside what Kafka Streams does, and we do: buffer time is that of the first record of a key.
KEPT_APART: dict[str, tuple[Record, Lines, Lines]] = {
    "2 ms, no late events: KIP-328 says A leaves when C comes": (
        {"time_limit_ms": 2},
        [(("A", "w", 0), []), (("A", "x", 1), []), (("B", "y", 2), []), (("C", "z", 3), [("A", "x", 1)])],
        [(("A", "w", 0), []), (("A", "x", 1), []), (("B", "y", 2), [("A", "x", 1)]), (("C", "z", 3), [])],
    ),
    "2 ms, late events: KIP-328 says A leaves when its late record comes": (
        {"time_limit_ms": 2},
        [(("A", "w", 3), []), (("A", "x", 1), [("A", "x", 1)]), (("B", "y", 1), [("B", "y", 1)])],
        [(("A", "w", 3), []), (("A", "x", 1), []), (("B", "y", 1), [("B", "y", 1)])],
    ),
    "2 records, late events: KIP-328 says C leaves at once": (
        {"time_limit_ms": 100, "buffer": {"max_records": 2}},
        [(("A", "w", 0), []), (("A", "x", 1), []), (("B", "y", 2), []), (("C", "z", 0), [("C", "z", 0)])],
        [(("A", "w", 0), []), (("A", "x", 1), []), (("B", "y", 2), []), (("C", "z", 0), [("A", "x", 1)])],
    ),
    "3 bytes, late events: KIP-328 says B leaves at once": (
        {"time_limit_ms": 100, "buffer": {"max_bytes": 9}},
        [(("A", "xx", 0), []), (("A", "yy", 1), []), (("B", "zz", 0), [("B", "zz", 0)])],
        [(("A", "xx", 0), []), (("A", "yy", 1), []), (("B", "zz", 0), [("A", "yy", 1)])],
    ),
}


def suppressed(suppress: Record, lines: Lines, batch_records: int | None) -> list[list[Update]]:
    """What is out after each line, all in all."""
    operator = {"op": "suppress", "name": "later", "until": "time_limit", **suppress}
    records = [{"key": key, "value": value, "timestamp": timestamp} for (key, value, timestamp), _ in lines]
    found = []
    for count in range(1, len(records) + 1):
        out = outputs([operator], records[:count], batch_records)
        found.append([(one["key"], one["value"], one["timestamp"]) for one in out])
    return found


def in_all(lines: Lines) -> list[list[Update]]:
    return [[update for _, out in lines[:count] for update in out] for count in range(1, len(lines) + 1)]


@CUTS
@pytest.mark.parametrize("table", FOLLOWED)
def test_kip_328_eviction(table: str, batch_records: int | None) -> None:
    suppress, lines = FOLLOWED[table]
    assert suppressed(suppress, lines, batch_records) == in_all(lines)


@CUTS
@pytest.mark.parametrize("table", KEPT_APART)
def test_kip_328_eviction_where_kafka_streams_does_otherwise(table: str, batch_records: int | None) -> None:
    suppress, said, done = KEPT_APART[table]
    assert suppressed(suppress, done, batch_records) == in_all(done) != in_all(said)
