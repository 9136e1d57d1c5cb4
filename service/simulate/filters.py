"""Conditions on records that come and come, each in a process of its own that those share who have the same one.

It knows who has which filter, and how many there may be. It refuses to know where records come from. What a condition
takes or dies of is nobody's but theirs who have it; the next batch gets a new process.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
from starlette.concurrency import run_in_threadpool

from service import prometheus
from service.simulate.forkserver import FILTER
from service.simulate.processes import BoundedProcesses, exchange, send_frame
from service.streams.errors import FilterFailed, TooManyFilters
from service.streams.operators.fields import admitted


class RecordFilter:
    """One condition, for all who have it: batch after batch."""

    def __init__(self, processes: BoundedProcesses, where: str) -> None:
        self.users = 0
        self._processes, self._where = processes, where
        self._columns = sorted(admitted(where).columns) or ["timestamp"]  # one says how many records there are
        self._turn = asyncio.Lock()
        self._connection: socket.socket | None = None

    async def __call__(self, batches: Sequence[pa.RecordBatch]) -> list[pa.RecordBatch]:
        """What is left of batches with the columns of RECORD_SCHEMA: records for which the condition is true, in order.
        One for which it fails is left out, as one for which it is null. Raises FilterFailed.
        """
        if not batches:
            return []
        frame = await run_in_threadpool(_frame, batches, self._columns)
        async with self._turn:
            head, body = await self._asked(frame)
        if "length" not in head:
            raise FilterFailed(head["detail"])
        prometheus.TAIL_FILTER_FAILURES.inc(head["failed"])
        return _where(batches, np.frombuffer(body, np.bool_))

    def close(self) -> None:
        """End its process."""
        if self._connection is not None:
            self._connection.close()

    async def _asked(self, frame: bytes) -> tuple[dict[str, Any], bytes]:
        connection, self._connection = self._connection or await self._begun(), None
        limits = self._processes.limits
        try:
            async with asyncio.timeout(limits.wall_s + 1):
                answer = await exchange(connection, frame)
            self._connection = connection  # it has answered all that it was asked
        except (OSError, TimeoutError) as error:
            raise FilterFailed(limits.passed) from error
        finally:
            if self._connection is None:
                connection.close()
        return answer

    async def _begun(self) -> socket.socket:
        with ExitStack() as opened:
            try:
                connection = opened.enter_context((await self._processes.parent()).begin(FILTER))
                await send_frame(connection, self._where.encode())
            except OSError as error:
                raise FilterFailed(str(error)) from error
            opened.pop_all()
            return connection


class RecordFilters:
    """The filters of one service. Belongs to the event loop."""

    def __init__(self, processes: BoundedProcesses, at_once: int) -> None:
        self._processes, self._at_once = processes, at_once
        self._filters: dict[tuple[str, str], RecordFilter] = {}

    def check_room(self, of: str, where: str) -> None:
        """Raises TooManyFilters where another filter would be one too many."""
        if (of, where) not in self._filters and len(self._filters) >= self._at_once:
            raise TooManyFilters(self._at_once)

    @contextmanager
    def shared(self, of: str, where: str) -> Iterator[RecordFilter]:
        """The filter of a condition over these records, as long as somebody has it. Raises TooManyFilters."""
        self.check_room(of, where)
        found = self._filters.setdefault((of, where), RecordFilter(self._processes, where))
        found.users += 1
        prometheus.TAIL_FILTERS.set(len(self._filters))
        try:
            yield found
        finally:
            found.users -= 1
            if not found.users:
                del self._filters[of, where]
                found.close()
            prometheus.TAIL_FILTERS.set(len(self._filters))


def _frame(batches: Sequence[pa.RecordBatch], columns: Sequence[str]) -> bytes:
    sink = pa.BufferOutputStream()
    read = [batch.select(columns) for batch in batches]
    with pa.ipc.new_stream(sink, read[0].schema) as writer:
        for batch in read:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def _where(batches: Sequence[pa.RecordBatch], is_true: np.ndarray[Any, np.dtype[np.bool_]]) -> list[pa.RecordBatch]:
    left, begin = [], 0
    for batch in batches:
        left.append(batch.filter(pa.array(is_true[begin : begin + batch.num_rows])))
        begin += batch.num_rows
    return left
