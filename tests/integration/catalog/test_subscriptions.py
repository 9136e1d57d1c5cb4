"""Subscriptions in the catalog: positions, leases, shares, retention; the same on both databases."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent import futures
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from benchmarks.running import PATIENCE_S
from service.catalog import segments, streams, subscriptions
from service.catalog.engine import PUSHES, Catalog, partition_topic, subscription_topic
from service.catalog.subscriptions import Pulled, PullWish, SubscriptionSettings
from service.catalog.tables import StreamRow, SubscriptionPositionRow, SubscriptionRow
from service.pulls import PulledRange
from service.streams.errors import (
    InternalStream,
    InvalidSpec,
    LeaseLost,
    PositionNotDelivered,
    SubscriptionExists,
    TooManyConsumers,
    UnknownStream,
    UnknownSubscription,
)
from service.streams.topology.starts import StartOffsets, StartTimestamp
from tests.integration.catalog.world import age_segments, make_job, make_stream, post, statements

HOUR_MS = 3_600_000


@pytest.fixture
def clicks(catalog: Catalog) -> StreamRow:
    return make_stream(catalog, partitions=2)


def subscribe(catalog: Catalog, name: str = "s", **more: Any) -> bool:
    settings = SubscriptionSettings(
        more.get("start", "earliest"), more.get("expires_after_ms"), more.get("holds_retention", False)
    )
    records = more.get("records", {})
    return catalog.write(subscriptions.create_subscription, "clicks", name, settings, records)


def pull(catalog: Catalog, consumer: str = "a", most: int = 100, **more: Any) -> Pulled:
    wish = PullWish(consumer, more.get("lease_ms", HOUR_MS), most, more.get("pull_id"))
    return catalog.write(subscriptions.pull, "clicks", more.get("name", "s"), wish)


def acknowledge(catalog: Catalog, consumer: str, *positions: tuple[int, int], **more: Any) -> dict[int, int]:
    done = catalog.write(subscriptions.acknowledge, "clicks", "s", consumer, positions, **more)
    return dict(done.positions)


def end_lease(catalog: Catalog, consumer: str) -> None:
    def end(s: Session) -> None:
        row = s.scalars(select(SubscriptionRow)).one()
        row.consumers = row.consumers | {consumer: row.consumers[consumer] | {"until_ms": 1}}

    catalog.write(end)


def positions(catalog: Catalog, name: str = "s") -> list[int]:
    state = catalog.read(subscriptions.get_subscription, "clicks", name)
    return [at.progress.position for at in state.partitions]


# ---------------------------------------------------------------- made, shown, deleted


def test_it_begins_where_it_is_asked_to(catalog: Catalog, clicks: StreamRow) -> None:
    post(catalog, clicks, {0: 10, 1: 4}, timestamp=1_000)
    for name, start, expected in (
        ("first", "earliest", [0, 0]),
        ("last", "latest", [10, 4]),
        ("there", StartOffsets(offsets={"0": 7}), [7, 0]),
        ("then", StartTimestamp(timestamp=1_003), [3, 3]),
    ):
        assert subscribe(catalog, name, start=start, records={("clicks", 0): 3, ("clicks", 1): 3})
        assert positions(catalog, name) == expected


def test_an_equal_one_is_the_same_and_another_refused(catalog: Catalog, clicks: StreamRow) -> None:
    assert subscribe(catalog)
    assert not subscribe(catalog)
    for more in ({"start": "latest"}, {"holds_retention": True}, {"expires_after_ms": 5}):
        with pytest.raises(SubscriptionExists):
            subscribe(catalog, **more)


def test_what_is_not_there_is_refused(catalog: Catalog, clicks: StreamRow) -> None:
    with pytest.raises(UnknownSubscription, match="'clicks' has no subscription 's'"):
        pull(catalog)
    with pytest.raises(UnknownSubscription):
        catalog.read(subscriptions.get_subscription, "clicks", "s")
    with pytest.raises(InvalidSpec):
        subscribe(catalog, start=StartOffsets(offsets={"0": 7}))
    with pytest.raises(UnknownStream):
        catalog.write(subscriptions.pull, "nothing", "s", PullWish("a", 1, 1))
    make_job(catalog)
    settings = SubscriptionSettings("latest", None, False)
    with pytest.raises(InternalStream):
        catalog.write(subscriptions.create_subscription, "visits-once-changelog", "s", settings, {})


def test_it_ends_with_its_stream_and_is_not_that_of_the_next_one(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    pull(catalog)
    catalog.write(streams.delete_stream, "clicks")
    with pytest.raises(UnknownStream):
        pull(catalog)
    make_stream(catalog, partitions=2)
    with pytest.raises(UnknownSubscription, match="ends with the stream"):
        acknowledge(catalog, "a", (0, 0))
    assert catalog.read(lambda s: s.scalars(select(SubscriptionPositionRow)).all()) == []


def test_deleting_one_wakes_who_waits_for_it(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    subscription_id = pull(catalog).subscription_id
    woken: list[str] = []
    catalog.on_wake(woken.extend)
    catalog.write(subscriptions.delete_subscription, "clicks", "s")
    assert set(woken) == {subscription_topic(subscription_id), PUSHES}
    with pytest.raises(UnknownSubscription):
        catalog.write(subscriptions.delete_subscription, "clicks", "s")


def test_lag_is_records_and_the_age_of_the_oldest(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10})
    age_segments(catalog, HOUR_MS)
    post(catalog, clicks, {0: 5, 1: 3})
    [lag] = catalog.read(subscriptions.subscription_lags)
    assert (lag.stream, lag.subscription, lag.records) == ("clicks", "s", 18)
    assert lag.ms is not None
    assert HOUR_MS <= lag.ms < 2 * HOUR_MS
    pull(catalog)
    acknowledge(catalog, "a", (0, 10))
    [lag] = catalog.read(subscriptions.subscription_lags)
    assert lag.records == 8
    assert lag.ms is not None
    assert lag.ms < HOUR_MS
    acknowledge(catalog, "a", (0, 15), (1, 3))
    assert catalog.read(subscriptions.subscription_lags)[0][2:] == (0, 0)


# ---------------------------------------------------------------- pulled and acknowledged


def test_a_pull_and_an_acknowledgement_are_four_statements(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10, 1: 10})
    lock, look = "SELECT subscriptions", "SELECT subscription_positions"
    write = ["UPDATE subscription_positions", "UPDATE subscriptions"]
    with statements(catalog) as seen:
        pulled = pull(catalog)
    assert seen[:2] == [lock, look]
    assert sorted(seen[2:]) == write
    with statements(catalog) as seen:
        acknowledge(catalog, "a", *[(at.partition, at.end) for at in pulled.ranges])
    assert (seen[:2], sorted(seen[2:])) == ([lock, look], write)
    with statements(catalog) as seen:  # nothing is there: the lease is all that is written
        pull(catalog)
    assert seen == [lock, look, "UPDATE subscriptions"]


def test_an_acknowledgement_is_cumulative(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10, 1: 10})
    assert pull(catalog).ranges == [PulledRange(0, 0, 10), PulledRange(1, 0, 10)]
    assert acknowledge(catalog, "a", (0, 4)) == {0: 4}
    assert acknowledge(catalog, "a", (0, 2)) == {0: 4}
    assert acknowledge(catalog, "nobody", (0, 4)) == {0: 4}  # nothing that it would change
    assert positions(catalog) == [4, 0]


def test_beyond_what_was_delivered_nothing_is_acknowledged(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10, 1: 10})
    pull(catalog, most=6)
    with pytest.raises(PositionNotDelivered) as refused:
        acknowledge(catalog, "a", (0, 3), (1, 4))
    assert [each.pointer for each in refused.value.errors] == ["/positions/1/position"]
    with pytest.raises(PositionNotDelivered) as refused:
        acknowledge(catalog, "a", (0, 3), (2, 1))
    assert [each.pointer for each in refused.value.errors] == ["/positions/1/partition"]
    assert positions(catalog) == [0, 0]


def test_after_a_lost_lease_nothing_is_acknowledged(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10, 1: 10})
    pull(catalog, "a")
    end_lease(catalog, "a")
    with pytest.raises(LeaseLost) as refused:
        acknowledge(catalog, "a", (0, 0), (1, 10))
    assert [each.pointer for each in refused.value.errors] == ["/positions/1"]
    taken = pull(catalog, "b")
    assert (taken.ranges, taken.expired) == ([PulledRange(0, 0, 10), PulledRange(1, 0, 10)], 1)
    with pytest.raises(LeaseLost):
        acknowledge(catalog, "a", (0, 10))
    assert positions(catalog) == [0, 0]


def test_an_acknowledgement_begins_the_lease_anew(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10})
    before = pull(catalog, lease_ms=HOUR_MS).lease_until_ms
    later = catalog.write(subscriptions.acknowledge, "clicks", "s", "a", [(0, 1)]).lease_until_ms
    assert later is not None
    assert later >= before
    assert catalog.write(subscriptions.acknowledge, "clicks", "s", "nobody", [(0, 1)]).lease_until_ms is None


def test_a_consumer_that_leaves_frees_its_partitions_at_once(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10, 1: 10})
    pull(catalog, "a")
    waiting = pull(catalog, "b")
    assert (waiting.ranges, waiting.held) == ([], [])
    woken: list[str] = []
    catalog.on_wake(woken.extend)
    assert acknowledge(catalog, "a", (0, 5), leave=True) == {0: 5}
    assert woken == [subscription_topic(waiting.subscription_id)]
    assert pull(catalog, "b").ranges == [PulledRange(0, 5, 10), PulledRange(1, 0, 10)]
    with pytest.raises(LeaseLost):
        acknowledge(catalog, "a", (0, 10))


def test_a_share_is_given_up_with_the_acknowledgement_of_its_batch(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10, 1: 10})
    pull(catalog, "a")
    assert pull(catalog, "b").held == []
    woken: list[str] = []
    catalog.on_wake(woken.extend)
    acknowledge(catalog, "a", (1, 5))
    assert not woken
    acknowledge(catalog, "a", (1, 10))
    assert woken
    assert pull(catalog, "b").held == [1]
    assert pull(catalog, "a").held == [0]


def test_a_shorter_batch_is_that_of_its_holder_alone(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 10, 1: 10})
    pulled = pull(catalog, "a")
    catalog.write(subscriptions.shorten, pulled, {0: 4})
    with pytest.raises(PositionNotDelivered):
        acknowledge(catalog, "a", (0, 5))
    assert acknowledge(catalog, "a", (0, 4), leave=True) == {0: 4}
    pull(catalog, "b")
    catalog.write(subscriptions.shorten, pulled, {1: 2})  # too late
    assert acknowledge(catalog, "b", (1, 10)) == {1: 10}


def test_consumers_are_bounded(catalog: Catalog, clicks: StreamRow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subscriptions, "MAX_CONSUMERS", 2)
    subscribe(catalog)
    pull(catalog, "a")
    pull(catalog, "b")
    with pytest.raises(TooManyConsumers):
        pull(catalog, "c")
    pull(catalog, "a")
    end_lease(catalog, "b")
    pull(catalog, "c")


def test_who_shares_a_subscription_never_gets_the_same(
    catalog: Catalog, open_catalog: Callable[[], Catalog], clicks: StreamRow
) -> None:
    """Consumers of two processes, each pulling and acknowledging as fast as it can."""
    subscribe(catalog)
    for _ in range(10):
        post(catalog, clicks, {0: 10, 1: 10})
    processes = [catalog, open_catalog()]
    seen: list[tuple[int, int]] = []
    until_s = time.monotonic() + PATIENCE_S

    def consume(number: int) -> None:
        mine = processes[number % 2]
        while len(seen) < 200 and time.monotonic() < until_s:
            pulled = pull(mine, f"c{number}", most=7)
            seen.extend((at.partition, offset) for at in pulled.ranges for offset in range(at.begin, at.end))
            if pulled.ranges:
                acknowledge(mine, f"c{number}", *[(at.partition, at.end) for at in pulled.ranges])

    with futures.ThreadPoolExecutor(3) as threads:
        list(threads.map(consume, range(3)))
    assert len(seen) == len(set(seen)) == 200
    for partition in range(2):
        offsets = [offset for at, offset in seen if at == partition]
        assert sorted(offsets) == list(range(100))


def test_a_pull_that_is_withdrawn_leaves_all_to_others(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 3, 1: 2})
    pulled = pull(catalog, "a")
    catalog.write(subscriptions.withdraw, pulled)
    other = pull(catalog, "b")
    assert (other.ranges, other.held) == (pulled.ranges, [0, 1])
    with pytest.raises(LeaseLost):
        acknowledge(catalog, "a", (0, 1))


def test_what_its_consumer_may_be_at_is_not_withdrawn(catalog: Catalog, clicks: StreamRow) -> None:
    subscribe(catalog)
    post(catalog, clicks, {0: 3, 1: 2})
    first = pull(catalog, "a")
    catalog.write(subscriptions.withdraw, pull(catalog, "a", lease_ms=HOUR_MS - 1_000))  # it had that batch before
    catalog.write(subscriptions.withdraw, first)  # it has pulled since
    assert acknowledge(catalog, "a", (0, 3)) == {0: 3}
    catalog.write(subscriptions.delete_subscription, "clicks", "s")
    catalog.write(subscriptions.withdraw, first)


# ---------------------------------------------------------------- retention


def retain(catalog: Catalog) -> None:
    age_segments(catalog, 2 * HOUR_MS)
    catalog.write(segments.truncate_by_retention)


def starts(catalog: Catalog, stream: StreamRow) -> list[int]:
    return [at.start_offset for at in catalog.read(streams.partitions_of, stream.id)]


@pytest.fixture
def kept(catalog: Catalog) -> StreamRow:
    return catalog.write(streams.create_stream, "clicks", partitions=1, retention_ms=HOUR_MS)


def test_retention_leaves_what_is_held_back_until_it_expires(catalog: Catalog, kept: StreamRow) -> None:
    subscribe(catalog, holds_retention=True, expires_after_ms=HOUR_MS)
    post(catalog, kept, {0: 5})
    post(catalog, kept, {0: 5})
    pull(catalog)
    acknowledge(catalog, "a", (0, 5))
    retain(catalog)
    assert starts(catalog, kept) == [5]
    catalog.write(lambda s: s.execute(update(SubscriptionRow).values(pulled_ms=SubscriptionRow.pulled_ms - HOUR_MS)))
    assert catalog.read(subscriptions.get_subscription, "clicks", "s").is_expired
    retain(catalog)
    assert starts(catalog, kept) == [10]
    post(catalog, kept, {0: 5})
    assert pull(catalog).ranges == [PulledRange(0, 5, 15)]  # from 5 to 10 it is a gap
    assert not catalog.read(subscriptions.get_subscription, "clicks", "s").is_expired
    retain(catalog)
    assert starts(catalog, kept) == [10]


def test_retention_takes_what_is_not_held_back(catalog: Catalog, kept: StreamRow) -> None:
    subscribe(catalog)
    subscribe(catalog, "other", holds_retention=True)
    post(catalog, kept, {0: 5})
    retain(catalog)
    assert starts(catalog, kept) == [0]
    catalog.write(streams.update_stream, "clicks", retention_overrides_jobs=True)
    retain(catalog)
    assert starts(catalog, kept) == [5]
    assert pull(catalog).ranges == [PulledRange(0, 0, 5)]  # nothing but a gap
    assert acknowledge(catalog, "a", (0, 5)) == {0: 5}


def test_a_pull_waits_for_its_own_partitions(catalog: Catalog, clicks: StreamRow) -> None:
    """What the topics that it may sleep on are woken by."""
    subscribe(catalog)
    pulled = pull(catalog, "a")
    assert (pulled.stream_id, pulled.held) == (clicks.id, [0, 1])
    woken: list[str] = []
    catalog.on_wake(woken.extend)
    post(catalog, clicks, {1: 1})
    assert partition_topic(clicks.id, 1) in woken
