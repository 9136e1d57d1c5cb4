"""Consumers: the records of a stream, for ever, from a place on.

They follow the stream's tail. Where it breaks off, or the service restarts, they go on behind the last record they had.
`position` is behind the last record that was used: one whose successor was asked for. Who stores it together with what
a record did, in one transaction, does everything exactly once; who stores it afterwards, at least once.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any, Final, NamedTuple

from millrace_client.clients import AsyncClient, Client
from millrace_client.errors import MillraceError
from millrace_client.exchanges import Request, Retries, error_of_event, json_request, path_of
from millrace_client.records import Record, record_of

SILENCE_S: Final = 15.0  # beyond the patience of a client: the service says something every 15 s


class Event(NamedTuple):
    """A Server-Sent Event; `data` is None in a heartbeat, which has an `id` alone."""

    kind: str
    id: str | None
    data: Any


class EventParser:
    """Server-Sent Events out of pieces of their text; lines end with LF, as the service writes them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> Iterator[Event]:
        """Those that are whole now."""
        *whole, self._rest = (self._rest + piece).split(b"\n\n")
        for text in whole:
            fields = dict(line.partition(b": ")[::2] for line in text.split(b"\n"))
            data, id_ = fields.get(b"data"), fields.get(b"id")
            kind = fields.get(b"event", b"message").decode()
            yield Event(kind, None if id_ is None else id_.decode(), None if data is None else json.loads(data))


class _Tail:
    """Where a consumer is in its stream, and what it asks for from there."""

    def __init__(
        self, stream: str, start: str | int, partition: int | None, key: str | None, where: str | None
    ) -> None:
        self._path = path_of("streams", stream) + "/tail"
        self._query = {"from": start, "partition": partition, "key": key, "where": where}
        self._failures = 0
        self._error: MillraceError | None = None
        self.seen: str | None = None  # the id of the last event

    def request(self) -> Request:
        headers = {} if self.seen is None else {"Last-Event-ID": self.seen}
        return json_request("GET", self._path, query=self._query, headers=headers, wait_s=SILENCE_S)

    def records(self, events: Iterator[Event]) -> list[Record]:
        """Those among the events."""
        found = []
        for event in events:
            self._failures = 0
            self.seen = event.id or self.seen
            if event.kind == "error":
                self._error = error_of_event(event.data)
            elif event.kind == "message" and event.data is not None:
                found.append(record_of(event.data, event.id or ""))
        return found

    def raise_error(self) -> None:
        """Raise what an event said why the tail ends, once its records were handed out."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def pause_s(self, retries: Retries, error: MillraceError | None) -> float:
        """How long to wait before the next request, after an end or an error. Raises the latter if it is for good."""
        if error is not None and not error.is_transient:
            raise error
        self._failures += 1
        return retries.pause_s(self._failures - 1, error.retry_after_s if error else None)


class Consumer:
    """Iterates over the records of a stream, and never ends by itself.

    `start`: `earliest`, `latest`, a time in ms, a position of a record or of a post. `partition`, `key`: only those.
    `where`: only those for which this condition (SQL, as of the operator filter) holds.
    What cannot go on is raised: `OffsetTruncated`, `UnknownStream`, `Unauthenticated`.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        *,
        start: str | int = "earliest",
        partition: int | None = None,
        key: str | None = None,
        where: str | None = None,
    ) -> None:
        self._client, self._tail = client, _Tail(stream, start, partition, key, where)
        self.position: str | None = None  # behind the last record that was used, or where it began

    def __iter__(self) -> Iterator[Record]:
        for batch in self.batches():
            for record in batch:
                yield record
                self.position = record.position

    def batches(self) -> Iterator[list[Record]]:
        """The same records, as many at a time as came together: for one transaction each."""
        while True:
            error: MillraceError | None = None
            try:
                yield from self._followed()
            except MillraceError as failure:
                error = failure
            time.sleep(self._tail.pause_s(self._client.retries, error))

    def _followed(self) -> Iterator[list[Record]]:
        with self._client.streaming(self._tail.request()) as pieces:
            parser = EventParser()
            for piece in pieces:
                batch = self._tail.records(parser.feed(piece))
                if batch:
                    yield batch
                self.position = self._tail.seen
                self._tail.raise_error()


class AsyncConsumer:
    """As `Consumer`, for asyncio."""

    def __init__(
        self,
        client: AsyncClient,
        stream: str,
        *,
        start: str | int = "earliest",
        partition: int | None = None,
        key: str | None = None,
        where: str | None = None,
    ) -> None:
        self._client, self._tail = client, _Tail(stream, start, partition, key, where)
        self.position: str | None = None

    async def __aiter__(self) -> AsyncGenerator[Record, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for record in batch:
                    yield record
                    self.position = record.position

    async def batches(self) -> AsyncGenerator[list[Record], None]:
        """As `Consumer.batches`."""
        while True:
            error: MillraceError | None = None
            try:
                async with aclosing(self._followed()) as batches:
                    async for batch in batches:
                        yield batch
            except MillraceError as failure:
                error = failure
            await asyncio.sleep(self._tail.pause_s(self._client.retries, error))

    async def _followed(self) -> AsyncGenerator[list[Record], None]:
        async with self._client.streaming(self._tail.request()) as pieces:
            parser = EventParser()
            async for piece in pieces:
                batch = self._tail.records(parser.feed(piece))
                if batch:
                    yield batch
                self.position = self._tail.seen
                self._tail.raise_error()
