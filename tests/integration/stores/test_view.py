"""The view in Redis: begun anew when it is lost or not to be trusted, whole for each key, read by many at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from uuid import uuid4

import pyarrow as pa
import pytest
import redis

from service.storage import view as views
from service.storage.view import Names, View, ViewMissing, Views
from service.streams.layouts import reserved, store_keys
from service.streams.records import CHANGELOG_SCHEMA, StoreSpec
from service.streams.stores.reading import Ask, Span
from tests.stores import LINEAGE
from tests.unit.storage.replicas import STORE, changes, key, value

pytestmark = pytest.mark.services

WINDOWS = StoreSpec("job-w", "w", "window", "job-w-changelog", "aggregate", "ordered", 100)
ALL = Span(b"\x00", b"\xff")


@pytest.fixture
def client(redis_server: str) -> Iterator[redis.Redis]:
    with views.connect(redis_server) as opened:
        yield opened


def opened(client: redis.Redis, store_id: str, *, lineage: str = LINEAGE, end: int | None = None) -> View:
    return View.open(client, STORE, store_id, 0, lineage, end)


def test_a_view_is_kept_by_who_opens_it_again(client: redis.Redis) -> None:
    store = uuid4().hex
    opened(client, store).apply(0, 3, changes({key(1): 5}))
    assert opened(client, store).position == 3
    assert opened(client, store, end=3).position == 3


@pytest.mark.parametrize("how", ["another lineage", "ahead of its changelog", "lost"])
def test_a_view_that_can_not_be_trusted_begins_anew(client: redis.Redis, how: str) -> None:
    store = uuid4().hex
    first = opened(client, store)
    first.apply(0, 3, changes({key(1): 5}, obs=7))
    if how == "lost":
        client.delete(*client.keys(f"*{store}*"))
        with pytest.raises(ViewMissing):
            _ = first.position
        assert not first.apply(3, 4, changes({key(2): 5}))
    again = opened(client, store, lineage="new" if how == "another lineage" else LINEAGE, end=2)
    assert again.position == 0
    assert again.entries == 0
    assert again.apply(0, 1, changes({key(2): 6}))
    assert first.apply(3, 4, changes({key(3): 9})) is False


def test_only_one_of_two_writers_gets_a_range_in(client: redis.Redis) -> None:
    store = uuid4().hex
    one, other = opened(client, store), opened(client, store)
    batch = changes({key(n): n for n in range(5_000)}, obs=0)
    verdicts: list[bool] = []
    threads = [threading.Thread(target=lambda v=v: verdicts.append(v.apply(0, 5_000, batch))) for v in (one, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert verdicts.count(True) >= 1
    assert one.position == 5_000
    assert one.entries == 5_000
    assert one.apply(5_000, 5_001, changes({key(1): 7}))
    assert not other.apply(5_000, 5_001, changes({key(1): 8}))
    with one.reader() as reader:
        assert reader.get(key(1)) == value(7)


@pytest.mark.parametrize("keys_each", [100, 255, 511, 1024])
def test_what_has_expired_goes_however_long_its_list_is(client: redis.Redis, keys_each: int) -> None:
    """The length of a list stands behind its name: 255 and 511 have a first byte after which everything sorts."""
    written, at = opened(client, uuid4().hex), 0
    for n in range(8):
        batch = changes({key(1_000 * n + i): 1_000 * n for i in range(keys_each)}, obs=1_000 * n)
        assert written.apply(at, at + batch.num_rows, batch)
        at += batch.num_rows
    assert written.entries == keys_each
    assert client.zcard(written._names.due) == 1


def sent_by(writer: View, from_offset: int, to_offset: int, batch: pa.RecordBatch) -> list[list[bytes]]:
    """The slices that a writer would send; it is held up before it does."""
    slices: list[list[bytes]] = []
    writer._apply = lambda keys, args, client: slices.append(args)  # type: ignore[assignment]
    writer.apply(from_offset, to_offset, batch)
    return slices


def test_slices_of_a_fenced_writer_take_nothing_from_its_successor(
    client: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What expired and is written again stays, though the deletes of one come after the values of the other."""
    monkeypatch.setattr(views, "SLICE_ROWS", 4)
    store = uuid4().hex
    fenced, successor = opened(client, store), opened(client, store)
    send = client.register_script(views._APPLY)
    assert fenced.apply(0, 11, changes({key(n): 0 for n in (*range(9), 104)}, obs=0))
    batch = changes({key(100 + n): 1_000 for n in range(11)}, obs=1_000)
    late = sent_by(fenced, 11, 22, batch)
    first, *between, last = sent_by(successor, 11, 22, batch)
    assert between
    verdicts = [send(successor._names.keys, args) for args in (first, *between, late[0], last, *late[1:])]
    assert all(verdicts[: len(between) + 3])
    assert not any(verdicts[len(between) + 3 :])
    with opened(client, store).reader() as reader:
        assert [name for name, _ in reader.scan(b"\0", b"\xff")] == [key(100 + n) for n in range(11)]


