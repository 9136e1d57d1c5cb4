"""Group commit, on both databases: who shares a transaction, who gets which answer, and what a failure touches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pytest
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from service.catalog import segments, streams
from service.catalog.engine import Catalog
from service.catalog.tables import IngestKeyRow, SegmentRow, StreamRow
from service.ingest import Answer, AppendBuffer, Idempotency, SettingsChanged, Target
from service.ingest.publishing import publish_group
from service.payloads import Payload
from service.payloads.rows import Row
from service.positions import position_of
from service.storage.segments import Storage, open_storage
from service.streams.errors import (
    BufferFull,
    IdempotencyConflict,
    IdempotencyInFlight,
    StorageUnavailable,
    UnknownStream,
)
from service.streams.partitioner import partition_of
from service.streams.records import RECORD_SCHEMA

WAIT_S = 30


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return open_storage(str(tmp_path / "storage"))


@pytest.fixture
def make_buffer(open_catalog: Callable[[], Catalog], storage: Storage) -> Iterator[Callable[[], AppendBuffer]]:
    """Makes append buffers as API processes would have them, each with a catalog of its own; none is started."""
    with ExitStack() as made:

        def make() -> AppendBuffer:
            buffer = AppendBuffer(open_catalog(), storage)
            made.callback(buffer.stop)
            return buffer

        yield make


@pytest.fixture
def buffer(make_buffer: Callable[[], AppendBuffer]) -> AppendBuffer:
    return make_buffer()


@pytest.fixture
def clicks(catalog: Catalog) -> StreamRow:
    return catalog.write(streams.create_stream, "clicks", partitions=4)


def payload(keys: Sequence[str | None], partitions: Sequence[int] | None = None) -> Payload:
    """Records with these keys; their timestamps count them."""
    rows = [{"key": key and key.encode(), "value": "1", "timestamp": n} for n, key in enumerate(keys)]
    asked = None if partitions is None else np.array(partitions, np.int32)
    return Payload(pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA), asked)


def rows(keys: Sequence[str | None], timestamp: int) -> list[Row]:
    """Records with these keys as plain values."""
    return [Row(key and key.encode(), "1", timestamp, None, None) for key in keys]


def keyed(stream: StreamRow, key: str, body: str = "body", owner: str = "owner") -> Idempotency:
    return Idempotency(owner, stream.id, key, body)


def answer_of(future: Future[Answer]) -> Answer:
    return future.result(WAIT_S)


def read(catalog: Catalog, storage: Storage, stream: StreamRow, partition: int) -> list[tuple[str | None, int]]:
    """(key, timestamp) of all that is published in a partition, in order."""
    found = catalog.read(segments.chunks_from, stream.id, partition, 0, 1_000_000)
    rows = [row for chunk in found.chunks for row in storage.read_chunk(chunk).to_pylist()]
    return [(row["key"] and row["key"].decode(), row["timestamp"]) for row in rows]


def count_segments(catalog: Catalog) -> int:
    query = select(func.count()).select_from(SegmentRow).where(SegmentRow.state == "published")
    return catalog.read(lambda s: s.scalars(query).one())


def test_a_lone_request_is_answered_with_its_offsets_and_a_position(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    buffer.start()
    answer = answer_of(buffer.append(clicks, payload(["a", "b", "a"])))
    assert answer["accepted"] == 3
    assert sum(at["last"] - at["first"] + 1 for at in answer["offsets"]) == 3
    reached = position_of(answer["position"])
    assert reached is not None
    assert (reached.stream, reached.lineage) == (clicks.id, catalog.lineage)
    assert reached.offsets == {str(at["partition"]): at["last"] + 1 for at in answer["offsets"]}
    for at in answer["offsets"]:
        keys = {key for key, _ in read(catalog, storage, clicks, at["partition"])}
        where = {int(partition_of(pa.array([key.encode()], pa.binary()), 4)[0]) for key in keys if key}
        assert where == {at["partition"]}


def test_requests_that_wait_together_share_one_segment(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    views = catalog.write(streams.create_stream, "views", partitions=1)
    handed_in = [buffer.append(stream, payload(["k"] * 10)) for stream in (clicks, views, clicks)]
    buffer.start()
    first, _, third = (answer_of(future)["offsets"][0] for future in handed_in)
    assert count_segments(catalog) == 1
    assert (first["first"], first["last"], third["first"], third["last"]) == (0, 9, 10, 19)
    assert len(read(catalog, storage, views, 0)) == 10


def test_small_posts_that_wait_together_share_one_segment_and_each_gets_its_own_offsets(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    views = catalog.write(streams.create_stream, "views", partitions=1)

    async def post() -> list[dict[str, Any]]:
        of_clicks, of_views = Target.of(clicks), Target.of(views)
        handed_in = [buffer.post(of_clicks, rows([f"k{n}", f"m{n}"], n), 50) for n in range(20)]
        handed_in += [buffer.post(of_views, rows([None], n), 50) for n in range(3)]
        whole = buffer.append(views, payload(["a"] * 5))
        buffer.start()
        answers = [orjson.loads(await posted) for posted in handed_in]
        return [*answers, await asyncio.wrap_future(whole)]

    *answers, whole = asyncio.run(post())
    assert count_segments(catalog) == 1
    found = {p: read(catalog, storage, clicks, p) for p in range(4)}
    assert sum(map(len, found.values())) == 40
    for number, answer in enumerate(answers[:20]):
        assert answer["accepted"] == 2
        got = [found[at["partition"]][at["first"] : at["last"] + 1] for at in answer["offsets"]]
        assert sorted(row for rows_there in got for row in rows_there) == [
            (f"k{number}", number),
            (f"m{number}", number),
        ]
        assert [at["partition"] for at in answer["offsets"]] == sorted({at["partition"] for at in answer["offsets"]})
    assert sorted(at["first"] for answer in [*answers[20:], whole] for at in answer["offsets"]) == [0, 5, 6, 7]
    reached = position_of(answers[20]["position"])
    assert reached is not None
    assert (reached.stream, reached.lineage) == (views.id, catalog.lineage)


def test_small_posts_are_bounded_and_give_their_room_back(
    catalog: Catalog, storage: Storage, clicks: StreamRow
) -> None:
    buffer = AppendBuffer(catalog, storage, buffer_bytes=100)

    async def post() -> None:
        target = Target.of(clicks)
        first = buffer.post(target, rows(["a"], 1), 60)
        with pytest.raises(BufferFull):
            buffer.post(target, rows(["a"], 1), 41)
        buffer.start()
        await first
        await buffer.post(target, rows(["a"], 1), 500)

    asyncio.run(post())
    buffer.stop()


def test_posts_judged_by_passed_settings_are_not_published(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    views = catalog.write(streams.create_stream, "views", partitions=1)
    before = Target.of(clicks)
    catalog.write(streams.update_stream, "clicks", max_future_ms=1)
    after = Target.of(catalog.read(streams.get_stream, "clicks"))

    async def post() -> list[bytes | BaseException]:
        handed_in = [buffer.post(target, rows(["a"], 1), 50) for target in (before, after, Target.of(views))]
        buffer.start()
        return await asyncio.gather(*handed_in, return_exceptions=True)

    passed, *good = asyncio.run(post())
    assert isinstance(passed, SettingsChanged)
    assert [orjson.loads(answer)["accepted"] for answer in good if isinstance(answer, bytes)] == [1, 1]
    assert sum(p.end_offset for p in catalog.read(streams.partitions_of, clicks.id)) == 1


def test_a_group_is_bounded_in_bytes(open_catalog: Callable[[], Catalog], storage: Storage, clicks: StreamRow) -> None:
    catalog = open_catalog()
    buffer = AppendBuffer(catalog, storage, group_bytes=1)
    handed_in = [buffer.append(clicks, payload(["k"])) for _ in range(3)]
    buffer.start()
    assert [answer_of(future)["offsets"][0]["first"] for future in handed_in] == [0, 1, 2]
    assert count_segments(catalog) == 3
    buffer.stop()


def test_many_threads_get_disjoint_offsets_and_lose_nothing(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    buffer.start()
    answers: list[tuple[str, Answer]] = []
    lock = threading.Lock()

    def post(name: str) -> None:
        for turn in range(10):
            answer = answer_of(buffer.append(clicks, payload([f"{name}-{turn}"] * 5)))
            with lock:
                answers.append((f"{name}-{turn}", answer))

    threads = [threading.Thread(target=post, args=(f"t{n}",)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contents = {p: read(catalog, storage, clicks, p) for p in range(4)}
    assert sum(map(len, contents.values())) == 6 * 10 * 5
    for key, answer in answers:
        (at,) = answer["offsets"]
        assert contents[at["partition"]][at["first"] : at["last"] + 1] == [(key, n) for n in range(5)]


def test_null_keys_take_turns_over_requests(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    buffer.start()
    for _ in range(4):
        answer_of(buffer.append(clicks, payload([None, None])))
    assert [len(read(catalog, storage, clicks, p)) for p in range(4)] == [2, 2, 2, 2]


def test_given_partitions_win_and_mark_the_stream(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    buffer.start()
    answer_of(buffer.append(clicks, payload(["a"])))
    assert not catalog.read(streams.get_stream, "clicks").custom_partitioning
    answer_of(buffer.append(clicks, payload(["a", "a", "a"], [3, -1, 1])))
    assert catalog.read(streams.get_stream, "clicks").custom_partitioning
    assert ("a", 0) in read(catalog, storage, clicks, 3)
    assert ("a", 2) in read(catalog, storage, clicks, 1)


def test_a_key_in_flight_is_refused_and_afterwards_answered_the_same(
    catalog: Catalog, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    once = keyed(clicks, "k1")
    handed_in = buffer.append(clicks, payload(["a"]), once)
    with pytest.raises(IdempotencyInFlight):
        buffer.answered(once)
    with pytest.raises(IdempotencyInFlight):
        buffer.append(clicks, payload(["a"]), once)
    buffer.start()
    answer = answer_of(handed_in)
    assert buffer.answered(once) == answer
    assert answer_of(buffer.append(clicks, payload(["a"]), once)) == answer
    with pytest.raises(IdempotencyConflict):
        buffer.answered(keyed(clicks, "k1", "another body"))
    with pytest.raises(IdempotencyConflict):
        answer_of(buffer.append(clicks, payload(["a"]), keyed(clicks, "k1", "another body")))
    assert sum(p.end_offset for p in catalog.read(streams.partitions_of, clicks.id)) == 1


def test_a_key_belongs_to_its_owner_and_its_stream(catalog: Catalog, buffer: AppendBuffer, clicks: StreamRow) -> None:
    views = catalog.write(streams.create_stream, "views", partitions=1)
    handed_in = [
        buffer.append(clicks, payload(["a"]), keyed(clicks, "k1")),
        buffer.append(views, payload(["a"]), keyed(views, "k1")),
        buffer.append(clicks, payload(["a"]), keyed(clicks, "k1", owner="other")),
    ]
    buffer.start()
    assert [answer_of(future)["offsets"][0]["first"] for future in handed_in] == [0, 0, 1]


def test_of_two_processes_with_one_key_one_appends_and_both_answer_the_same(
    catalog: Catalog, storage: Storage, make_buffer: Callable[[], AppendBuffer], clicks: StreamRow
) -> None:
    one, other = make_buffer(), make_buffer()
    shared = [buffer.append(clicks, payload(["a"] * 3), keyed(clicks, "shared")) for buffer in (one, other)]
    clash = [
        buffer.append(clicks, payload(["a"]), keyed(clicks, "clash", f"{n}")) for n, buffer in enumerate((one, other))
    ]
    beside = [buffer.append(clicks, payload(["a"])) for buffer in (one, other)]
    one.start()
    other.start()
    assert answer_of(shared[0]) == answer_of(shared[1])
    assert sorted(type(future.exception(WAIT_S)).__name__ for future in clash) == ["IdempotencyConflict", "NoneType"]
    assert [answer_of(future)["accepted"] for future in beside] == [1, 1]
    partition = answer_of(shared[0])["offsets"][0]["partition"]
    assert len(read(catalog, storage, clicks, partition)) == 3 + 1 + 2


def test_an_answer_that_never_arrived_is_given_by_the_next_process(
    make_buffer: Callable[[], AppendBuffer], clicks: StreamRow
) -> None:
    died, next_one = make_buffer(), make_buffer()
    died.start()
    lost = answer_of(died.append(clicks, payload(["a"]), keyed(clicks, "k1")))
    died.stop()
    assert next_one.answered(keyed(clicks, "k1")) == lost


def test_publishing_the_same_segment_again_gives_the_first_answers(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happens when a commit counted and its confirmation was lost: the transaction runs again."""
    answers: list[list[list[Answer]]] = []

    def twice(*arguments: Any) -> list[list[Answer]]:
        answers.extend(write(publish_group, *arguments[1:]) for _ in range(2))
        return answers[-1]

    write = buffer._catalog.write
    monkeypatch.setattr(
        buffer._catalog,
        "write",
        lambda work, *args: twice(work, *args) if work is publish_group else write(work, *args),
    )
    handed_in = buffer.append(clicks, payload(["a"] * 2), keyed(clicks, "k1"))
    buffer.start()
    assert answer_of(handed_in) == answers[0][0][0] == answers[1][0][0]
    assert sum(p.end_offset for p in catalog.read(streams.partitions_of, clicks.id)) == 2


