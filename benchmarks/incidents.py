"""What goes wrong with streams, made on a running service: data for the dashboard, with figures that are known.

Each function posts records and submits a job by the public API, and does not wait for what comes of it; `settle` does.
Knows figures; refuses to know how they are shown. `make demo KEEP=1`, `make screenshots` and the tests of the dashboard
use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import httpx

Json = dict[str, Any]
Record = Mapping[str, Any]

START_MS: Final = 1_700_000_040_000  # 2023-11-14 22:14:00 UTC: a full minute, as all that is given has to be
FUTURE_MS: Final = 4_070_908_800_000  # 2099-01-01 00:00:00 UTC
SECOND_MS, MINUTE_MS, HOUR_MS = 1_000, 60_000, 3_600_000
CENTURY_MS: Final = 100 * 366 * 86_400_000
HOT_PARTITION: Final = 2
PARTITIONS_OF_HOT: Final = (17, 17, 950, 16)  # records of each
IN_TIME, LATE_BY_LITTLE, LATE_BY_MUCH = 60, 30, 10
BUFFERED: Final = 2
TARGET: Final = "https://shop.invalid/hook"  # of a domain that never is there (RFC 2606)
SECRET: Final = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

MINUTES: Final[Json] = {
    "op": "aggregate",
    "name": "minutes",
    "window": {"type": "tumbling", "size_ms": MINUTE_MS},
    "aggregates": {"n": {"fn": "count"}},
}
FINAL: Final[Json] = {"op": "suppress", "name": "final", "until": "window_closes"}


def future_timestamps(api: httpx.Client, start_ms: int = START_MS) -> None:
    """One record of 2099, which the stream takes, moves stream time there; the three behind it are late."""
    _stream(api, "inc-clock", max_future_ms=CENTURY_MS)
    times = [start_ms, start_ms + SECOND_MS, start_ms + 2 * SECOND_MS, FUTURE_MS]
    times += [start_ms + (3 + n) * SECOND_MS for n in range(3)]
    _post(api, "inc-clock", [_record("till-1", at, {"amount": 5 + n}) for n, at in enumerate(times)])
    _job(api, "inc_clock", "inc-clock", [MINUTES], keep_dropped=True)


def idle_partition(api: httpx.Client, start_ms: int = START_MS) -> None:
    """One partition has gone on for two hours, the other has one record: its window stays open."""
    _stream(api, "inc-idle", partitions=2)
    times = [(0, start_ms), (0, start_ms + HOUR_MS), (0, start_ms + 2 * HOUR_MS), (1, start_ms + SECOND_MS)]
    records = [_record(f"meter-{at}", ms, {"kwh": 1}, partition=at) for at, ms in times]
    _post(api, "inc-idle", records)
    _job(api, "inc_idle", "inc-idle", [MINUTES, FINAL], trust_partitions=True)


def poisoned_record(api: httpx.Client, start_ms: int = START_MS) -> None:
    """The record at offset 1 is not what the job takes it for."""
    _stream(api, "inc-poison")
    records = [_record(f"u{n}", start_ms + n * SECOND_MS, {"n": value}) for n, value in enumerate((1, "x", 3))]
    _post(api, "inc-poison", records)
    _job(api, "inc_poison", "inc-poison", [{"op": "map_values", "select": {"n": "(value->>'n')::bigint"}}])


def hot_key(api: httpx.Client, start_ms: int = START_MS) -> None:
    """One key has nearly all records, so one task of four does nearly all of the work."""
    _stream(api, "inc-hot", partitions=len(PARTITIONS_OF_HOT))
    records = [
        _record(
            "bot" if at == HOT_PARTITION else f"guest-{at}-{n}", start_ms + n * SECOND_MS, {"page": "/"}, partition=at
        )
        for at, count in enumerate(PARTITIONS_OF_HOT)
        for n in range(count)
    ]
    _post(api, "inc-hot", records)
    once = {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'page'", "interval_ms": SECOND_MS // 2}
    _job(api, "inc_hot", "inc-hot", [once], trust_partitions=True)


def full_buffer(api: httpx.Client, start_ms: int = START_MS) -> None:
    """Three windows are open, and the buffer may hold two."""
    _stream(api, "inc-full")
    _post(api, "inc-full", [_record(key, start_ms + n, {}) for n, key in enumerate(("ann", "bob", "cem"))])
    buffered = {**FINAL, "buffer": {"max_records": BUFFERED, "when_full": "shut_down"}}
    _job(api, "inc_full", "inc-full", [MINUTES, buffered])


def late_burst(api: httpx.Client, start_ms: int = START_MS) -> None:
    """40 of 100 records come when their windows are closed: 30 of them by half a minute, 10 by five and a half."""
    _stream(api, "inc-burst")
    now = start_ms + 10 * MINUTE_MS + 30 * SECOND_MS  # the highest time
    times = [now - n for n in reversed(range(IN_TIME))]
    times += [now - 40 * SECOND_MS + n for n in range(LATE_BY_LITTLE)]
    times += [now - 340 * SECOND_MS + n for n in range(LATE_BY_MUCH)]
    _post(api, "inc-burst", [_record(f"car-{n % 7}", at, {"speed": 50}) for n, at in enumerate(times)])
    _job(api, "inc_burst", "inc-burst", [MINUTES], keep_dropped=True)


def failed_sink(api: httpx.Client, start_ms: int = START_MS) -> None:
    """The target of a subscription is not there."""
    _stream(api, "inc-orders")
    shop = {"name": "shop", "start": "earliest", "push": {"url": TARGET, "secret": SECRET}}
    api.post("/v1/streams/inc-orders/subscriptions", json=shop).raise_for_status()
    _post(api, "inc-orders", [_record(f"order-{n}", start_ms + n * SECOND_MS, {"amount": 9 + n}) for n in range(2)])


def endless_session(api: httpx.Client, start_ms: int = START_MS) -> None:
    """A session of three records in twenty minutes: no record comes that would close it, and silence does not."""
    _stream(api, "inc-session")
    _post(api, "inc-session", [_record("ann", start_ms + n * 10 * MINUTE_MS, {"page": f"/{n}"}) for n in range(3)])
    visits = {
        "op": "aggregate",
        "name": "visits",
        "window": {"type": "session", "gap_ms": 30 * MINUTE_MS, "grace_ms": MINUTE_MS},
        "aggregates": {"pages": {"fn": "count"}},
        "emit": "on_window_close",
    }
    _job(api, "inc_session", "inc-session", [visits])


def duplicates(api: httpx.Client, start_ms: int = START_MS) -> None:
    """An order comes again after 30 s, which is a repetition, and after 90 s, which is behind the interval."""
    _stream(api, "inc-twice")
    times = [start_ms, start_ms + 30 * SECOND_MS, start_ms + 90 * SECOND_MS]
    _post(api, "inc-twice", [_record("order-7", at, {"amount": 12}) for at in times])
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": MINUTE_MS}
    _job(api, "inc_twice", "inc-twice", [once])


OF_DATA: Final[Sequence[Callable[[httpx.Client, int], None]]] = (
    future_timestamps,
    idle_partition,
    poisoned_record,
    hot_key,
    full_buffer,
    late_burst,
    failed_sink,
    endless_session,
    duplicates,
)
READING: Final = ("inc_clock", "inc_idle", "inc_hot", "inc_burst", "inc_session", "inc_twice")
FAILED: Final = ("inc_poison", "inc_full")


def seed(api: httpx.Client, start_ms: int = START_MS) -> None:
    """All that are made of data alone, on a service that has an instance."""
    for make in OF_DATA:
        make(api, start_ms)


def settle(api: httpx.Client, timeout_ms: int = 60_000) -> None:
    """Wait until each job has read everything, or has failed."""
    for job in (*READING, *FAILED):
        how = "stopped" if job in FAILED else "caught_up"
        api.get(f"/v1/jobs/{job}", params={"wait": how, "timeout_ms": timeout_ms}).raise_for_status()


def _stream(api: httpx.Client, name: str, *, partitions: int = 1, **settings: Any) -> None:
    api.post("/v1/streams", json={"name": name, "partitions": partitions, **settings}).raise_for_status()


def _record(key: str, timestamp: int, value: Any, **more: Any) -> Record:
    return {"key": key, "timestamp": timestamp, "value": value, **more}


def _post(api: httpx.Client, stream: str, records: Sequence[Record]) -> None:
    api.post(f"/v1/streams/{stream}/records", json={"records": records}).raise_for_status()


def _job(api: httpx.Client, name: str, source: str, operators: Sequence[Json], **settings: Any) -> None:
    spec = {"name": name, "source": source, "sink": f"{source}-out", "operators": operators, **settings}
    api.post("/v1/jobs", json=spec).raise_for_status()
