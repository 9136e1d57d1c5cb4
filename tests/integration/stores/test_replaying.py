"""Replicas of both kinds: changes count from exactly one position, reads see one order, what is over goes."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from service.storage import expiry
from service.storage import view as views
from service.storage.replica import Replica
from service.storage.view import View
from service.streams.layouts import reserved
from service.streams.layouts.changelog import change, changelog_of, with_change
from tests.stores import Engine, Job, at
from tests.unit.storage.replicas import INTERVAL_MS, STORE, changes, key, value

Opened = Replica | View


@pytest.fixture
def replica(engine: Engine) -> Opened:
    return engine.open(STORE, uuid4().hex, 0)


def scanned(replica: Opened, start: bytes = b"\x00", end: bytes = b"\x01", **how: object) -> list[bytes]:
    with replica.reader() as view:
        return [found for found, _ in view.scan(start, end, **how)]  # type: ignore[arg-type]


def counting(look: Callable[..., list[bytes]], looked_at: list[int]) -> Callable[..., list[bytes]]:
    """The same, and how many keys each call was given."""

    def count(*arguments: Any) -> list[bytes]:
        looked_at.append(len(arguments[2]))
        return look(*arguments)

    return count


def test_changes_count_from_exactly_the_position_where_it_stands(replica: Opened) -> None:
    assert replica.position == 0
    assert replica.apply(0, 2, changes({key(1): 10, key(2): 20}))
    assert not replica.apply(0, 2, changes({key(1): 99}))
    assert not replica.apply(3, 4, changes({key(1): 99}))
    assert replica.position == 2
    assert replica.apply(2, 3, changes({key(1): None}, obs=30))
    with replica.reader() as view:
        assert view.position == 3
        assert view.get(key(1)) is None
        assert view.get(key(2)) == value(20)
        assert view.get_many([key(2), key(1), key(2)], b"-") == [value(20), b"-", value(20)]
        assert view.get_many([], b"-") == []
        assert reserved.unpack_time(view.get(reserved.OBS_KEY) or b"") == 30


def test_an_empty_range_is_refused(replica: Opened) -> None:
    with pytest.raises(ValueError, match="empty"):
        replica.apply(1, 1, changes({}))


def test_a_range_may_hold_no_changes(replica: Opened) -> None:
    assert replica.apply(0, 5, changes({}))
    assert replica.position == 5


def test_scans_go_in_the_order_of_bytes_between_two_bounds(replica: Opened) -> None:
    names = [b"\x00", b"\x00\x00", b"\x00a", b"\x00a\x00", b"\x00ab", b"\x00\xff", b"\x00\xff\xff", b"\x01x"]
    replica.apply(0, len(names), changes(dict.fromkeys(names, 5), obs=6))
    assert scanned(replica) == names[:-1]
    assert scanned(replica, reverse=True) == names[:-1][::-1]
    assert scanned(replica, b"\x00a", b"\x00ab") == [b"\x00a", b"\x00a\x00"]
    assert scanned(replica, b"\x00a", b"\x00a\x00") == [b"\x00a"]
    assert scanned(replica, b"\x00b", b"\x00b\x00") == []
    assert scanned(replica, b"\x00b", b"\x00a") == []
    assert scanned(replica, limit=2) == names[:2]
    assert scanned(replica, limit=2, reverse=True) == names[-2:-4:-1]


def test_what_stream_time_has_passed_goes_and_nothing_before(replica: Opened) -> None:
    for n, time in enumerate((0, 50, 100)):
        replica.apply(n, n + 1, changes({key(n + 1): time}, obs=time))
    replica.apply(3, 4, changes({}, obs=INTERVAL_MS))
    assert scanned(replica) == [key(1), key(2), key(3)]
    replica.apply(4, 5, changes({}, obs=INTERVAL_MS + 1))
    assert scanned(replica) == [key(2), key(3)]
    replica.apply(5, 6, changes({key(2): 140}, obs=INTERVAL_MS + 60))  # written again: it lives on
    assert scanned(replica) == [key(2), key(3)]
    replica.apply(6, 7, changes({}, obs=1_000))
    assert scanned(replica) == []


def test_what_expires_costs_what_it_takes_to_look_at_it(replica: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []
    monkeypatch.setattr(expiry, "expired", counting(expiry.expired, looked_at))
    for n in range(20):
        replica.apply(n, n + 1, changes({key(n): 1_000 + n}, obs=1_000 + n))
    assert looked_at == []
    replica.apply(20, 21, changes({}, obs=1_000 + INTERVAL_MS + 3))
    assert sum(looked_at) == 3
    assert scanned(replica) == [key(n) for n in range(3, 20)]


SESSIONS = {"type": "session", "gap_ms": 10, "retention_ms": 1_000}
TUMBLING = {"type": "tumbling", "size_ms": 10, "retention_ms": 1_000}


@pytest.mark.parametrize("window", [SESSIONS, TUMBLING], ids=lambda window: window["type"])
def test_expiry_is_proportional_to_what_expires_however_much_lives(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: dict[str, object]
) -> None:
    """Fifty windows expire, once beside ten that live and once beside four hundred: the same entries are looked at."""
    count = {"op": "aggregate", "name": "a", "window": window, "aggregates": {"n": {"fn": "count"}}}
    costs = []
    for living in (10, 400):
        job = Job(engine, tmp_path / str(living), [count])
        job.feed([record for n in range(50) for record in at(f"old-{n}", 0)])
        for time in (500, 600, 700):
            job.feed([record for n in range(living) for record in at(f"new-{n}", time)])
        looked_at: list[int] = []
        monkeypatch.setattr(expiry, "expired", counting(expiry.expired, looked_at))
        job.feed(at("clock", 1_100))  # past 0 and the retention, before 500 and the retention
        monkeypatch.undo()
        assert len(job.stores["x-a"].all()) == 3 * living + 1
        costs.append(sum(looked_at))
    assert 50 <= costs[0] == costs[1] <= 4 * 50  # by two replicas: the one that runs, the one that is looked into


def test_a_large_backlog_of_what_expired_shrinks_with_every_change(
    replica: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "SLICE_KEYS", 10)
    replica.apply(0, 300, changes({key(n): 0 for n in range(300)}, obs=0))
    sizes = []
    for n in range(12):
        at = 10_000 + n
        replica.apply(300 + n, 301 + n, changes({key(1_000 + n): at}, obs=at))
        sizes.append(len(scanned(replica)))
    assert all(after < before for before, after in itertools.pairwise(sizes) if before > 12)
    assert sizes[-1] <= 300 - 12 * 10 or sizes[-1] == 12


def test_ten_thousand_changes_are_one_range(replica: Opened) -> None:
    first = {key(n): n for n in range(10_000)}
    assert replica.apply(0, 10_000, changes(first, obs=10_000 - INTERVAL_MS))
    gone = {key(n): None if n % 2 else 20_000 for n in range(10_000)}
    assert replica.apply(10_000, 20_000, changes(gone, obs=10_000))
    assert scanned(replica) == [key(n) for n in range(0, 10_000, 2)]
    with replica.reader() as view:
        assert view.get_many([key(0), key(1), key(9_998)], b"-") == [value(20_000), b"-", value(20_000)]
    assert replica.entries == 5_000


def test_a_whole_changelog_gives_the_same_in_any_cuts(engine: Engine) -> None:
    batches = [changes({key(n % 7): n, key(n % 5 + 10): None if n % 3 else n}, obs=n) for n in range(60)]
    contents = []
    for cut in (1, 7, 60):
        replica = engine.open(STORE, uuid4().hex, 0)
        for begin in range(0, 60, cut):
            part = batches[begin : begin + cut]
            merged: dict[bytes, bytes | None] = {}
            for batch in part:
                merged |= dict(zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True))
            rows = sorted(merged.items())
            joined = pa.RecordBatch.from_arrays(
                [pa.array([k for k, _ in rows], pa.binary()), pa.array([v for _, v in rows], pa.binary())],
                schema=batches[0].schema,
            )
            replica.apply(begin, begin + len(part), joined)
        with replica.reader() as view:
            contents.append(view.scan(b"\x00", b"\x01"))
    assert contents[0] == contents[1] == contents[2]


def test_what_was_over_when_time_was_set_back_is_gone_wherever_it_lies(replica: Opened) -> None:
    names = range(2 * views.SLICE_ROWS + 3)
    ahead = 10 * INTERVAL_MS + len(names)  # in a list with others, which is not due before it is
    replica.apply(0, 9, changes({key(n): ahead if n % 1_000 == 0 else n for n in names}, obs=0))
    told = changelog_of([change(reserved.FORGOT_KEY, reserved.pack_time(ahead))], 50)
    assert told is not None
    assert not replica.apply(8, 10, told)
    assert replica.apply(9, 10, told)
    assert scanned(replica) == [key(n) for n in names if n % 1_000 == 0]
    assert replica.apply(10, 11, changes({key(1): 40}))
    assert replica.apply(11, 12, changes({key(2): 60}, obs=60))
    assert scanned(replica)[:3] == [key(0), key(1), key(2)]


def test_a_copy_forgets_as_its_changelog_says_whatever_the_version_that_runs_now_keeps(engine: Engine) -> None:
    """Who replays it from the beginning forgets what those did that ran then, and no more."""
    replica = engine.open(replace(STORE, interval_ms=5), uuid4().hex, 0)
    longer, shorter = (change(reserved.TTL_KEY, reserved.pack_time(ttl_ms)) for ttl_ms in (INTERVAL_MS, 5))
    assert replica.apply(0, 1, with_change(changes({key(1): 10}, obs=50), longer))
    assert replica.apply(1, 2, changes({key(2): 100}, obs=10 + INTERVAL_MS))
    assert scanned(replica) == [key(1), key(2)]
    assert replica.apply(2, 3, changes({}, obs=11 + INTERVAL_MS))
    assert scanned(replica) == [key(2)]
    assert replica.apply(3, 4, with_change(changes({key(3): 120}, obs=120), shorter))
    assert replica.apply(4, 5, changes({key(4): 126}, obs=126))
    assert scanned(replica) == [key(2), key(4)]
    assert replica.apply(5, 6, changes({}, obs=101 + INTERVAL_MS))  # when it was noted to be over
    assert scanned(replica) == []
    assert replica.entries == 0
