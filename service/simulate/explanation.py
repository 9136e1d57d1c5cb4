"""Why a record came out or not: its task's records once more, through the same operators, to the answer.

It knows which records are asked for, how the task goes through all that went in (records, and advances of time in
between), and how the answer looks. It refuses to know where records come from, and what operators mean (`trails` reads
off what became of a record).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from service.simulate.settling import UNSETTLED, SettledFrom, Settling
from service.simulate.taken import TakenRecords
from service.simulate.task import SimulatedTask
from service.streams.clock import CloseReason
from service.streams.errors import ExplanationTooLarge
from service.streams.expressions import evaluate_lenient
from service.streams.inputs import Batch, Input, InputPosition, Part, Unread, batch_of
from service.streams.operators.fields import admitted
from service.streams.operators.select_key import as_bytes
from service.streams.operators.step import OnError
from service.streams.records import ALIGNED_AT_FIELD, RECORD_SCHEMA
from service.streams.stores.reading import Query, read, read_page
from service.streams.topology.chain import Chain, ChainResult
from service.streams.topology.graph import Topology, form_of
from service.streams.topology.trails import (
    MAX_OUTPUTS,
    Consequence,
    Fate,
    FinalResult,
    TimeMove,
    Times,
    Trail,
    WindowTrail,
)

Int64s = npt.NDArray[np.int64]

MAX_FOLLOWED: Final = 100_000  # records that are asked for
SHOWN_RECORDS: Final = 100  # of them in an answer, the last ones
SHOWN_WINDOWS: Final = 100
SHOWN_UPDATES: Final = 1000  # of a window, the last ones
_FED_RECORDS: Final = 10_000  # at once
NOWHERE: Final = 2**62  # the offset of no record
_MOST_ENTRIES: Final = 1000  # of a key, that a page of a store has

_WHY: Final[Mapping[str, str]] = {
    "no_record": "no record of the task has this key, and what else was asked for",
    "unread": "the task has not read the record yet",
    "several_inputs": "the order in which a task took records of several inputs, or of a repartition, is not recorded",
    "not_recorded": "where the task began was not recorded: it is older than that, or goes on from another job's",
    "retention": "records that the task has read are gone: what it kept of them is not known",
    "repartitioned": "tasks behind a repartition go on with it, and more would have to be run again for these than is",
    "sliding": "some sliding windows had closed; whether it is in others does not show before these come out",
    "version_changed": "the task had begun with another version of the job when it read the record",
    UNSETTLED: "more records have to be run again",
    "replayed": "dropped records had been taken in again when the task read the record",
}


class SeveralInputs(msgspec.Struct, frozen=True):
    """What a task read that has several inputs: (stream, partition) of each, and `asked`, the number of the one that is
    asked about. Places are offsets, one an input: where it began, where it stands, where the order of its records began
    anew, in front of what time was moved, and up to where all is said.
    """

    inputs: Sequence[tuple[str, int]]
    asked: int
    begin: Sequence[int]
    position: Sequence[int]
    orders: Sequence[Sequence[int]]
    advances: Sequence[tuple[Sequence[int], Literal["idle", "flush"]]]
    known_to: Sequence[int] | None


class TaskAgain(msgspec.Struct, frozen=True):
    """A task as it is run again beside others, for what it writes for them or reads of them. Places are those of
    `SeveralInputs`, of a repartition stream counts of records that were taken. `last`: of which `aligned_at` (ms) and
    input the last one was, where a repartition stream is among the inputs.
    """

    sub_topology: int
    partition: int
    inputs: Sequence[tuple[str, int]]
    begin: Sequence[int]
    position: Sequence[int]
    orders: Sequence[Sequence[int]] = ()
    advances: Sequence[tuple[Sequence[int], Literal["idle", "flush"]]] = ()
    skips: Sequence[int] = ()
    last: tuple[int, int] | None = None


class TaskToExplain(msgspec.Struct, frozen=True):
    """A task with one input, what went into it beside records, and who asks for what. `several`: it has several; what
    is said of the one is for nothing then, `offset` apart.

    `advances`: offsets in front of which time was moved, and why. `position`: how far the task has read; `known_to`: up
    to where all is said here, and why no further. `id`: an expression and the text that it has to give. `tasks`: all
    of the job, each behind those whose results it reads; what is said here of this one's history is for nothing then.
    `before`: the run begins behind where the task did, and no record before it has a later time (ms).
    """

    topology: dict[str, Any]
    sub_topology: int
    stream: str
    partition: int
    on_error: OnError
    begin: int = 0
    position: int = 0
    advances: Sequence[tuple[int, Literal["idle", "flush"]]] = ()
    skips: Sequence[int] = ()
    known_to: int | None = None
    ended_by: str | None = None
    key: bytes | None = None
    offset: int | None = None
    timestamp: int | None = None
    id: tuple[str, str] | None = None
    several: SeveralInputs | None = None
    tasks: Sequence[TaskAgain] = ()
    before: int | None = None


class WhyUnknown(NamedTuple):
    """Why nobody knows, and of which task or record that is so."""

    reason: str
    where: str = ""

    @property
    def why(self) -> str:
        """In words."""
        return f"{_WHY[self.reason]}: {self.where}" if self.where else _WHY[self.reason]


def unknown(reason: str, where: str = "", known_from: int | None = None) -> dict[str, Any]:
    """The answer where nobody knows."""
    why = WhyUnknown(reason, where).why
    return {**_verdict("unknown", reason=reason), "why": why, "known_from": known_from, **_NO_RECORDS}


def is_handed_on(answer: Mapping[str, Any]) -> bool:
    """Whether tasks behind a repartition go on with a record, of whom nothing is said."""
    return any(each["reason"] == "repartitioned" for each in (answer, *answer["records"]))


def said_no_further(before: Mapping[str, Any], reason: str, why: str) -> dict[str, Any]:
    """An answer where nobody knows what became of records that tasks behind a repartition go on with, and why not."""
    records = [each | ({"reason": reason} if each["reason"] == "repartitioned" else {}) for each in before["records"]]
    if before["reason"] != "repartitioned":
        return {**before, "records": records}
    return {**before, "reason": reason, "why": why, "records": records}


def shortened(answer: dict[str, Any]) -> dict[str, Any]:
    """As much of an answer as is shown, and of which of its lists there is more."""
    shown = {
        "records": answer["records"][-SHOWN_RECORDS:],
        "outputs": answer["outputs"][:MAX_OUTPUTS],
        "windows": answer["windows"][-SHOWN_WINDOWS:],
    }
    there = {name: len(answer[name]) for name in shown} | {"records": answer["matched"]}
    return {**answer, **shown, "cut": [name for name, each in shown.items() if len(each) < there[name]]}


NO_PLACE: Final[Mapping[str, Any]] = {"stream": None, "partition": None, "offset": None}
_NO_RECORDS: Final[Mapping[str, Any]] = {
    "record": None,
    "matched": 0,
    "path": [],
    "outputs": [],
    "records": [],
    "windows": [],
    "cut": [],
}


def explain(task: TaskToExplain, batches: Iterable[pa.RecordBatch], folder: Path) -> dict[str, Any]:
    """The answer. `batches`: the records of the task's input from `begin` on, in order: RECORD_SCHEMA behind `offset`;
    of several inputs those of each, with its number in the metadata.

    Raises OperatorFailed, ExplanationTooLarge.
    """
    with ExitStack() as opened:
        if task.several is None:
            run = Rerun(task, folder, opened)
        else:
            read_to = [*task.several.orders, task.several.position]
            taken = TakenRecords.of(len(task.several.inputs), batches, read_to)
            run, batches = Rerun(in_one(task, task.several, taken), folder, opened, taken), taken.batches()
        for batch in batches:
            run.feed(batch)
        return shortened(run.answer())


def in_one(task: TaskToExplain, several: SeveralInputs, taken: TakenRecords) -> TaskToExplain:
    """A task with several inputs as one whose input they are together: offsets are the numbers of records."""
    offset = None if task.offset is None else taken.number_of(several.asked, task.offset)
    return msgspec.structs.replace(
        task,
        begin=0,
        position=taken.before(several.position),
        advances=[(taken.before(place), reason) for place, reason in several.advances],
        known_to=None if several.known_to is None else taken.before(several.known_to),
        offset=NOWHERE if task.offset is not None and offset is None else offset,
    )


class Rerun:
    """A task on its way once more, from where it began. `taken`: where its records lie, if it has several inputs."""

    def __init__(self, task: TaskToExplain, folder: Path, opened: ExitStack, taken: TakenRecords | None = None) -> None:
        self._asked, self._taken = task, taken
        self._sub_topology = Topology.from_json(task.topology).sub_topologies[task.sub_topology]
        chain = Chain(self._sub_topology, task.on_error, keeps_passages=True)
        self._task = SimulatedTask.open(self._sub_topology, chain, task.partition, folder, opened)
        self._trail = Trail(self._sub_topology, task.key)
        self._input = Input(self._sub_topology.sources[0], task.partition)
        self._end = min(task.position, task.position if task.known_to is None else task.known_to)
        is_whole = task.before is None
        self._settling = None if is_whole else Settling.of(self._sub_topology, task.on_error)
        self._advances = deque(each for each in task.advances if is_whole or each[0] > task.begin)
        self._settled: SettledFrom | None = None
        self._at = InputPosition(task.begin)
        self._stamps: dict[int, int] = {}  # of all records, by offset
        self.matched: list[int] = []
        self.chosen: Int64s | None = None  # who is asked for, whatever else is
        self.shown: Int64s | None = None  # whose outputs are kept; else those of the last one are
        self.heard: Callable[[ChainResult, Batch, CloseReason | None], None] = lambda *_: None
        self.place: Callable[[int], Mapping[str, Any]] = self._own_place
        self.onward: Callable[[Fate, int], list[dict[str, Any]]] = lambda *_: []

    def feed(self, batch: pa.RecordBatch) -> None:
        """Records that the task has read, and some that it has not."""
        offsets = batch.column("offset").to_numpy()
        self._stamps.update(zip(offsets.tolist(), batch.column("timestamp").to_pylist(), strict=True))
        records, at = batch.select(RECORD_SCHEMA.names), batch.schema.get_field_index(ALIGNED_AT_FIELD.name)
        reached = None if at < 0 else batch.column(at).to_numpy()
        found = offsets[self._is_asked_for(records, offsets)]
        self.matched += found.tolist()
        if len(self.matched) > MAX_FOLLOWED:
            raise ExplanationTooLarge(f"more than {MAX_FOLLOWED} records are asked for: say a timestamp or an offset")
        while len(offsets) and offsets[0] < self._end:
            self._advance(int(offsets[0]))
            until = min(self._end, self._advances[0][0]) if self._advances else self._end
            count = min(int(np.searchsorted(offsets, until)), _FED_RECORDS)
            self._trail.follow(np.intersect1d(found, offsets[:count]), self.shown)
            self._run(records.slice(0, count), offsets[:count], None if reached is None else reached[:count])
            records, offsets = records.slice(count), offsets[count:]
            reached = None if reached is None else reached[count:]

    def answer(self) -> dict[str, Any]:
        """What became of the last record that is asked for, and of those before it; not `shortened` yet."""
        fates = self.fates(SHOWN_RECORDS)
        if self._asked.before is not None and not self._is_settled():
            return unknown(UNSETTLED)
        if self._settled is not None:
            fates = fates[-len(self.matched) :]
        if not fates:
            return unknown("no_record", known_from=self._known_from)
        last, at = fates[-1], self.matched[-1]
        windows = self.windows(last["timestamp"]) if last["verdict"] in ("in", "out") else []
        return {
            **{name: last[name] for name in ("verdict", "operator", "reason", "cause", "by_ms")},
            "why": _WHY[last["reason"]] if last["verdict"] == "unknown" else None,
            "known_from": self._known_from,
            "record": {name: self._place(at)[name] for name in ("partition", "offset", "timestamp")},
            "matched": len(self.matched),
            "path": self.path(at) if self.is_run(at) else [],
            "outputs": self.outputs(at),
            "records": fates,
            "windows": windows,
        }

    def fates(self, most: int) -> list[dict[str, Any]]:
        """What became of the records that are asked for, of so many at most, the last ones."""
        self.finish()
        return [self._fate(offset) for offset in self.matched[-most:]]

    def _is_settled(self) -> bool:
        """Whether a run that did not begin where its task did knows of the last record that is asked for what one from
        there would. Only of such records it tells.
        """
        asked = self._asked
        if self._settling is None or not self.matched:
            return False
        places = [at for at, _ in asked.advances]
        found = self._settling.settled(asked.key, asked.before or 0, places, asked.begin)
        if found is None or self.matched[-1] < found.offset or self._stamps[self.matched[-1]] <= found.time:
            return False
        self._settled = found
        self.matched = [offset for offset in self.matched if offset >= found.offset]
        return True

    def finish(self) -> None:
        """Nothing comes any more but advances of time."""
        self._advance(self._end)

    @property
    def last(self) -> int | None:
        """The last record that is asked for."""
        return self.matched[-1] if self.matched else None

    def is_run(self, offset: int) -> bool:
        """Whether the operators were given a record."""
        return offset < self._end and offset not in self._asked.skips

    def path(self, offset: int) -> list[dict[str, Any]]:
        """The operators that a record reached."""
        return [each._asdict() for each in self._trail.path(offset)]

    def outputs(self, offset: int) -> list[dict[str, Any]]:
        """What came out because of a record."""
        return [_output(each) for each in self._trail.outputs(offset)]

    def handed_on(self, offset: int) -> list[str]:
        """The repartition streams by which tasks of other sub-topologies go on with a record."""
        fates = self._trail.fates(offset) if self.is_run(offset) else []
        return [each.stream for each in fates if each.stream is not None]

    def windows(self, timestamp: int) -> list[dict[str, Any]]:
        """The windows of the key that a time (ms) lies in."""
        return [self._window(each) for each in self._trail.windows(timestamp, self._stored_windows)]

    def _is_asked_for(self, records: pa.RecordBatch, offsets: Int64s) -> npt.NDArray[np.bool_]:
        if self.chosen is not None:
            return np.isin(offsets, self.chosen)
        asked, found = self._asked, np.ones(len(offsets), np.bool_)
        if self._taken is not None and asked.several is not None:
            found &= self._taken.inputs[offsets] == asked.several.asked
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

    def _run(self, records: pa.RecordBatch, offsets: Int64s, reached: Int64s | None) -> None:
        unread = Unread(self._input, self._at, int(offsets[-1]) + 1, [Part(records, offsets, reached)])
        batch = batch_of([unread], [(0, offset) for offset in self._asked.skips])
        for result, run in self._task.run(batch, lambda rows: int(rows.num_rows)):
            self._trail.note(result)
            if self._settling is not None:
                self._settling.note(result)
            self.heard(result, run, None)
        [self._at] = batch.positions(batch.rows.num_rows)

    def _advance(self, position: int) -> None:
        """All advances of time in front of what comes at a position."""
        while self._advances and self._advances[0][0] <= position:
            at, reason = self._advances.popleft()
            nothing = batch_of([Unread(self._input, self._at, self._at.offset, [])])
            for result in self._task.close(reason, [self._input]):
                self._trail.moved(result, at, reason)
                self.heard(result, nothing, reason)

    def verdicts(self, offset: int) -> list[dict[str, Any]]:
        """What became of a record, on each of its ways."""
        asked = self._asked
        if offset >= asked.position:
            return [_verdict("unknown", reason="unread")]
        if offset >= self._end:
            return [_verdict("unknown", reason=_ENDED_BY[asked.ended_by])]
        if offset in asked.skips:
            return [_verdict("out", reason="skipped")]
        return [each for fate in self._trail.fates(offset) for each in self._verdicts_of(fate, offset)]

    def _verdicts_of(self, fate: Fate, offset: int) -> list[dict[str, Any]]:
        if fate.verdict in _UNKNOWN:
            found = self.onward(fate, offset) if fate.verdict == "handed_on" else []
            return found or [_verdict("unknown", fate.operator, _UNKNOWN[fate.verdict])]
        return [_verdict(fate.verdict, fate.operator, fate.reason, self._cause(fate.cause), fate.by_ms)]

    def _fate(self, offset: int) -> dict[str, Any]:
        """Where it came out, or is kept, on one of its ways, it did; where nobody knows that of one, nobody knows."""
        said = {name: self._place(offset)[name] for name in ("offset", "timestamp")}
        return said | min(self.verdicts(offset), key=_rank)

    def _cause(self, move: TimeMove | None) -> dict[str, Any] | None:
        """An earlier record; or, where time moved without one, how far it went."""
        if move is None:
            return None
        if move.reason != "stream_time":
            return {**NO_PLACE, "timestamp": move.time, "reason": move.reason}
        return dict(self.place(move.at))

    def _place(self, at: int) -> dict[str, Any]:
        """Where a record of a user's stream lies by which one here came about, and its time."""
        return {name: value for name, value in self.place(at).items() if name != "reason"}

    def _own_place(self, at: int) -> Mapping[str, Any]:
        asked, taken = self._asked, self._taken
        if taken is None or asked.several is None:
            where: tuple[str, int, int] = asked.stream, asked.partition, at
        else:
            where = *asked.several.inputs[taken.inputs[at]], int(taken.offsets[at])
        return {**dict(zip(NO_PLACE, where, strict=True)), "timestamp": self._stamps[at], "reason": "record"}

    @property
    def _known_from(self) -> int:
        several = self._asked.several
        if self._settled is not None:
            return self._settled.offset
        return self._asked.begin if several is None else several.begin[several.asked]

    def _window(self, trail: WindowTrail) -> dict[str, Any]:
        updates = [self._place(at) for at in trail.updates[-SHOWN_UPDATES:].tolist()]
        finals = [self._final(each) for each in trail.finals]
        return {
            "operator": trail.operator,
            "start": trail.start,
            "end": trail.end,
            "updated": len(trail.updates),
            "updates": updates,
            "closed": self._cause(trail.closed),
            "closes_at": trail.closes_at,
            "stream_time": trail.stream_time if trail.stream_time >= 0 else None,
            "finals": finals,
        }

    def _final(self, final: FinalResult) -> dict[str, Any]:
        place = NO_PLACE if final.at is None else self._place(final.at)
        where = {name: place[name] for name in NO_PLACE}
        return {"operator": final.operator, "reason": final.reason, **where, "value": _json(final.value)}

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


def _output(output: Consequence) -> dict[str, Any]:
    """A record that came out, as an answer shows it."""
    row, window = output.row, None
    if row["window_start"] is not None:
        window = {"start": row["window_start"], "end": row["window_end"]}
    key = None if row["key"] is None else row["key"].decode("utf-8", "replace")
    shown = {"stream": output.stream, "timestamp": row["timestamp"], "key": key, "value": _json(row["value"])}
    return {**shown, "window": window}


def _json(text: str | None) -> orjson.Fragment | None:
    return None if text is None else orjson.Fragment(text)


def _rank(verdict: Mapping[str, Any]) -> int:
    """Which of several ways says what became of a record."""
    by_verdict: Mapping[str, int] = {"in": 0, "unknown": 1 + (verdict["reason"] == "sliding"), "out": 3}
    return by_verdict[verdict["verdict"]]


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
