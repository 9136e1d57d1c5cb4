"""The oracle of operators whose parameters a version changes over the state that they have, record by record.

It shares no code with `service`. Stream time may be set back with it. What was closed stays closed, what was over stays
absent; where windows are emitted as they close, nothing closes without a record: what a lower grace closes comes out
with the next one.
"""

from __future__ import annotations

from typing import Any

from tests import naive, naive_suppress, naive_windows

Record = dict[str, Any]


def machine_of(operator: Record) -> Any:
    """The operator, which can `adopt` another version of itself."""
    if operator["op"] == "aggregate":
        return Aggregate(operator)
    return Distinct(operator) if operator["op"] == "distinct" else Deduplicate(operator)


def kept(window: Record) -> int:
    """How long a window is to be seen after its own time (semantics.md)."""
    delay, retention = naive_suppress.closing_delay(window), window["retention_ms"]
    match window["type"]:
        case "session":
            return delay + retention
        case "sliding":
            difference = window["time_difference_ms"]
            return difference + delay + max(retention, 2 * difference)
    return window["size_ms"] + delay + retention


class Deduplicate(naive.Deduplicate):
    """Any of the three."""

    def __init__(self, operator: Record) -> None:
        super().__init__(naive.identity_of(operator), operator["interval_ms"])
        self.dropped: list[tuple[str, int]] = []

    def feed(self, record: Record) -> list[Record]:
        found = super().feed(record)
        self.dropped += [] if found else [("duplicate", record["timestamp"])]
        return [{"window": None, **each} for each in found]

    def adopt(self, operator: Record, set_back_to: int | None = None) -> None:
        if self.obs >= 0:
            self.floor = max(self.floor, self.obs - self.interval_ms)
        if set_back_to is not None and set_back_to < self.obs:
            self.stored = {who: time for who, time in self.stored.items() if time >= self.floor}
            self.obs, self.floor = set_back_to, 0
        self.interval_ms = operator["interval_ms"]


class Aggregate(naive_windows.Aggregate):
    """Windows of any kind."""

    def __init__(self, operator: Record) -> None:
        super().__init__(operator, naive.EXPRESSIONS)
        self.floor = 0
        self.done = -(2**63)  # what was closed when a record came, or time was moved
        self.begins_at = -1

    def feed(self, record: Record) -> list[Record]:
        is_null = record["key"] is None or (record["value"] is None and self.type == "sliding")
        found = super().feed(record)
        if not is_null:
            self.done = max(self.closed_to, self.obs - self.delay)
        return [each for each in found if each["window"] is None or each["window"]["start"] >= self.begins_at]

    def advance(self, to: int) -> list[Record]:
        found = super().advance(to)
        self.done = max(self.closed_to, self.obs - self.delay)
        return [each for each in found if each["window"]["start"] >= self.begins_at]

    def horizon(self) -> int | None:
        time = super().horizon()
        return self.obs if time is None and self.pending else time

    @property
    def pending(self) -> bool:
        return self.is_final and any(who not in self.emitted for who in self.groups)

    def adopt(self, operator: Record, set_back_to: int | None = None) -> None:
        if self.obs >= 0:
            self.closed_to = self.done if self.pending else max(self.done, self.obs - self.delay)
            self.floor = max(self.floor, self.obs - kept(self.window))
        if set_back_to is not None:
            self.obs, self.obs_by_records = min(self.obs, set_back_to), min(self.obs_by_records, set_back_to)
        self.window = operator["window"]
        self.delay = naive_suppress.closing_delay(self.window)

    def visible(self) -> set[Any]:
        """Key, start and end of each window that a lookup finds."""
        place = 2 if self.type == "session" else 1
        oldest = max(self.floor, self.begins_at, self.obs - kept(self.window))
        return {who for who in self.groups if who[place] >= oldest}

    # ------------------------------------------------------------ a store that begins anew

    def begin(self, time: int) -> None:
        self.obs = self.obs_by_records = self.begins_at = time
        self.done = time - self.delay

    def time(self, record: Record) -> list[Record]:
        found, size = [], self.window["size_ms"]
        for each in super().time(record):
            start = each["window"]["start"]
            if start < self.begins_at:
                del self.groups[record["key"], start, start + size]
                self.drop("before_version", record)
            else:
                found.append(each)
        return found

    def session(self, record: Record) -> list[Record]:
        if record["timestamp"] >= self.begins_at:
            return super().session(record)
        return self.drop("late" if self.is_closed(record["timestamp"]) else "before_version", record)


class Distinct(naive_suppress.Distinct):
    """Tumbling windows and sessions."""

    def adopt(self, operator: Record, set_back_to: int | None = None) -> None:
        if self.obs >= 0:
            self.closed_to = self.close
        self.obs = self.obs if set_back_to is None else min(self.obs, set_back_to)
        self.window = operator["window"]
