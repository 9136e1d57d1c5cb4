"""Subscriptions of streams: made, pulled from, acknowledged, described, deleted; one transaction each.

It knows rows, leases and locks. It refuses to know how partitions are shared and what a pull gives (`service.pulls`),
what the records are (`service.reads.subscriptions`) and who may ask.

The row of a subscription is the lock of all that belongs to it. A lease is a consumer's, over all that it holds; it
begins anew with each pull and each acknowledgement. A pull is four statements, and an acknowledgement too; one more
where some of its partitions change hands.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, NamedTuple

from sqlalchemy import Row, Select, func, or_, select
from sqlalchemy.orm import Session

from service.catalog import streams
from service.catalog.engine import PUSHES, Now, now_ms, subscription_topic, wake
from service.catalog.start_positions import FirstRecords, start_of
from service.catalog.tables import (
    ChunkRow,
    Json,
    PartitionRow,
    SegmentRow,
    StreamRow,
    SubscriptionPositionRow,
    SubscriptionRow,
)
from service.pulls import PartitionProgress, PulledRange, decide, shared
from service.streams.errors import (
    InternalStream,
    LeaseLost,
    PositionNotDelivered,
    Problem,
    SubscriptionExists,
    SubscriptionPushes,
    TooManyConsumers,
    UnknownSubscription,
)
from service.streams.topology.starts import START, Start

MAX_CONSUMERS: Final = 1_000  # with a lease, of one subscription


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """What a subscription is made with."""

    start: Start
    expires_after_ms: int | None
    holds_retention: bool
    push_url: str | None = None
    push_secret: str | None = None  # sealed
    push_sha256: str | None = None


class Push(NamedTuple):
    """A subscription with a target."""

    id: str
    stream: str
    name: str
    url: str
    sealed_secret: str


@dataclass(frozen=True, slots=True)
class PullWish:
    """What a consumer asks for: `most` records, and a lease. `excluding`: partitions of which it wants nothing now;
    `is_push`: it posts them to the subscription's target.
    """

    consumer: str
    lease_ms: int
    most: int
    pull_id: str | None = None
    excluding: Collection[int] = ()
    is_push: bool = False


class Pulled(NamedTuple):
    """What a pull gave. `held`: partitions that the consumer holds now; `had_batch`: it was given something before that
    is not acknowledged; `expired`: leases that were found to have run out; `look_again_ms`: when the next lease of
    another consumer ends, and so may free something.
    """

    subscription_id: str
    stream_id: str
    consumer: str
    ranges: Sequence[PulledRange]
    held: Sequence[int]
    is_repeated: bool
    had_batch: bool
    lease_until_ms: int
    expired: int
    look_again_ms: int | None


class Acknowledged(NamedTuple):
    """The positions, by partition, after an acknowledgement; `lease_until_ms`: None where the consumer has none."""

    positions: Mapping[int, int]
    lease_until_ms: int | None


class SubscriptionLag(NamedTuple):
    """How far a subscription is behind: records, and the age of the oldest one (ms; None: not known)."""

    stream: str
    subscription: str
    records: int
    ms: int | None


class FailingPush(NamedTuple):
    """A subscription whose target does not take a record: how often that was posted, since when, and why it was not."""

    subscription: str
    attempts: int
    since_ms: int
    detail: str


class PartitionState(NamedTuple):
    """A partition of a subscription as it is shown; `consumer`: its holder, where that has a lease."""

    progress: PartitionProgress
    lag_ms: int | None
    consumer: str | None
    failure: Json | None


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """A subscription as it is shown, at `now_ms`."""

    stream: str
    row: SubscriptionRow
    partitions: Sequence[PartitionState]
    now_ms: int

    @property
    def is_expired(self) -> bool:
        """Whether nobody has pulled for so long that it holds nothing back any more."""
        after = self.row.expires_after_ms
        return after is not None and self.row.pulled_ms + after <= self.now_ms

    @property
    def consumers(self) -> dict[str, int]:
        """Consumer → the end of its lease, ms."""
        return {name: lease["until_ms"] for name, lease in _live(self.row, self.now_ms).items()}

    @property
    def lag(self) -> SubscriptionLag:
        """Of all partitions together."""
        known = [at.lag_ms for at in self.partitions if at.lag_ms is not None]
        is_known = len(known) == len(self.partitions)
        records = sum(at.progress.unread for at in self.partitions)
        return SubscriptionLag(self.stream, self.row.name, records, max(known, default=0) if is_known else None)


# ---------------------------------------------------------------- made and deleted


def create_subscription(
    s: Session, stream: str, name: str, settings: SubscriptionSettings, records: FirstRecords
) -> bool:
    """Make a subscription; False where an equal one is there. `records`: as `start_of` needs them.

    Raises UnknownStream, InternalStream, SubscriptionExists, InvalidSpec.
    """
    found = streams.get_stream(s, stream)
    if found.kind != "user":
        raise InternalStream(stream)
    wanted = {
        "start": START.dump_python(settings.start, mode="json"),
        "expires_after_ms": settings.expires_after_ms,
        "holds_retention": settings.holds_retention,
        "push_url": settings.push_url,
        "push_sha256": settings.push_sha256,
    }
    of_name = select(SubscriptionRow).where(SubscriptionRow.stream_id == found.id, SubscriptionRow.name == name)
    known = s.scalars(of_name).one_or_none()
    if known is not None:
        if any(getattr(known, column) != value for column, value in wanted.items()):
            raise SubscriptionExists(stream, name)
        return False
    made = SubscriptionRow(
        stream_id=found.id, name=name, push_secret=settings.push_secret, consumers={}, pulled_ms=now_ms(s), **wanted
    )
    s.add(made)
    s.flush()
    for partition in streams.lock_partitions_of(s, [found.id]):
        position = start_of(s, settings.start, stream, partition, records)
        place = {"subscription_id": made.id, "partition": partition.partition}
        s.add(SubscriptionPositionRow(**place, position=position, batch_end=position, given_ms=0))
    if settings.push_url is not None:
        wake(s, PUSHES)
    return True


def delete_subscription(s: Session, stream: str, name: str) -> None:
    """Forget a subscription and its positions. Raises UnknownStream, UnknownSubscription."""
    streams.remove_subscriptions(s, [_locked(s, stream, name, is_push=None)[0].id])


# ---------------------------------------------------------------- pulled and acknowledged


def pull(s: Session, stream: str, name: str, wish: PullWish) -> Pulled:
    """Give a consumer its share of the partitions, a lease, and what comes next there.

    Raises UnknownStream, UnknownSubscription, SubscriptionPushes, TooManyConsumers.
    """
    subscription, at_ms = _locked(s, stream, name, is_push=wish.is_push)
    consumers = _live(subscription, at_ms)
    expired = len(subscription.consumers) - len(consumers)
    if wish.consumer not in consumers and len(consumers) >= MAX_CONSUMERS:
        raise TooManyConsumers(MAX_CONSUMERS)
    others = [lease["until_ms"] - at_ms for each, lease in consumers.items() if each != wish.consumer]
    found = _partitions(s, subscription)
    lease = {"lease_ms": wish.lease_ms, "until_ms": at_ms + wish.lease_ms}
    subscription.consumers = {**consumers, wish.consumer: lease}
    subscription.pulled_ms = at_ms
    progress = [at.progress for at in found.values()]
    decided = decide(progress, subscription.consumers, wish.consumer, wish.pull_id, wish.most, wish.excluding)
    _hand_over(s, [found[at].row for at in decided.share.taken], wish.consumer)
    _hand_over(s, [found[at].row for at in decided.share.released], None)
    if not decided.is_repeated:
        for given in decided.ranges:
            row = found[given.partition].row
            row.batch_end, row.pull_id, row.given_ms = given.end, wish.pull_id, at_ms
    return Pulled(
        subscription.id,
        subscription.stream_id,
        wish.consumer,
        decided.ranges,
        decided.held,
        decided.is_repeated,
        any(at.holder == wish.consumer and at.is_busy for at in progress),
        lease["until_ms"],
        expired,
        min(others, default=None),
    )


def shorten(s: Session, pulled: Pulled, ends: Mapping[int, int]) -> None:
    """Have batches of a pull end earlier, by partition: one answer does not take all of their bytes."""
    s.execute(select(SubscriptionRow.id).where(SubscriptionRow.id == pulled.subscription_id).with_for_update())
    given = {each.partition: each.end for each in pulled.ranges}
    of_these = (
        SubscriptionPositionRow.subscription_id == pulled.subscription_id,
        SubscriptionPositionRow.partition.in_(ends),
    )
    for row in s.scalars(select(SubscriptionPositionRow).where(*of_these)):
        if row.holder == pulled.consumer and row.batch_end == given[row.partition]:
            row.batch_end = max(ends[row.partition], row.position)


def withdraw(s: Session, pulled: Pulled) -> None:
    """Undo a pull whose answer nobody waits for: its consumer leaves, and what it was given is there for the others.

    Not where the consumer has pulled or acknowledged since, nor where it had a batch before: it may be at work on it.
    """
    of_it = select(SubscriptionRow).where(SubscriptionRow.id == pulled.subscription_id)
    subscription = s.scalars(of_it.with_for_update()).one_or_none()
    if subscription is None or pulled.had_batch:
        return
    lease = subscription.consumers.get(pulled.consumer)
    if lease is not None and lease["until_ms"] == pulled.lease_until_ms:
        _leave(s, subscription, pulled.consumer, [at.row for at in _partitions(s, subscription).values()])


def acknowledge(
    s: Session,
    stream: str,
    name: str,
    consumer: str,
    positions: Sequence[tuple[int, int]],
    *,
    leave: bool = False,
    is_push: bool = False,
) -> Acknowledged:
    """Everything before these positions, a (partition, offset) each, is done; all of them or none.

    A position that is not beyond the present one changes nothing, whoever holds the partition. `leave`: the consumer
    gives up all that it holds. Raises UnknownStream, UnknownSubscription, SubscriptionPushes, LeaseLost,
    PositionNotDelivered.
    """
    subscription, at_ms = _locked(s, stream, name, is_push=is_push)
    consumers = _live(subscription, at_ms)
    found = _partitions(s, subscription)
    _require_delivered(found, consumer, positions, has_lease=consumer in consumers)
    for partition, position in positions:
        row = found[partition].row
        row.position = max(position, row.position)
    until_ms = None
    if leave:
        _leave(s, subscription, consumer, [at.row for at in found.values()])
    elif consumer in consumers:
        until_ms = at_ms + consumers[consumer]["lease_ms"]
        lease = {**consumers[consumer], "until_ms": until_ms}
        subscription.consumers = {**subscription.consumers, consumer: lease}
        share = shared([at.progress for at in found.values()], consumers, consumer)
        _hand_over(s, [found[at].row for at in share.released], None)
    return Acknowledged({partition: found[partition].row.position for partition, _ in positions}, until_ms)


def acknowledge_push(
    s: Session, push: Push, consumer: str, positions: Sequence[tuple[int, int]], failures: Mapping[int, Json | None]
) -> None:
    """`acknowledge`, and by partition why its next record was not taken (None: nothing of the kind)."""
    acknowledge(s, push.stream, push.name, consumer, positions, is_push=True)
    of_these = (SubscriptionPositionRow.subscription_id == push.id, SubscriptionPositionRow.partition.in_(failures))
    for row in s.scalars(select(SubscriptionPositionRow).where(*of_these)):
        row.failure = failures[row.partition]


class _Partition(NamedTuple):
    """A partition: where the subscription stands, and which offsets [start, end) are there."""

    row: SubscriptionPositionRow
    start: int
    end: int

    @property
    def progress(self) -> PartitionProgress:
        row = self.row
        place = (row.partition, self.start, self.end, row.position, row.batch_end)
        return PartitionProgress(*place, row.holder, row.pull_id, row.given_ms)


def _locked(s: Session, stream: str, name: str, *, is_push: bool | None) -> tuple[SubscriptionRow, int]:
    """The subscription, locked, and the time (ms). Raises UnknownStream, UnknownSubscription; SubscriptionPushes where
    it has a target and who asks is not its pusher (None: that does not matter).
    """
    found = s.execute(
        _of_name(select(SubscriptionRow, Now()), stream, name).with_for_update(of=SubscriptionRow)
    ).first()
    if found is None:
        streams.get_stream(s, stream)
        raise UnknownSubscription(stream, name)
    if is_push is False and found[0].push_url is not None:
        raise SubscriptionPushes(name)
    return found[0], found[1]


def _of_name(query: Select[*tuple[Any, ...]], stream: str, name: str) -> Select[*tuple[Any, ...]]:
    query = query.join(StreamRow, StreamRow.id == SubscriptionRow.stream_id)
    return query.where(StreamRow.name == stream, SubscriptionRow.name == name)


def _live(subscription: SubscriptionRow, at_ms: int) -> dict[str, Any]:
    """The consumers whose leases have not ended."""
    return {name: lease for name, lease in subscription.consumers.items() if lease["until_ms"] > at_ms}


def _partitions(s: Session, subscription: SubscriptionRow) -> dict[int, _Partition]:
    query = select(SubscriptionPositionRow, PartitionRow.start_offset, PartitionRow.end_offset).join(
        PartitionRow, PartitionRow.partition == SubscriptionPositionRow.partition
    )
    of_it = (
        SubscriptionPositionRow.subscription_id == subscription.id,
        PartitionRow.stream_id == subscription.stream_id,
    )
    found = s.execute(query.where(*of_it).order_by(SubscriptionPositionRow.partition))
    return {row.partition: _Partition(row, start, end) for row, start, end in found}


def _hand_over(s: Session, rows: Iterable[SubscriptionPositionRow], consumer: str | None) -> None:
    """Partitions go to a consumer, or become free, which those hear that wait for some. A batch of one is void."""
    for row in rows:
        row.holder, row.pull_id, row.batch_end = consumer, None, row.position
        if consumer is None:
            wake(s, subscription_topic(row.subscription_id))


def _leave(s: Session, subscription: SubscriptionRow, consumer: str, rows: Iterable[SubscriptionPositionRow]) -> None:
    """A consumer has no lease any more, and none of the partitions."""
    subscription.consumers = {each: lease for each, lease in subscription.consumers.items() if each != consumer}
    _hand_over(s, [row for row in rows if row.holder == consumer], None)


def _require_delivered(
    found: Mapping[int, _Partition], consumer: str, positions: Sequence[tuple[int, int]], *, has_lease: bool
) -> None:
    lost: list[Problem] = []
    beyond: list[Problem] = []
    for number, (partition, position) in enumerate(positions):
        place, at = f"/positions/{number}", found.get(partition)
        if at is None:
            beyond.append(Problem(f"{place}/partition", f"the stream has {len(found)} partition(s)"))
        elif position > at.row.position and not (has_lease and at.row.holder == consumer):
            lost.append(Problem(place, "the lease has ended" if not has_lease else "another consumer may have it now"))
        elif position > max(at.row.position, at.row.batch_end):
            beyond.append(Problem(f"{place}/position", f"the consumer was given what is before {at.row.batch_end}"))
    if lost:
        raise LeaseLost(consumer, lost)
    if beyond:
        raise PositionNotDelivered(beyond)


# ---------------------------------------------------------------- looked at


def get_subscription(s: Session, stream: str, name: str) -> SubscriptionState:
    """A subscription as it is now. Raises UnknownStream, UnknownSubscription."""
    found = _states(s, _of_name(_SHOWN, stream, name))
    if not found:
        streams.get_stream(s, stream)
        raise UnknownSubscription(stream, name)
    return found[0]


def list_subscriptions(s: Session, stream: str, *, limit: int, after: str | None = None) -> list[SubscriptionState]:
    """The subscriptions of a stream in the order of their names, beyond `after`. Raises UnknownStream."""
    found = streams.get_stream(s, stream)
    names = select(SubscriptionRow.name).where(SubscriptionRow.stream_id == found.id).order_by(SubscriptionRow.name)
    names = (names if after is None else names.where(SubscriptionRow.name > after)).limit(limit)
    query = _SHOWN.join(StreamRow, StreamRow.id == SubscriptionRow.stream_id)
    return _states(s, query.where(StreamRow.id == found.id, SubscriptionRow.name.in_(names)))


def states_of_streams(s: Session, stream_ids: Collection[str]) -> list[SubscriptionState]:
    """The subscriptions of these streams, by name."""
    query = _SHOWN.join(StreamRow, StreamRow.id == SubscriptionRow.stream_id)
    return _states(s, query.where(StreamRow.id.in_(stream_ids)))


def pushes(s: Session) -> list[Push]:
    """The subscriptions with a target."""
    columns = (SubscriptionRow.id, StreamRow.name, SubscriptionRow.name, SubscriptionRow.push_url)
    query: Select[*tuple[Any, ...]] = select(*columns, SubscriptionRow.push_secret)
    query = query.join(StreamRow, StreamRow.id == SubscriptionRow.stream_id)
    return [Push(*row) for row in s.execute(query.where(SubscriptionRow.push_url.is_not(None)))]


def dead_stream(s: Session, stream: str, name: str) -> StreamRow:
    """The stream for records of a subscription that its target refused, made where it is not there."""
    dead = f"{name}-dead"
    return streams.find_stream(s, dead) or streams.create_stream(
        s, dead, partitions=streams.get_stream(s, stream).partitions
    )


def subscription_lags(s: Session) -> list[SubscriptionLag]:
    """Of every subscription."""
    return [each.lag for each in _states(s, _SHOWN.join(StreamRow, StreamRow.id == SubscriptionRow.stream_id))]


def failing_pushes(s: Session, stream_ids: Collection[str]) -> dict[str, list[FailingPush]]:
    """By stream those whose targets do not take the next record of a partition: of each the one that waits longest."""
    query = (
        select(SubscriptionRow.stream_id, SubscriptionRow.name, SubscriptionPositionRow.failure)
        .join(SubscriptionPositionRow, SubscriptionPositionRow.subscription_id == SubscriptionRow.id)
        .where(SubscriptionRow.stream_id.in_(stream_ids), SubscriptionPositionRow.failure.is_not(None))
        .order_by(SubscriptionRow.name, SubscriptionPositionRow.partition)
    )
    longest: dict[tuple[str, str], Json] = {}
    for stream_id, name, row in s.execute(query):
        of, failure = (stream_id, name), row or {}  # as asked, it is not null
        longest[of] = min(longest.get(of, failure), failure, key=lambda each: each["since_ms"])
    found: dict[str, list[FailingPush]] = {}
    for (stream_id, name), failure in longest.items():
        found.setdefault(stream_id, []).append(FailingPush(name, **failure))
    return found


def held_position(s: Session, stream_id: str, partition: int) -> int | None:
    """The lowest position of the subscriptions that hold retention back in a partition; None: none does."""
    expires_ms = SubscriptionRow.pulled_ms + SubscriptionRow.expires_after_ms
    query = (
        select(func.min(SubscriptionPositionRow.position))
        .join(SubscriptionRow, SubscriptionRow.id == SubscriptionPositionRow.subscription_id)
        .where(SubscriptionRow.stream_id == stream_id, SubscriptionPositionRow.partition == partition)
        .where(SubscriptionRow.holds_retention, or_(SubscriptionRow.expires_after_ms.is_(None), expires_ms > Now()))
    )
    return s.scalars(query).one()


_PUBLISHED_MS = (  # of the oldest record that is not acknowledged
    select(SegmentRow.published_ms)
    .join(ChunkRow, ChunkRow.segment_id == SegmentRow.id)
    .where(ChunkRow.stream_id == SubscriptionRow.stream_id, ChunkRow.partition == SubscriptionPositionRow.partition)
    .where(ChunkRow.end_offset > SubscriptionPositionRow.position)
    .order_by(ChunkRow.end_offset)
    .limit(1)
    .correlate(SubscriptionRow, SubscriptionPositionRow)
    .scalar_subquery()
)
_SHOWN = (
    select(SubscriptionRow, SubscriptionPositionRow, StreamRow.name.label("stream"))
    .add_columns(PartitionRow.start_offset, PartitionRow.end_offset, _PUBLISHED_MS.label("published_ms"))
    .add_columns(Now().label("now_ms"))
    .select_from(SubscriptionRow)
    .join(SubscriptionPositionRow, SubscriptionPositionRow.subscription_id == SubscriptionRow.id)
    .join(
        PartitionRow,
        (PartitionRow.stream_id == SubscriptionRow.stream_id)
        & (PartitionRow.partition == SubscriptionPositionRow.partition),
    )
    .order_by(SubscriptionRow.name, SubscriptionRow.id, SubscriptionPositionRow.partition)
)


def _states(s: Session, query: Select[*tuple[Any, ...]]) -> list[SubscriptionState]:
    by_subscription = groupby(s.execute(query).all(), lambda row: row.SubscriptionRow)
    groups = [(subscription, list(rows)) for subscription, rows in by_subscription]
    return [
        SubscriptionState(rows[0].stream, subscription, [_shown(row) for row in rows], rows[0].now_ms)
        for subscription, rows in groups
    ]


def _shown(row: Row[Any]) -> PartitionState:
    progress = _Partition(row.SubscriptionPositionRow, row.start_offset, row.end_offset).progress
    age_ms = None if row.published_ms is None else max(row.now_ms - row.published_ms, 0)
    is_held = progress.holder in _live(row.SubscriptionRow, row.now_ms)
    return PartitionState(
        progress,
        age_ms if progress.unread else 0,
        progress.holder if is_held else None,
        row.SubscriptionPositionRow.failure,
    )
