"""suppress: holds updates back until their window closes or a time limit has passed; only the latest comes out.

It knows KIP-328 (semantics.md, Suppress): when an update's time has come, and what a full buffer does. The buffer is
the store, so it survives restarts and may be larger than memory: what leaves at once may be, too, and leaves in as many
steps as it takes. It refuses to know batches: every cut of the input gives the same output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal, NoReturn, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from service.streams.clock import CloseReason
from service.streams.errors import Problem, SuppressionFull
from service.streams.inputs import NO_CAUSE, Origins
from service.streams.kernels import suppress as kernel
from service.streams.layouts import store_keys
from service.streams.operators.buffer_flow import BufferFeed, Flow, load
from service.streams.operators.closing import say_why
from service.streams.operators.declaration import Condition, Kept, StatefulSpec, operator
from service.streams.operators.fields import MAX_INT64, Duration, Spec, problem
from service.streams.operators.keyed import Keyed
from service.streams.operators.step import OnError, Rest, Step
from service.streams.operators.upstream import Upstream
from service.streams.records import TASK_SCHEMA, StateReader, StoreSpec, empty
from service.streams.samples import LATENESS, Count, Level, Measure, Spread
from service.streams.stores.families import Buffer
from service.streams.stores.reading import Form, Rule

_FIRST_HEADS: Final = 256  # entries that are not due and loaded all the same, where bounds may evict them
_MOST_AT_ONCE: Final = 64 << 20  # bytes of stored entries that leave in one step
_LEAST_AT_ONCE: Final = 4 << 20  # however little may be buffered: a step has its price


class BufferSpec(Spec):
    """`{"max_records"?, "max_bytes"?, "when_full"?}`: what a buffer may hold, and what happens when that is too little.

    `{}` is unbounded. With a bound and nothing said it emits early, as KIP-328's `maxRecords` and `maxBytes` do.
    """

    max_records: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    max_bytes: Annotated[int, Field(ge=0, le=MAX_INT64)] | None = None
    when_full: Literal["emit_early", "shut_down", "spill_to_disk"] | None = None

    @property
    def is_bounded(self) -> bool:
        """Whether it is ever full; one that spills to disk is not."""
        has_bound = self.max_records is not None or self.max_bytes is not None
        return has_bound and self.when_full != "spill_to_disk"

    @property
    def may_emit_early(self) -> bool:
        """Whether it is what KIP-328 calls eager, not strict."""
        return self.when_full == "emit_early" or (self.when_full is None and self.is_bounded)

    @property
    def at_once(self) -> int:
        """Bytes of stored entries that may be in memory; what is bounded in any case is as small as was wanted."""
        if self.is_bounded:
            return MAX_INT64
        wanted = _MOST_AT_ONCE if self.max_bytes is None else self.max_bytes
        return min(max(wanted, _LEAST_AT_ONCE), _MOST_AT_ONCE)

    @property
    def bounds(self) -> npt.NDArray[np.int64]:
        """Records and bytes that it may hold."""
        given = (self.max_records, self.max_bytes) if self.is_bounded else (None, None)
        return np.array([MAX_INT64 if bound is None else bound for bound in given], np.int64)


_BUFFER: Final = "suppression_buffer"


@operator
class SuppressSpec(StatefulSpec):
    """`{"op": "suppress", "name", "until": "window_closes" | "time_limit", "time_limit_ms"?, "buffer"}`"""

    model_config = ConfigDict(
        json_schema_extra={
            "if": {"properties": {"until": {"const": "time_limit"}}},
            "then": {"required": ["time_limit_ms"], "properties": {"time_limit_ms": {"type": "integer"}}},
            "else": {"properties": {"time_limit_ms": {"type": "null"}}},
        }
    )
    op: Literal["suppress"]
    until: Literal["window_closes", "time_limit"]
    time_limit_ms: Annotated[Duration | None, Field(validate_default=True)] = None
    buffer: BufferSpec = BufferSpec()

    kind: ClassVar[str] = "suppress"
    may_change: ClassVar[frozenset[str]] = frozenset({"until", "time_limit_ms", "buffer"})
    measures: ClassVar[tuple[Measure, ...]] = (
        LATENESS,
        Level(
            reading="buffer_bytes",
            name=f"{_BUFFER}_size_bytes",
            meaning="Bytes in the buffer of suppress",
            changes="Bytes in the buffer, at each change of it",
            average="Bytes in the buffer, on average over its changes",
            most="Bytes in the buffer when it was largest",
        ),
        Level(
            reading="buffer_records",
            name=f"{_BUFFER}_count",
            meaning="Records in the buffer of suppress",
            changes="Records in the buffer, at each change of it",
            average="Records in the buffer, on average over its changes",
            most="Records in the buffer when it was fullest",
        ),
        Count("emitted", "suppression_emit", "Records that suppress let go"),
        Spread(
            reading="overtime_ms",
            name="intermediate_result_suppression_overtime_ms",
            meaning="How far stream time had passed the moment when a record could leave, as it left",
            average="Overtime of records that left, on average",
            extreme="min",
            extreme_meaning="The least overtime of a record that left",
        ),
    )

    @property
    def kept(self) -> Kept:
        """What is held back, until it leaves."""
        return Kept("key_value", "ordered")

    def conditions(self, new: Self | None) -> Iterator[Condition]:
        """What it holds back leaves by its own rule, and fits into its buffer."""
        if new is None or new.until != self.until:
            yield Condition(0, None, "what is held back now would never come out, or at another time")
        elif new.buffer.is_bounded and not new.buffer.may_emit_early:
            yield Condition(new.buffer.max_records, new.buffer.max_bytes, "the buffer would be too full at once")

    def runner(self, name: str, on_error: OnError, upstream: Upstream) -> Suppress:
        """It holds updates back."""
        return Suppress(self, name, upstream)

    def downstream(self, upstream: Upstream) -> Upstream:
        """The same updates, later where there is a time limit; the last of each window alone where it closes."""
        if self.until == "window_closes":
            return replace(upstream, is_final=True)
        return replace(upstream, is_delayed=True) if self.time_limit_ms else upstream

    def contradictions(self, upstream: Upstream) -> Iterator[Problem]:
        """One that waits for windows to close needs a windowed aggregate before it (KIP-328)."""
        if self.until != "window_closes":
            return
        if not (upstream.is_table and upstream.window):
            yield Problem(
                "/until",
                "window_closes is only defined after a windowed aggregate, no select_key or deduplicate in between",
            )
        elif upstream.is_delayed:
            yield Problem(
                "/until",
                "window_closes is not defined after a time limit: an update that was held back until its window had "
                "closed would come out after the final one",
            )

    @classmethod
    def form(cls, name: str, spec: Mapping[str, Any], upstream: Upstream, store: StoreSpec) -> Form:
        """What is held back, under its key and window."""
        kind = upstream.window_type
        delay_ms = upstream.closing_delay_ms if kind else None
        is_end_inclusive, is_session = kind in ("session", "sliding"), kind == "session"
        wait_ms = _wait_ms(spec["until"], spec.get("time_limit_ms"), upstream)
        rule = Rule("buffered", wait_ms, is_emitted=True, index_lag_ms=0)
        return Form((Buffer(delay_ms, is_session=is_session),), is_end_inclusive, is_session=is_session, rule=rule)

    @field_validator("time_limit_ms")
    @classmethod
    def _belongs_to_time_limit(cls, limit: int | None, info: ValidationInfo) -> int | None:
        until = info.data.get("until")
        if until == "time_limit" and limit is None:
            raise problem("is required until time_limit")
        if until == "window_closes" and limit is not None:
            raise problem("does not go with window_closes, which waits as long as the window may change")
        return limit

    @field_validator("buffer")
    @classmethod
    def _is_strict_until_window_closes(cls, buffer: BufferSpec, info: ValidationInfo) -> BufferSpec:
        if info.data.get("until") == "window_closes" and buffer.may_emit_early:
            raise problem(
                "window_closes takes only a strict buffer, as what is emitted early is not final: "
                "say shut_down or spill_to_disk in when_full, or give no bounds"
            )
        return buffer


class Suppress:
    """Runs a SuppressSpec."""

    def __init__(self, spec: SuppressSpec, name: str, upstream: Upstream, at_once: int | None = None) -> None:
        self.name, self.buffer = name, spec.buffer
        self.at_once = spec.buffer.at_once if at_once is None else at_once
        self.is_final = spec.until == "window_closes"
        self.is_session = upstream.window_type == "session"
        self.wait_ms = _wait_ms(spec.until, spec.time_limit_ms, upstream)

    def process(self, rows: pa.RecordBatch, state: StateReader, origins: Origins) -> Step:
        """The updates whose time has come, or that a full buffer pushes out, in the order in which they leave.

        Where more has to leave at a row than may at once, that row is the last one taken, in part. Raises
        SuppressionFull where the buffer is to shut down.
        """
        taken, stop = rows, None
        while True:
            keyed = Keyed.of(self.name, taken, state)
            if not keyed.rows.num_rows:
                return Step(keyed.rows, dropped=keyed.dropped)
            feed = self._feed(keyed)
            flow = self._flow(feed, state, keyed.rows)
            stop = flow.stopped_at
            if stop is None or stop == keyed.rows.num_rows - 1:
                break
            taken = taken.slice(0, int(np.flatnonzero(taken.column("key").is_valid())[stop]) + 1)
        step = self._step(keyed, flow, int(feed.running[-1]), "stream_time")
        left = rows.slice(taken.num_rows)
        if stop is None and not left.num_rows:
            return step
        cause = None if stop is None else keyed.rows.column("ordinal")[-1].as_py()
        return replace(step, rest=Rest(left, cause))

    def advance(self, to: int, state: StateReader, reason: CloseReason, cause: int = NO_CAUSE) -> Step:
        """What leaves when stream time is moved to `to`, or the first of it: as much as may at once."""
        keyed = Keyed.of(self.name, empty(TASK_SCHEMA), state)
        to = max(keyed.before, to)
        flow = self._flow(self._feed(keyed).and_then(to), state, keyed.rows)
        step = self._step(keyed, flow, to, reason, cause)
        return step if flow.stopped_at is None else replace(step, rest=Rest(keyed.rows, cause))

    def horizon(self, state: StateReader) -> int | None:
        """The stream time at which the last of the buffer leaves; None when it is empty, or never does."""
        last = state.scan(store_keys.index_bound(0), store_keys.index_bound(1 << 63), limit=1, reverse=True)
        if not last:
            return None
        times, _ = store_keys.split_index_keys([key for key, _ in last])
        time = int(times[0]) + self.wait_ms
        return time if time <= MAX_INT64 else None

    def _step(self, keyed: Keyed, flow: Flow, now: int, reason: CloseReason, cause: int = NO_CAUSE) -> Step:
        forward = flow.leaving(keyed.rows, cause)
        is_said = forward.column("value").is_valid() if self.is_final else None
        if is_said is not None:
            forward = forward.filter(is_said)
        if self.is_final or reason != "stream_time":
            forward = forward.set_column(5, TASK_SCHEMA.field("headers"), say_why(forward.column("headers"), reason))
        measured = {**keyed.lateness, **flow.measures(is_said)}
        return Step(forward, flow.changes(keyed, now), keyed.dropped, measured)

    def _feed(self, keyed: Keyed) -> BufferFeed:
        times = keyed.rows.column("window_end" if self.is_final else "timestamp")
        return BufferFeed.of(keyed, times.to_numpy())

    def _flow(self, feed: BufferFeed, state: StateReader, rows: pa.RecordBatch) -> Flow:
        """Run the kernel. Where bounds could evict entries that are not loaded, load more and run again."""
        due = feed.running - self.wait_ms
        beyond = _FIRST_HEADS if self.buffer.is_bounded and self.buffer.may_emit_early else 0
        while True:
            flow = load(feed, int(due[-1]), state, beyond=beyond, at_once=self.at_once, is_session=self.is_session)
            code = flow.run(feed, due, self.buffer.bounds, may_emit_early=self.buffer.may_emit_early)
            if code == kernel.NEEDS_MORE:
                beyond *= 4
            elif code <= kernel.FULL:
                self._fail(flow, rows, int(kernel.FULL - code))
            else:
                return flow

    def _fail(self, flow: Flow, rows: pa.RecordBatch, row: int) -> NoReturn:
        records, size = flow.totals.tolist()
        ordinal = rows.column("ordinal")[row].as_py() if row < rows.num_rows else None
        raise SuppressionFull(self.name, ordinal, records, self.buffer.max_records, size, self.buffer.max_bytes)


def _wait_ms(until: str, time_limit_ms: int | None, upstream: Upstream) -> int:
    """From the buffer time of an update until it leaves."""
    if until != "window_closes":
        return time_limit_ms or 0
    # A window whose end is inclusive may still change when stream time is exactly the wait past its end.
    is_end_inclusive = upstream.window_type in ("session", "sliding")
    return min(upstream.closing_delay_ms + is_end_inclusive, MAX_INT64)
