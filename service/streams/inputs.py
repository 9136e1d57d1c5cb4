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
    """How far an input was read: its next offset; and its frontier, the highest timestamp (ms) of all records before
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
    (int64, ascending).
    """

    records: pa.RecordBatch
    offsets: int | Int64s


@dataclass(frozen=True, slots=True)
class Unread:
    """What a task has not taken of an input: `parts` in the order of the log, from `start` up to the offset `end`."""

    input: Input
    start: InputPosition
    end: int
    parts: Sequence[Part]


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

    `starts`: how far each input was read before them; `ends`: the offset from which it goes on behind all of them.
    """

    rows: pa.RecordBatch
    origins: Origins
    starts: Sequence[InputPosition]
    ends: Sequence[int]

    def positions(self, taken: int) -> list[InputPosition]:
        """How far each input is read once so many rows, from the first on, are taken; once all are, to its end."""
        is_whole = taken >= self.rows.num_rows
        following = {} if is_whole else self.origins.next_offsets(self.rows.column("ordinal")[taken].as_py())
        timestamps = self.rows.column("timestamp").to_numpy()[:taken]
        frontiers = np.array([start.frontier for start in self.starts], np.int64)
        if len(frontiers) == 1:
            frontiers[0] = timestamps.max(initial=frontiers[0])
        else:
            words = self.origins.words(self.rows.column("ordinal").to_numpy()[:taken])
            np.maximum.at(frontiers, words >> _OFFSET_BITS, timestamps)
        return [
            InputPosition(following.get(number, end), frontier)
            for number, (end, frontier) in enumerate(zip(self.ends, frontiers.tolist(), strict=True))
        ]

    def rest(self, taken: int) -> Batch:
        """What is left when so many rows are taken."""
        return replace(self, rows=self.rows.slice(taken), starts=self.positions(taken))


def batch_of(unread: Sequence[Unread], skips: Iterable[tuple[int, int]] = ()) -> Batch:
    """All that is unread, in the order of (running maximum of time in its input, input number, offset).

    `skips`: (input number, offset) of records to pass over. Raises ValueError where there are too many inputs.
    """
    parts = [(number, part) for number, each in enumerate(unread) for part in each.parts]
    records = [part.records for _, part in parts]
    rows = records[0] if len(records) == 1 else pa.concat_batches([empty(RECORD_SCHEMA), *records])
    inputs, ordinals = [each.input for each in unread], np.arange(rows.num_rows)
    skipped = frozenset(word_of(number, offset) for number, offset in skips)
    origins = Origins(inputs, *_runs_of(parts), rows.num_rows, skipped)
    if len(unread) > 1:
        order = np.argsort(_aligned_at(unread), kind="stable")
        rows = rows.take(pa.array(order))
        origins = Origins(inputs, *_runs(origins.words(order)), rows.num_rows, skipped)
    task_rows = as_task_rows(rows, pa.array(ordinals))
    if skipped:
        task_rows = task_rows.filter(pa.array(~np.isin(origins.words(ordinals), list(skipped))))
    return Batch(task_rows, origins, [each.start for each in unread], [each.end for each in unread])


def word_of(number: int, offset: int) -> int:
    """An input number and an offset in one word."""
    return number << _OFFSET_BITS | offset


def split_words(words: Int64s) -> tuple[Int64s, Int64s]:
    """Input numbers and offsets of origins that are not NO_CAUSE."""
    return words >> _OFFSET_BITS, words & MAX_OFFSET


def codes(words: Int64s) -> Int64s:
    """Origins that were stored, as the ordinals of rows that are in no batch."""
    return np.where(words == NO_CAUSE, NO_CAUSE, _FIRST_CODE - words)


def _aligned_at(unread: Sequence[Unread]) -> Int64s:
    """Of each row, input after input, the highest timestamp that its input had up to it."""
    found = [_NOTHING]
    for each in unread:
        time = each.start.frontier
        for part in each.parts:
            running = clock.observe(time, part.records.column("timestamp").to_numpy())
            time = clock.latest(time, running)
            found.append(running)
    return np.concatenate(found)


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
