"""Whether two engines did the same work: what a contest must have given, counted from the events alone.

No record of the events is late for either engine: their disorder is the grace of our windows and the watermark of
Spark's, and a watermark trails what was read. So late-data rules explain no difference at all between counts, and none
is accepted: every window of every key must be there, with its bounds and its count, on both sides and in a
plain SQL count. Deduplication is another matter, see `check_survivors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import duckdb
import pyarrow as pa

CLOSING = "closing-"  # keys of the records that only move time: their own windows stay open

# What windows there are: one row (key, first_ms, last_ms, n) for each. In a session last_ms is its last record.
_SESSIONS = """
    WITH gaps AS (
        SELECT key, timestamp, coalesce(timestamp - lag(timestamp) OVER of_key > {gap_ms}, true) AS is_new
        FROM events WINDOW of_key AS (PARTITION BY key ORDER BY timestamp)),
    numbered AS (SELECT *, sum(is_new::int) OVER (PARTITION BY key ORDER BY timestamp) AS number FROM gaps)
    SELECT key, min(timestamp) AS first_ms, max(timestamp) AS last_ms, count(*) AS n FROM numbered GROUP BY key, number
"""
_WINDOWS = """
    SELECT key, first_ms, first_ms + {size_ms} AS last_ms, count(*) AS n
    FROM (SELECT key, (timestamp // {advance_ms} - back) * {advance_ms} AS first_ms
          FROM events, range({size_ms} // {advance_ms}) AS windows(back))
    GROUP BY key, first_ms
"""
# A count only grows: of the updates of a window the highest is the last.
_OURS = """
    SELECT key, window_start AS first_ms, window_end AS last_ms, max((value->>'n')::bigint) AS n
    FROM ours GROUP BY ALL
"""
_THEIRS = "SELECT key, first_ms, last_ms - {longer_ms} AS last_ms, max(n) AS n FROM theirs GROUP BY ALL"
_FINGERPRINT = f"""
    SELECT count(*), sum(n)::bigint, bit_xor(hash(key, first_ms, last_ms, n))
    FROM ({{counted}}) WHERE NOT starts_with(key, '{CLOSING}')
"""


_KEPT_KEYS = "SELECT count(DISTINCT key) FROM kept SEMI JOIN events USING (key, timestamp)"


class Disagreement(SystemExit):
    """Two engines gave different results: how often one is faster than the other means nothing."""


class Fingerprint(NamedTuple):
    """Windows, the records counted in them, and a sum over every row, whatever their order."""

    windows: int
    records: int
    rows: int


def expected(name: str, times: Mapping[str, int], events: pa.Table) -> Fingerprint:
    """Of the windows that the events (key, timestamp) make, counted by DuckDB."""
    if name == "session":
        return _fingerprint(_SESSIONS.format(**times), events=events)
    return _fingerprint(_WINDOWS.format(**{"advance_ms": times["size_ms"], **times}), events=events)


def check_counts(name: str, times: Mapping[str, int], wanted: Fingerprint, ours: pa.Table, theirs: pa.Table) -> None:
    """Raises Disagreement unless both results are what was expected."""
    longer_ms = times["gap_ms"] if name == "session" else 0  # Spark ends a session where its gap does
    found = {
        "Millrace": _fingerprint(_OURS, ours=ours),
        "Spark": _fingerprint(_THEIRS.format(longer_ms=longer_ms), theirs=theirs),
    }
    for engine, fingerprint in found.items():
        if fingerprint != wanted:
            raise Disagreement(f"{name}: {engine} gave {fingerprint}, the events have {wanted}")


def check_survivors(ours: pa.Table, theirs: pa.Table, events: pa.Table) -> str:
    """How many records each deduplication left, in words; Disagreement where that can not be.

    The two are never equal. Millrace forgets a key exactly one interval after its record; Spark at the end of a
    micro-batch whose watermark has passed that, and its watermark trails by another interval: it drops more. Both
    must keep every key, and nothing that was not there.
    """
    survivors = {"Millrace": ours, "Spark": theirs}
    ((keys,),) = _rows("SELECT count(DISTINCT key) FROM events", events=events)
    for engine, kept in survivors.items():
        ((found,),) = _rows(_KEPT_KEYS, kept=kept, events=events)
        if found != keys:
            raise Disagreement(f"{engine} kept {found} of {keys} keys")
    if not keys <= theirs.num_rows <= ours.num_rows < events.num_rows:
        left = {engine: kept.num_rows for engine, kept in survivors.items()}
        raise Disagreement(f"of {events.num_rows} records with {keys} keys were left {left}")
    return f"{ours.num_rows:,} left; Spark, which forgets a key later, left {theirs.num_rows:,}"


def _fingerprint(counted: str, **tables: pa.Table) -> Fingerprint:
    (found,) = _rows(_FINGERPRINT.format(counted=counted), **tables)
    return Fingerprint(*found)


def _rows(query: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as database:
        for name, table in tables.items():
            database.register(name, table)
        return database.sql(query).fetchall()
