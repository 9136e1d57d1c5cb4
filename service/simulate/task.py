"""One task of a simulation: a chain and its replicas, fed and replayed in one thread.

It knows how a batch becomes results and state; it refuses to know what the operators mean, and it uses no catalog, no
segments and no Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import pyarrow as pa

from service.storage.replica import Replica
from service.streams import clock
from service.streams.clock import CloseReason
from service.streams.inputs import Batch, Input, Origins
from service.streams.records import StateReader
from service.streams.stores.reading import Entry, Form, Place, Query, Snapshot, read, read_page
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.graph import Node, SubTopology, form_of

_PAGE_ITEMS: Final = 1000


@dataclass(slots=True)
class SimulatedTask:
    """One partition's share of a sub-topology, and how far its stream time is (ms)."""

    partition: int
    chain: Chain
    replicas: dict[str, Replica]
    stream_time: int = clock.NOT_STARTED

    @classmethod
    def open(
        cls, sub_topology: SubTopology, chain: Chain, partition: int, folder: Path, opened: ExitStack
    ) -> SimulatedTask:
        """A task with empty stores below `folder`, closed with `opened`."""
        replicas = {}
        for store in sub_topology.stores():
            path = folder / store.name / str(partition)
            replicas[store.name] = Replica.open(path, store, store.name, "simulation", is_lasting=False)
            opened.callback(replicas[store.name].close)
        return cls(partition, chain, replicas)

    def run(self, batch: Batch, fitting: Callable[[pa.RecordBatch], int]) -> Iterator[tuple[ChainResult, Batch]]:
        """Results of a batch, each with what was run of it, replayed before they are given; as many as it takes.

        `fitting`: how many of some rows may go in at once.
        """
        while batch.rows.num_rows:
            first = replace(batch, rows=batch.rows.slice(0, fitting(batch.rows)))
            with self._states() as states:
                result = self.chain.run(first, states)
            self.stream_time = max(self.stream_time, result.stream_time)
            self._replay(result.changes)
            yield result, batch
            yield from ((more, batch) for more in self._backlog(batch.origins.inputs))
            batch = batch.rest(result.taken)

    def advance(self, to: int, inputs: Sequence[Input]) -> Iterator[ChainResult]:
        """Results of moving stream time to `to` (ms). `inputs`: all that it reads.

        Where that closes all that is open, it does what a flush of the job does: also closes, in each operator, what
        those before it let go.
        """
        origins = Origins.none(inputs)
        self.stream_time = max(self.stream_time, to)
        with self._states() as states:
            last, result = self.chain.horizon(states), self.chain.advance(to, states, "flush", origins)
        yield from self._moved(result, inputs)
        while last is None or last <= to:
            found = list(self.close("flush", inputs))
            if not found:
                return
            yield from found

    def close(self, reason: CloseReason, inputs: Sequence[Input]) -> Iterator[ChainResult]:
        """Results of closing what is open, each operator in turn, as a commit does that closes without a record."""
        with self._states() as states:
            if self.chain.horizon(states) is None:
                return
            result = self.chain.close(states, reason, Origins.none(inputs))
        yield from self._moved(result, inputs)

    def _moved(self, result: ChainResult, inputs: Sequence[Input]) -> Iterator[ChainResult]:
        self.stream_time = max(self.stream_time, result.stream_time)
        self._replay(result.changes)
        yield result
        yield from self._backlog(inputs)

    def entries(self, node: Node) -> Iterator[list[Entry]]:
        """The live entries of an operator's store in its order, page by page."""
        if node.store is not None:
            with self.replicas[node.store.name].reader() as view:
                yield from _entries(form_of(node), self.partition, view)

    def _backlog(self, inputs: Sequence[Input]) -> Iterator[ChainResult]:
        """Results that operators still owe of earlier batches."""
        while True:
            with self._states() as states:
                if not self.chain.has_backlog(states):
                    return
                result = self.chain.go_on(states, Origins.none(inputs))
            self.stream_time = max(self.stream_time, result.stream_time)
            self._replay(result.changes)
            yield result

    def _replay(self, changes: dict[str, pa.RecordBatch]) -> None:
        """Apply committed changes, as everywhere."""
        for store, batch in changes.items():
            replica = self.replicas[store]
            replica.apply(replica.position, replica.position + batch.num_rows, batch)

    @contextmanager
    def _states(self) -> Iterator[dict[str, StateReader]]:
        with ExitStack() as views:
            yield {name: views.enter_context(replica.reader()) for name, replica in self.replicas.items()}


def _entries(form: Form, partition: int, view: Snapshot) -> Iterator[list[Entry]]:
    after: Place | None = None
    while True:
        page = read(read_page(form, Query(), [partition], _PAGE_ITEMS, after), {partition: view})
        yield [found.entry for found in page.items]
        after = page.next
        if after is None:
            return
