"""The oracle of suppress, distinct and of what follows an aggregate: one record at a time, as plainly as Python allows.

It shares no code with `service`. A record is a dict of key, value, timestamp and window ({"start", "end"} or None);
a window specification is the JSON of contract.md.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

Record = dict[str, Any]
Window = dict[str, Any]


MAX_KEY_BYTES = 400  # longer ones are dropped, but they move time


class Full(Exception):
    """A buffer that shuts down when full was full."""


class Suppress:
    """`window` is that of the aggregate before it (None: not windowed, or unknown)."""

    def __init__(self, operator: Record, window: Window | None = None) -> None:
        self.is_final = operator["until"] == "window_closes"
        self.is_session = window is not None and window["type"] == "session"
        self.is_strict = self.is_final and window is not None and window["type"] in ("session", "sliding")
        self.wait = closing_delay(window) if self.is_final else operator["time_limit_ms"]
        bounds = operator.get("buffer", {})
        self.when_full = bounds.get("when_full", "emit_early")
        self.max_records = bounds.get("max_records", float("inf"))
        self.max_bytes = bounds.get("max_bytes", float("inf"))
        self.obs = -1
        self.buffer: dict[Any, tuple[int, Record]] = {}

    def feed(self, record: Record) -> list[Record]:
        """What comes out when this record comes in."""
        if record["key"] is None:
            return []
        self.obs = max(self.obs, record["timestamp"])
        if len(record["key"].encode()) > MAX_KEY_BYTES:
            return self.evict_while(self.is_head_due)
        who = (record["key"], None if record["window"] is None else tuple(record["window"].items()))
        first = record["window"]["end"] if self.is_final else record["timestamp"]
        self.buffer[who] = (self.buffer[who][0] if who in self.buffer else first, record)
        return self.evict_while(self.is_head_due) + self.shrink()

    def advance(self, to: int) -> list[Record]:
        """What comes out when stream time is moved by hand."""
        self.obs = max(self.obs, to)
        return self.evict_while(self.is_head_due)

    def horizon(self) -> int | None:
        """The time at which the last of the buffer leaves."""
        times = [time for time, _ in self.buffer.values()]
        last = max(times) + self.wait + self.is_strict if times else None
        return last if last is not None and last < 2**63 else None

    def shrink(self) -> list[Record]:
        if self.when_full == "spill_to_disk":
            return []
        if self.when_full == "shut_down" and self.is_full():
            raise Full(f"{len(self.buffer)} records, {self.bytes()} bytes")
        return self.evict_while(self.is_full)

    def evict_while(self, condition: Any) -> list[Record]:
        out = []
        while self.buffer and condition():
            _, record = self.buffer.pop(self.head())
            if record["value"] is not None or not self.is_final:
                out.append(record)
        return out

    def head(self) -> Any:
        def place(who: Any) -> Any:
            time, record = self.buffer[who]
            window = record["window"] or {"start": -1, "end": -1}
            start, end = window["start"], window["end"]
            return (time, record["key"].encode(), (end, start) if self.is_session else (start, end))

        return min(self.buffer, key=place)

    def is_head_due(self) -> bool:
        time = self.buffer[self.head()][0]
        return time < self.obs - self.wait if self.is_strict else time <= self.obs - self.wait

    def is_full(self) -> bool:
        return len(self.buffer) > self.max_records or self.bytes() > self.max_bytes

    def bytes(self) -> int:
        return sum(bytes_of(record) for _, record in self.buffer.values())


def suppress(operator: Record, records: Iterable[Record], window: Window | None = None) -> list[Record]:
    """All that comes out of a suppress operator."""
    machine = Suppress(operator, window)
    return [out for record in records for out in machine.feed(record)]


def bytes_of(record: Record) -> int:
    """UTF-8 key, compact JSON value, 16 for a window."""
    value = record["value"]
    text = "" if value is None else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return len(record["key"].encode()) + len(text.encode()) + (16 if record["window"] else 0)


def closing_delay(window: Window) -> int:
    """How long after its end a window may still change."""
    return window.get("grace_ms", 0) + window.get("gap_ms", 0)


class Distinct:
    """The first record of a key in a window; sessions are lists of [start, end]."""

    def __init__(self, operator: Record) -> None:
        self.window = operator["window"]
        self.obs = -1
        self.seen: set[Any] = set()
        self.sessions: dict[Any, list[tuple[int, int]]] = {}
        self.last = -1  # the last end of a window that took a record
        self.closed_to = -(2**63)  # what is closed at least: a version before had closed it

    @property
    def close(self) -> int:
        return max(self.closed_to, self.obs - closing_delay(self.window))

    def feed(self, record: Record) -> list[Record]:
        if record["key"] is None:
            return []
        self.obs = max(self.obs, record["timestamp"])
        if len(record["key"].encode()) > MAX_KEY_BYTES:
            return []
        window = (self.session if self.window["type"] == "session" else self.tumbling)(record)
        return [] if window is None else [{**record, "window": {"start": window[0], "end": window[1]}}]

    def advance(self, to: int) -> list[Record]:
        self.obs = max(self.obs, to)
        return []

    def horizon(self) -> int | None:
        """The time that closes the last of its windows; None when that is past."""
        is_inclusive = self.window["type"] == "session"
        if self.last + is_inclusive <= self.close:
            return None
        time = self.last + closing_delay(self.window) + is_inclusive
        return time if self.last >= 0 and self.obs < time < 2**63 else None

    def tumbling(self, record: Record) -> tuple[int, int] | None:
        size = self.window["size_ms"]
        start = record["timestamp"] // size * size
        if start + size <= self.close:
            return None
        self.last = max(self.last, start + size)
        if (record["key"], start) in self.seen:
            return None
        self.seen.add((record["key"], start))
        return start, start + size

    def session(self, record: Record) -> tuple[int, int] | None:
        gap, close, at = self.window["gap_ms"], self.close, record["timestamp"]
        all_of_key = self.sessions.setdefault(record["key"], [])
        near = [s for s in all_of_key if s[1] >= at - gap and s[0] <= at + gap and s[1] >= close]
        merged = (min([at, *(s[0] for s in near)]), max([at, *(s[1] for s in near)]))
        if merged[1] < close:
            return None
        self.last = max(self.last, merged[1])
        self.sessions[record["key"]] = [s for s in all_of_key if s not in near] + [merged]
        return None if near else merged


def distinct(operator: Record, records: Iterable[Record]) -> list[Record]:
    """All that comes out of a distinct operator."""
    machine = Distinct(operator)
    return [out for record in records for out in machine.feed(record)]


def upstream(operators: list[Record], place: int) -> tuple[bool, bool, Window | None]:
    """Whether records at `operators[place]` are updates of a table, whether each is final, and their window."""
    is_table, is_final, window = False, False, None
    for operator in operators[:place]:
        if operator["op"] == "aggregate":
            is_table, is_final, window = True, operator.get("emit") == "on_window_close", operator["window"]
        elif operator["op"] == "distinct":
            is_table, is_final, window = False, False, operator["window"]
        elif operator["op"] == "select_key":
            is_table, is_final, window = False, False, None
        elif operator.get("until") == "window_closes":
            is_final = True
    return is_table, is_final, window
