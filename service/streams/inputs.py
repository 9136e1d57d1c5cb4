"""The inputs of a task: which logs it reads, in which order it takes their records, and where each row comes from.

It knows (stream, partition, sub-log), offsets, positions and alignment; it refuses to know what operators do with a
row, and how a log is stored.

Inside a batch a row is named by its *ordinal*: its place among the source rows, 0 to n - 1 (rows that are skipped
leave gaps). Operators hand ordinals on: what comes out says which source row caused it. An ordinal never outlives its
batch; what is stored holds the *origin*, in one word:

    word       input number (16 bits below the sign), offset (47 bits): of input 0 it is the offset
    NO_CAUSE   -1: no record caused it

A row that waited in a store has no ordinal. Its `ordinal` is a code instead, below NO_CAUSE, that holds the word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams import clock
from service.streams.records import RECORD_SCHEMA, as_task_rows, empty

Int64s = npt.NDArray[np.int64]

NO_CAUSE: Final = -1
MAX_INPUTS: Final = 1 << 16
MAX_OFFSET: Final = (1 << 47) - 1
_OFFSET_BITS: Final = 47
_FIRST_CODE: Final = -2  # stands for word 0
_NOTHING = np.empty(0, np.int64)


class Input(NamedTuple):
    """One log that a task reads. `sub_log`: the part of a repartition stream's partition that is for one target."""

    stream_id: str
    partition: int
    sub_log: int = 0


class InputPosition(NamedTuple):
    """How far an input was read: its next offset; and its frontier, the highest `aligned_at` (ms) of all records before
    that, `clock.NOT_STARTED` where there are none.
    """

    offset: int
    frontier: int = clock.NOT_STARTED


class Origin(NamedTuple):
    """Where a record lies."""

    input: Input
    offset: int


class Part(NamedTuple):
    """Records (RECORD_SCHEMA) of one input. `offsets`: that of the first, where they have no gaps; or that of each
    (int64, ascending). `aligned_at`: how far its source task had come at each (int64, ms); None: it is a user's stream,
    where the running maximum of timestamps says that.
    """

    records: pa.RecordBatch
    offsets: int | Int64s
    aligned_at: Int64s | None = None

    def within(self, start: int, end: int) -> Part:
        """The records at offsets in [start, end); no copy."""
        if isinstance(self.offsets, int):
            begin, stop = (min(max(at - self.offsets, 0), self.records.num_rows) for at in (start, end))
            offsets: int | Int64s = self.offsets + begin
        else:
            begin, stop = np.searchsorted(self.offsets, [start, end]).tolist()
            offsets = self.offsets[begin:stop]
        aligned_at = None if self.aligned_at is None else self.aligned_at[begin:stop]
        return Part(self.records.slice(begin, max(stop - begin, 0)), offsets, aligned_at)


@dataclass(frozen=True, slots=True)
class Unread:
    """What a task has not taken of an input: `parts` in the order of the log, from `start` up to the offset `end`.

    `bound`: nothing with a lower `aligned_at` (ms) can come behind `end`; None: nothing is on its way at all, so it
    holds no other input back.
    """

    input: Input
    start: InputPosition
    end: int
    parts: Sequence[Part]
    bound: int | None = None


