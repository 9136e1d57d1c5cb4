"""Beats: a small load that goes on through a job whatever happens to it, and how long each task kept it waiting.

Knows when each beat was posted and when its result could be read. Refuses to know what happens meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from types import TracebackType
from typing import Any, Final, Self

from benchmarks.events import key_in
from benchmarks.running import Running, wait_until

Record = dict[str, Any]
WAIT_MS: Final = 500  # of a reader at the end
MEASURED: Final = "-0"  # the end of the id of a beat's first record in a partition


class Beats:
    """Posts `at_once` records to each partition of `source`, every `every_s`, and follows `sink`; a context manager, at
    whose end every result is there. All moments are of the wall clock (s).

    The job between them keeps keys and values, and lets each `value.id` through once. Timestamps (ms) rise from
    `start_ms` on, which is later than all that is in the sink.
    """

    def __init__(
        self,
        running: Running,
        source: str,
        sink: str,
        *,
        partitions: int,
        start_ms: int,
        every_s: float = 0.05,
        at_once: int = 1,
    ) -> None:
        self._running, self._source, self._sink = running, source, sink
        self._start_ms, self._every_s, self._at_once = start_ms, every_s, at_once
        self._keys = [key_in(partition, partitions, "beat-") for partition in range(partitions)]
        self.records: list[Record] = []  # in the order in which they were posted
        self._posted_s: dict[tuple[int, str], float] = {}
        self._seen_s: dict[str, float] = {}
        self._is_enough, self._has_ended = threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(2)
        self._running_threads: list[Future[None]] = []

    def __enter__(self) -> Self:
        self._running_threads = [self._threads.submit(self._post), self._threads.submit(self._follow)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_enough.set()
        try:
            self._running_threads[0].result()
            if error is None:
                wait_until(self._is_all_there, "the results of all beats")
        finally:
            self._has_ended.set()
            self._threads.shutdown()
        self._running_threads[1].result()

    def wait_for_results(self, beats: int) -> None:
        """Until so many beats have come out of each partition. Raises TimeoutError."""
        wait_until(lambda: len(self._seen_s) >= beats * len(self._keys), f"{beats} beats")

    def waits_s(self, partition: int, since_s: float, until_s: float) -> list[float]:
        """How long each beat that was posted then waited for its result; those that wait still have none."""
        posted = [(each, at) for (of, each), at in self._posted() if of == partition]
        return [self._seen_s[each] - at for each, at in posted if since_s <= at <= until_s and each in self._seen_s]

    def first_result_s(self, partition: int, *, posted_after_s: float, read_after_s: float) -> float | None:
        """When the first result of a beat that was posted after one moment was read after another; None: not yet."""
        posted = [each for (of, each), at in self._posted() if of == partition and at >= posted_after_s]
        seen = [at for each in posted if (at := self._seen_s.get(each)) is not None]
        return min((at for at in seen if at >= read_after_s), default=None)

    def _posted(self) -> list[tuple[tuple[int, str], float]]:
        """What was posted so far. Of a copy, for a dictionary that grows meanwhile may refuse to be walked through."""
        return list(self._posted_s.copy().items())

    def _post(self) -> None:
        for number in count():
            records = list(self._beat(number))
            at = time.time()
            for partition in range(len(self._keys)):
                self._posted_s[partition, f"{self._start_ms}-{number}-{partition}{MEASURED}"] = at
            self._running.call("POST", f"/v1/streams/{self._source}/records", json={"records": records})
            self.records += records
            if self._is_enough.wait(self._every_s):
                return

    def _beat(self, number: int) -> Iterator[Record]:
        at_ms = self._start_ms + round(number * self._every_s * 1000)
        for partition, key in enumerate(self._keys):
            for i in range(self._at_once):
                yield {"key": key, "value": {"id": f"{self._start_ms}-{number}-{partition}-{i}"}, "timestamp": at_ms}

    def _follow(self) -> None:
        where: dict[str, Any] = {"from_timestamp": self._start_ms}
        while not self._has_ended.is_set():
            query = where | {"limit": 5_000, "wait_ms": WAIT_MS}
            page = self._running.call("GET", f"/v1/streams/{self._sink}/records", params=query)
            at = time.time()
            for each in (record["value"]["id"] for record in page["records"]):
                if each.endswith(MEASURED):
                    self._seen_s.setdefault(each, at)
            where = {"cursor": page["next"]}

    def _is_all_there(self) -> bool:
        if self._running_threads[1].done():
            self._running_threads[1].result()
        return all(each in self._seen_s for _, each in self._posted_s)
