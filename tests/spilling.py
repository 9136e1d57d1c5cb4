"""One run of a suppress that holds back much, in a process of its own: what came out, and how much memory it took.

A program: it feeds batches of distinct keys into one window, over replicas on disk as a slot does it, then closes the
window. Writes JSON: `outputs` (SHA-256 of all of them in order), `records`, `steps` at the close, and RssAnon in bytes
at rest, at its highest while feeding (`feeding`) and while closing (`closing`).
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from service.storage.replica import Replica
from service.streams.inputs import Batch
from service.streams.kernels import warm
from service.streams.records import StateReader
from service.streams.topology.chain import Chain
from spark_jobs import memory
from tests.task import NOTHING, batch_of, job

VALUE_BYTES = 4_000
BATCH_RECORDS = 100
WINDOW_MS = 1_000_000
COUNT = {
    "op": "aggregate",
    "name": "latest",
    "window": {"type": "tumbling", "size_ms": WINDOW_MS},
    "aggregates": {"v": {"fn": "last", "of": "value->>'v'"}},
}


def anonymous_bytes() -> int:
    """RssAnon of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise LookupError("RssAnon")


@dataclass
class Run:
    """A task over replicas in `folder`."""

    chain: Chain
    replicas: dict[str, Replica]
    digest: hashlib._Hash = field(default_factory=hashlib.sha256)
    records: int = 0
    highest: int = 0

    def take(self, batch: Batch) -> int:
        """Feed a batch, and go on until nothing is left to do; in how many steps."""
        steps = taken = 0
        while taken < batch.rows.num_rows:
            batch, steps = batch.rest(taken), steps + 1
            taken = self._step(batch)
            while self._has_backlog():
                self._step(None)
                steps += 1
        return steps

    def _has_backlog(self) -> bool:
        with self._states() as states:
            return self.chain.has_backlog(states)

    def _step(self, batch: Batch | None) -> int:
        """A batch, or what is still to be done; how many records of it were taken."""
        with self._states() as states:
            result = self.chain.go_on(states, NOTHING) if batch is None else self.chain.run(batch, states)
        [(_, out)] = result.outputs
        self.highest = max(self.highest, anonymous_bytes())
        for name, changes in result.changes.items():
            replica = self.replicas[name]
            replica.apply(replica.position, replica.position + changes.num_rows, changes)
        self.highest = max(self.highest, anonymous_bytes())
        self.records += out.num_rows
        for row in out.to_pylist():
            self.digest.update(repr(row).encode())
        return result.taken

    @contextmanager
    def _states(self) -> Iterator[dict[str, StateReader]]:
        with ExitStack() as views:
            yield {name: views.enter_context(replica.reader()) for name, replica in self.replicas.items()}


def main() -> None:
    """Arguments: a folder, how many records, the buffer (JSON)."""
    folder, count, buffer = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    warm()
    topology = job([COUNT, {"op": "suppress", "name": "final", "until": "window_closes", "buffer": buffer}])
    replicas = {store.name: Replica.open(folder / store.name, store, store.name, "l") for store in topology.stores()}
    run = Run(Chain(topology.sub_topologies[0], "fail"), replicas)
    memory.hand_back()
    at_rest = anonymous_bytes()
    for first in range(0, count, BATCH_RECORDS):
        numbers = range(first, min(first + BATCH_RECORDS, count))
        run.take(batch_of([_record(number) for number in numbers], first))
    memory.hand_back()
    feeding, run.highest = run.highest, 0
    steps = run.take(batch_of([{"key": "tick", "value": {"v": ""}, "timestamp": WINDOW_MS}], count))
    told = {"outputs": run.digest.hexdigest(), "records": run.records, "steps": steps}
    sys.stdout.write(json.dumps({**told, "at_rest": at_rest, "feeding": feeding, "closing": run.highest}))


def _record(number: int) -> dict[str, object]:
    text = f"{number:06}" * (VALUE_BYTES // 6)
    return {"key": f"k{number * 7919 % 1_000_003}", "value": {"v": text}, "timestamp": number}


if __name__ == "__main__":
    main()
