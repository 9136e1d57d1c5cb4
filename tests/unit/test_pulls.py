"""Which partitions a consumer holds, and what it is given: as values, without a catalog."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from service.pulls import PartitionProgress, PulledRange, Share, decide, next_ranges, quotas, shared


def progress(
    partition: int,
    holder: str | None = None,
    *,
    position: int = 0,
    batch_end: int = 0,
    start: int = 0,
    end: int = 100,
    pull_id: str | None = None,
    given_ms: int = 0,
) -> PartitionProgress:
    return PartitionProgress(partition, start, end, position, batch_end, holder, pull_id, given_ms)


def held_by(consumer: str, partitions: Iterable[int], **more: int) -> list[PartitionProgress]:
    return [progress(partition, consumer, **more) for partition in partitions]


def test_the_first_consumer_takes_everything() -> None:
    found = decide([progress(0), progress(1)], {"a"}, "a", None, 100)
    assert found.share == Share([0, 1], [])
    assert found.held == [0, 1]
    assert found.ranges == [PulledRange(0, 0, 50), PulledRange(1, 0, 50)]


def test_a_new_consumer_takes_what_the_others_have_nothing_of() -> None:
    partitions = [*held_by("a", [0], batch_end=5), *held_by("a", [1, 2, 3])]
    assert shared(partitions, {"a", "b"}, "b") == Share([1, 2], [])


def test_a_new_consumer_takes_nothing_from_a_batch() -> None:
    partitions = held_by("a", range(4), batch_end=5)
    assert shared(partitions, {"a", "b"}, "b") == Share([], [])


def test_a_share_is_given_up_between_two_batches() -> None:
    partitions = [*held_by("a", [0, 1], batch_end=5), *held_by("a", [2], position=5, batch_end=5), *held_by("a", [3])]
    assert shared(partitions, {"a", "b"}, "a").released == [3, 2]
    assert shared(partitions[:3], {"a", "b"}, "a").released == [2]
    assert shared(partitions[:2], {"a", "b"}, "a").released == []


def test_what_somebody_without_a_lease_held_is_free() -> None:
    partitions = [*held_by("gone", [0, 1], batch_end=5), *held_by("a", [2, 3])]
    assert shared(partitions, {"a", "b"}, "b") == Share([0, 1], [])


def test_one_partition_more_stays_with_who_has_it() -> None:
    assert quotas({"a": 1, "b": 2}, 3) == {"a": 1, "b": 2}
    assert quotas({"a": 2, "b": 1}, 3) == {"a": 2, "b": 1}
    assert quotas({"a": 0, "b": 0, "c": 1}, 2) == {"a": 1, "b": 0, "c": 1}


@pytest.mark.parametrize("seed", range(20))
def test_consumers_that_come_and_go_end_with_equal_shares_and_then_nothing_moves(seed: int) -> None:
    """Each acknowledges what it has and pulls, in any order; a batch never changes hands."""
    rng = random.Random(seed)
    count = rng.randrange(1, 12)
    holders: dict[int, str | None] = dict.fromkeys(range(count))
    for _ in range(3):
        consumers = [f"c{n}" for n in rng.sample(range(8), rng.randrange(1, 8))]
        moves = 0
        for turn in range(4 * len(consumers), 0, -1):
            consumer = consumers[turn % len(consumers)]
            share = shared([progress(at, holder) for at, holder in holders.items()], set(consumers), consumer)
            moves = moves + len(share.taken) + len(share.released) if turn <= len(consumers) else 0
            holders |= dict.fromkeys(share.taken, consumer) | dict.fromkeys(share.released)
        sizes = [sum(holder == consumer for holder in holders.values()) for consumer in consumers]
        assert sum(sizes) == count
        assert max(sizes) - min(sizes) <= 1
        assert moves == 0


def test_the_same_pull_gives_the_same_less_what_was_acknowledged() -> None:
    partitions = [
        progress(0, "a", position=3, batch_end=10, pull_id="x"),
        progress(1, "a", position=7, batch_end=7, pull_id="x"),
        progress(2, "a", batch_end=4, pull_id="w"),
        progress(3),
    ]
    found = decide(partitions, {"a"}, "a", "x", 1)
    assert found.is_repeated
    assert found.ranges == [PulledRange(0, 3, 10)]
    assert found.share == Share()


def test_a_pull_that_is_wholly_acknowledged_is_a_new_one() -> None:
    found = decide([progress(0, "a", position=7, batch_end=7, pull_id="x")], {"a"}, "a", "x", 10)
    assert not found.is_repeated
    assert found.ranges == [PulledRange(0, 7, 17)]


def test_another_pull_begins_where_the_acknowledgements_end() -> None:
    for pull_id in ("y", None):
        found = decide([progress(0, "a", position=3, batch_end=10, pull_id="x")], {"a"}, "a", pull_id, 20)
        assert found.ranges == [PulledRange(0, 3, 23)]


def test_a_pull_of_another_consumer_is_another_pull() -> None:
    partitions = [progress(0, "a", batch_end=10, pull_id="x"), progress(1)]
    assert decide(partitions, {"a", "b"}, "b", "x", 10).ranges == [PulledRange(1, 0, 10)]


def test_what_some_partitions_leave_of_their_shares_is_for_the_others() -> None:
    partitions = [progress(0, end=100), progress(1, end=3), progress(2, end=0), progress(3, end=20)]
    assert next_ranges(partitions, 50) == [PulledRange(0, 0, 27), PulledRange(1, 0, 3), PulledRange(3, 0, 20)]


def test_of_more_partitions_than_records_those_come_that_waited_longest() -> None:
    partitions = [progress(0, given_ms=30), progress(1, given_ms=10), progress(2, given_ms=20)]
    assert next_ranges(partitions, 2) == [PulledRange(1, 0, 1), PulledRange(2, 0, 1)]


def test_what_retention_took_is_part_of_a_range_and_counts_for_nothing() -> None:
    assert next_ranges([progress(0, position=5, start=40)], 10) == [PulledRange(0, 5, 50)]
    assert next_ranges([progress(0, position=5, start=40, end=40)], 10) == [PulledRange(0, 5, 40)]
