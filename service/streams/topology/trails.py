"""What became of records, and why: read off what passed the operators of one task that takes one input.

It knows which operators a record passed, which of them it is in, which let it go, because of which earlier record and
by how many ms; and of the windows of a key which records are in them and what closed them. It refuses to know what any
operator does with a record (operators say what they drop), and where records and advances of time come from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import TypeAdapter

from service.streams import clock
from service.streams.clock import END_OF_TIME, NOT_STARTED, CloseReason, saturated
from service.streams.inputs import NO_CAUSE, Origins
from service.streams.layouts.reserved import OBS_KEY, time_in
from service.streams.operators import AnyOperator, StatefulSpec
from service.streams.operators.closing import CLOSED_BY
from service.streams.operators.windows import (
    HoppingWindow,
    SessionWindow,
    SlidingWindow,
    TimeWindow,
    TumblingWindow,
    closing_delay_ms,
    starts_at,
)
from service.streams.records import Dropped
from service.streams.topology.chain import ChainResult, Passed
from service.streams.topology.graph import Node, SubTopology, gate_name

Int64s = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Times = tuple[int, int]  # start, end of a window

MAX_OUTPUTS: Final = 100  # of a record
FILTERED: Final = "filtered"  # why a record is out that an operator let go without a word
_OF_WINDOWS: Final = frozenset({"late", "closed_idle", "before_version"})
"""Reasons for which a record is dropped once per window that does not take it."""
_IN_TIME: Final = _OF_WINDOWS | {"duplicate", "key_too_long"}
"""Reasons of records that move stream time all the same."""
_NONE: Final[frozenset[str]] = frozenset()
_SPECS: TypeAdapter[Any] = TypeAdapter(AnyOperator)
_NOTHING: Final = np.empty(0, np.int64)


class TimeMove(NamedTuple):
    """What took an operator's stream time to `time` (ms): the record at the offset `at`; or, with another reason than
    `stream_time`, nobody's, in front of that offset.
    """

    time: int
    at: int
    reason: CloseReason


class Fate(NamedTuple):
    """What became of a record. `operator`: which it is in, or which let it go, for a `reason`; None: it came out.

    `cause`: because of whom it is out, `by_ms`: by how many ms; None where that is no matter of others, or of time.
    `handed_on`: tasks of another sub-topology go on with it, who read `stream`. `unsure`: some sliding windows did not
    take it; whether others did does not show.
    """

    verdict: Literal["in", "out", "handed_on", "unsure"]
    operator: str | None = None
    reason: str | None = None
    cause: TimeMove | None = None
    by_ms: int | None = None
    stream: str | None = None


class Station(NamedTuple):
    """An operator that a record reached: it `passed`, is `kept` in it, or was `dropped` there, for a `reason`."""

    operator: str
    outcome: Literal["passed", "kept", "dropped"]
    reason: str | None = None


class Consequence(NamedTuple):
    """What came out because of a record: into which stream, and the row (RECORD_SCHEMA)."""

    stream: str
    row: Mapping[str, Any]


class FinalResult(NamedTuple):
    """A final result of a window: which operator let it go, why, by which record (None: by none), and its value (JSON
    text).
    """

    operator: str
    reason: str
    at: int | None
    value: str | None


class WindowTrail(NamedTuple):
    """A window of a key: the offsets of the records in it, in their order; what closed it (None: it is open); the
    stream time (ms) that closes it, None where none does, and the one that there is now.
    """

    operator: str
    start: int
    end: int
    updates: Int64s
    closed: TimeMove | None
    closes_at: int | None
    stream_time: int
    finals: list[FinalResult]


class _Drop(NamedTuple):
    reason: str
    cause: TimeMove | None
    by_ms: int | None


@dataclass(slots=True)
class _Steps:
    """Of a record at an operator: its time there (ms), how many of its rows left, and how they were dropped."""

    timestamp: int = NOT_STARTED
    left: int = 0
    drops: list[_Drop] = field(default_factory=list)


class _Moves:
    """How stream time came about: each move further, in order."""

    def __init__(self) -> None:
        self.time = NOT_STARTED
        self._times: list[Int64s] = []
        self._ats: list[Int64s] = []
        self._reasons: list[CloseReason] = []

    def by_rows(self, times: Int64s, words: Int64s) -> tuple[Int64s, Int64s]:
        """Rows move it. Per row: stream time as it sees it, and the place among all moves of the last one then."""
        running = clock.observe(self.time, times)
        raised = np.flatnonzero(running > np.append(self.time, running[:-1])) if len(running) else _NOTHING
        before = sum(map(len, self._times))
        places = before + np.searchsorted(raised, np.arange(len(times)), "right") - 1
        if len(raised):
            self._note(running[raised], words[raised], "stream_time")
        return running, places

    def by_hand(self, time: int, position: int, reason: CloseReason) -> None:
        """It is moved in front of an offset."""
        if time > self.time:
            self._note(np.array([time]), np.array([position]), reason)

    def first(self, time: int) -> TimeMove | None:
        """The one by which stream time first was so far."""
        for times, ats, reason in zip(self._times, self._ats, self._reasons, strict=True):
            if times[-1] >= time:
                i = int(np.searchsorted(times, time))
                return TimeMove(int(times[i]), int(ats[i]), reason)
        return None

    def at(self, place: int) -> TimeMove | None:
        """The one at a place among all."""
        for times, ats, reason in zip(self._times, self._ats, self._reasons, strict=True):
            if 0 <= place < len(times):
                return TimeMove(int(times[place]), int(ats[place]), reason)
            place -= len(times)
        return None

    def _note(self, times: Int64s, ats: Int64s, reason: CloseReason) -> None:
        self._times.append(times)
        self._ats.append(ats)
        self._reasons.append(reason)
        self.time = int(times[-1])


class _Watched:
    """An operator with windows, as a trail sees it: its stream time, and of one key the records that it took (`ats`,
    `stamps`) and the windows that came out of it.
    """

    def __init__(self, window: TimeWindow | SlidingWindow | SessionWindow) -> None:
        self.window = window
        self.moves, self.by_records = _Moves(), _Moves()
        self.ats: list[Int64s] = []
        self.stamps: list[Int64s] = []
        self.windows: dict[Times, None] = {}

    @property
    def is_end_inclusive(self) -> bool:
        return isinstance(self.window, SessionWindow | SlidingWindow)

    def closes_at(self, end: int) -> int | None:
        """The stream time (ms) that closes a window; None: none does."""
        time = saturated(end, closing_delay_ms(self.window), int(self.is_end_inclusive))
        return time if time < END_OF_TIME else None

    def closed(self, end: int) -> TimeMove | None:
        """What closed a window."""
        time = self.closes_at(end)
        return None if time is None else self.moves.first(time)

    def updates(self, times: Times, known: Iterable[Times]) -> Int64s:
        """The offsets of the records in a window: what came of its time before it closed. `known`: all windows of the
        key. A session may grow over one that has closed: it does not have the records of that.
        """
        ats, closed = np.concatenate([_NOTHING, *self.ats]), self.closed(times[1])
        is_in = self._is_of(times, closed)
        for other in known if isinstance(self.window, SessionWindow) else ():
            before = self.closed(other[1]) if other[0] <= times[1] and other[1] >= times[0] else None
            if before is not None and (closed is None or before.time < closed.time):
                is_in &= ~self._is_of(other, before)
        return ats[is_in]

    def _is_of(self, times: Times, closed: TimeMove | None) -> Flags:
        """Which records are of the time of a window, and came before it closed."""
        stamps, ats = (np.concatenate([_NOTHING, *each]) for each in (self.stamps, self.ats))
        is_of = (stamps >= times[0]) & ((stamps <= times[1]) if self.is_end_inclusive else (stamps < times[1]))
        return is_of if closed is None else is_of & (ats < closed.at)

    def note_windows(self, key: bytes, rows: pa.RecordBatch) -> None:
        """Windows of a key that came out: of sessions, those that were merged are taken back."""
        own = rows.filter(pc.equal(rows.column("key"), pa.scalar(key, pa.binary())))
        columns = (own.column(name).to_pylist() for name in ("window_start", "window_end"))
        for start, end, is_there in zip(*columns, own.column("value").is_valid().to_pylist(), strict=True):
            if is_there:
                self.windows[start, end] = None
            else:
                self.windows.pop((start, end), None)


class Trail:
    """Follows records through a task. `key`: whose windows it keeps in mind."""

    def __init__(self, sub_topology: SubTopology, key: bytes | None) -> None:
        self._sub_topology, self._key = sub_topology, key
        self._specs = [_SPECS.validate_python(node.spec) for node in sub_topology.nodes]
        self._names = [node.name for node in sub_topology.nodes]
        self._watched = {
            node.name: _Watched(spec.window)
            for i, (node, spec) in enumerate(zip(sub_topology.nodes, self._specs, strict=True))
            if getattr(spec, "window", None) is not None and self._gets_records(i)
        }
        self._steps: dict[int, dict[str, _Steps]] = {}
        self._followed = _NOTHING
        self._outputs: dict[int, list[Consequence]] = {}
        self._finals: dict[tuple[str, Times], list[FinalResult]] = {}

    def follow(self, offsets: Int64s, shown: Int64s | None = None) -> None:
        """Have an eye on the records at these offsets, which come next. `shown`: those whose outputs are kept; else
        those of the last one are.
        """
        self._followed = offsets
        self._steps |= {offset: {} for offset in offsets.tolist()}
        if shown is not None:
            self._outputs |= {offset: [] for offset in np.intersect1d(offsets, shown).tolist()}
        elif len(offsets):
            self._outputs = {int(offsets[-1]): []}

    def note(self, result: ChainResult) -> None:
        """What became of records, in their order."""
        for name, passage in result.passages.items():
            dropped = [each for each in result.dropped if each.operator == name]
            self._note_operator(name, passage, dropped, result.origins)
            self._note_finals(name, passage.left, result.origins)
        self._note_outputs(result)

    def moved(self, result: ChainResult, position: int, reason: CloseReason) -> None:
        """What became of an advance of time in front of an offset."""
        for node in self._sub_topology.nodes:
            if node.store is None or node.name not in self._watched or node.store.name not in result.changes:
                continue
            time = time_in(OBS_KEY, result.changes[node.store.name])
            if time is not None:
                self._watched[node.name].moves.by_hand(time, position, reason)
        for name, passage in result.passages.items():
            if name in self._watched and self._key is not None:
                self._watched[name].note_windows(self._key, passage.left)
            self._note_finals(name, passage.left, result.origins)
        self._note_outputs(result)

    def fates(self, offset: int) -> list[Fate]:
        """What became of a record that was followed, on each of its ways."""
        steps = self._steps[offset]
        reached = self._reached(steps)
        found = [fate for fate in reached.values() if fate is not None]
        return [*found, *self._at_ends(steps, {-1, *(i for i, fate in reached.items() if fate is None)})]

    def path(self, offset: int) -> Iterator[Station]:
        """The operators that a record which was followed reached itself, and the conditions of sinks."""
        steps = self._steps[offset]
        reached = self._reached(steps)
        for i, fate in reached.items():
            name = self._sub_topology.nodes[i].name
            if fate is None:
                yield Station(name, "passed")
            elif fate.verdict == "in":
                yield Station(name, "kept")
            else:
                yield Station(name, "dropped", fate.reason)
        for i, sink in enumerate(self._sub_topology.sinks):
            step = None if sink.where is None else steps.get(gate_name(sink, i))
            if step is not None and reached.get(-1 if sink.parent is None else sink.parent) is None:
                let_go = None if step.left else _let_go(gate_name(sink, i), step)
                yield Station(gate_name(sink, i), "dropped" if let_go else "passed", let_go and let_go.reason)
        for repartition in self._sub_topology.repartitions:
            step = None if repartition.by is None else steps.get(repartition.name)
            is_there = reached.get(-1 if repartition.parent is None else repartition.parent) is None
            if step is not None and is_there and not step.left:
                yield Station(repartition.name, "dropped", _let_go(repartition.name, step).reason)

    def outputs(self, offset: int) -> list[Consequence]:
        """What came out because of a record: the last one that was followed, of others nobody knows. There is one more
        than MAX_OUTPUTS where there are more.
        """
        return self._outputs.get(offset, [])

    def windows(self, timestamp: int, stored: Mapping[str, Iterable[Times]]) -> Iterator[WindowTrail]:
        """The windows of the key that a time (ms) lies in. `stored`: those that the stores still have, by operator."""
        for node, spec in zip(self._sub_topology.nodes, self._specs, strict=True):
            watched = self._watched.get(node.name)
            if watched is None or (isinstance(spec, StatefulSpec) and spec.lets_through):
                continue
            known = {*watched.windows, *stored.get(node.name, ())}
            window = watched.window
            if isinstance(window, TumblingWindow | HoppingWindow):
                known = {(start, saturated(start, window.size_ms)) for start in starts_at(window, timestamp)}
            for start, end in sorted(known):
                if start <= timestamp < end + watched.is_end_inclusive:
                    closed = watched.closed(end)
                    finals = [
                        final
                        for (_, times), each in self._finals.items()
                        if times == (start, end)
                        for final in each
                        if self._is_behind(final.operator, node.name)
                    ]
                    updates, due = watched.updates((start, end), known), watched.closes_at(end)
                    yield WindowTrail(node.name, start, end, updates, closed, due, watched.moves.time, finals)

    def _gets_records(self, place: int) -> bool:
        """Whether records themselves reach an operator, not what one before it made of several."""
        parent = self._sub_topology.nodes[place].parent
        if parent is None:
            return True
        spec = self._specs[parent]
        return self._gets_records(parent) and not (isinstance(spec, StatefulSpec) and not spec.lets_through)

    def _reached(self, steps: Mapping[str, _Steps]) -> dict[int, Fate | None]:
        """By place, what became of a record at the operators that it reached; None: it went on."""
        found: dict[int, Fate | None] = {}
        passes = {-1}
        for i, (node, spec) in enumerate(zip(self._sub_topology.nodes, self._specs, strict=True)):
            step = steps.get(node.name)
            if (-1 if node.parent is None else node.parent) not in passes or step is None:
                continue
            found[i] = _fate_at(node, spec, step)
            if found[i] is None:
                passes.add(i)
        return found

    def _at_ends(self, steps: Mapping[str, _Steps], passes: set[int]) -> Iterator[Fate]:
        """Where it left the operators."""
        sub_topology, ended = self._sub_topology, set(passes)
        for i, sink in enumerate(sub_topology.sinks):
            parent = -1 if sink.parent is None else sink.parent
            ended.discard(parent)
            if parent not in passes:
                continue
            step = None if sink.where is None else steps.get(gate_name(sink, i))
            yield Fate("in") if step is None or step.left else _let_go(gate_name(sink, i), step)
        for repartition in sub_topology.repartitions:
            parent = -1 if repartition.parent is None else repartition.parent
            ended.discard(parent)
            if parent in passes:
                step = None if repartition.by is None else steps.get(repartition.name)
                handed_on = Fate("handed_on", repartition.operator, stream=repartition.stream)
                yield handed_on if step is None or step.left else _let_go(repartition.name, step)
        ended -= {-1 if node.parent is None else node.parent for node in sub_topology.nodes}
        yield from (Fate("in") for _ in ended)

    def _is_behind(self, operator: str, other: str) -> bool:
        """Whether an operator is another, or gets what comes of it."""
        at: int | None = self._names.index(operator)
        while at is not None and self._names[at] != other:
            at = self._sub_topology.nodes[at].parent
        return at is not None

    def _note_operator(self, name: str, passage: Passed, dropped: list[Dropped], origins: Origins) -> None:
        words = origins.words(passage.taken.column("ordinal").to_numpy())
        causes: tuple[Int64s, Int64s] | None = None
        watched = self._watched.get(name)
        if watched is not None:
            causes = self._watch(watched, passage, words, dropped, origins)
        followed = self._followed
        for i in np.flatnonzero(np.isin(words, followed)).tolist():
            self._step(int(words[i]), name).timestamp = passage.taken.column("timestamp")[i].as_py()
        left = origins.words(passage.left.column("ordinal").to_numpy())
        for word in left[np.isin(left, followed)].tolist():
            self._step(word, name).left += 1
        for each in dropped:
            own = origins.words(each.rows.column("ordinal").to_numpy())
            for i in np.flatnonzero(np.isin(own, followed)).tolist():
                drop = _Drop(each.reason, None, None if each.missed_by_ms is None else int(each.missed_by_ms[i]))
                if each.causes is not None:
                    drop = drop._replace(cause=TimeMove(NOT_STARTED, int(each.causes[i]), "stream_time"))
                elif watched is not None and causes is not None and each.missed_by_ms is not None:
                    place = int(np.searchsorted(causes[0], own[i]))
                    is_by_record = each.reason == "late"
                    moves = watched.by_records if is_by_record else watched.moves
                    drop = drop._replace(cause=moves.at(int(causes[1][place, 0 if is_by_record else 1])))
                self._step(int(own[i]), name).drops.append(drop)

    def _watch(
        self, watched: _Watched, passage: Passed, words: Int64s, dropped: list[Dropped], origins: Origins
    ) -> tuple[Int64s, Int64s]:
        """Its stream time and windows. Returns the origins of the rows that were in time, ascending, and per row the
        places of the last moves then: by records alone, and of all.
        """
        stamps = passage.taken.column("timestamp").to_numpy()
        gone = _words(dropped, origins, but=_IN_TIME)
        is_seen = ~np.isin(words, gone)
        _, by_records = watched.by_records.by_rows(stamps[is_seen], words[is_seen])
        _, places = watched.moves.by_rows(stamps[is_seen], words[is_seen])
        if self._key is not None:
            watched.note_windows(self._key, passage.left)
            is_own = pc.equal(passage.taken.column("key"), pa.scalar(self._key, pa.binary())).fill_null(False)
            out = _words(dropped, origins)
            # A record that only some of its windows dropped is in the others: those had not closed before it.
            whole = out[~np.isin(out, self._in_some(watched, passage, words, dropped, origins))]
            chosen = is_own.to_numpy(zero_copy_only=False) & is_seen & ~np.isin(words, whole)
            watched.ats.append(words[chosen])
            watched.stamps.append(stamps[chosen])
        return words[is_seen], np.stack([by_records, places], axis=1)

    def _in_some(
        self, watched: _Watched, passage: Passed, words: Int64s, dropped: list[Dropped], origins: Origins
    ) -> Int64s:
        """The origins of rows that fewer windows dropped than they fall into."""
        window = watched.window
        if not isinstance(window, HoppingWindow):
            return _NOTHING
        words_of_windows = _words([each for each in dropped if each.reason in _OF_WINDOWS], origins)
        stamps = dict(zip(words.tolist(), passage.taken.column("timestamp").to_pylist(), strict=True))
        own, counts = np.unique(words_of_windows, return_counts=True)
        fallen = [len(starts_at(window, stamps[word])) for word in own.tolist()]
        some: Int64s = own[counts < np.array(fallen, np.int64)]
        return some

    def _note_finals(self, name: str, left: pa.RecordBatch, origins: Origins) -> None:
        if self._key is None or not left.num_rows or name not in self._names:
            return
        headers = pc.match_substring(left.column("headers"), CLOSED_BY).fill_null(False)
        is_own = pc.equal(left.column("key"), pa.scalar(self._key, pa.binary())).fill_null(False)
        own = left.filter(pc.and_(pc.and_(headers, is_own), left.column("window_end").is_valid()))
        words = origins.words(own.column("ordinal").to_numpy()).tolist()
        for row, word in zip(own.to_pylist(), words, strict=True):
            reason = _reason_in(row["headers"])
            times = (row["window_start"], row["window_end"])
            final = FinalResult(name, reason, None if word == NO_CAUSE else word, row["value"])
            self._finals.setdefault((name, times), []).append(final)

    def _note_outputs(self, result: ChainResult) -> None:
        """Of the last record that was followed: later ones push it out."""
        own = np.fromiter(self._outputs, np.int64)
        for (stream, records), ordinals in zip(result.outputs, result.ordinals, strict=True):
            words = result.origins.words(ordinals)
            for i in np.flatnonzero(np.isin(words, own)).tolist():
                if len(self._outputs[int(words[i])]) <= MAX_OUTPUTS:
                    self._outputs[int(words[i])] += [
                        Consequence(stream, row) for row in records.slice(i, 1).to_pylist()
                    ]

    def _step(self, word: int, operator: str) -> _Steps:
        return self._steps[word].setdefault(operator, _Steps())


def _words(dropped: Iterable[Dropped], origins: Origins, but: frozenset[str] = _NONE) -> Int64s:
    """The origins of dropped rows, those apart that were dropped for some reasons."""
    found = [origins.words(each.rows.column("ordinal").to_numpy()) for each in dropped if each.reason not in but]
    return np.concatenate([_NOTHING, *found])


def _fate_at(node: Node, spec: Any, step: _Steps) -> Fate | None:
    """What becomes of a record at an operator; None: it goes on."""
    if isinstance(spec, StatefulSpec) and not spec.lets_through:
        is_of_windows = all(drop.reason in _OF_WINDOWS for drop in step.drops)
        if not step.drops or (is_of_windows and len(step.drops) < spec.windows_at(step.timestamp)):
            return Fate("in", node.name)
        if step.left:
            return Fate("in", node.name)
        is_sliding = isinstance(getattr(spec, "window", None), SlidingWindow)
        if is_of_windows and is_sliding and getattr(spec, "emit", None) == "on_window_close":
            return Fate("unsure", node.name, "sliding")
        return _let_go(node.name, step)
    return None if step.left else _let_go(node.name, step)


def _let_go(operator: str, step: _Steps) -> Fate:
    """Of several windows the one that it missed by least says why."""
    if not step.drops:
        return Fate("out", operator, FILTERED)
    drop = min(step.drops, key=lambda drop: END_OF_TIME if drop.by_ms is None else drop.by_ms)
    return Fate("out", operator, *drop)


def _reason_in(headers: str) -> str:
    found: str = json.loads(headers)[CLOSED_BY]
    return found