class Origins:
    """Where the rows of a batch come from: runs of ordinals that lie one behind the other in one input.

    `inputs` are all that the task has: a number is a place among them, in the batch and in what is stored. `count`:
    source rows, skipped ones too. `begins`, `words` (int64): the first ordinal of each run, and its origin. `skipped`:
    origins of records to pass over.
    """

    def __init__(
        self, inputs: Sequence[Input], begins: Int64s, words: Int64s, count: int, skipped: frozenset[int] = frozenset()
    ) -> None:
        if len(inputs) > MAX_INPUTS:
            raise ValueError(f"a task reads at most {MAX_INPUTS} inputs, not {len(inputs)}")
        self.inputs, self.count, self.skipped = inputs, count, skipped
        self._begins, self._words = begins, words

    @classmethod
    def none(cls, inputs: Sequence[Input], skips: Iterable[tuple[int, int]] = ()) -> Self:
        """Of no rows: what waits in stores still says where it comes from, and some of it may be passed over."""
        return cls(inputs, _NOTHING, _NOTHING, 0, frozenset(word_of(number, offset) for number, offset in skips))

    def words(self, ordinals: Int64s) -> Int64s:
        """The origins of rows, as they may be stored (int64); NO_CAUSE stays what it is."""
        found: Int64s
        if len(self._begins) == 1:
            found = ordinals + self._words[0]
        else:
            runs = np.searchsorted(self._begins[1:], ordinals, "right")
            found = ordinals + (self._words - self._begins)[runs] if self.count else ordinals
        if ordinals.min(initial=0) < 0:
            stored = np.where(ordinals == NO_CAUSE, NO_CAUSE, _FIRST_CODE - ordinals)
            found = np.where(ordinals < 0, stored, found)
        return found

    def origin(self, ordinal: int) -> Origin | None:
        """Where one row comes from; None where no record caused it."""
        word = int(self.words(np.array([ordinal]))[0])
        return None if word == NO_CAUSE else Origin(self.inputs[word >> _OFFSET_BITS], word & MAX_OFFSET)

    def next_offsets(self, ordinal: int) -> dict[int, int]:
        """By input number, the offset of its first row from an ordinal on, where it has one."""
        if ordinal >= self.count:
            return {}
        run = int(np.searchsorted(self._begins, ordinal, "right")) - 1
        words = self._words[run:].copy()
        words[0] += ordinal - self._begins[run]
        numbers, firsts = np.unique(words >> _OFFSET_BITS, return_index=True)
        return dict(zip(numbers.tolist(), (words[firsts] & MAX_OFFSET).tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class Batch:
    """What a task is given at once: rows (TASK_SCHEMA) in the order in which they are taken, and their origins.

    `starts`: how far each input was read before them; `ends`: the offset from which it goes on behind all that was
    read of it. `ready`: as many source rows can run (skipped ones too); those behind them wait for an input that may
    still have something before them, and are no rows of the batch. `aligned_at` (int64, ms): of each source row, the
    ones that wait too; None where there is one input, a user's stream.
    """

    rows: pa.RecordBatch
    origins: Origins
    starts: Sequence[InputPosition]
    ends: Sequence[int]
    ready: int
    aligned_at: Int64s | None = None

    def positions(self, taken: int) -> list[InputPosition]:
        """How far each input is read once so many rows, from the first on, are taken; once all are, to its end, or to
        its first row that waits.
        """
        is_whole = taken >= self.rows.num_rows
        following = self.origins.next_offsets(self.ready if is_whole else self.rows.column("ordinal")[taken].as_py())
        frontiers = np.array([start.frontier for start in self.starts], np.int64)
        if self.aligned_at is None:
            timestamps = self.rows.column("timestamp").to_numpy()[:taken]
            frontiers[0] = timestamps.max(initial=frontiers[0])
        else:
            ordinals = self.rows.column("ordinal").to_numpy()[:taken]
            np.maximum.at(frontiers, split_words(self.origins.words(ordinals))[0], self.aligned_at[ordinals])
        return [
            InputPosition(following.get(number, end), frontier)
            for number, (end, frontier) in enumerate(zip(self.ends, frontiers.tolist(), strict=True))
        ]

    def rest(self, taken: int) -> Batch:
        """What is left when so many rows are taken."""
        return replace(self, rows=self.rows.slice(taken), starts=self.positions(taken))

    def reached(self, ordinals: Int64s) -> Int64s:
        """How far the task had come (int64, ms: the highest `aligned_at` of all that it had read) when it took the rows
        that caused these; where no row of the batch did, when it took the one before.
        """
        before = furthest(self.starts)
        if self.aligned_at is None:
            own, times = self.rows.column("ordinal").to_numpy(), self.rows.column("timestamp").to_numpy()
            running = clock.observe(before, times)
            places = np.searchsorted(own, np.maximum(ordinals, 0))
        else:
            running, places = clock.observe(before, self.aligned_at), np.maximum(ordinals, 0)
        found = np.where(ordinals < 0, before, running[places]) if len(running) else np.full(len(ordinals), before)
        return clock.observe(before, found)


def furthest(positions: Iterable[InputPosition]) -> int:
    """How far a task has come that has read its inputs so far (ms)."""
    return max((position.frontier for position in positions), default=clock.NOT_STARTED)


def batch_of(unread: Sequence[Unread], skips: Iterable[tuple[int, int]] = ()) -> Batch:
    """What is unread, in the order of (aligned_at, input number, offset), as far as nothing can come in between.

    `skips`: (input number, offset) of records to pass over. Raises ValueError where there are too many inputs.
    """
    parts = [(number, part) for number, each in enumerate(unread) for part in each.parts]
    records = [part.records for _, part in parts]
    rows = records[0] if len(records) == 1 else pa.concat_batches([empty(RECORD_SCHEMA), *records])
    inputs, ordinals = [each.input for each in unread], np.arange(rows.num_rows)
    skipped = frozenset(word_of(number, offset) for number, offset in skips)
    origins = Origins(inputs, *_runs_of(parts), rows.num_rows, skipped)
    ready, aligned_at = rows.num_rows, None
    if len(unread) > 1 or any(part.aligned_at is not None for _, part in parts):
        found = [_aligned_at(each) for each in unread]
        aligned_at = np.concatenate(found)
        order = np.argsort(aligned_at, kind="stable")
        numbers = np.repeat(np.arange(len(unread)), [len(each) for each in found])[order]
        rows, aligned_at = rows.take(pa.array(order)), aligned_at[order]
        origins = Origins(inputs, *_runs(origins.words(order)), rows.num_rows, skipped)
        ready = _ready(unread, found, aligned_at, numbers)
    task_rows = as_task_rows(rows, pa.array(ordinals)).slice(0, ready)
    if skipped:
        task_rows = task_rows.filter(pa.array(~np.isin(origins.words(ordinals[:ready]), list(skipped))))
    return Batch(task_rows, origins, [each.start for each in unread], [each.end for each in unread], ready, aligned_at)


def word_of(number: int, offset: int) -> int:
    """An input number and an offset in one word."""
    return number << _OFFSET_BITS | offset


def split_words(words: Int64s) -> tuple[Int64s, Int64s]:
    """Input numbers and offsets of origins that are not NO_CAUSE."""
    return words >> _OFFSET_BITS, words & MAX_OFFSET


def codes(words: Int64s) -> Int64s:
    """Origins that were stored, as the ordinals of rows that are in no batch."""
    return np.where(words == NO_CAUSE, NO_CAUSE, _FIRST_CODE - words)


def _aligned_at(unread: Unread) -> Int64s:
    """Of each row of an input the highest time that the input had up to it."""
    time, found = unread.start.frontier, [_NOTHING]
    for part in unread.parts:
        times = part.records.column("timestamp").to_numpy() if part.aligned_at is None else part.aligned_at
        running = clock.observe(time, times)
        time = clock.latest(time, running)
        found.append(running)
    return np.concatenate(found)


def _ready(unread: Sequence[Unread], found: Sequence[Int64s], aligned_at: Int64s, numbers: Int64s) -> int:
    """How many rows, in their order, come before everything that may still come of an input."""
    limits = [
        (max(each.bound, int(own[-1]) if len(own) else each.start.frontier), number)
        for number, (each, own) in enumerate(zip(unread, found, strict=True))
        if each.bound is not None
    ]
    if not limits:
        return len(aligned_at)
    time, number = min(limits)
    begin, end = np.searchsorted(aligned_at, time, "left"), np.searchsorted(aligned_at, time, "right")
    return int(begin + np.searchsorted(numbers[begin:end], number, "right"))


def _runs_of(parts: Sequence[tuple[int, Part]]) -> tuple[Int64s, Int64s]:
    """First ordinals and words of the runs of parts, one after the other; consecutive chunks are one run."""
    begins, words, count = [_NOTHING], [_NOTHING], 0
    for number, part in parts:
        first = np.array([part.offsets]) if isinstance(part.offsets, int) else part.offsets
        own_begins, own_words = _runs(first[: part.records.num_rows] + word_of(number, 0))
        begins.append(own_begins + count)
        words.append(own_words)
        count += part.records.num_rows
    begin, word = np.concatenate(begins), np.concatenate(words)
    is_new = np.diff(word - begin, prepend=-1) != 0
    return begin[is_new], word[is_new]


def _runs(words: Int64s) -> tuple[Int64s, Int64s]:
    """The places at which words do not go on from the one before, and the words there."""
    begins = np.flatnonzero(np.diff(words, prepend=-2) != 1)
    return begins, words[begins]
