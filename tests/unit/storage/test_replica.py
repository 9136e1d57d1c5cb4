"""A replica: replay at a position, one consistent view, and entries that go when their time is over."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.storage import expiry
from service.storage.replica import Replica
from service.streams.layouts import reserved, store_keys
from service.streams.layouts.changelog import change, changelog_of
from service.streams.records import StoreSpec
from tests.unit.storage.replicas import INTERVAL_MS, STORE, changes, content, held_keys, key, open_replica, value


@pytest.fixture
def replica(tmp_path: Path) -> Iterator[Replica]:
    opened = open_replica(tmp_path / "replica")
    yield opened
    opened.close()


# ---------------------------------------------------------------- apply and read


def test_a_new_replica_is_empty_at_position_zero(replica: Replica) -> None:
    assert (replica.position, replica.entries) == (0, 0)
    with replica.reader() as view:
        assert view.get(key(1)) is None
        assert view.position == 0


def test_apply_puts_overwrites_and_deletes(replica: Replica) -> None:
    assert replica.apply(0, 3, changes({key(1): 10, key(2): 20, key(3): 30}, obs=30))
    assert replica.apply(3, 6, changes({key(1): 40, key(2): None, key(9): None}, obs=40))
    with replica.reader() as view:
        assert view.get(key(1)) == value(40)
        assert view.get(key(2)) is None
        assert view.get(reserved.OBS_KEY) == reserved.pack_time(40)
        assert view.position == 6
    assert (replica.position, replica.entries) == (6, 2)


@pytest.mark.parametrize(("from_offset", "to_offset"), [(0, 5), (0, 6), (3, 8), (6, 9)])
def test_apply_anywhere_but_at_its_position_changes_nothing(replica: Replica, from_offset: int, to_offset: int) -> None:
    assert replica.apply(0, 5, changes({key(1): 10}))
    before = content(replica)
    assert not replica.apply(from_offset, to_offset, changes({key(1): 99, key(2): 99}, obs=99))
    assert content(replica) == before


def test_a_range_of_offsets_may_be_longer_than_its_changes(replica: Replica) -> None:
    assert replica.apply(0, 1_000, changes({}))
    assert replica.position == 1_000


@pytest.mark.parametrize("to_offset", [0, -1])
def test_an_empty_range_is_refused(replica: Replica, to_offset: int) -> None:
    with pytest.raises(ValueError, match="empty changelog range"):
        replica.apply(0, to_offset, changes({}))


def test_many_keys_are_read_in_their_order_with_a_default(replica: Replica) -> None:
    replica.apply(0, 2, changes({key(1): 10, key(2): 20}))
    with replica.reader() as view:
        assert view.get_many([key(2), key(7), key(1), key(2)], b"-") == [value(20), b"-", value(10), value(20)]
        assert view.get_many([], b"-") == []


def test_a_view_does_not_see_what_is_applied_meanwhile(replica: Replica) -> None:
    replica.apply(0, 1, changes({key(1): 10}))
    with replica.reader() as view:
        replica.apply(1, 2, changes({key(1): 20}))
        assert (view.get(key(1)), view.position) == (value(10), 1)
    with replica.reader() as view:
        assert (view.get(key(1)), view.position) == (value(20), 2)


def test_a_batch_with_a_slice_offset_is_applied_right(replica: Replica) -> None:
    whole = changes({key(n): n for n in range(50)})
    replica.apply(0, 10, whole.slice(20, 10))
    assert held_keys(replica) == [key(n) for n in range(20, 30)]


@pytest.mark.parametrize("length", [1, 400, 401, 511])
def test_store_keys_of_every_length_that_lmdb_takes(replica: Replica, length: int) -> None:
    name = b"\x00" * length
    replica.apply(0, 1, changes({name: 5}))
    with replica.reader() as view:
        assert view.get(name) == value(5)


def test_it_is_all_there_after_a_restart(tmp_path: Path) -> None:
    first = open_replica(tmp_path)
    first.apply(0, 2, changes({key(1): 10, key(2): 20}, obs=20))
    before = content(first)
    first.close()
    second = open_replica(tmp_path, end=2)
    assert content(second) == before
    second.close()


def test_disk_bytes_are_those_of_the_file_not_of_the_sparse_map(replica: Replica) -> None:
    replica.apply(0, 1, changes({key(n): n for n in range(1_000)}))
    assert 10_000 < replica.disk_bytes < 1_000_000


@given(st.lists(st.tuples(st.integers(-1, 6), st.integers(1, 3)), max_size=25))
def test_any_order_of_attempts_leaves_what_the_replay_in_order_leaves(
    tmp_path_factory: pytest.TempPathFactory, attempts: list[tuple[int, int]]
) -> None:
    """Attempts are (first batch, batches at once): stale, repeated, overlapping, from the future."""
    batches = [{key((n * 7) % 5): n * 60, key(n): None if n % 3 == 2 else n * 60} for n in range(7)]
    folder = tmp_path_factory.mktemp("orders")
    tried, in_order = open_replica(folder / "tried"), open_replica(folder / "in_order")
    for first, count in attempts:
        merged = {name: stamp for batch in batches[max(first, 0) : first + count] for name, stamp in batch.items()}
        is_next = first == tried.position
        assert tried.apply(first, first + count, changes(merged, obs=first * 60)) == is_next
        if is_next:
            assert in_order.apply(first, first + count, changes(merged, obs=first * 60))
    assert content(tried) == content(in_order)
    tried.close()
    in_order.close()


# ---------------------------------------------------------------- killed


APPLY_TWICE = """
    from pathlib import Path
    import sys
    from tests.unit.storage.replicas import changes, key, open_replica

    replica = open_replica(Path(sys.argv[1]))
    replica.apply(0, 100, changes({key(n): 10 for n in range(100)}, obs=10))
    print("applied", flush=True)
    replica.apply(100, 300, changes({key(n): None if n % 2 else 500 for n in range(200)}, obs=500))
