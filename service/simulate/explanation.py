"""Why a record came out or not: its task's records once more, through the same operators, to the answer.

It knows which records are asked for, how the task goes through all that went in (records, and advances of time in
between), and how the answer looks. It refuses to know where records come from, and what operators mean (`trails` reads
off what became of a record).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.simulate.task import SimulatedTask
from service.streams.errors import ExplanationTooLarge
from service.streams.expressions import evaluate_lenient
from service.streams.inputs import Input, InputPosition, Part, Unread, batch_of
from service.streams.operators.fields import admitted
from service.streams.operators.select_key import as_bytes
from service.streams.operators.step import OnError
from service.streams.records import RECORD_SCHEMA
from service.streams.stores.reading import Query, read, read_page
from service.streams.topology.chain import Chain
from service.streams.topology.graph import Topology, form_of
from service.streams.topology.trails import TimeMove, Times, Trail, WindowTrail

Int64s = npt.NDArray[np.int64]

MAX_FOLLOWED: Final = 100_000  # records that are asked for
SHOWN_RECORDS: Final = 100  # of them in an answer, the last ones
SHOWN_WINDOWS: Final = 100
SHOWN_UPDATES: Final = 1000  # of a window, the last ones
_FED_RECORDS: Final = 10_000  # at once
_MOST_ENTRIES: Final = 1000  # of a key, that a page of a store has

_WHY: Final[Mapping[str, str]] = {
    "no_record": "no record of the task has this key, and what else was asked for",
    "unread": "the task has not read the record yet",
    "several_inputs": "the task reads several inputs: the order in which it took these is not recorded",
    "not_recorded": "where the task began was not recorded: it is older than that, or goes on from another job's",
    "retention": "records that the task has read are gone: what it kept of them is not known",
    "repartitioned": "tasks that read several inputs go on with it: the order in which they took these is not recorded",
    "sliding": "some sliding windows had closed; whether it is in others does not show before these come out",
    "version_changed": "the task had begun with another version of the job when it read the record",
    "replayed": "dropped records had been taken in again when the task read the record",
}


class TaskToExplain(msgspec.Struct, frozen=True):
    """A task with one input, what went into it beside records, and who asks for what.

    `advances`: offsets in front of which time was moved, and why. `position`: how far the task has read; `known_to`: up
    to where all is said here, and why no further. `id`: an expression and the text that it has to give.
    """

    topology: dict[str, Any]
    sub_topology: int
    partition: int
    on_error: OnError
    begin: int
    position: int
    advances: Sequence[tuple[int, Literal["idle", "flush"]]] = ()
    skips: Sequence[int] = ()
    known_to: int | None = None
    ended_by: str | None = None
    key: bytes | None = None
    offset: int | None = None
    timestamp: int | None = None
    id: tuple[str, str] | None = None


def unknown(reason: str, why: str | None = None, known_from: int | None = None) -> dict[str, Any]:
    """The answer where nobody knows."""
    return {**_verdict("unknown", reason=reason), "why": why or _WHY[reason], "known_from": known_from, **_NO_RECORDS}


_NO_RECORDS: Final[Mapping[str, Any]] = {"record": None, "matched": 0, "records": [], "windows": []}


def explain(task: TaskToExplain, batches: Iterable[pa.RecordBatch], folder: Path) -> dict[str, Any]:
    """The answer. `batches`: the records of the task's input from `begin` on, in order: RECORD_SCHEMA behind `offset`.

    Raises OperatorFailed, ExplanationTooLarge.
    """
    with ExitStack() as opened:
        run = Rerun(task, folder, opened)
        for batch in batches:
            run.feed(batch)
        return run.answer()


class Rerun:
    """A task on its way once more, from where it began."""

    def __init__(self, task: TaskToExplain, folder: Path, opened: ExitStack) -> None:
        self._asked = task
        self._sub_topology = Topology.from_json(task.topology).sub_topologies[task.sub_topology]
        chain = Chain(self._sub_topology, task.on_error, keeps_passages=True)
        self._task = SimulatedTask.open(self._sub_topology, chain, task.partition, folder, opened)
        self._trail = Trail(self._sub_topology, task.key)
        self._input = Input(self._sub_topology.sources[0], task.partition)
        self._end = min(task.position, task.position if task.known_to is None else task.known_to)
        self._advances = deque(task.advances)
        self._at = InputPosition(task.begin)
        self._stamps: dict[int, int] = {}  # of all records, by offset
        self._matched: list[int] = []

    def feed(self, batch: pa.RecordBatch) -> None:
        """Records that the task has read, and some that it has not."""
        offsets = batch.column("offset").to_numpy()
        self._stamps.update(zip(offsets.tolist(), batch.column("timestamp").to_pylist(), strict=True))
        records = batch.select(RECORD_SCHEMA.names)
        found = offsets[self._is_asked_for(records, offsets)]
        self._matched += found.tolist()
        if len(self._matched) > MAX_FOLLOWED:
            raise ExplanationTooLarge(f"more than {MAX_FOLLOWED} records are asked for: say a timestamp or an offset")
        while len(offsets) and offsets[0] < self._end:
            self._advance(int(offsets[0]))
            until = min(self._end, self._advances[0][0]) if self._advances else self._end
            count = min(int(np.searchsorted(offsets, until)), _FED_RECORDS)
            self._trail.follow(np.intersect1d(found, offsets[:count]))
            self._run(records.slice(0, count), offsets[:count])
            records, offsets = records.slice(count), offsets[count:]

    def answer(self) -> dict[str, Any]:
        """What became of the last record that is asked for, and of those before it."""
        told = self.fates(SHOWN_RECORDS)
        if not told:
            return unknown("no_record", known_from=self._asked.begin)
        last = told[-1]
        windows = self.windows(last["timestamp"]) if last["verdict"] in ("in", "out") else []
        return {
            **{name: last[name] for name in ("verdict", "operator", "reason", "cause", "by_ms")},
            "why": _WHY[last["reason"]] if last["verdict"] == "unknown" else None,
            "known_from": self._asked.begin,
            "record": {"partition": self._asked.partition, "offset": last["offset"], "timestamp": last["timestamp"]},
            "matched": len(self._matched),
            "records": told,
            "windows": windows[-SHOWN_WINDOWS:],
        }

    def fates(self, most: int) -> list[dict[str, Any]]:
        """What became of the records that are asked for, of so many at most, the last ones."""
        self._advance(self._end)
        return [self._told(offset) for offset in self._matched[-most:]]

    def windows(self, timestamp: int) -> list[dict[str, Any]]:
        """The windows of the key that a time (ms) lies in."""
        return [self._window(each) for each in self._trail.windows(timestamp, self._stored_windows)]

    def _is_asked_for(self, records: pa.RecordBatch, offsets: Int64s) -> npt.NDArray[np.bool_]:
        asked, found = self._asked, np.ones(len(offsets), np.bool_)
        if asked.offset is not None:
            found &= offsets == asked.offset
        elif asked.key is not None:
            is_own = pc.equal(records.column("key"), pa.scalar(asked.key, pa.binary())).fill_null(False)
            found &= is_own.to_numpy(zero_copy_only=False)
        if asked.timestamp is not None:
            found &= records.column("timestamp").to_numpy() <= asked.timestamp
        if asked.id is not None and found.any():
            places = np.flatnonzero(found)
            results, _ = evaluate_lenient({"id": admitted(asked.id[0])}, records.take(pa.array(places)))
            is_same = pc.equal(as_bytes(results.column("id")), pa.scalar(asked.id[1].encode(), pa.binary()))
            found[places] = is_same.fill_null(False).to_numpy(zero_copy_only=False)
        return found

    def _run(self, records: pa.RecordBatch, offsets: Int64s) -> None:
        unread = Unread(self._input, self._at, int(offsets[-1]) + 1, [Part(records, offsets)])
        batch = batch_of([unread], [(0, offset) for offset in self._asked.skips])
        for result, _ in self._task.run(batch, lambda rows: int(rows.num_rows)):
            self._trail.note(result)
        [self._at] = batch.positions(batch.rows.num_rows)

    def _advance(self, position: int) -> None:
        """All advances of time in front of what comes at a position."""
        while self._advances and self._advances[0][0] <= position:
            at, reason = self._advances.popleft()
            for result in self._task.close(reason, [self._input]):
                self._trail.moved(result, at, reason)

    def _told(self, offset: int) -> dict[str, Any]:
        asked = self._asked
        said = {"offset": offset, "timestamp": self._stamps[offset]}
        if offset >= asked.position:
            return said | _verdict("unknown", reason="unread")
        if offset >= self._end:
            return said | _verdict("unknown", reason=_ENDED_BY[asked.ended_by])
        if offset in asked.skips:
            return said | _verdict("out", reason="skipped")
        fate = self._trail.fate(offset)
        if fate.verdict in _UNKNOWN:
            return said | _verdict("unknown", fate.operator, _UNKNOWN[fate.verdict])
        return said | _verdict(fate.verdict, fate.operator, fate.reason, self._cause(fate.cause), fate.by_ms)

    def _cause(self, move: TimeMove | None) -> dict[str, Any] | None:
        """An earlier record; or, where time moved without one, how far it went."""
        if move is None:
            return None
        if move.reason != "stream_time":
            return {"offset": None, "timestamp": move.time, "reason": move.reason}
        return {"offset": move.at, "timestamp": self._stamps[move.at], "reason": "record"}

    def _window(self, trail: WindowTrail) -> dict[str, Any]:
        updates = [{"offset": at, "timestamp": self._stamps[at]} for at in trail.updates[-SHOWN_UPDATES:].tolist()]
        finals = [{"operator": final.operator, "reason": final.reason, "offset": final.at} for final in trail.finals]
        return {
            "operator": trail.operator,
            "start": trail.start,
            "end": trail.end,
            "updated": len(trail.updates),
            "updates": updates,
            "closed": self._cause(trail.closed),
            "finals": finals,
        }

    @cached_property
    def _stored_windows(self) -> dict[str, list[Times]]:
        """By operator, those of the key that its store has."""
        found: dict[str, list[Times]] = {}
        key = self._asked.key
        for node in self._sub_topology.nodes if key is not None else ():
            if node.store is None or key is None or node.store.type == "key_value":
                continue
            with self._task.replicas[node.store.name].reader() as view:
                reading = read_page(form_of(node), Query.of_key(key), [self._asked.partition], _MOST_ENTRIES)
                page = read(reading, {self._asked.partition: view})
            found[node.name] = [item.entry.window for item in page.items if item.entry.window is not None]
        return found


_UNKNOWN: Final[Mapping[str, str]] = {"handed_on": "repartitioned", "unsure": "sliding"}
_ENDED_BY: Final[Mapping[str | None, str]] = {None: "unread", "adopt": "version_changed", "replay": "replayed"}


def _verdict(
    verdict: str,
    operator: str | None = None,
    reason: str | None = None,
    cause: dict[str, Any] | None = None,
    by_ms: int | None = None,
) -> dict[str, Any]:
    return {"verdict": verdict, "operator": operator, "reason": reason, "cause": cause, "by_ms": by_ms}
