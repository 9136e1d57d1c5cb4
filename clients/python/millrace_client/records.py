"""What travels: records, answers to posts, entries of stores, jobs; as the OpenAPI document has them.

Members that a newer service adds are left out of the dataclasses; the views of jobs are dictionaries, with all of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict

from millrace_client.errors import Fault


class Window(NamedTuple):
    """Event time from `start` to `end`, in ms; the end of a session or sliding window is included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Record:
    """One record. `value`: any JSON; `timestamp` in ms, None in changelogs alone; `position`: the place behind it, from
    which a consumer resumes; empty where a subscription keeps it.
    """

    partition: int
    offset: int
    timestamp: int | None
    key: str | None
    value: Any
    window: Window | None
    headers: Mapping[str, str]
    position: str


@dataclass(frozen=True, slots=True)
class AppendedRange:
    """Offsets of a partition, both included."""

    partition: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Appended:
    """A post that is durable. `position`: its end, as `min_position` of lookups."""

    accepted: int
    offsets: Sequence[AppendedRange]
    position: str
    warnings: Sequence[Fault]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a store. `key` is None where only a hash of a very long identity is kept; times in ms."""

    key: str | None
    window: Window | None
    value: Any
    timestamp: int
    closes_at: int | None
    is_final: bool


@dataclass(frozen=True, slots=True)
class AsOf:
    """The moment that an answer is of."""

    stream_time: int | None
    position: str
    lag_records: int
    served_by: str


class Lookup(NamedTuple):
    """What a store has for a key, and as of when."""

    entries: list[Entry]
    as_of: AsOf


JobState = Literal["starting", "running", "rebalancing", "changing", "paused", "draining", "stopped", "failed"]


class JobPosition(TypedDict):
    """How far a job has read a partition of a source."""

    stream: str
    partition: int
    position: int
    end: int
    lag: int


class JobView(TypedDict):
    """A job as it stands: the members that programs ask for most; all others are there too."""

    id: str
    name: str
    state: JobState
    reason: str
    spec: dict[str, Any]
    positions: list[JobPosition]
    caught_up: bool
    stream_time: int | None
    error: dict[str, Any] | None
    stores: list[str]
    version: int
    spec_version: int
    created_at: str


def record_json(
    value: Any,
    key: str | None = None,
    timestamp: int | None = None,
    partition: int | None = None,
    headers: Mapping[str, str] | None = None,
) -> bytes:
    """A record as it is posted. Raises TypeError, ValueError where the value is not JSON."""
    given = {"key": key, "timestamp": timestamp, "partition": partition, "headers": headers}
    record = {"value": value} | {name: each for name, each in given.items() if each is not None}
    return json.dumps(record, allow_nan=False, separators=(",", ":")).encode()


def record_of(data: Mapping[str, Any], position: str) -> Record:
    """A record that was read."""
    return Record(
        data["partition"],
        data["offset"],
        data["timestamp"],
        data["key"],
        data["value"],
        _window(data["window"]),
        data["headers"],
        position,
    )


def appended_of(data: Mapping[str, Any]) -> Appended:
    """The answer to a post."""
    ranges = [AppendedRange(each["partition"], each["first"], each["last"]) for each in data["offsets"]]
    warnings = [Fault(each["pointer"], each["detail"]) for each in data.get("warnings") or ()]
    return Appended(data["accepted"], ranges, data["position"], warnings)


def entry_of(data: Mapping[str, Any]) -> Entry:
    """An entry that was looked up."""
    return Entry(
        data["key"],
        _window(data["window"]),
        data["value"],
        data["timestamp"],
        data["closes_at"],
        data["is_final"],
    )


def as_of(data: Mapping[str, Any]) -> AsOf:
    """The moment of a lookup."""
    return AsOf(data["stream_time"], data["position"], data["lag_records"], data["served_by"])


def _window(data: Mapping[str, int] | None) -> Window | None:
    return None if data is None else Window(data["start"], data["end"])