"""


def test_killed_in_the_middle_of_a_replay_it_stands_where_it_stood(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "replay.middle").write_text("1")
    killed = subprocess.run(
        [sys.executable, "-c", dedent(APPLY_TWICE), str(tmp_path / "replica")],
        env={**os.environ, "MILLRACE_FAULTS": str(tmp_path / "faults")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "applied\n")
    survivor, undisturbed = open_replica(tmp_path / "replica", end=300), open_replica(tmp_path / "undisturbed")
    undisturbed.apply(0, 100, changes({key(n): 10 for n in range(100)}, obs=10))
    assert content(survivor) == content(undisturbed)
    for replica in (survivor, undisturbed):
        assert replica.apply(100, 300, changes({key(n): None if n % 2 else 500 for n in range(200)}, obs=500))
    assert content(survivor) == content(undisturbed)
    survivor.close()
    undisturbed.close()


# ---------------------------------------------------------------- expiry


def test_an_entry_stays_until_stream_time_is_past_its_interval(replica: Replica) -> None:
    replica.apply(0, 1, changes({key(1): 1_000}, obs=1_000))
    replica.apply(1, 2, changes({}, obs=1_000 + INTERVAL_MS))
    assert held_keys(replica) == [key(1)]
    replica.apply(2, 3, changes({}, obs=1_001 + INTERVAL_MS))
    assert held_keys(replica) == []


def test_without_stream_time_nothing_expires(replica: Replica) -> None:
    for n in range(5):
        replica.apply(n, n + 1, changes({key(n): n * 1_000}))
    assert len(held_keys(replica)) == 5


def test_an_overwritten_entry_is_not_deleted_by_its_older_list(replica: Replica) -> None:
    replica.apply(0, 2, changes({key(1): 1_000, key(2): 1_000}, obs=1_000))
    replica.apply(2, 3, changes({key(1): 1_100}, obs=1_100))
    replica.apply(3, 4, changes({}, obs=1_150))
    assert held_keys(replica) == [key(1)]
    replica.apply(4, 5, changes({}, obs=1_201))
    assert held_keys(replica) == []


def test_an_entry_that_was_deleted_and_came_back_lives_its_own_time(replica: Replica) -> None:
    replica.apply(0, 1, changes({key(1): 1_000}, obs=1_000))
    replica.apply(1, 2, changes({key(1): None}, obs=1_010))
    replica.apply(2, 3, changes({key(1): 1_050}, obs=1_050))
    replica.apply(3, 4, changes({}, obs=1_120))
    assert held_keys(replica) == [key(1)]
    replica.apply(4, 5, changes({}, obs=1_151))
    assert held_keys(replica) == []


def test_a_batch_may_bring_what_has_expired_already(replica: Replica) -> None:
    replica.apply(0, 1, changes({key(1): 1}, obs=1_000))
    assert held_keys(replica) == []


def test_times_below_zero_and_at_the_end_of_time(replica: Replica) -> None:
    replica.apply(0, 3, changes({key(1): -5_000, key(2): expiry.NEVER - 1, key(3): -4_000}, obs=-4_900))
    assert held_keys(replica) == [key(1), key(2), key(3)]
    replica.apply(3, 4, changes({}, obs=-3_000))
    assert held_keys(replica) == [key(2)]
    replica.apply(4, 5, changes({}, obs=expiry.NEVER))
    assert held_keys(replica) == [key(2)]


def test_a_far_future_entry_keeps_back_only_its_slice(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SLICE_KEYS", 10)
    replica.apply(0, 40, changes({key(n): 10**12 if n == 25 else 1_000 for n in range(40)}, obs=1_000))
    for n in range(40, 45):
        replica.apply(n, n + 1, changes({}, obs=10_000))
    assert held_keys(replica) == [key(n) for n in range(20, 30)]


def test_one_apply_looks_at_a_bounded_number_and_later_ones_finish_it(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(expiry, "SLICE_KEYS", 10)
    replica.apply(0, 100, changes({key(n): 1_000 for n in range(100)}, obs=1_000))
    left = []
    for n in range(100, 106):
        replica.apply(n, n + 1, changes({key(n): 9_000}, obs=9_000))
        left.append(len([name for name in held_keys(replica) if name < key(100)]))
    assert left == [80, 60, 40, 20, 0, 0]


def test_a_backlog_shrinks_under_full_load(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SLICE_KEYS", 10)
    replica.apply(0, 300, changes({key(n): 0 for n in range(300)}, obs=0))
    sizes = []
    for round_ in range(1, 6):  # each round expires what the round before brought, and brings as much again
        at = round_ * 1_000
        replica.apply(299 + round_, 300 + round_, changes({key(at + n): at for n in range(100)}, obs=at))
        sizes.append(len(held_keys(replica)))
    assert sizes[-1] == 100


def test_nothing_is_looked_at_before_its_time(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[int] = []

    def look(store: StoreSpec, obs: int, keys: list[bytes], read: object) -> list[bytes]:
        looked_at.append(len(keys))
        return []

    monkeypatch.setattr(expiry, "expired", look)
    for n in range(20):
        replica.apply(n, n + 1, changes({key(n): 1_000 + n}, obs=1_000 + n))
    assert looked_at == []
    replica.apply(20, 21, changes({}, obs=1_000 + INTERVAL_MS + 5))
    assert looked_at == [1] * 5


@given(
    st.lists(
        st.tuples(
            st.dictionaries(st.integers(0, 8), st.one_of(st.none(), st.integers(-150, 50)), max_size=6),
            st.integers(0, 120),
        ),
        max_size=20,
    )
)
def test_what_is_alive_is_exactly_what_a_dictionary_holds(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[dict[int, int | None], int]]
) -> None:
    """A step is (key -> time relative to stream time, or None to delete; how far stream time moves)."""
    replica = open_replica(tmp_path_factory.mktemp("alive"))
    expected: dict[bytes, int] = {}
    obs = 0
    for position, (moves, step) in enumerate(steps):
        obs += step
        batch = {key(name): None if move is None else obs + move for name, move in moves.items()}
        assert replica.apply(position, position + 1, changes(batch, obs=obs))
        for name, stamp in batch.items():
            expected.pop(name, None)
            if stamp is not None:
                expected[name] = stamp
        alive = {name: value(stamp) for name, stamp in expected.items() if stamp + INTERVAL_MS >= obs}
        with replica.reader() as view:
            assert {name: view.get(name) for name in alive} == alive
    replica.apply(len(steps), len(steps) + 1, changes({}, obs=obs + 10_000))
    assert held_keys(replica) == []
    assert content(replica)["expiry"] == []
    replica.close()


# ---------------------------------------------------------------- another interval than the one it was noted under


LONGER = replace(STORE, interval_ms=500)


def test_what_a_longer_interval_keeps_is_noted_once_more(tmp_path: Path) -> None:
    with closing(open_replica(tmp_path)) as replica:
        replica.apply(0, 3, changes({key(n): 1_000 for n in range(3)}, obs=1_000))
    with closing(open_replica(tmp_path, store=LONGER)) as replica:
        replica.apply(3, 4, changes({key(1): 1_090}, obs=1_200))
        assert held_keys(replica) == [key(0), key(1), key(2)]
        replica.apply(4, 5, changes({}, obs=1_501))
        assert held_keys(replica) == [key(1)]
        replica.apply(5, 6, changes({}, obs=1_591))
        assert held_keys(replica) == []
        assert content(replica)["expiry"] == []


def test_a_list_that_does_not_say_its_interval_is_noted_once_more(tmp_path: Path) -> None:
    with closing(open_replica(tmp_path)) as replica:
        replica.apply(0, 2, changes({key(1): 1_000, key(2): 1_000}, obs=1_000))
        with replica._environment.transaction(write=True) as tx:
            ((name, packed),) = [(bytes(k), bytes(v)) for k, v in tx.cursor(db=replica._environment.expiry)]
            tx.put(name, packed[:-8], db=replica._environment.expiry)
    with closing(open_replica(tmp_path, store=LONGER)) as replica:
        replica.apply(2, 3, changes({}, obs=1_200))
        replica.apply(3, 4, changes({}, obs=1_500))
        assert held_keys(replica) == [key(1), key(2)]
        replica.apply(4, 5, changes({}, obs=1_501))
        assert held_keys(replica) == []


def test_one_apply_notes_no_more_once_more_than_it_looks_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expiry, "SLICE_KEYS", 10)
    with closing(open_replica(tmp_path)) as replica:
        replica.apply(0, 100, changes({key(n): 1_000 for n in range(100)}, obs=1_000))
    with closing(open_replica(tmp_path, store=LONGER)) as replica:
        due = [replica.apply(n, n + 1, changes({}, obs=1_200)) and due_lists(replica, 1_200) for n in range(100, 112)]
        assert due[:3] == [8, 6, 4]
        assert due[-1] == 0
        for n in range(112, 124):
            replica.apply(n, n + 1, changes({}, obs=1_501))
        assert held_keys(replica) == []


def due_lists(replica: Replica, obs: int) -> int:
    return len([name for name, _ in content(replica)["expiry"] if name < expiry.due_before(obs)])


def test_windows_that_are_to_be_emitted_stay_until_they_are(tmp_path: Path) -> None:
    """A window of 10 at 0, another at 50; a version that keeps them for 20 has closed neither yet."""
    windows = replace(STORE, type="window", layout="ordered", interval_ms=20)
    form = store_keys.ordered_one(b"a")
    old, new = store_keys.window_key(form, 0), store_keys.window_key(form, 50)
    index = {start: store_keys.INDEX + start.to_bytes(8) + form for start in (0, 50)}
    with closing(open_replica(tmp_path, store=windows)) as replica:
        replica.apply(0, 4, ordered({old: b"o", new: b"n", index[0]: b"", index[50]: b""}, obs=60))
        replica.apply(4, 5, ordered({}, obs=100))
        assert {old, new} <= set(held_keys(replica))
        replica.apply(5, 6, ordered({index[0]: None}, obs=101))  # the first was emitted
        replica.apply(6, 7, ordered({}, obs=102))
        assert old not in held_keys(replica)
        assert new in held_keys(replica)
        replica.apply(7, 8, ordered({index[50]: None}, obs=103))
        replica.apply(8, 9, ordered({}, obs=104))
        assert held_keys(replica) == []
        assert content(replica)["expiry"] == []


def ordered(entries: dict[bytes, bytes | None], obs: int) -> pa.RecordBatch:
    found = changelog_of([change(name, entry) for name, entry in entries.items()], obs)
    assert found is not None
    return found


# ---------------------------------------------------------------- scans


def test_a_scan_gives_a_range_in_order_and_backwards(tmp_path):
    replica = open_replica(tmp_path)
    replica.apply(0, 5, changes({key(number): number for number in range(5)}))
    with replica.reader() as view:
        found = view.scan(key(1), key(4))
        assert found == [(key(number), value(number)) for number in (1, 2, 3)]
        assert view.scan(key(1), key(4), reverse=True) == found[::-1]
        assert view.scan(key(1), key(4), 2) == found[:2]
        assert view.scan(key(1), key(4), 2, reverse=True) == found[:0:-1]
        assert view.scan(key(1), key(4), 0) == []
        assert view.scan(key(4), b"\xff") == [(key(4), value(4))]
        assert view.scan(key(3), b"\xff", 1, reverse=True) == [(key(4), value(4))]
        assert view.scan(b"\xff", b"\xff\xff", reverse=True) == view.scan(b"", key(0)) == []
        assert view.scan(key(3), key(1)) == []
    replica.close()
