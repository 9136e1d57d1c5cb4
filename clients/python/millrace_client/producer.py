"""Producers: records are gathered into posts, which go out one after another: records of a sender stay in order.

A post that failed for now is sent again under the key that it had, so it is appended once; the next one waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from millrace_client.batches import Batch, Limits
from millrace_client.clients import AsyncClient, Client
from millrace_client.errors import DeliveryFailed, FailedBatch
from millrace_client.records import Appended, record_json

_LIMITS = Limits()
_CLOSED = "the producer is closed"


@dataclass(eq=False, slots=True)
class _Posted:
    """A batch on its way: it fills until it is sealed."""

    batch: Batch
    is_sealed: threading.Event = field(default_factory=threading.Event)
    began_s: float = field(default_factory=time.monotonic)
    answer: Future[Appended] = field(default_factory=Future)


class Producer:
    """Appends records to a stream, from any number of threads. A context manager: its end is a `close`."""

    def __init__(self, client: Client, stream: str, limits: Limits = _LIMITS) -> None:
        self._client, self._stream, self._limits = client, stream, limits
        self._changed = threading.Condition()  # all below is changed under it
        self._worker = ThreadPoolExecutor(1, f"millrace-producer-{stream}")
        self._open: _Posted | None = None
        self._unfinished: set[_Posted] = set()
        self._failed: list[FailedBatch] = []
        self._bytes = 0
        self._is_closed = False

    def send(
        self,
        value: Any,
        *,
        key: str | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Future[Appended]:
        """Hand a record in; waits while too much does. The future is that of its whole post: do not cancel it.

        Raises:
            TypeError, ValueError: the value is not JSON.
            RuntimeError: the producer is closed.
        """
        record = record_json(value, key, timestamp, partition, headers)
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._limits.has_room(self._bytes, record))
            if self._is_closed:
                raise RuntimeError(_CLOSED)
            posted = self._open
            if posted is None or not posted.batch.takes(record):
                posted = self._begin()
            posted.batch.add(record)
            self._bytes += len(record)
            if posted.batch.is_full:
                self._seal(posted)
            return posted.answer

    def flush(self) -> None:
        """Return when all that was sent is durable.

        Raises:
            DeliveryFailed: some of what was sent since the last flush is not; it has those records.
        """
        with self._changed:
            self._seal(self._open)
            unfinished = set(self._unfinished)
            self._changed.wait_for(lambda: not unfinished & self._unfinished)
            failed, self._failed = self._failed, []
        if failed:
            raise DeliveryFailed(failed)

    def close(self) -> None:
        """Flush and end. Raises DeliveryFailed."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        try:
            self.flush()
        finally:
            self._worker.shutdown()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _begin(self) -> _Posted:
        """A batch that the worker takes up once those before it are done: meanwhile it fills."""
        self._seal(self._open)
        posted = self._open = _Posted(Batch(self._limits))
        self._unfinished.add(posted)
        posted.answer = self._worker.submit(self._post, posted)
        posted.answer.add_done_callback(lambda _: self._finish(posted))
        return posted

    def _seal(self, posted: _Posted | None) -> None:
        if posted is not None:
            posted.is_sealed.set()
            self._open = None if posted is self._open else self._open

    def _post(self, posted: _Posted) -> Appended:
        posted.is_sealed.wait(posted.began_s + self._limits.linger_s - time.monotonic())
        with self._changed:
            self._seal(posted)
        age_s = time.monotonic() - posted.began_s
        return self._client.run(posted.batch.post(self._stream, self._client.retries, age_s))

    def _finish(self, posted: _Posted) -> None:
        error = CancelledError() if posted.answer.cancelled() else posted.answer.exception()
        with self._changed:
            if error is not None:
                self._failed.append(posted.batch.failed(error))
            self._unfinished.discard(posted)
            self._bytes -= posted.batch.size
            self._changed.notify_all()


@dataclass(eq=False, slots=True)
class _AsyncPosted:
    """As `_Posted`, of an event loop."""

    batch: Batch
    is_sealed: asyncio.Event = field(default_factory=asyncio.Event)
    began_s: float = field(default_factory=time.monotonic)


class AsyncProducer:
    """Appends records to a stream, for the tasks of one event loop. An asynchronous context manager, as `Producer`."""

    def __init__(self, client: AsyncClient, stream: str, limits: Limits = _LIMITS) -> None:
        self._client, self._stream, self._limits = client, stream, limits
        self._has_changed = asyncio.Event()
        self._turn = asyncio.Lock()  # of posts, first come, first served
        self._open: _AsyncPosted | None = None
        self._unfinished: dict[_AsyncPosted, asyncio.Task[Appended]] = {}
        self._failed: list[FailedBatch] = []
        self._bytes = 0
        self._is_closed = False

    async def send(
        self,
        value: Any,
        *,
        key: str | None = None,
        timestamp: int | None = None,
        partition: int | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> asyncio.Future[Appended]:
        """Hand a record in; waits while too much does. The future is that of its whole post; nobody has to await it.

        Raises:
            TypeError, ValueError: the value is not JSON.
            RuntimeError: the producer is closed.
        """
        record = record_json(value, key, timestamp, partition, headers)
        while not self._is_closed and not self._limits.has_room(self._bytes, record):
            self._has_changed.clear()
            await self._has_changed.wait()
        if self._is_closed:
            raise RuntimeError(_CLOSED)
        posted = self._open
        if posted is None or not posted.batch.takes(record):
            posted = self._begin()
        posted.batch.add(record)
        self._bytes += len(record)
        if posted.batch.is_full:
            self._seal(posted)
        answer = asyncio.shield(self._unfinished[posted])
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())  # `flush` has it
        return answer

    async def flush(self) -> None:
        """Return when all that was sent is durable. Raises DeliveryFailed."""
        self._seal(self._open)
        if self._unfinished:
            await asyncio.wait(self._unfinished.values())
        failed, self._failed = self._failed, []
        if failed:
            raise DeliveryFailed(failed)

    async def close(self) -> None:
        """Flush and end. Raises DeliveryFailed."""
        self._is_closed = True
        self._has_changed.set()
        await self.flush()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _begin(self) -> _AsyncPosted:
        self._seal(self._open)
        posted = self._open = _AsyncPosted(Batch(self._limits))
        self._unfinished[posted] = asyncio.create_task(self._post(posted))
        return posted

    def _seal(self, posted: _AsyncPosted | None) -> None:
        if posted is not None:
            posted.is_sealed.set()
            self._open = None if posted is self._open else self._open

    async def _post(self, posted: _AsyncPosted) -> Appended:
        try:
            async with self._turn:
                left_s = posted.began_s + self._limits.linger_s - time.monotonic()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(posted.is_sealed.wait(), left_s)
                self._seal(posted)
                age_s = time.monotonic() - posted.began_s
                return await self._client.run(posted.batch.post(self._stream, self._client.retries, age_s))
        except BaseException as error:
            self._failed.append(posted.batch.failed(error))
            raise
        finally:
            del self._unfinished[posted]
            self._bytes -= posted.batch.size
            self._has_changed.set()