def test_a_deleted_stream_fails_its_own_requests_alone(
    catalog: Catalog, storage: Storage, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    gone = catalog.write(streams.create_stream, "gone", partitions=4)
    handed_in = [buffer.append(stream, payload(["a"])) for stream in (gone, clicks)]
    catalog.write(streams.delete_stream, "gone")
    buffer.start()
    with pytest.raises(UnknownStream, match="gone"):
        answer_of(handed_in[0])
    assert answer_of(handed_in[1])["accepted"] == 1
    assert answer_of(buffer.append(clicks, payload(["a"])))["offsets"][0]["first"] == 1


def test_a_storage_that_refuses_fails_the_group_and_not_the_next_one(
    buffer: AppendBuffer, clicks: StreamRow, tmp_path: Path, catalog: Catalog
) -> None:
    (tmp_path / "storage").mkdir()
    obstacle = tmp_path / "storage" / "segments"
    obstacle.write_text("a file where a folder should be")
    handed_in = buffer.append(clicks, payload(["a"]), keyed(clicks, "k1"))
    buffer.start()
    with pytest.raises(StorageUnavailable):
        answer_of(handed_in)
    obstacle.unlink()
    assert answer_of(buffer.append(clicks, payload(["a"]), keyed(clicks, "k1")))["offsets"][0]["first"] == 0
    assert count_segments(catalog) == 1


def test_an_error_that_nobody_foresaw_does_not_end_the_thread(buffer: AppendBuffer, clicks: StreamRow) -> None:
    broken = Payload(payload(["a"]).records.drop_columns(["timestamp"]), None)
    strange = buffer.append(clicks, Payload(broken.records, None))
    other = buffer.append(clicks, payload(["a"]))
    buffer.start()
    assert strange.exception(WAIT_S) is not None
    assert other.exception(WAIT_S) is not None
    assert answer_of(buffer.append(clicks, payload(["a"])))["accepted"] == 1


def test_posts_whose_columns_can_not_be_made_are_answered_too(buffer: AppendBuffer, clicks: StreamRow) -> None:
    async def post() -> list[bytes | BaseException]:
        target = Target.of(clicks)
        strange = [Row(b"a", "1", "no time", None, None)]  # type: ignore[arg-type]
        handed_in = [buffer.post(target, of, 50) for of in (strange, rows(["a"], 1))]
        buffer.start()
        answers = await asyncio.gather(*handed_in, return_exceptions=True)
        return [*answers, await buffer.post(target, rows(["a"], 1), 50)]

    *failed, good = asyncio.run(asyncio.wait_for(post(), WAIT_S))
    assert all(isinstance(answer, pa.ArrowInvalid | pa.ArrowTypeError) for answer in failed)
    assert isinstance(good, bytes)
    assert buffer._used_bytes == 0


def test_ids_that_the_collector_took_are_replaced(catalog: Catalog, buffer: AppendBuffer, clicks: StreamRow) -> None:
    buffer.start()
    answer_of(buffer.append(clicks, payload(["a"])))

    def drop_pending(s: Session) -> None:
        s.execute(update(SegmentRow).where(SegmentRow.state == "pending").values(state="dropped", dropped_ms=0))

    catalog.write(drop_pending)
    assert answer_of(buffer.append(clicks, payload(["a"])))["offsets"][0]["first"] == 1


def test_a_group_costs_one_transaction(
    buffer: AppendBuffer, clicks: StreamRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    works: list[str] = []
    write = buffer._catalog.write

    def counted(work: Callable[..., object], *args: object) -> object:
        works.append(work.__name__)
        return write(work, *args)

    monkeypatch.setattr(buffer._catalog, "write", counted)
    buffer.start()
    for _ in range(5):
        answer_of(buffer.append(clicks, payload(["a"])))
    assert works == ["register_segments", *["publish_group"] * 5]


def test_whoever_goes_away_before_the_group_is_left_out(
    catalog: Catalog, buffer: AppendBuffer, clicks: StreamRow
) -> None:
    handed_in = [buffer.append(clicks, payload(["a"]), keyed(clicks, f"k{n}")) for n in range(2)]
    assert handed_in[0].cancel()
    buffer.start()
    assert answer_of(handed_in[1])["offsets"][0]["first"] == 0
    assert buffer.answered(keyed(clicks, "k0")) is None


def test_stop_writes_what_is_waiting_and_takes_no_more(buffer: AppendBuffer, clicks: StreamRow) -> None:
    handed_in = [buffer.append(clicks, payload(["a"])) for _ in range(3)]
    buffer.start()
    buffer.stop()
    assert all(future.done() and not future.exception() for future in handed_in)
    with pytest.raises(BufferFull):
        buffer.append(clicks, payload(["a"]))


def test_room_is_bounded_over_all_requests_and_given_back(catalog: Catalog, storage: Storage) -> None:
    buffer = AppendBuffer(catalog, storage, buffer_bytes=100)
    with buffer.room() as first:
        first.at_least(60)
        first.at_least(10)
        assert first.bytes == 60
        with buffer.room() as second, pytest.raises(BufferFull) as error:
            second.at_least(41)
        assert error.value.retry_after_s >= 1
        with buffer.room() as third:
            third.at_least(40)
    with buffer.room() as alone:
        alone.at_least(1_000)


def test_answers_are_kept_in_the_transaction_that_publishes(
    catalog: Catalog, buffer: AppendBuffer, clicks: StreamRow, tmp_path: Path
) -> None:
    buffer.start()
    answer = answer_of(buffer.append(clicks, payload(["a"]), keyed(clicks, "k1")))
    (kept,) = catalog.read(lambda s: list(s.scalars(select(IngestKeyRow))))
    assert (kept.idempotency_key, kept.body_sha256, kept.response) == ("k1", "body", answer)
