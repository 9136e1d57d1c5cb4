"""One operator and its store, fed by hand: for operators whose input would need another operator before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pyarrow as pa

from service.streams.clock import CloseReason
from service.streams.inputs import Origins
from service.streams.operators.step import Advancing, Rest, Step
from service.streams.records import StoreSpec
from tests.task import NOTHING, DictState, Record, batch_of, shown

STORE = StoreSpec("t-one", "one", "key_value", "t-one-changelog", "suppress", "ordered", None)


class Machine:
    """Feeds `operator` one batch at a time and replays what it says into its store."""

    def __init__(self, operator: Advancing) -> None:
        self.operator, self.state = operator, DictState()
        self.offset = 0
        self.last: Step | None = None
        self.origins, self.rest = NOTHING, cast(Rest | None, None)

    def feed(self, *records: Record) -> list[Record]:
        """What comes out of these records as one batch; what is too much at once is the `rest`."""
        assert self.rest is None, "go on first"
        batch = batch_of(records, self.offset)
        self.offset += len(records)
        return self._kept(self.operator.process(batch.rows, self.state, batch.origins), batch.origins)

    def feed_one_by_one(self, records: Sequence[Record]) -> list[list[Record]]:
        """What comes out of each of these records."""
        return [self.feed(record) for record in records]

    def advance(self, to: int, reason: CloseReason = "flush") -> list[Record]:
        """What comes out when time is moved."""
        return self._kept(self.operator.advance(to, self.state, reason), NOTHING)

    def go_on(self) -> list[Record]:
        """What comes out of the rest, as a chain has it done."""
        rest = self.rest
        assert rest is not None
        if rest.cause is None:
            return self._kept(self.operator.process(rest.rows, self.state, self.origins), self.origins)
        found = self._kept(self.operator.advance(-1, self.state, "stream_time", rest.cause), self.origins)
        if self.rest is not None or rest.rows.num_rows:
            self.rest = Rest(rest.rows, None if self.rest is None else rest.cause)
        return found

    def horizon(self) -> int | None:
        """When all that is open closes."""
        return self.operator.horizon(self.state)

    def dropped(self) -> list[tuple[str, Any]]:
        """Reason and offset of each record that the last batch dropped."""
        assert self.last is not None
        return [(each.reason, cause) for each in self.last.dropped for cause in self._causes(each.rows)]

    def causes(self) -> list[int]:
        """The offset of the record that caused each of what the last step let go."""
        assert self.last is not None
        return self._causes(self.last.forward)

    def column(self, name: str) -> list[Any]:
        """A column of what the last step let go."""
        assert self.last is not None
        found: list[Any] = self.last.forward.column(name).to_pylist()
        return found

    def _causes(self, rows: pa.RecordBatch) -> list[int]:
        found: list[int] = self.origins.words(rows.column("ordinal").to_numpy()).tolist()
        return found

    def _kept(self, step: Step, origins: Origins) -> list[Record]:
        self.last, self.origins, self.rest = step, origins, step.rest
        if step.changes is not None:
            self.state.replay(step.changes, STORE)
        return shown(step.forward)
