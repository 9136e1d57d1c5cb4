"""distinct: the first record of a key in a window goes on, under that window; the others do not.

It knows the rules of KIP-655's first proposal (semantics.md, Distinct): tumbling windows, and sessions, which grow
silently by the records that do not go on. It refuses to know batches: every cut of the input gives the same output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import Field

from service.streams.clock import CloseReason
from service.streams.errors import Problem
from service.streams.inputs import NO_CAUSE, Origins
from service.streams.kernels import distinct as kernel
from service.streams.layouts import store_keys
from service.streams.layouts.changelog import changelog_of
from service.streams.layouts.entries import EntryCodec
from service.streams.layouts.reserved import BEGINS_KEY, stream_time, time_at
from service.streams.operators.closed_to import ClosedTo
from service.streams.operators.declaration import Kept, StatefulSpec, operator
from service.streams.operators.fields import MAX_INT64
from service.streams.operators.keyed import (
    BEFORE_VERSION,
    ClosedEnds,
    Keyed,
    RecordTime,
    dropped_late,
    last_end,
    last_end_after,
)
from service.streams.operators.late_sessions import begun, ends_reached
from service.streams.operators.step import OnError, Step
from service.streams.operators.upstream import Upstream
from service.streams.operators.windows import (
    SessionWindow,
    TumblingWindow,
    closing_delay_ms,
    form_of_windows,
    handover_of,
    kept_ms,
    store_type,
    unkept,
)
from service.streams.records import TASK_SCHEMA, Dropped, Handover, StateReader, StoreSpec, empty
from service.streams.samples import LATENESS, WINDOW_DROPS, Measure
from service.streams.stores.families import PackedSessions, Texts
from service.streams.stores.reading import Form

Int64s = npt.NDArray[np.int64]
Part = tuple[pa.Array, pa.Array]  # store keys and values

_ABSENT: Final = b""
_PAST_ALL: Final = b"\xff" * 9  # behind all times
_MISSED: Final = np.uint8(3)  # beside the verdicts of the kernel: the window begins before the store did
DistinctWindow = Annotated[TumblingWindow | SessionWindow, Field(discriminator="type")]
_ENTRIES = EntryCodec(["<i8"])  # the timestamp of a window's first record, of a session's last


@operator
class DistinctSpec(StatefulSpec):
    """`{"op": "distinct", "name", "window": tumbling or session}`"""

    op: Literal["distinct"]
    window: DistinctWindow

    kind: ClassVar[str] = "distinct"
    lets_through: ClassVar[bool] = True
    measures: ClassVar[tuple[Measure, ...]] = (LATENESS, *WINDOW_DROPS)

    @property
    def kept(self) -> Kept:
        """An entry a window."""
        return Kept(store_type(self.window), "ordered", kept_ms(self.window))

    def handover(self) -> Handover:
        """When its windows closed."""
        return handover_of(self.window)

    def unkept(self, new: Self) -> Iterator[Problem]:
        """Other windows."""
        return unkept(self.window, new.window)

    def runner(self, name: str, on_error: OnError, upstream: Upstream) -> Distinct:
        """It lets the first one through."""
        return Distinct(self, name)

    def downstream(self, upstream: Upstream) -> Upstream:
        """Plain records with a window."""
        return Upstream(window=self.window.model_dump(mode="json"))

    @classmethod
    def form(cls, name: str, spec: Mapping[str, Any], upstream: Upstream, store: StoreSpec) -> Form:
        """Windows, with a timestamp and nothing else."""
        return form_of_windows(spec["window"], store.interval_ms, _Stamps())


class _Stamps:
    """What its values show."""

    def shown(self, values: Sequence[bytes], ends: list[int]) -> tuple[list[int], Texts]:
        stamps = _ENTRIES.unpack(list(values))[1][0].tolist()
        return stamps, [None] * len(stamps)

    def sessions(self, packed: Sequence[bytes]) -> PackedSessions:
        found = _ENTRIES.unpack_sessions(list(packed))
        stamps = found.columns[0].tolist()
        counts, starts, ends = found.counts.tolist(), found.starts.tolist(), found.ends.tolist()
        return PackedSessions(counts, starts, ends, stamps, [None] * len(stamps))

    def spans(self, packed: Sequence[bytes]) -> tuple[Int64s, Int64s]:
        found = _ENTRIES.unpack_sessions(list(packed))
        return found.starts, found.ends


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """Records with a key that can be stored: `ids` into `keys` (ordered form); `running`: stream time as each sees it;
    `closes`: what ended before it, or for tumbling windows then, is closed to a record.
    """

    rows: pa.RecordBatch
    ids: Int64s
    keys: pa.Array
    timestamps: Int64s
    running: Int64s
    closes: Int64s


@dataclass(frozen=True, slots=True)
class _Judged:
    """A verdict on each record, the windows of those that go on (start and end per record, void for others), and the
    entries that change.
    """

    verdicts: npt.NDArray[np.uint8]
    starts: Int64s
    ends: Int64s
    entries: list[Part]


class Distinct:
    """Runs a DistinctSpec."""

    def __init__(self, spec: DistinctSpec, name: str) -> None:
        self.name, self.window = name, spec.window
        self.delay_ms = closing_delay_ms(spec.window)
        self.is_end_inclusive = isinstance(spec.window, SessionWindow)

    def process(self, rows: pa.RecordBatch, state: StateReader, origins: Origins) -> Step:
        """The first record of each key and window, in order; the entries that they leave; the others, dropped."""
        keyed = Keyed.of(self.name, rows, state)
        time = RecordTime.of(keyed, state)
        is_kept = keyed.keys.is_valid()
        closing, begins_at = ClosedTo.of(self.delay_ms, keyed.before, state), time_at(BEGINS_KEY, state)
        early = list[Dropped]()
        if begins_at is not None and self.is_end_inclusive:
            is_kept, early = begun(self.name, keyed, closing, time.running, begins_at)
        arrivals = _arrivals(keyed, is_kept, closing)
        if isinstance(self.window, SessionWindow):
            judged = _judge_sessions(arrivals, self.window.gap_ms, state)
        else:
            judged = _judge_windows(arrivals, self.window.size_ms, state, begins_at)
        by_records = closing.at_each_by(time.running, keyed.running)[is_kept.to_numpy(zero_copy_only=False)]
        dropped = self._dropped(arrivals, judged, by_records, state, is_ahead=time.is_stored)
        parts = [
            *judged.entries,
            *time.changes(keyed.now),
            *closing.changes(keyed.now, closing.at(keyed.now) if keyed.rows.num_rows else closing.was),
            *last_end_after(judged.ends[judged.verdicts < kernel.LATE], state),
        ]
        changes = changelog_of(parts, keyed.now if keyed.now != keyed.before else None)
        return Step(_first(arrivals.rows, judged), changes, [*keyed.dropped, *early, *dropped], keyed.lateness)

    def advance(self, to: int, state: StateReader, reason: CloseReason, cause: int = NO_CAUSE) -> Step:
        """Nothing comes out, but what is closed by then takes no more records."""
        keyed = Keyed.of(self.name, empty(TASK_SCHEMA), state)
        now, closing = max(keyed.before, to), ClosedTo.of(self.delay_ms, keyed.before, state)
        parts = [*RecordTime.of(keyed, state).changes(now), *closing.changes(now, closing.at(now))]
        return Step(keyed.rows, changelog_of(parts, now if now != keyed.before else None))

    def horizon(self, state: StateReader) -> int | None:
        """The stream time that closes the last of its windows; None when all are closed, or the last never is."""
        last = last_end(state)
        if last is None:
            return None
        now, open_to = stream_time(state), last + self.is_end_inclusive
        is_open = ClosedTo.of(self.delay_ms, now, state).was < open_to
        return open_to + self.delay_ms if is_open and now < open_to + self.delay_ms <= MAX_INT64 else None

    def _dropped(
        self, arrivals: _Arrivals, judged: _Judged, closes: Int64s, state: StateReader, *, is_ahead: bool
    ) -> list[Dropped]:
        """Duplicates, and what came too late: also where time was moved without a record, or for windows of a time
        before the store's.

        `closes`: what would be closed to each by records alone. `is_ahead`: stream time was of what these make of it.
        """
        rows, ends = arrivals.rows, judged.ends.copy()
        is_late = judged.verdicts == kernel.LATE
        if is_ahead and isinstance(self.window, SessionWindow) and is_late.any():
            late_rows = rows.filter(pa.array(is_late))
            ends[is_late] = ends_reached(late_rows, closes[is_late], arrivals.running[is_late], self.window, state)
        would_be_open = ends >= closes if self.is_end_inclusive else ends > closes
        others = {"duplicate": judged.verdicts == kernel.DUPLICATE, BEFORE_VERSION: judged.verdicts == _MISSED}
        dropped = [Dropped(self.name, reason, rows.filter(pa.array(of))) for reason, of in others.items() if of.any()]
        closing = ClosedEnds(ends, closes, arrivals.closes)
        return [*dropped, *dropped_late(self.name, rows, is_late, would_be_open, closing)]


def _arrivals(keyed: Keyed, is_kept: pa.BooleanArray, closing: ClosedTo) -> _Arrivals:
    rows, running = keyed.rows.filter(is_kept), keyed.running[is_kept.to_numpy(zero_copy_only=False)]
    encoded = keyed.keys.filter(is_kept).dictionary_encode()
    return _Arrivals(
        rows=rows,
        ids=encoded.indices.to_numpy().astype(np.int64),
        keys=store_keys.ordered(encoded.dictionary),
        timestamps=rows.column("timestamp").to_numpy(),
        running=running,
        closes=closing.at_each(running),
    )


def _judge_windows(arrivals: _Arrivals, size_ms: int, state: StateReader, begins_at: int | None) -> _Judged:
    starts = arrivals.timestamps // size_ms * size_ms
    is_past_time = starts > MAX_INT64 - size_ms  # it ends where no stream time comes
    ends = np.where(is_past_time, MAX_INT64, starts + size_ms)
    window_ids = pa.array(starts).dictionary_encode()
    width = max(len(window_ids.dictionary), 1)
    encoded = pa.array(arrivals.ids * width + window_ids.indices.to_numpy()).dictionary_encode()
    of_keys, of_windows = np.divmod(encoded.dictionary.to_numpy(), width)
    keys = store_keys.window_keys(
        arrivals.keys.take(pa.array(of_keys)), window_ids.dictionary.take(pa.array(of_windows)).to_numpy()
    )
    found = state.get_many(keys.to_numpy(zero_copy_only=False).tolist(), _ABSENT)
    was_seen = np.array([value != _ABSENT for value in found], np.bool_)
    is_seen, verdicts = was_seen.copy(), np.empty(len(starts), np.uint8)
    ids = encoded.indices.to_numpy().astype(np.int64)
    is_late = (ends <= arrivals.closes) & ~is_past_time
    is_missed = ~is_late & (starts < (0 if begins_at is None else begins_at))
    kernel.first_of_windows(ids, is_late | is_missed, is_seen, verdicts)
    verdicts[is_missed] = _MISSED
    first = np.flatnonzero(verdicts == kernel.FIRST)
    entry = keys.take(pa.array(ids[first])), _ENTRIES.pack([arrivals.timestamps[first]])
    return _Judged(verdicts, starts, ends, [entry])


def _judge_sessions(arrivals: _Arrivals, gap_ms: int, state: StateReader) -> _Judged:
    stamps, count = arrivals.timestamps, len(arrivals.keys)
    order = np.argsort(arrivals.ids, kind="stable")
    row_ends = np.searchsorted(arrivals.ids[order], np.arange(count + 1))
    stored = _Stored.of(arrivals, order, row_ends, gap_ms, state)
    is_kept, verdicts = np.zeros(len(stored.keys), np.bool_), np.empty(len(stamps), np.uint8)
    out = np.empty((3, len(stamps) + len(stored.keys)), np.int64)
    made = kernel.first_of_sessions(
        order,
        row_ends,
        stamps,
        arrivals.closes,
        gap_ms,
        stored.upto,
        stored.starts,
        stored.ends,
        is_kept,
        verdicts,
        out,
    )
    of_keys, starts, ends = out[:, :made]
    gone = pa.array([key for key, kept in zip(stored.keys, is_kept.tolist(), strict=True) if not kept], pa.binary())
    new = store_keys.session_keys(arrivals.keys.take(pa.array(of_keys)), ends, starts)
    entries = [(gone, pa.nulls(len(gone), pa.binary())), (new, _ENTRIES.pack([ends]))]
    return _Judged(verdicts, stamps, stamps, entries)


@dataclass(frozen=True, slots=True)
class _Stored:
    """Sessions as stored, those of key k from upto[k] to upto[k + 1], in order of time; those that a batch may meet."""

    keys: list[bytes]
    upto: Int64s
    starts: Int64s
    ends: Int64s

    @classmethod
    def of(cls, arrivals: _Arrivals, order: Int64s, row_ends: Int64s, gap_ms: int, state: StateReader) -> _Stored:
        """Only what the first record finds open, and the earliest of the key can reach."""
        found: list[bytes] = []
        upto = [0]
        if len(order):
            earliest = np.minimum.reduceat(arrivals.timestamps[order], row_ends[:-1])
            reached = np.maximum(np.maximum(earliest - gap_ms, arrivals.closes[0]), 0)
            for key, end in zip(arrivals.keys.to_pylist(), reached.tolist(), strict=True):
                scanned = state.scan(store_keys.session_key(key, end, 0), store_keys.SESSION + key + _PAST_ALL)
                found += [entry for entry, _ in scanned]
                upto.append(len(found))
        times = np.frombuffer(b"".join([key[-16:] for key in found]), ">i8").astype(np.int64).reshape(-1, 2)
        return cls(found, np.array(upto, np.int64), times[:, 1].copy(), times[:, 0].copy())


def _first(rows: pa.RecordBatch, judged: _Judged) -> pa.RecordBatch:
    """The records that are the first, under their windows."""
    is_first = judged.verdicts == kernel.FIRST
    forward = rows.filter(pa.array(is_first))
    for place, name, times in (3, "window_start", judged.starts), (4, "window_end", judged.ends):
        forward = forward.set_column(place, TASK_SCHEMA.field(name), pa.array(times[is_first]))
    return forward
