"""Pulls of a subscription: which partitions a consumer holds, and which offsets it is given.

It knows holders, shares and ranges as values. It refuses to know where they are kept, when a lease ends
(`service.catalog.subscriptions`) and what is in the records.

A partition has one holder, and at most one batch that is not acknowledged yet. Consumers have equal shares, one
partition more or less. What is in a batch stays with its holder: a share is given up between two batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple


class PartitionProgress(NamedTuple):
    """Where a subscription stands in a partition that holds the offsets [start, end).

    Everything before `position` is acknowledged; `batch_end`: the end of the batch that the holder was given last, in
    the pull `pull_id`, at `given_ms`.
    """

    partition: int
    start: int
    end: int
    position: int
    batch_end: int
    holder: str | None
    pull_id: str | None
    given_ms: int

    @property
    def is_busy(self) -> bool:
        """Whether its holder has a batch that is not acknowledged."""
        return self.holder is not None and self.batch_end > self.position

    @property
    def first(self) -> int:
        """The next offset that is there; retention may have taken those before it."""
        return max(self.position, self.start)

    @property
    def unread(self) -> int:
        """Offsets that are there and not acknowledged."""
        return self.end - self.first


class PulledRange(NamedTuple):
    """Offsets [begin, end) of a partition, of which retention may have taken the first ones, or all."""

    partition: int
    begin: int
    end: int


class Share(NamedTuple):
    """Partitions that a consumer begins to hold, and those that it gives up."""

    taken: Sequence[int] = ()
    released: Sequence[int] = ()


class PullDecision(NamedTuple):
    """What a pull gives, and to whom partitions belong from then on; `held`: all that the consumer holds then."""

    ranges: Sequence[PulledRange]
    held: Sequence[int]
    share: Share
    is_repeated: bool


def decide(
    partitions: Sequence[PartitionProgress],
    consumers: Collection[str],
    consumer: str,
    pull_id: str | None,
    most: int,
    excluding: Collection[int] = (),
) -> PullDecision:
    """What a pull of `most` records at most gives its consumer, one of the `consumers` with a lease; nothing of the
    partitions `excluding`, which it holds as others.

    The same pull once more gives the same ranges, less what was acknowledged since. Any other begins where the
    consumer's acknowledgements end: what it was given before and has not acknowledged comes again.
    """
    mine = [at for at in partitions if at.holder == consumer]
    repeated = [at for at in mine if at.is_busy and pull_id is not None and at.pull_id == pull_id]
    if repeated:
        ranges = [PulledRange(at.partition, at.position, at.batch_end) for at in repeated]
        return PullDecision(ranges, [at.partition for at in mine], Share(), is_repeated=True)
    share = shared(partitions, consumers, consumer)
    held = {at.partition for at in mine}.difference(share.released).union(share.taken)
    ranges = next_ranges((at for at in partitions if at.partition in held.difference(excluding)), most)
    return PullDecision(ranges, sorted(held), share, is_repeated=False)


def shared(partitions: Sequence[PartitionProgress], consumers: Collection[str], consumer: str) -> Share:
    """What a consumer takes and gives up so that each of the `consumers` has its share in the end.

    It takes what nobody with a lease holds, then what others hold beyond their shares and have no batch of.
    """
    held = dict.fromkeys(consumers, 0)
    for at in partitions:
        if at.holder in held:
            held[at.holder] += 1
    quota = quotas(held, len(partitions))
    beyond = {each: max(held[each] - quota[each], 0) for each in held}
    idle = [at.partition for at in reversed(partitions) if at.holder == consumer and not at.is_busy]
    released = idle[: beyond.pop(consumer)]
    free = [at.partition for at in partitions if at.holder not in held]
    wanted = max(quota[consumer] - held[consumer], 0)
    return Share([*free, *_spare(partitions, beyond)][:wanted], released)


def quotas(held: Mapping[str, int], partitions: int) -> dict[str, int]:
    """How many partitions each consumer should hold; those that hold most now have the one more, if any."""
    least, more = divmod(partitions, len(held))
    order = sorted(held, key=lambda consumer: (-held[consumer], consumer))
    return {consumer: least + (place < more) for place, consumer in enumerate(order)}


def _spare(partitions: Iterable[PartitionProgress], beyond: dict[str, int]) -> Iterator[int]:
    for at in partitions:
        if at.holder is not None and not at.is_busy and beyond.get(at.holder, 0) > 0:
            beyond[at.holder] -= 1
            yield at.partition


def next_ranges(partitions: Iterable[PartitionProgress], most: int) -> list[PulledRange]:
    """What comes next in each partition, `most` records in all. Where that is fewer than there are partitions, those
    have one that were given nothing for the longest time; else what some leave of their shares is for the others.
    """
    waiting = sorted((at for at in partitions if at.end > at.position), key=lambda at: (at.given_ms, at.partition))
    chosen = sorted(waiting[:most], key=lambda at: (at.unread, at.partition))
    found, left = [], most
    for place, at in enumerate(chosen):
        records = min(at.unread, left // (len(chosen) - place))
        left -= records
        found.append(PulledRange(at.partition, at.position, at.first + records))
    return sorted(found)
