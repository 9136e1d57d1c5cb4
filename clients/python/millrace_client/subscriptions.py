"""Consumers of a subscription: the service keeps how far it is, and shares the partitions between those that pull.

A batch is acknowledged when the next one is asked for, a record whenever its user says so; what was not comes again,
here or to another consumer.
"""

from __future__ import annotations

import math
import os
import socket
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TypeAlias
from urllib.parse import quote

from millrace_client.clients import AsyncClient, Client
from millrace_client.codes import LeaseLost
from millrace_client.exchanges import Exchange, Retries, answered, json_request, path_of
from millrace_client.records import Record, record_of

Positions: TypeAlias = Sequence[Mapping[str, int]]  # as a pull has them


@dataclass(frozen=True, slots=True)
class Gap:
    """Offsets from `start` up to `end` (not included) that retention took before they were acknowledged."""

    partition: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Pulls:
    """What a consumer asks for: up to `max_records` at a time, for which it waits up to `wait_s`; its partitions go to
    others where it is silent for `lease_s`, so a batch must take less.
    """

    max_records: int = 500
    wait_s: float = 20.0
    lease_s: float = 30.0


_PULLS = Pulls()


class _Share:
    """What one consumer of a subscription has and asks for; its requests are tried for ever."""

    def __init__(
        self,
        stream: str,
        subscription: str,
        pulls: Pulls,
        on_gap: Callable[[Gap], object] | None,
        name: str | None,
        retries: Retries,
    ) -> None:
        self._path = f"{path_of('streams', stream)}/subscriptions/{quote(subscription, safe='')}"
        self._pulls, self._on_gap = pulls, on_gap
        self._retries = replace(retries, limit_s=math.inf)
        self._consumer = name or f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"

    def following(self, used: Positions) -> Exchange[tuple[list[Record], Positions]]:
        """Acknowledge what is used; the next batch, and what to acknowledge once that is used."""
        if used:
            with suppress(LeaseLost):  # it took too long: another consumer gets those records again
                yield from self._acknowledged(used, self._retries)
        pulls = self._pulls
        body = {
            "consumer": self._consumer,
            "pull_id": uuid.uuid4().hex,
            "lease_ms": int(pulls.lease_s * 1000),
            "max": pulls.max_records,
            "wait_ms": int(pulls.wait_s * 1000),
        }
        request = json_request("POST", f"{self._path}:pull", body, wait_s=pulls.wait_s, is_repeatable=True)
        pulled = (yield from answered(request, self._retries)).json()
        if self._on_gap is not None:
            for gap in pulled["gaps"]:
                self._on_gap(Gap(gap["partition"], gap["start"], gap["end"]))
        return [record_of(record, "") for record in pulled["records"]], pulled["positions"]

    def left(self, retries: Retries) -> Exchange[None]:
        """Give its partitions up; what is not acknowledged comes to others at once."""
        body = {"consumer": self._consumer, "positions": [], "leave": True}
        yield from answered(json_request("POST", f"{self._path}:ack", body, is_repeatable=True), retries)

    def settled(self, records: Iterable[Record], retries: Retries) -> Exchange[None]:
        """Acknowledge records, and what is before them in their partitions. Raises LeaseLost."""
        reached: dict[int, int] = {}
        for record in records:
            reached[record.partition] = max(record.offset + 1, reached.get(record.partition, 0))
        yield from self._acknowledged([{"partition": at, "position": reached[at]} for at in reached], retries)

    def _acknowledged(self, positions: Positions, retries: Retries) -> Exchange[None]:
        body = {"consumer": self._consumer, "positions": list(positions)}
        yield from answered(json_request("POST", f"{self._path}:ack", body, is_repeatable=True), retries)


class SubscriptionConsumer:
    """Iterates over what a subscription has for it, for ever: each record at least once, in order within a partition.

    Several of them, in any number of processes, share the partitions. `on_gap` hears what retention took. `name`: one
    that no other consumer has, and that this one has again after a restart: then it goes on at once, with what it had,
    where any other waits for the end of a lease. A context manager: its end gives its partitions to the others.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        subscription: str,
        *,
        pulls: Pulls = _PULLS,
        on_gap: Callable[[Gap], object] | None = None,
        name: str | None = None,
    ) -> None:
        self._client = client
        self._share = _Share(stream, subscription, pulls, on_gap, name, client.retries)

    def __iter__(self) -> Iterator[Record]:
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[Record]]:
        """The same records, a batch at a time: asking for the next one acknowledges it."""
        used: Positions = ()
        while True:
            batch, used = self._client.run(self._share.following(used))
            if batch:
                yield batch

    def acknowledge(self, *records: Record) -> None:
        """Say that records are done with, and what is before them in their partitions, without asking for more.

        The lease begins anew. Raises LeaseLost: others may have them again.
        """
        self._client.run(self._share.settled(records, self._client.retries))

    def close(self) -> None:
        """Leave. What was given and is not acknowledged comes again."""
        self._client.run(self._share.left(self._client.retries))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class AsyncSubscriptionConsumer:
    """As `SubscriptionConsumer`, for asyncio."""

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        subscription: str,
        *,
        pulls: Pulls = _PULLS,
        on_gap: Callable[[Gap], object] | None = None,
        name: str | None = None,
    ) -> None:
        self._client = client
        self._share = _Share(stream, subscription, pulls, on_gap, name, client.retries)

    async def __aiter__(self) -> AsyncGenerator[Record, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for record in batch:
                    yield record

    async def batches(self) -> AsyncGenerator[list[Record], None]:
        """As `SubscriptionConsumer.batches`."""
        used: Positions = ()
        while True:
            batch, used = await self._client.run(self._share.following(used))
            if batch:
                yield batch

    async def acknowledge(self, *records: Record) -> None:
        """As `SubscriptionConsumer.acknowledge`."""
        await self._client.run(self._share.settled(records, self._client.retries))

    async def close(self) -> None:
        """As `SubscriptionConsumer.close`."""
        await self._client.run(self._share.left(self._client.retries))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
