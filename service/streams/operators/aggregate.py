"""aggregate: what is computed of the records of a key, for ever or per window, at every update or once at the end.

It knows when results go on and as what (semantics.md); who belongs together is up to `into_…`, what is computed to
`functions`. It refuses to know batches: every cut of the input gives the same output, but for `last_per_batch`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, Self

import numpy as np
import pyarrow as pa
from pydantic import Field, ValidationInfo, field_validator

from service.streams.clock import CloseReason
from service.streams.errors import AggregateFailed, Problem
from service.streams.inputs import NO_CAUSE, Origins
from service.streams.kernels import windows as kernel
from service.streams.layouts.changelog import changelog_of
from service.streams.layouts.reserved import BEGINS_KEY, stream_time, time_at
from service.streams.operators.aggregate_layouts import next_layouts
from service.streams.operators.closed_to import ClosedTo
from service.streams.operators.closing import say_why
from service.streams.operators.declaration import FanOut, Kept, StatefulSpec, operator
from service.streams.operators.entry_columns import State
from service.streams.operators.fields import MAX_INT64, problem
from service.streams.operators.former_layouts import Layout
from service.streams.operators.function_columns import FunctionColumns, taken
from service.streams.operators.functions import Events, FunctionSpec
from service.streams.operators.grouping import Due, Feed, Flags, Gathered, Gatherer, Int64s
from service.streams.operators.installed_aggregators import aggregator_named, has_merger
from service.streams.operators.into_sessions import IntoSessions
from service.streams.operators.into_sliding_windows import IntoSlidingWindows
from service.streams.operators.into_time_windows import IntoTable, IntoTimeWindows
from service.streams.operators.keyed import (
    BEFORE_VERSION,
    ClosedEnds,
    Keyed,
    RecordTime,
    dropped_late,
    last_end,
    last_end_after,
)
from service.streams.operators.late_sessions import begun
from service.streams.operators.map_values import FieldName
from service.streams.operators.step import Evaluated, OnError, Rest, Step, TooMany, evaluate_for
from service.streams.operators.stored_results import StoredResults
from service.streams.operators.upstream import Upstream
from service.streams.operators.windows import (
    HoppingWindow,
    SessionWindow,
    SlidingWindow,
    WindowSpec,
    closing_delay_ms,
    form_of_windows,
    handover_of,
    index_lag_ms,
    kept_ms,
    starts_at,
    store_type,
    unkept,
)
from service.streams.records import (
    TASK_SCHEMA,
    Dropped,
    Handover,
    StateReader,
    StoreSpec,
    as_records,
    as_task_rows,
    empty,
)
from service.streams.samples import LATENESS, WINDOW_DROPS, Measure
from service.streams.stores.families import Table
from service.streams.stores.reading import Form

LEAST_AFTER_FAILURE: Final = 1000  # rows that are tried behind one at which a function failed
MOST_AT_ONCE: Final = 1 << 18  # windows that close in one step, each with some 700 bytes of memory
MOST_BYTES_AT_ONCE: Final = 64 << 20  # that they may take in the store
_SAMPLED: Final = 256  # of which that is guessed
_NUMBERS: Final = frozenset({"count", "sum", "mean"})  # functions whose values do not grow with those of records


class _Move(NamedTuple):
    """Where stream time is after a step, and up to where windows are `closed` then; why what is closed behind its rows
    closed, and the ordinal of the cause.

    `is_on_its_way`: time comes so far by that record, which is still to come.
    """

    to: int
    closed: int
    reason: CloseReason
    cause: int
    is_on_its_way: bool = False


@operator
class AggregateSpec(StatefulSpec):
    """`{"op": "aggregate", "name", "window", "aggregates": {name: {"fn", "of"?}}, "emit", "updates"}`"""

    op: Literal["aggregate"]
    window: WindowSpec | None = None
    aggregates: Annotated[dict[FieldName, FunctionSpec], Field(min_length=1, max_length=256)]
    emit: Literal["on_update", "on_window_close"] = "on_update"
    updates: Literal["every", "last_per_batch"] = "every"

    kind: ClassVar[str] = "aggregate"
    measures: ClassVar[tuple[Measure, ...]] = (LATENESS, *WINDOW_DROPS)

    @property
    def kept(self) -> Kept:
        """An entry a group."""
        return Kept(store_type(self.window), "ordered", None if self.window is None else kept_ms(self.window))

    def handover(self) -> Handover:
        """When its windows closed."""
        return Handover() if self.window is None else handover_of(self.window)

    def unkept(self, new: Self) -> Iterator[Problem]:
        """Other windows, results at other times; of a table, which has no end, functions that miss what was before."""
        yield from unkept(self.window, new.window)
        if self.emit != new.emit:
            yield Problem("/emit", "what went on already would go on again, or never")
        for name, function in new.aggregates.items() if self.window is None else ():
            if self.aggregates.get(name) != function:
                yield Problem(f"/aggregates/{name}", "without windows it would never have seen what was before")

    def layouts_after(self, new: Self, former: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        """Another one for other functions. Raises TooManyLayouts."""
        return next_layouts(former, self.aggregates, new.aggregates)

    def windows_at(self, timestamp: int) -> int:
        """Several, where they hop."""
        return len(starts_at(self.window, timestamp)) if isinstance(self.window, HoppingWindow) else 1

    def runner(self, name: str, on_error: OnError, upstream: Upstream) -> Aggregate:
        """It gathers and folds."""
        return Aggregate(self, name, on_error)

    def runner_over(self, store: StoreSpec, name: str, on_error: OnError, upstream: Upstream) -> Aggregate:
        """The same; what former versions did not compute stays missing in their groups."""
        return Aggregate(self, name, on_error, store.layouts)

    def downstream(self, upstream: Upstream) -> Upstream:
        """A table, with these windows."""
        window = None if self.window is None else self.window.model_dump(mode="json")
        return Upstream(is_table=True, window=window, is_final=self.emit == "on_window_close")

    def fan_out(self, timestamps: Int64s) -> FanOut:
        """An update for each window that a record is in."""
        has_values = not {function.fn for function in self.aggregates.values()} <= _NUMBERS
        match self.window:
            case HoppingWindow(size_ms=size_ms, advance_ms=advance_ms):
                hops = -(-size_ms // advance_ms)
                return FanOut(hops, hops, has_values)
            case SlidingWindow(time_difference_ms=difference_ms):
                return FanOut(1, 2 * max(1, _crowd(timestamps, difference_ms)), has_values)
            case _:
                return FanOut(has_values=has_values)

    @property
    def sees_batches(self) -> bool:
        """The net change of a batch depends on it."""
        return self.updates == "last_per_batch"

    @classmethod
    def form(cls, name: str, spec: Mapping[str, Any], upstream: Upstream, store: StoreSpec) -> Form:
        """A table, or windows."""
        # Not checked again: who looks need not have a custom aggregator installed.
        specs = {field: FunctionSpec.model_construct(**each) for field, each in spec["aggregates"].items()}
        window = spec.get("window")
        has_stamps = window is None or window["type"] != "session"
        values = StoredResults(name, specs, has_stamps=has_stamps, layouts=store.layouts)
        if window is None:
            return Form((Table(values),))
        is_emitted = spec.get("emit") == "on_window_close"
        return form_of_windows(window, store.interval_ms, values, is_emitted=is_emitted)

    @field_validator("aggregates")
    @classmethod
    def _can_merge(cls, given: dict[str, FunctionSpec], info: ValidationInfo) -> dict[str, FunctionSpec]:
        if isinstance(info.data.get("window"), SessionWindow):
            for name, function in given.items():
                if function.fn == "custom" and not has_merger(aggregator_named(function.aggregator or "")):
                    raise problem(f"{name}: the aggregator {function.aggregator!r} has no merger, which sessions need")
        return given

    @field_validator("emit")
    @classmethod
    def _has_a_window_to_close(cls, emit: str, info: ValidationInfo) -> str:
        if emit == "on_window_close" and "window" in info.data and info.data["window"] is None:
            raise problem("on_window_close needs a window")
        return emit


class Aggregate:
    """Runs an AggregateSpec."""

    def __init__(
        self, spec: AggregateSpec, name: str, on_error: OnError, layouts: Sequence[Layout] | None = None
    ) -> None:
        self.name, self.on_error, self.window = name, on_error, spec.window
        self.is_final, self.is_net = spec.emit == "on_window_close", spec.updates == "last_per_batch"
        self.is_session = isinstance(spec.window, SessionWindow)
        self.is_end_inclusive = isinstance(spec.window, SessionWindow | SlidingWindow)
        self.delay_ms = 0 if spec.window is None else closing_delay_ms(spec.window)
        self.takes_null_values = spec.window is not None and not isinstance(spec.window, SlidingWindow)
        self.aggregates = FunctionColumns(name, spec.aggregates, has_stamps=not self.is_session, layouts=layouts)
        self.gatherer = _gatherer(spec, self.aggregates)
        self.index_lag_ms = 0 if spec.window is None else index_lag_ms(spec.window)
        self.at_once = MOST_AT_ONCE

    def process(self, rows: pa.RecordBatch, state: StateReader, origins: Origins) -> Step:
        """The updates of records in order, or the results of the windows that they close.

        Where the first of them closes too much at once, it is the first part of that, and no row is taken. Where a
        function fails at one that is not to fail the job, those before it are taken: it comes first in what is left,
        and is dropped there as if it had never been. Raises ExpressionFailed and AggregateFailed with the row.
        """
        taken, failing = rows, list[Dropped]()
        while True:
            try:
                step = self._process(taken, state)
                break
            except TooMany as error:
                count = self._place(taken, error.first)
                if not count:
                    step, taken = self._close_first(taken, state), taken.slice(0, 0)
                    break
                taken = taken.slice(0, count)
            except AggregateFailed as error:
                count = self._before(taken, error)
                failing += [] if count else [self._failed(taken.slice(0, 1), error)]
                rows = rows if count else rows.slice(1)
                taken = rows.slice(0, count or LEAST_AFTER_FAILURE)
        left = rows.slice(taken.num_rows)
        return replace(step, dropped=[*failing, *step.dropped], rest=Rest(left) if left.num_rows else None)

    def advance(self, to: int, state: StateReader, reason: CloseReason, cause: int = NO_CAUSE) -> Step:
        """The results of the windows that close first on the way to a stream time, as many as one step lets go."""
        keyed = Keyed.of(self.name, empty(TASK_SCHEMA), state)
        results = self._evaluated(keyed.rows).results
        to, closing = max(keyed.before, to), self._closing(keyed.before, state)
        closed = closing.at(to)
        due = self._due_at_once(state, closed)
        if due.next_time is not None:
            # Windows of one size and one start may close in any parts: their order is that of their index.
            due = due.whole_moments(state) if self.is_end_inclusive else due
            closed = max(closing.was, int(due.times[-1]) + self.index_lag_ms)
            to = max(keyed.before, closed + self.delay_ms) if closed > closing.was else keyed.before
        move = _Move(to, closed, reason, cause, is_on_its_way=reason == "stream_time")
        step = self._run(keyed, results, state, due, closing, move, [])
        return step if due.next_time is None else replace(step, rest=Rest(keyed.rows, cause))

    def _process(self, rows: pa.RecordBatch, state: StateReader) -> Step:
        """All of the rows. Raises TooMany, which counts the rows that move stream time."""
        admitted, dropped = self._admitted(rows)
        done = self._evaluated(admitted)
        keyed = Keyed.of(self.name, done.rows, state)
        closing = self._closing(keyed.before, state)
        closed = closing.at(keyed.now) if keyed.rows.num_rows else closing.was
        due = self._due_at_once(state, closed) if keyed.rows.num_rows else Due.of(state, 0)
        if due.next_time is not None:
            raise TooMany(int(np.searchsorted(closing.at_each(keyed.running), due.times[-1] + self.index_lag_ms)))
        move = _Move(keyed.now, closed, "stream_time", NO_CAUSE)
        return self._run(keyed, done.results, state, due, closing, move, [*dropped, *done.dropped])

    def _close_first(self, rows: pa.RecordBatch, state: StateReader) -> Step:
        """The first part of what the first row closes."""
        first = rows.slice(0, 1)
        step = self.advance(
            first.column("timestamp")[0].as_py(), state, "stream_time", first.column("ordinal")[0].as_py()
        )
        return replace(step, rest=Rest(rows))

    def _failed(self, row: pa.RecordBatch, error: AggregateFailed) -> Dropped:
        detail = f"aggregate {error.aggregate!r}: {error.detail}"
        return Dropped(self.name, error.code, row, [detail] if self.on_error == "dead_letter" else None)

    def _before(self, rows: pa.RecordBatch, error: AggregateFailed) -> int:
        """How many rows come before the one that fails. Raises the error where it is to fail the job."""
        if self.on_error == "fail":
            raise error
        return self._place(rows, error.row)

    def _place(self, rows: pa.RecordBatch, count: int) -> int:
        """Where the row lies before which so many move stream time."""
        numbered = as_task_rows(as_records(rows), pa.array(np.arange(rows.num_rows)))
        found = self._evaluated(self._admitted(numbered)[0]).rows
        return int(found.column("ordinal")[count].as_py())

    def _closing(self, now: int, state: StateReader) -> ClosedTo:
        """How far windows are closed at stream time `now`; without windows there is nothing to close."""
        return ClosedTo(0, now, None) if self.window is None else ClosedTo.of(self.delay_ms, now, state)

    def _closed_by(self, state: StateReader, close: int, limit: int) -> Due:
        """The windows that are to be emitted when so much is closed."""
        return Due.of(state, close - self.index_lag_ms + 1 if self.is_final else 0, limit)

    def _due_at_once(self, state: StateReader, close: int) -> Due:
        """No more of them than are to be closed at once: less where they hold much."""
        due = self._closed_by(state, close, self.at_once)
        if not self.aggregates.has_objects or len(due.times) <= _SAMPLED:
            return due
        some = range(0, len(due.times), len(due.times) // _SAMPLED)
        places = [self.gatherer.place(due.keys[i], int(due.times[i])) for i in some]
        size = sum(map(len, state.get_many(places, b""))) // len(places) + 1
        return due.first(max(MOST_BYTES_AT_ONCE // size, _SAMPLED))

    def horizon(self, state: StateReader) -> int | None:
        """The stream time that closes the last of its windows; None when all are closed, or the last never is."""
        last = last_end(state)
        if self.window is None or last is None:
            return None
        now = stream_time(state)
        closing, open_to = self._closing(now, state), last + self.is_end_inclusive
        if closing.was < open_to and now < open_to + self.delay_ms <= MAX_INT64:
            return open_to + self.delay_ms
        # A row that had closed a part of what it closes may have been skipped, or a lower delay closes more without
        # one: the rest is due already.
        return now if self.is_final and len(self._closed_by(state, closing.at(now), 1).times) else None

    def _admitted(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[Dropped]]:
        """The records that pass the null check: only these are looked at, and move stream time."""
        checks = [("key", "null_key")] + ([] if self.takes_null_values else [("value", "null_value")])
        dropped = []
        for column, reason in checks:
            found = batch.column(column)
            if found.null_count:
                dropped.append(Dropped(self.name, reason, batch.filter(found.is_null())))
                batch = batch.filter(found.is_valid())
        return batch, dropped

    def _evaluated(self, rows: pa.RecordBatch) -> Evaluated:
        """What the functions take of each record. The timestamps stand by, as a batch without columns has no rows."""
        if self.aggregates.expressions and rows.num_rows:
            return evaluate_for(self.name, self.aggregates.expressions, rows, self.on_error)
        kinds = {name: expression.type_of() for name, expression in self.aggregates.expressions.items()}
        if not kinds:
            return Evaluated(rows, rows.select(["timestamp"]), [])
        return Evaluated(
            rows, pa.RecordBatch.from_arrays([pa.array([], kind) for kind in kinds.values()], list(kinds)), []
        )

    def _run(
        self,
        keyed: Keyed,
        results: pa.RecordBatch,
        state: StateReader,
        due: Due,
        closing: ClosedTo,
        move: _Move,
        dropped: list[Dropped],
    ) -> Step:
        """Records, and then time alone. `results` are those of the expressions. Raises TooMany, as `_process` does."""
        time = RecordTime.of(keyed, state)
        if move.is_on_its_way:
            time = replace(time, before=move.to)
        begins_at = None if self.window is None else time_at(BEGINS_KEY, state)
        is_kept = keyed.keys.is_valid()
        if begins_at is not None and self.is_session:
            is_kept, early = begun(self.name, keyed, closing, time.running, begins_at)
            dropped = [*dropped, *early]
        rows, running, by_records, results = _kept(is_kept, keyed.rows, keyed.running, time.running, results)
        feed = Feed(rows, closing.at_each(running), closing.was, move.closed, due, begins_at)
        try:
            gathered = self.gatherer.gather(feed, state)
            said = _Said.all_of(gathered, is_final=self.is_final, is_net=self.is_net)
            inputs = self.aggregates.inputs(results, rows)
            out = self.aggregates.fold(said.events, inputs, rows, gathered.state, said.count)
        except TooMany as error:
            raise TooMany(int(np.flatnonzero(is_kept)[error.first])) from error
        except AggregateFailed as error:
            error.row = int(np.flatnonzero(is_kept)[error.row])
            raise
        forward = (
            self._closings(keyed, closing, gathered, move)
            if self.is_final
            else self._updates(rows, gathered, said, out)
        )
        changes = [
            *gathered.writer.changes(self.aggregates.stored(gathered.state)),
            *time.changes(move.to),
            *closing.changes(move.to, move.closed),
            *last_end_after(gathered.updates.ends, state),
        ]
        late = self._late(
            feed, running, gathered, closing.at_each_by(by_records, running), state, is_ahead=time.is_stored
        )
        return Step(
            forward,
            changelog_of(changes, move.to if move.to != keyed.before else None),
            [*dropped, *keyed.dropped, *late],
            keyed.lateness,
        )

    def _updates(self, rows: pa.RecordBatch, gathered: Gathered, said: _Said, out: State) -> pa.RecordBatch:
        """The updates that are said (TASK_SCHEMA): new values and tombstones."""
        updates, causes = gathered.updates, pa.array(gathered.updates.rows[said.kept])
        slots, ends = updates.slots[said.kept], updates.ends[said.kept]
        values = self.aggregates.values(out)
        if len(values) < len(slots):
            values = values.take(pa.array(said.places, mask=said.places < 0))
        no_headers = pa.nulls(len(slots), pa.utf8())
        return self._records(
            gathered.keys.plain.take(pa.array(gathered.slot_keys[slots])),
            values,
            ends if self.is_session else out[0][0],
            updates.starts[said.kept],
            ends,
            no_headers if self.is_session else rows.column("headers").take(causes),
            rows.column("ordinal").take(causes),
        )

    def _closings(self, keyed: Keyed, closing: ClosedTo, gathered: Gathered, move: _Move) -> pa.RecordBatch:
        """The results of windows that closed (TASK_SCHEMA), by the record that moved stream time past their close."""
        closed = gathered.closed
        state, ends = taken(gathered.state, closed), gathered.ends[closed]
        closes = closing.at_each(keyed.running)
        causes = np.searchsorted(closes, ends, side="right" if self.is_end_inclusive else "left")
        ordinals = np.append(keyed.rows.column("ordinal").to_numpy(), move.cause)[causes]
        return self._records(
            gathered.keys.plain.take(pa.array(gathered.slot_keys[closed])),
            self.aggregates.values(self.aggregates.results(state)),
            ends if self.is_session else state[0][0],
            gathered.starts[closed],
            ends,
            say_why(pa.nulls(len(closed), pa.utf8()), move.reason),
            pa.array(ordinals),
        )

    def _records(
        self,
        keys: pa.Array,
        values: pa.Array,
        stamps: Int64s,
        starts: Int64s,
        ends: Int64s,
        headers: pa.Array,
        ordinals: pa.Array,
    ) -> pa.RecordBatch:
        no_window = [pa.nulls(len(keys), pa.int64())] * 2
        window = no_window if self.window is None else [pa.array(starts), pa.array(ends)]
        return pa.RecordBatch.from_arrays(
            [keys, values, pa.array(stamps), *window, headers, ordinals], schema=TASK_SCHEMA
        )

    def _late(
        self,
        feed: Feed,
        running: Int64s,
        gathered: Gathered,
        by_records: Int64s,
        state: StateReader,
        *,
        is_ahead: bool,
    ) -> list[Dropped]:
        """Records that came too late, once per window; those that only idle close or flush made late say so, and those
        of windows that began before the store did.

        `by_records`: what would be closed to each row by records alone. `is_ahead`: stream time was, when the batch
        began, of what records alone make of it.
        """
        early = list[Dropped]()
        if len(gathered.missed):
            early.append(Dropped(self.name, BEFORE_VERSION, feed.rows.take(pa.array(gathered.missed))))
        if not len(gathered.dropped):
            return early
        dropped = feed.rows.take(pa.array(gathered.dropped))
        closes, ends = by_records[gathered.dropped], gathered.dropped_ends
        if is_ahead:
            ends = self.gatherer.ends_reached(dropped, ends, closes, running[gathered.dropped], state)
        would_be_open = ends >= closes if self.is_end_inclusive else ends > closes
        closing = ClosedEnds(ends, closes, feed.closes[gathered.dropped])
        return [*early, *dropped_late(self.name, dropped, np.ones(len(ends), np.bool_), would_be_open, closing)]


class _Said:
    """Which updates go on: `kept` of all; per kept one the place of its value (below 0: a tombstone); the events,
    which copy out these `count` values.
    """

    def __init__(self, gathered: Gathered, kept: Flags) -> None:
        of_events = gathered.updates.events[kept]
        is_value = of_events >= 0
        self.kept, self.count = kept, int(is_value.sum())
        self.places = np.where(is_value, np.cumsum(is_value) - 1, -1)
        outs = np.full(len(gathered.kinds), -1, np.int32)
        outs[of_events[is_value]] = np.arange(self.count, dtype=np.int32)
        self.events = Events(gathered.kinds, gathered.slots, gathered.others, outs)

    @classmethod
    def all_of(cls, gathered: Gathered, *, is_final: bool, is_net: bool) -> _Said:
        """What an operator says: nothing before windows close; the net change of the batch; or every update."""
        updates = gathered.updates
        if is_final:
            return cls(gathered, np.zeros(len(updates.rows), np.bool_))
        kept = np.ones(len(updates.rows), np.bool_)
        if is_net:
            kernel.net(
                updates.slots,
                updates.starts,
                updates.ends,
                updates.events,
                gathered.was_starts,
                gathered.was_ends,
                kept,
            )
        return cls(gathered, kept)


def _crowd(timestamps: Int64s, difference_ms: int) -> int:
    """The most records that lie so close together: a record changes no more than twice as many sliding windows."""
    times = np.sort(timestamps)
    ends = np.searchsorted(times, times + np.minimum(difference_ms, MAX_INT64 - times), "right")
    return int((ends - np.arange(len(times))).max(initial=0))


def _gatherer(spec: AggregateSpec, aggregates: FunctionColumns) -> Gatherer:
    is_final = spec.emit == "on_window_close"
    match spec.window:
        case None:
            return IntoTable(aggregates)
        case SessionWindow():
            return IntoSessions(aggregates, spec.window, is_final=is_final)
        case SlidingWindow():
            return IntoSlidingWindows(aggregates, spec.window, is_final=is_final)
        case window:
            return IntoTimeWindows(aggregates, window, is_final=is_final)


def _kept(
    is_kept: pa.BooleanArray, rows: pa.RecordBatch, running: Int64s, by_records: Int64s, results: pa.RecordBatch
) -> tuple[pa.RecordBatch, Int64s, Int64s, pa.RecordBatch]:
    """The same of the rows whose key can be stored."""
    if is_kept.false_count == 0:
        return rows, running, by_records, results
    flags = is_kept.to_numpy(zero_copy_only=False)
    return rows.filter(is_kept), running[flags], by_records[flags], results.filter(is_kept)
