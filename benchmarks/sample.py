"""What `make demo` shows: half an hour of bids, three jobs over them, and what these must find, counted plainly.

Knows the story: deliveries repeat and get out of order, three bidders are market makers, and one of them falls silent
for two minutes. Refuses to know how jobs are run; `plain_results` is Python loops over the events and shares
nothing with Millrace.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.events import START_MS, Workload, bids

MINUTE_MS = 60_000
GAP_MS = 2 * MINUTE_MS
GRACE_MS = 5_000  # the disorder of the events
SPAN_S = 40 + 24 * 60  # events begin twenty seconds into a minute and end with one
MAKERS = ("bidder-0", "bidder-1", "bidder-2")
SILENT = "bidder-1"
SILENCE_MS = (START_MS // MINUTE_MS + 15) * MINUTE_MS  # begins there, for two minutes
STILL_HEARD = 20  # one bid in so many gets through

_Key = tuple[str, int, int]  # bidder, first and last ms of a window


class Results(NamedTuple):
    """What the three jobs leave: how many bids, (bids, highest price in cents) of each session, bids of each alert."""

    unique: int
    sessions: dict[_Key, tuple[int, int]]
    alerts: dict[_Key, int]


class Sample(NamedTuple):
    """The deliveries, in their order of arrival, and how many bids a second they are on average."""

    events: pa.Table
    rate_per_s: int


def sample(records: int) -> Sample:
    """About so many deliveries."""
    rate = max(1, round(records * 0.9 / SPAN_S))
    events = bids(Workload(round(rate * SPAN_S / 0.9), rate_per_s=rate))
    times = events["timestamp"].to_numpy()
    is_silent = pc.equal(events["key"], SILENT).to_numpy() & (times >= SILENCE_MS) & (times < SILENCE_MS + GAP_MS)
    is_heard = times // 1000 % STILL_HEARD == 0
    return Sample(events.filter(pa.array(~is_silent | is_heard)), rate)


def jobs(rate_per_s: int) -> list[dict[str, Any]]:
    """The bodies of the three jobs. A maker bids two to ten times as often as the alert asks for."""
    once = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 10 * MINUTE_MS}
    sessions = {
        "op": "aggregate",
        "name": "sessions",
        "window": {"type": "session", "gap_ms": GAP_MS, "grace_ms": GRACE_MS},
        "aggregates": {"bids": {"fn": "count"}, "highest": {"fn": "max", "of": "(value->>'price')::bigint"}},
        "emit": "on_window_close",
    }
    per_minute = {
        "op": "aggregate",
        "name": "per_minute",
        "window": {"type": "tumbling", "size_ms": MINUTE_MS, "grace_ms": GRACE_MS},
        "aggregates": {"bids": {"fn": "count"}},
    }
    makers = ", ".join(f"'{maker}'" for maker in MAKERS)
    alert = [
        {"op": "filter", "where": f"key in ({makers})"},
        per_minute,
        {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}},
        {"op": "filter", "where": f"(value->>'bids')::bigint < {rate_per_s}"},
    ]
    alerts = {"stream": "alerts", "where": "value is not null"}  # not the windows whose count was high enough
    return [
        {"name": "unique", "source": "bids", "operators": [once], "sink": "bids-unique"},
        {"name": "bidders", "source": "bids-unique", "operators": [sessions], "sink": "bidder-sessions"},
        {"name": "alert", "source": "bids-unique", "operators": alert, "sink": [alerts]},
    ]


def plain_results(given: Sample) -> Results:
    """What must come out."""
    columns = (given.events[name].to_pylist() for name in ("key", "value", "timestamp"))
    unique = sorted(set(zip(*columns, strict=True)), key=lambda bid: (bid[0], bid[2]))
    return Results(len(unique), _sessions(unique), _alerts(unique, given.rate_per_s))


def _sessions(bids_by_key: Iterable[tuple[str, str, int]]) -> dict[_Key, tuple[int, int]]:
    found: dict[_Key, tuple[int, int]] = {}
    key, start, end = "", 0, 0
    for bidder, value, timestamp in bids_by_key:
        if bidder != key or timestamp - end > GAP_MS:
            key, start, count, highest = bidder, timestamp, 0, 0
        else:
            count, highest = found.pop((key, start, end))
        end = timestamp
        found[key, start, end] = (count + 1, max(highest, json.loads(value)["price"]))
    return found


def _alerts(unique: Iterable[tuple[str, str, int]], rate_per_s: int) -> dict[_Key, int]:
    """Of minutes in which nothing came there is no count, and so no alert: windows are made by records."""
    counts = Counter((key, timestamp // MINUTE_MS) for key, _, timestamp in unique if key in MAKERS)
    return {
        (key, minute * MINUTE_MS, (minute + 1) * MINUTE_MS): count
        for (key, minute), count in counts.items()
        if count < rate_per_s
    }
