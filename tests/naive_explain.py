"""The oracle of `:explain`: what became of each record, and because of whom, as plainly as Python allows.

For one operator (a deduplicate, or an aggregate over session, tumbling or hopping windows, with whatever suppress is
behind it). It shares no code with `service`, nor with the other oracles what it remembers: offsets. Advances are
(position, reason): everything that is open closes in front of that offset.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.naive import identity_of

Record = dict[str, Any]
IN = {"verdict": "in", "reason": None, "cause": None, "by_ms": None}


def deduplicate(operator: Record, records: Sequence[Record]) -> list[Record]:
    """The verdict on each record."""
    interval, identity = operator["interval_ms"], identity_of(operator)
    first: dict[Any, int] = {}  # identity -> offset of the record that is stored
    found, now = [], -1
    for offset, record in enumerate(records):
        now = max(now, record["timestamp"])
        who, verdict = identity({"window": None, **record}), IN
        if who is not None:
            earlier = first.get(who)
            distance = None if earlier is None else abs(record["timestamp"] - records[earlier]["timestamp"])
            is_kept = earlier is not None and records[earlier]["timestamp"] >= now - interval
            if is_kept and distance <= interval:
                verdict = out("duplicate", record_at(records, earlier), interval - distance)
            elif record["timestamp"] >= now - interval:
                first[who] = offset
        found.append({**verdict, "operator": operator["name"] if verdict["verdict"] == "out" else None})
    return found


class Windows:
    """An aggregate. `groups`: key -> [start, end, offsets, what closed it]."""

    def __init__(self, operator: Record, records: Sequence[Record], advances: Sequence[tuple[int, str]] = ()) -> None:
        self.window, self.name, self.records = operator["window"], operator["name"], records
        self.is_session = self.window["type"] == "session"
        self.delay = self.window.get("grace_ms", 0) + self.window.get("gap_ms", 0)
        self.groups: dict[str, list[list[Any]]] = {}
        self.open: list[list[Any]] = []  # those of them that nothing closed
        self.time = self.time_of_records = -1
        self.mover: Record | None = None  # who took stream time to where it is
        self.moving_record: Record | None = None
        self.verdicts: list[Record] = []
        for offset in range(len(records) + 1):
            for position, reason in advances:
                if position == offset:
                    self.close_all(reason)
            if offset < len(records):
                self.verdicts.append(self.verdict(offset))

    def verdict(self, offset: int) -> Record:
        record = self.records[offset]
        at, key = record["timestamp"], record["key"]
        if key is None:
            return {**out("null_key"), "operator": self.name}
        if at > self.time_of_records:
            self.time_of_records, self.moving_record = at, record_at(self.records, offset)
        if at > self.time:
            self.time, self.mover = at, record_at(self.records, offset)
        own = self.groups.setdefault(key, [])
        late = self.session(own, offset, at) if self.is_session else self.time_windows(own, offset, at)
        self.close()
        if late is None:
            return {**IN, "operator": self.name}
        if self.is_over(late, self.time_of_records):
            why = out("late", self.moving_record, self.time_of_records - self.delay - late)
        else:
            why = out("closed_idle", self.mover, self.time - self.delay - late)
        return {**why, "operator": self.name}

    def session(self, own: list[list[Any]], offset: int, at: int) -> int | None:
        gap = self.window["gap_ms"]
        near = [each for each in own if each[3] is None and each[1] >= at - gap and each[0] <= at + gap]
        near = [each for each in near if not self.is_over(each[1], self.time)]
        start, end = min([at, *(each[0] for each in near)]), max([at, *(each[1] for each in near)])
        if self.is_over(end, self.time):
            reached = [each[1] for each in own if each[1] >= at - gap and each[0] <= at + gap]
            return max([at, *(end for end in reached if not self.is_over(end, self.time_of_records))])
        offsets = sorted([offset, *(one for each in near for one in each[2])])
        merged = [start, end, offsets, None]
        own[:] = [each for each in own if each not in near] + [merged]
        self.open = [each for each in self.open if not any(each is other for other in near)] + [merged]
        return None

    def time_windows(self, own: list[list[Any]], offset: int, at: int) -> int | None:
        size = self.window["size_ms"]
        step = self.window.get("advance_ms", size)
        first = max(0, (at - size) // step * step)
        starts = [start for start in range(first, at + 1, step) if start <= at < start + size]
        taking = [start for start in starts if not self.is_over(start + size, self.time)]
        for start in taking:
            for each in own:
                if each[0] == start:
                    each[2].append(offset)
                    break
            else:
                own.append([start, start + size, [offset], None])
                self.open.append(own[-1])
        return None if taking else starts[-1] + size

    def is_over(self, end: int, time: int) -> bool:
        return end < time - self.delay if self.is_session else end <= time - self.delay

    def close(self) -> None:
        for each in self.open:
            if self.is_over(each[1], self.time):
                each[3] = self.mover
        self.open = [each for each in self.open if each[3] is None]

    def close_all(self, reason: str) -> None:
        if self.open:
            self.time = max(each[1] for each in self.open) + self.delay + self.is_session
            self.mover = {"offset": None, "timestamp": self.time, "reason": reason}
            self.close()

    def windows(self, key: str, at: int) -> list[Record]:
        """Those of a key that a time lies in, with records."""
        found = [each for each in self.groups.get(key, []) if each[0] <= at < each[1] + self.is_session]
        return [
            {"start": start, "end": end, "updates": offsets, "closed": closed}
            for start, end, offsets, closed in sorted(found, key=lambda each: each[:2])
        ]


def out(reason: str, cause: Record | None = None, by_ms: int | None = None) -> Record:
    return {"verdict": "out", "reason": reason, "cause": cause, "by_ms": by_ms}


def record_at(records: Sequence[Record], offset: int) -> Record:
    return {"offset": offset, "timestamp": records[offset]["timestamp"], "reason": "record"}


def taken_behind(
    writers: Sequence[Sequence[Record]],
    rounds: Sequence[Sequence[int]],
    target_of: Callable[[Record], int],
    target: int,
) -> list[list[tuple[int, int]]]:
    """What a task behind a repartition took in each round, in its order: (writer, offset) of its records.

    `rounds`: up to where it had read what each writer wrote. A record is as late as the latest one that its writer had
    read.
    """
    found, starts = [], [0] * len(writers)
    for ends in rounds:
        coming = []
        for writer, records in enumerate(writers):
            for offset in range(starts[writer], ends[writer]):
                if target_of(records[offset]) == target:
                    reached = max(record["timestamp"] for record in records[: offset + 1])
                    coming.append((reached, writer, offset))
        found.append([(writer, offset) for _, writer, offset in sorted(coming)])
        starts = list(ends)
    return found