def windows_of(count: int, stamp: int) -> pa.RecordBatch:
    """Three windows of each key, and their index."""
    rows = {reserved.OBS_KEY: reserved.pack_time(stamp)}
    for n in range(count):
        ordered = store_keys.ordered_one(b"key-%06d" % n)
        for start in (0, 10, 20):
            rows[store_keys.window_key(ordered, start)] = b"%d" % stamp
            rows[store_keys.INDEX + b"%08d" % start + ordered] = b""
    keys = sorted(rows)
    values = [rows[one] for one in keys]
    return pa.RecordBatch.from_arrays(
        [pa.array(keys, pa.binary()), pa.array(values, pa.binary())], schema=CHANGELOG_SCHEMA
    )


def test_indexes_by_time_are_left_out(client: redis.Redis) -> None:
    opened_view = View.open(client, WINDOWS, uuid4().hex, 0, LINEAGE)
    assert opened_view.apply(0, 61, windows_of(10, 5))
    assert opened_view.entries == 30
    with opened_view.reader() as reader:
        assert {name[:1] for name, _ in reader.scan(b"\x03", b"\xff")} == {store_keys.WINDOW}


def test_all_of_a_key_changes_at_one_moment_however_much_changes(
    client: redis.Redis, redis_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody looks all the time while two thousand keys change in slices: no key is ever half new."""
    monkeypatch.setattr(views, "SLICE_ROWS", 50)
    count, store = 2_000, uuid4().hex
    written = View.open(client, WINDOWS, store, 0, LINEAGE)
    written.apply(0, 1, windows_of(count, 1))
    is_done, seen = threading.Event(), set[tuple[int, frozenset[bytes]]]()

    def look() -> None:
        with views.connect(redis_server) as own:
            looked = View.open(own, WINDOWS, store, 0, LINEAGE)
            n = 0
            with looked.reader() as reader:
                while not is_done.is_set():
                    n = (n + 37) % count
                    ordered = store_keys.ordered_one(b"key-%06d" % n)
                    span = Span(store_keys.window_key(ordered, 0), store_keys.window_key(ordered, 100))
                    findings = reader.look_up(Ask(0, (span,), 10, False))
                    seen.add((findings.position, frozenset(value for _, value in findings.found[0])))

    thread = threading.Thread(target=look)
    thread.start()
    for n in range(2, 12):
        assert written.apply(n - 1, n, windows_of(count, n))
    is_done.set()
    thread.join()
    assert all(len(values) == 1 for _, values in seen), "never two generations of one key"
    assert all(int(next(iter(values))) >= position for position, values in seen), "never older than it says"


def test_what_many_ask_at_once_travels_together_and_each_gets_its_own(client: redis.Redis, redis_server: str) -> None:
    store = uuid4().hex
    opened(client, store).apply(0, 1_000, changes({key(n): n for n in range(1_000)}, obs=77))
    names = Names(store, 0, LINEAGE)

    async def ask() -> None:
        reader = Views(redis_server)
        try:
            client.script_flush()  # as after a restart of Redis
            asks = [Ask(0, (Span(key(n), key(n) + b"\0"), Span(key(n), key(n + 3))), 2, False) for n in range(200)]
            answers = await asyncio.gather(*(reader.look_up(names, one) for one in asks))
            for n, findings in enumerate(answers):
                assert (findings.position, findings.stream_time) == (1_000, 77)
                assert findings.found[0] == [(key(n), value(n))]
                assert [name for name, _ in findings.found[1]] == [key(n), key(n + 1)]
            entries, size = await reader.size(names)
            assert entries == 1_000
            assert 100 * 1_000 < size < 400 * 1_000
            with pytest.raises(ViewMissing):
                await reader.look_up(Names(uuid4().hex, 0, LINEAGE), Ask(0, (ALL,), 1, False))
            with pytest.raises(ViewMissing):
                await reader.look_up(Names(store, 0, "another"), Ask(0, (ALL,), 1, False))
        finally:
            await reader.close()

    asyncio.run(ask())


def test_a_fault_in_what_is_made_of_one_answer_is_that_askers_alone(client: redis.Redis, redis_server: str) -> None:
    store = uuid4().hex
    opened(client, store).apply(0, 1, changes({key(1): 1}))

    async def ask() -> list[object]:
        reader = Views(redis_server)
        made = [lambda found: found.position / 0, lambda found: found.position]
        asked = [reader.ask(Names(store, 0, LINEAGE), Ask(0, (ALL,), 1, False), each) for each in made]
        try:
            async with asyncio.timeout(60):
                return list(await asyncio.gather(*asked, return_exceptions=True))
        finally:
            await reader.close()

    broken, well = asyncio.run(ask())
    assert isinstance(broken, ZeroDivisionError)
    assert well == 1


def test_without_redis_every_asker_is_told_so() -> None:
    async def ask() -> None:
        reader = Views("redis://127.0.0.1:1/0")
        asks = (reader.look_up(Names("store", 0, LINEAGE), Ask(0, (ALL,), 1, False)) for _ in range(3))
        answers = await asyncio.gather(*asks, return_exceptions=True)
        assert [isinstance(answer, redis.ConnectionError) for answer in answers] == [True] * 3
        await reader.close()

    asyncio.run(ask())
