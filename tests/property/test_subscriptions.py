"""What holds of a subscription whatever happens in whatever order: posts, pulls, acknowledgements, leases that end,
retention and expiry. In each partition every record comes in order, none is skipped, and none comes after it was
acknowledged; a batch has one holder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service.catalog import segments, streams, subscriptions
from service.catalog.engine import Catalog
from service.catalog.subscriptions import PullWish, SubscriptionSettings
from service.catalog.tables import SubscriptionRow
from service.pulls import PulledRange
from service.streams.errors import LeaseLost, PositionNotDelivered
from tests.integration.catalog.world import age_segments, post

CONSUMERS = st.sampled_from(["a", "b", "c"])
PARTITIONS = 3
HOUR_MS = 3_600_000
NAMES = (f"clicks-{n}" for n in count())


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Catalog]:
    """One for all examples: each has a stream of its own, and deletes it, for retention looks at all there are."""
    path: Path = tmp_path_factory.mktemp("subscriptions") / "catalog.db"
    path.write_bytes(migrated_sqlite)
    opened = Catalog(f"sqlite:///{path}")
    yield opened
    opened.close()


@dataclass
class Reader:
    """A subscription, and what it has to be like, by partition."""

    catalog: Catalog
    stream: str
    stream_id: str
    position: dict[int, int] = field(default_factory=lambda: dict.fromkeys(range(PARTITIONS), 0))
    batches: dict[int, tuple[str, int]] = field(default_factory=dict)  # its holder and end
    lapsed: dict[int, tuple[str, int]] = field(default_factory=dict)  # those whose holders have no lease
    may_have_gaps: bool = False

    def post(self, partition: int, records: int) -> None:
        post(self.catalog, self.stream_id, {partition: records})

    def pull(self, consumer: str, pull_id: str | None, most: int) -> list[PulledRange]:
        wish = PullWish(consumer, HOUR_MS, most, pull_id)
        pulled = self.catalog.write(subscriptions.pull, self.stream, "s", wish)
        for partition in set(pulled.held) & set(self.lapsed):
            holder, end = self.lapsed.pop(partition)
            if holder == consumer:  # it is back before somebody else came
                self.batches[partition] = (holder, end)
        for at in pulled.ranges:
            assert at.begin == self.position[at.partition]  # nothing is skipped, nothing acknowledged comes
            assert at.end > at.begin
            holder, _ = self.batches.get(at.partition, (consumer, 0))
            assert holder == consumer
            self.batches[at.partition] = (consumer, at.end)
        starts = {each.partition: each.start_offset for each in self.bounds()}
        given = sum(max(at.end - max(at.begin, starts[at.partition]), 0) for at in pulled.ranges)
        assert given <= most or pulled.is_repeated
        assert self.may_have_gaps or all(starts[at.partition] <= at.begin for at in pulled.ranges)
        return list(pulled.ranges)

    def acknowledge(self, consumer: str, partition: int, position: int) -> None:
        holder, end = self.batches.get(partition, ("", 0))
        try:
            done = self.catalog.write(subscriptions.acknowledge, self.stream, "s", consumer, [(partition, position)])
        except LeaseLost:
            assert holder != consumer
            assert position > self.position[partition]
        except PositionNotDelivered:
            assert position > max(end, self.position[partition])
        else:
            assert position <= self.position[partition] or (holder == consumer and position <= end)
            self.position[partition] = max(self.position[partition], position)
            assert done.positions == {partition: self.position[partition]}
        if self.position[partition] >= end:
            self.batches.pop(partition, None)

    def lose_lease(self, consumer: str) -> None:
        def end(s: Session) -> None:
            row = s.scalars(select(SubscriptionRow).where(SubscriptionRow.stream_id == self.stream_id)).one()
            row.consumers = {
                name: lease | {"until_ms": 0 if name == consumer else lease["until_ms"]}
                for name, lease in row.consumers.items()
            }

        self.catalog.write(end)
        self.lapsed |= {at: batch for at, batch in self.batches.items() if batch[0] == consumer}
        self.batches = {at: batch for at, batch in self.batches.items() if batch[0] != consumer}

    def leave(self, consumer: str) -> None:
        self.catalog.write(subscriptions.acknowledge, self.stream, "s", consumer, [], leave=True)
        self.batches = {at: batch for at, batch in self.batches.items() if batch[0] != consumer}
        self.lapsed = {at: batch for at, batch in self.lapsed.items() if batch[0] != consumer}

    def retain(self) -> None:
        age_segments(self.catalog, 2 * HOUR_MS)
        self.catalog.write(segments.truncate_by_retention)
        starts = {at.partition: at.start_offset for at in self.bounds()}
        assert self.may_have_gaps or all(start <= self.position[at] for at, start in starts.items())

    def expire(self) -> None:
        """Nobody has pulled for so long that it does not hold retention back."""
        of_it = update(SubscriptionRow).where(SubscriptionRow.stream_id == self.stream_id)
        self.catalog.write(lambda s: s.execute(of_it.values(pulled_ms=0)))
        self.may_have_gaps = True

    def bounds(self) -> list[streams.PartitionRow]:
        return self.catalog.read(streams.partitions_of, self.stream_id)


def reader_of(catalog: Catalog) -> Reader:
    stream = catalog.write(streams.create_stream, next(NAMES), partitions=PARTITIONS, retention_ms=HOUR_MS)
    settings = SubscriptionSettings("earliest", HOUR_MS, holds_retention=True)
    catalog.write(subscriptions.create_subscription, stream.name, "s", settings, {})
    return Reader(catalog, stream.name, stream.id)


@given(st.data())
def test_any_interleaving_delivers_in_order_skips_nothing_and_repeats_nothing_acknowledged(
    catalog: Catalog, data: st.DataObject
) -> None:
    reader = reader_of(catalog)
    steps = data.draw(st.lists(st.sampled_from(["post", "pull", "pull", "ack", "ack", "lose", "leave", "retain"])))
    for step in [*steps, *(["expire", "retain"] if data.draw(st.booleans()) else []), *steps]:
        partition = data.draw(st.integers(0, PARTITIONS - 1))
        consumer = data.draw(CONSUMERS)
        if step == "post":
            reader.post(partition, data.draw(st.integers(1, 6)))
        elif step == "pull":
            reader.pull(consumer, data.draw(st.sampled_from(["1", "2", None])), data.draw(st.integers(1, 8)))
        elif step == "ack":
            reader.acknowledge(consumer, partition, data.draw(st.integers(0, 20)))
        elif step == "lose":
            reader.lose_lease(consumer)
        elif step == "leave":
            reader.leave(consumer)
        elif step == "retain":
            reader.retain()
        else:
            reader.expire()
    finish(reader)


def finish(reader: Reader) -> None:
    """In the end one consumer gets all that is left."""
    for consumer in ("a", "b", "c"):
        reader.lose_lease(consumer)
    while ranges := reader.pull("last", None, 5):
        for at in ranges:
            reader.acknowledge("last", at.partition, at.end)
    assert reader.position == {at.partition: at.end_offset for at in reader.bounds()}
    reader.catalog.write(streams.delete_stream, reader.stream)


@given(st.data())
def test_a_repeated_pull_gives_the_same_until_it_is_acknowledged(catalog: Catalog, data: st.DataObject) -> None:
    reader = reader_of(catalog)
    for partition in range(PARTITIONS):
        reader.post(partition, data.draw(st.integers(1, 6)))
    first = reader.pull("a", "x", data.draw(st.integers(1, 12)))
    for partition in range(PARTITIONS):
        reader.post(partition, 2)
    if data.draw(st.booleans()):
        reader.lose_lease("a")
    assert reader.pull("a", "x", 12) == first
    at = data.draw(st.sampled_from(first))
    done = data.draw(st.integers(at.begin, at.end - 1))
    reader.acknowledge("a", at.partition, done)
    assert reader.pull("a", "x", 12) == [each._replace(begin=done) if each == at else each for each in first]
    reader.catalog.write(streams.delete_stream, reader.stream)
