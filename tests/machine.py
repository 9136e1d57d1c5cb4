"""One operator and its store, fed by hand: for operators whose input would need another operator before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.streams.operators.closing import CloseReason
from service.streams.operators.step import Advancing, Step
from service.streams.records import StoreSpec
from tests.task import DictState, Record, batch_of, shown

STORE = StoreSpec("t-one", "one", "key_value", "t-one-changelog", "suppress", None)


class Machine:
    """Feeds `operator` one batch at a time and replays what it says into its store."""

    def __init__(self, operator: Advancing) -> None:
        self.operator, self.state = operator, DictState()
        self.offset = 0
        self.last: Step | None = None

    def feed(self, *records: Record) -> list[Record]:
        """What comes out of these records as one batch."""
        batch = batch_of(records, self.offset)
        self.offset += len(records)
        return self._kept(self.operator.process(batch, self.state))

    def feed_one_by_one(self, records: Sequence[Record]) -> list[list[Record]]:
        """What comes out of each of these records."""
        return [self.feed(record) for record in records]

    def advance(self, to: int, reason: CloseReason = "flush") -> list[Record]:
        """What comes out when time is moved."""
        return self._kept(self.operator.advance(to, self.state, reason))

    def horizon(self) -> int | None:
        """When all that is open closes."""
        return self.operator.horizon(self.state)

    def dropped(self) -> list[tuple[str, Any]]:
        """Reason and offset of each record that the last batch dropped."""
        assert self.last is not None
        return [(each.reason, int(row["offset"])) for each in self.last.dropped for row in each.rows.to_pylist()]

    def column(self, name: str) -> list[Any]:
        """A column of what the last step let go."""
        assert self.last is not None
        found: list[Any] = self.last.forward.column(name).to_pylist()
        return found

    def _kept(self, step: Step) -> list[Record]:
        self.last = step
        if step.changes is not None:
            self.state.replay(step.changes, STORE)
        return shown(step.forward)
