"""Copies that follow a changelog, on LMDB and on Redis: in slices, over gaps, beside other writers, after failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest

from service.storage import view
from service.storage.replica import Replica
from service.storage.segments import Storage
from service.storage.view import View
from service.streams.errors import SegmentMissing
from service.streams.records import Chunk
from spark_jobs import follow
from spark_jobs.follow import CLOSED, Copies, Follower
from tests import services
from tests.unit.spark_jobs.changelogs import Log
from tests.unit.storage.replicas import STORE, changes, key

AT = (STORE.name, 0)
LINEAGE = "lineage"
Opened = Replica | View


class Where:
    """A place where a copy of one store lies."""

    def __init__(self, open_copy: Callable[[int], Opened], lose: Callable[[], None]) -> None:
        self.open, self.lose = open_copy, lose


@pytest.fixture(params=["lmdb", pytest.param("redis", marks=pytest.mark.services)])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Where]:
    """On disk, then in Redis."""
    store_id = uuid4().hex
    if request.param == "lmdb":
        opened: list[Replica] = []

        def open_replica(end: int) -> Replica:
            opened.append(Replica.open(tmp_path / "replica", STORE, store_id, LINEAGE, end))
            return opened[-1]

        yield Where(open_replica, lambda: None)
        for replica in opened:
            replica.close()
        return
    with view.connect(request.getfixturevalue("redis_server")) as client:

        def open_view(end: int) -> View:
            return View.open(client, STORE, store_id, 0, LINEAGE, end)

        yield Where(open_view, lambda: client.delete(*view.Names(store_id, 0, LINEAGE).keys))


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "storage")


def follower(log: Log, where: Where) -> Follower[Opened]:
    made: Follower[Opened] = Follower(log.changelog(), where.open, log.end)
    assert made.open()
    return made


def keys_of(copy: Opened) -> list[bytes]:
    with copy.reader() as reader:
        return [found for found, _ in reader.scan(b"\x00", b"\x01")]


def soon() -> float:
    return time.monotonic() + 60


# ---------------------------------------------------------------- catching up


def test_a_copy_catches_up_to_the_end(log: Log, where: Where) -> None:
    log.write(*(changes({key(n): n}) for n in range(5)))
    copy = follower(log, where)
    assert (copy.position, copy.is_behind) == (0, True)
    copy.follow(soon())
    assert (copy.position, copy.is_behind) == (5, False)
    assert keys_of(copy.copy) == [key(n) for n in range(5)]
    assert log.found == [0, 2, 4]


def test_a_slice_that_has_no_time_left_is_one_chunk(log: Log, where: Where) -> None:
    log.write(*(changes({key(n): n}) for n in range(3)))
    copy = follower(log, where)
    positions = []
    while copy.is_behind:
        copy.follow(time.monotonic())
        positions.append(copy.position)
    assert positions == [1, 2, 3]
    assert keys_of(copy.copy) == [key(n) for n in range(3)]


def test_chunks_are_asked_for_once_though_slices_replay_one_each(log: Log, where: Where) -> None:
    """A listing of many small ones takes longer than to replay one of them."""
    log.write(*(changes({key(n): n}) for n in range(5)))
    copy = follower(log, where)
    while copy.is_behind:
        copy.follow(time.monotonic())
    assert log.found == [0, 2, 4]
    assert keys_of(copy.copy) == [key(n) for n in range(5)]


def test_offsets_that_no_chunk_holds_are_passed(log: Log, where: Where) -> None:
    log.write(changes({key(1): 1}), changes({key(2): 2}), gap=5)
    copy = follower(log, where)
    copy.end = 20
    copy.follow(soon())
    assert (copy.position, copy.copy.position) == (20, 20)
    assert keys_of(copy.copy) == [key(1), key(2)]


def test_it_goes_on_inside_a_chunk(log: Log, where: Where) -> None:
    log.write(changes({key(n): n for n in range(10)}))
    where.open(log.end).apply(0, 3, changes({}))
    copy = follower(log, where)
    assert copy.position == 3
    copy.follow(soon())
    assert keys_of(copy.copy) == [key(n) for n in range(3, 10)]


def test_of_a_sparse_chunk_what_is_left_is_replayed_from_its_offset_on(log: Log, where: Where) -> None:
    log.write_sparse(changes({key(1): 1, key(4): 4, key(7): 7}), [1, 4, 7], end=9)
    where.open(log.end).apply(0, 4, changes({}))
    copy = follower(log, where)
    copy.follow(soon())
    assert copy.position == 9
    assert keys_of(copy.copy) == [key(4), key(7)]


def test_a_kept_copy_at_the_end_asks_for_nothing(log: Log, where: Where) -> None:
    log.write(changes({key(1): 1}))
    first = follower(log, where)
    first.follow(soon())
    first.close()
    assert (first.position, first.is_open) == (CLOSED, False)
    log.found.clear()
    second = follower(log, where)
    second.follow(soon())
    assert (second.position, log.found) == (1, [])


def test_a_copy_ahead_of_the_changelog_begins_anew(log: Log, where: Where) -> None:
    where.open(100).apply(0, 9, changes({key(9): 9}))
    log.write(changes({key(1): 1}))
    copy = follower(log, where)
    assert copy.position == 0
    copy.follow(soon())
    assert keys_of(copy.copy) == [key(1)]


def test_up_to_a_missing_segment_what_came_before_is_kept(log: Log, where: Where) -> None:
    _, second = log.write(changes({key(1): 1}), changes({key(2): 2}))
    log.lose(second)
    copy = follower(log, where)
    with pytest.raises(SegmentMissing):
        copy.follow(soon())
    assert (copy.position, keys_of(copy.copy)) == (1, [key(1)])


def test_a_copy_that_is_not_to_be_had_stays_closed(log: Log) -> None:
    log.write(changes({key(1): 1}))
    copy: Follower[Replica] = Follower(log.changelog(), lambda _: None, log.end)
    assert not copy.open()
    assert (copy.is_open, copy.is_behind, copy.position) == (False, True, CLOSED)
    with pytest.raises(RuntimeError, match="not open"):
        copy.copy.apply(0, 1, changes({}))


# ---------------------------------------------------------------- what was just committed


def test_what_was_just_committed_is_taken_where_the_copy_stands_right_before_it(log: Log, where: Where) -> None:
    copy = follower(log, where)
    for n in range(3):
        (chunk,) = log.write(changes({key(n): n}))
        copy.take(chunk)
    assert (copy.position, copy.is_behind, log.found) == (3, False, [])
    assert keys_of(copy.copy) == [key(n) for n in range(3)]


def test_what_was_committed_further_on_is_left_to_catching_up(log: Log, where: Where) -> None:
    log.write(changes({key(1): 1}))
    copy = follower(log, where)
    (chunk,) = log.write(changes({key(2): 2}))
    copy.take(chunk)
    assert (copy.position, copy.end, copy.is_behind) == (0, 2, True)
    copy.follow(soon())
    assert keys_of(copy.copy) == [key(1), key(2)]


def test_nothing_is_taken_by_a_copy_that_is_closed(log: Log, where: Where) -> None:
    copy = follower(log, where)
    copy.close()
    (chunk,) = log.write(changes({key(1): 1}))
    copy.take(chunk)
    assert (copy.position, copy.end) == (CLOSED, 1)


# ---------------------------------------------------------------- other writers


class Meanwhile(Storage):
    """Does something just before it reads."""

    def __init__(self, storage: Storage, act: Callable[[], Any]) -> None:
        super().__init__(storage._fs, storage._base)
        self.act: Callable[[], Any] | None = act

    def read_chunk(self, chunk: Chunk) -> pa.RecordBatch:
        act, self.act = self.act, None
        if act is not None:
            act()
        return super().read_chunk(chunk)


def test_a_range_that_another_writer_has_applied_is_not_applied_again(log: Log, where: Where) -> None:
    log.write(changes({key(1): 1, key(2): 2, key(3): 3}))
    other = where.open(log.end)
    log.storage = Meanwhile(log.storage, lambda: other.apply(0, 1, changes({key(9): 9})))
    copy = follower(log, where)
    copy.follow(soon())
    assert copy.position == 3
    assert keys_of(copy.copy) == [key(2), key(3), key(9)]


@pytest.mark.parametrize("where", [pytest.param("redis", marks=pytest.mark.services)], indirect=True)
def test_a_copy_that_another_writer_began_anew_is_filled_from_its_beginning(log: Log, where: Where) -> None:
    log.write(*(changes({key(n): n}) for n in range(4)))
    copy = follower(log, where)
    copy.follow(time.monotonic())
    assert copy.position == 1

    def begin_anew() -> None:
        where.lose()
        where.open(log.end)

    log.storage = Meanwhile(log.storage, begin_anew)
    copy = follower(log, where)
    copy.follow(soon())
    assert keys_of(copy.copy) == [key(n) for n in range(4)]


# ---------------------------------------------------------------- copies beside the tasks


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "COPY_PAUSES_S", (0.01,))
    monkeypatch.setattr(follow, "CHECK_S", 0.0)


def follow_until(copies: Copies, is_so: Callable[[], bool]) -> None:
    deadline_s = soon()
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(max(0.0, copies.failures.not_before_s - time.monotonic()))
        copies.follow(soon())


def test_exactly_what_is_wanted_is_kept(log: Log, where: Where) -> None:
    log.write(changes({key(1): 1}))
    made: list[Follower[Any]] = []

    def make(_: object, end: int) -> Follower[Any]:
        made.append(Follower(log.changelog(), where.open, end))
        return made[-1]

    copies = Copies(make)
    assert not copies.is_behind
    copies.keep({AT: log.end})
    assert copies.is_behind
    copies.follow(soon())
    assert (copies.is_behind, made[0].position) == (False, 1)
    copies.keep({AT: 2})
    assert copies.is_behind
    copies.keep({})
    assert (copies.is_behind, len(made), made[0].is_open) == (False, 1, False)
    copies.take(AT, log.chunks[0])  # it is nobody's any more
    copies.follow(soon())


def test_a_failure_closes_all_copies_and_they_are_tried_again_after_a_while(
    log: Log, where: Where, impatient: None
) -> None:
    first, second = log.write(changes({key(1): 1}), changes({key(2): 2}))
    held = log.storage.read_chunk(first), log.storage.read_chunk(second)
    log.lose(second)
    copies = Copies(lambda _, end: Follower(log.changelog(), where.open, end))
    copies.keep({AT: log.end})
    copies.follow(soon())
    copies.follow(soon())
    assert copies.failures.count >= 1
    log.chunks.clear()
    log.end = 0
    log.write(*held)
    follow_until(copies, lambda: not copies.is_behind and not copies.failures.count)
    assert keys_of(where.open(2)) == [key(1), key(2)]


def test_while_it_waits_nothing_is_tried(log: Log, where: Where, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "COPY_PAUSES_S", (60.0,))
    (chunk,) = log.write(changes({key(1): 1}))
    log.lose(chunk)
    copies = Copies(lambda _, end: Follower(log.changelog(), where.open, end))
    copies.keep({AT: log.end})
    copies.follow(soon())
    asked = len(log.found)
    copies.follow(soon())
    copies.take(AT, chunk)
    assert (copies.failures.count, len(log.found)) == (1, asked)


def test_of_many_that_are_behind_the_slice_ends_in_time(log: Log, tmp_path: Path) -> None:
    log.write(changes({key(1): 1}), changes({key(2): 2}))
    made: dict[int, Follower[Replica]] = {}

    def make(at: tuple[str, int], end: int) -> Follower[Replica]:
        folder = tmp_path / str(at[1])
        made[at[1]] = Follower(
            log.changelog(), lambda end: Replica.open(folder, STORE, f"store-{at[1]}", LINEAGE, end), end
        )
        return made[at[1]]

    copies = Copies(make)
    copies.keep({(STORE.name, n): log.end for n in range(3)})
    turns = 0
    while copies.is_behind:
        copies.follow(time.monotonic())
        turns += 1
    assert turns == 6  # three copies of two chunks, one chunk a turn
    copies.close()


@pytest.mark.services
def test_redis_that_goes_and_comes_back_empty_is_filled_again(log: Log, impatient: None) -> None:
    log.write(changes({key(1): 1}), changes({key(2): 2}))
    port = services.free_port()
    with view.connect(f"redis://127.0.0.1:{port}/0") as client:
        copies = Copies(
            lambda _, end: Follower(log.changelog(), lambda end: View.open(client, STORE, "s", 0, LINEAGE, end), end)
        )
        copies.keep({AT: log.end})
        copies.follow(soon())
        assert copies.failures.count == 1
        for _ in range(2):
            with services.redis_server(port):
                follow_until(copies, lambda: not copies.is_behind and not copies.failures.count)
                assert keys_of(View.open(client, STORE, "s", 0, LINEAGE)) == [key(1), key(2)]
            time.sleep(0.02)
            copies.follow(soon())
            assert copies.failures.count


@pytest.mark.parametrize("where", [pytest.param("redis", marks=pytest.mark.services)], indirect=True)
def test_a_copy_that_was_lost_is_noticed_though_nothing_is_written(log: Log, where: Where, impatient: None) -> None:
    log.write(changes({key(1): 1}))
    copies = Copies(lambda _, end: Follower(log.changelog(), where.open, end))
    copies.keep({AT: log.end})
    copies.follow(soon())
    where.lose()
    follow_until(copies, lambda: keys_of(where.open(1)) == [key(1)])


def test_offsets_of_a_sparse_chunk_are_its_own(log: Log) -> None:
    """What the tests above rely on: a stored offset column makes a chunk sparse."""
    log.write_sparse(changes({key(1): 1}), [3], end=5)
    assert log.chunks[0].is_sparse
    assert np.array_equal(log.storage.read_chunk(log.chunks[0]).column("offset").to_numpy(), [3])
