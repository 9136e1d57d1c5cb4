"""The oracle of aggregate: every group in a dictionary, every record looked at alone, as plainly as Python allows.

It shares no code with `service`. A record is a dict of key, value, timestamp and window; a window specification is
the JSON of contract.md. `of` finds what a record gives to an aggregate: a function of the record per expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

Record = dict[str, Any]
Of = dict[str, Callable[[Record], Any]]

MAX_KEY_BYTES = 400  # longer ones are dropped, but they move time
NOTHING = object()


class Aggregate:
    """All of an aggregate operator. `dropped` are (reason, timestamp), once per window that did not take the record."""

    def __init__(self, operator: Record, of: Of) -> None:
        self.window = operator.get("window")
        self.functions = {name: Function(spec, of) for name, spec in operator["aggregates"].items()}
        self.is_final = operator.get("emit") == "on_window_close"
        self.type = None if self.window is None else self.window["type"]
        self.delay = 0 if self.window is None else self.window.get("grace_ms", 0) + self.window.get("gap_ms", 0)
        self.obs = self.obs_by_records = -1
        self.groups: dict[Any, Any] = {}  # (key, start, end) -> [states, timestamp]
        self.emitted: set[Any] = set()
        self.closed_to = -(2**63)  # what is closed at least: a version before had closed it
        self.dropped: list[tuple[str, int]] = []

    def feed_or_drop(self, record: Record) -> list[Record]:
        """The same, but a record at which a sum overflows is dropped, and nothing else has happened."""
        groups, rest = dict(self.groups), (self.obs, self.obs_by_records, set(self.emitted), list(self.dropped))
        try:
            return self.feed(record)
        except OverflowError:
            self.groups = groups
            self.obs, self.obs_by_records, self.emitted, self.dropped = rest
            return self.drop("integer_overflow", record)

    def feed(self, record: Record) -> list[Record]:
        """What comes out when this record comes in. Raises OverflowError."""
        if record["key"] is None:
            return self.drop("null_key", record)
        if record["value"] is None and self.type in (None, "sliding"):
            return self.drop("null_value", record)
        self.obs = max(self.obs, record["timestamp"])
        self.obs_by_records = max(self.obs_by_records, record["timestamp"])
        if len(record["key"].encode()) > MAX_KEY_BYTES:
            self.drop("key_too_long", record)
            return self.closed() if self.is_final else []
        step = {None: self.table, "session": self.session, "sliding": self.sliding}.get(self.type, self.time)
        updates = step(record)
        return self.closed() if self.is_final else updates

    def advance(self, to: int) -> list[Record]:
        """What comes out when stream time is moved by hand."""
        self.obs = max(self.obs, to)
        return self.closed() if self.is_final else []

    def horizon(self) -> int | None:
        """The lowest time that closes all windows."""
        ends = [end for _, _, end in self.groups if self.type is not None and not self.is_closed(end)]
        return max(ends) + self.delay + (self.type in ("session", "sliding")) if ends else None

    # ------------------------------------------------------------ time

    def is_closed(self, end: int | None, obs: int | None = None) -> bool:
        if end is None:
            return False
        close = (self.obs if obs is None else obs) - self.delay
        if self.obs - self.delay < self.closed_to:
            close = self.closed_to
        return end < close if self.type in ("session", "sliding") else end <= close

    def closed(self) -> list[Record]:
        """The results of windows that closed and did not come out yet."""
        done = [who for who in self.groups if self.is_closed(who[2]) and who not in self.emitted]
        self.emitted.update(done)

        def order(who: Any) -> Any:
            key, start, end = who
            return (end, start, key.encode()) if self.type == "session" else (start, key.encode())

        return [self.update(who) for who in sorted(done, key=order)]

    def drop(self, reason: str, record: Record) -> list[Record]:
        self.dropped.append((reason, record["timestamp"]))
        return []

    def drop_late(self, record: Record, end: int) -> list[Record]:
        return self.drop("late" if self.is_closed(end, self.obs_by_records) else "closed_idle", record)

    # ------------------------------------------------------------ groups

    def update(self, who: Any) -> Record:
        key, start, end = who
        states, timestamp = self.groups[who]
        window = None if self.window is None else {"start": start, "end": end}
        value = {name: function.result(states[name]) for name, function in self.functions.items()}
        return {"key": key, "window": window, "value": value, "timestamp": timestamp}

    def tombstone(self, who: Any) -> Record:
        return {**self.update(who), "value": None, "timestamp": who[2]}

    def add(self, who: Any, record: Record, base: Any = None) -> Record:
        """Fold the record into a group, or into what `base` holds; the update."""
        states, timestamp = base or self.groups.get(who) or [self.empty(), record["timestamp"]]
        self.groups[who] = [
            {name: function.add(states[name], record) for name, function in self.functions.items()},
            max(timestamp, record["timestamp"]),
        ]
        return self.update(who)

    def empty(self) -> Any:
        return {name: function.empty() for name, function in self.functions.items()}

    # ------------------------------------------------------------ the five ways

    def table(self, record: Record) -> list[Record]:
        return [self.add((record["key"], None, None), record)]

    def time(self, record: Record) -> list[Record]:
        size = self.window["size_ms"]
        advance = self.window.get("advance_ms", size)
        out, start = [], 0
        if record["timestamp"] >= size:
            start = (record["timestamp"] - size) // advance * advance
        while start <= record["timestamp"]:
            if start + size > record["timestamp"]:
                if self.is_closed(start + size):
                    self.drop_late(record, start + size)
                else:
                    out.append(self.add((record["key"], start, start + size), record))
            start += advance
        return out

    def session(self, record: Record) -> list[Record]:
        key, at, gap = record["key"], record["timestamp"], self.window["gap_ms"]
        near = [
            who
            for who in self.groups
            if who[0] == key and who[2] >= at - gap and who[1] <= at + gap and not self.is_closed(who[2])
        ]
        near.sort(key=lambda who: (who[2], who[1]))
        merged = (key, min([at, *(who[1] for who in near)]), max([at, *(who[2] for who in near)]))
        if self.is_closed(merged[2]):
            close = self.obs_by_records - self.delay  # where nobody had moved time without a record
            ends = [who[2] for who in self.groups if who[0] == key and who[2] >= at - gap and who[1] <= at + gap]
            return self.drop_late(record, max([at, *(end for end in ends if end >= close)]))
        out, states = [], self.empty()
        if merged[1:] != (at, at):
            out += [self.tombstone(who) for who in near]
        for who in near:
            others = self.groups.pop(who)[0]
            states = {name: function.merge(states[name], others[name]) for name, function in self.functions.items()}
        return [*out, self.add(merged, record, [states, merged[2]])]

    def sliding(self, record: Record) -> list[Record]:
        """KStreamSlidingWindowAggregate: processReverse and processEarly, as the long form §2.3 tells them."""
        at, difference = record["timestamp"], self.window["time_difference_ms"]
        if self.is_closed(at + difference):
            return self.drop_late(record, at + difference)
        return self.sliding_early(record) if at < difference else self.sliding_reverse(record)

    def sliding_windows(self, key: str, low: int, high: int) -> list[int]:
        return sorted(start for of, start, _ in self.groups if of == key and low <= start <= high)

    def slide(self, record: Record, start: int, base: Any = None) -> list[Record]:
        end = start + self.window["time_difference_ms"]
        if self.is_closed(end):
            return self.drop_late(record, end)
        return [self.add((record["key"], start, end), record, base)]

    def own_right(self, record: Record, group: Any) -> list[Record]:
        start = record["timestamp"] + 1
        who = (record["key"], start, start + self.window["time_difference_ms"])
        self.groups[who] = group
        return [self.update(who)]

    def sliding_reverse(self, record: Record) -> list[Record]:
        key, at, difference = record["key"], record["timestamp"], self.window["time_difference_ms"]
        out: list[Record] = []
        right = left = previous = None
        has_left = has_right = False
        scanned = []
        for start in reversed(self.sliding_windows(key, max(0, at - 2 * difference), at + 1)):
            scanned.append(start)
            group = self.groups[key, start, start + difference]
            if start == at + 1:
                has_right = True
            elif start + difference > at:
                right = right or group
                out += self.slide(record, start)
            elif start + difference == at:
                has_left = True
                out += self.slide(record, start)
                if group[1] == at:
                    return out
                previous = group[1]
            else:
                left, previous = group, group[1]
                break
        if previous is not None and previous + 1 not in scanned and previous + 1 + difference >= at:
            out += self.slide(record, previous + 1)
        if not has_left:
            is_in_reach = left is not None and previous is not None and previous >= at - difference
            states = left[0] if is_in_reach else self.empty()
            out += self.slide(record, at - difference, [states, at])
        if not has_right and right is not None and right[1] > at:
            out += self.own_right(record, right)
        return out

    def sliding_early(self, record: Record) -> list[Record]:
        key, at, difference = record["key"], record["timestamp"], self.window["time_difference_ms"]
        out: list[Record] = []
        combined = right = previous = None
        has_right = False
        scanned = self.sliding_windows(key, 0, at + 1)
        for start in scanned:
            group = self.groups[key, start, start + difference]
            if start == 0:
                combined = group
                previous = group[1] if group[1] < at else None
            elif start <= at:
                right = group
                out += self.slide(record, start)
            else:
                has_right = True
        if right is None and combined is not None and combined[1] > at:
            right = combined
        if not has_right and right is not None and right[1] > at:
            out += self.own_right(record, right)
        if previous is not None and previous + 1 not in scanned:
            out += self.slide(record, previous + 1)
        return out + self.slide(record, 0)


class Function:
    """One of count, sum, min, max, mean, first, last, collect. A state is never changed in place."""

    def __init__(self, spec: Record, of: Of) -> None:
        self.fn = spec["fn"]
        self.of = of[spec["of"]] if "of" in spec else None

    def empty(self) -> Any:
        return {"count": 0, "collect": (), "mean": (0, 0)}.get(self.fn, NOTHING)

    def add(self, state: Any, record: Record) -> Any:
        if self.of is None:
            return state + 1
        value = self.of(record)
        if value is None:
            return self.checked(state)
        if self.fn == "collect":
            value = (value,)
        if self.fn == "mean":
            value = (value if isinstance(value, float) else Fraction(value), 1)
        return self.checked(self.merge(state, value))

    def checked(self, state: Any) -> Any:
        """A sum of integers after a record: only then does it have to fit 64 bits."""
        if self.fn == "sum" and isinstance(state, int) and not -(2**63) <= state < 2**63:
            raise OverflowError
        return state

    def merge(self, state: Any, other: Any) -> Any:
        if other is NOTHING:
            return state
        if state is NOTHING:
            return other
        match self.fn:
            case "min" | "max":
                return {"min": min, "max": max}[self.fn](state, other)
            case "first":
                return state
            case "last":
                return other
            case "mean":
                return (state[0] + other[0], state[1] + other[1])
        return state + other

    def result(self, state: Any) -> Any:
        if self.fn == "mean":
            total, count = state
            return float(total / count) if count else None
        if self.fn == "collect":
            return list(state)
        return None if state is NOTHING else state


def aggregate(operator: Record, records: Iterable[Record], of: Of, *, drop_failing: bool = False) -> list[Record]:
    """All that comes out of an aggregate operator."""
    machine = Aggregate(operator, of)
    feed = machine.feed_or_drop if drop_failing else machine.feed
    return [out for record in records for out in feed(record)]


def last_per_batch(batches: Iterable[list[Record]]) -> list[list[Record]]:
    """Of the updates of each batch the net change per key and window, in the order of the last change."""
    there: set[Any] = set()
    out = []
    for updates in batches:
        last = {}
        for update in updates:
            who = (update["key"], *(update["window"] or {}).values())
            last.pop(who, None)
            last[who] = update
        out.append([update for who, update in last.items() if update["value"] is not None or who in there])
        there = (there | {who for who, update in last.items() if update["value"] is not None}) - {
            who for who, update in last.items() if update["value"] is None
        }
    return out
