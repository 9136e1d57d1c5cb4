"""The records of several inputs in the order in which their task took them.

It knows that a task takes its inputs by (`aligned_at`, input number, offset), and that the order began anew at some
places. It refuses to know operators, and who remembers these places.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams import clock
from service.streams.records import ALIGNED_AT_FIELD, RECORD_SCHEMA

Int64s = npt.NDArray[np.int64]

_AT_ONCE: Final = 10_000
_ALIGNED_AT: Final = ALIGNED_AT_FIELD.name
_SCHEMA: Final = pa.schema([pa.field("offset", pa.int64()), *RECORD_SCHEMA])
_NOTHING: Final = np.empty(0, np.int64)


class TakenRecords:
    """All records of a task with several inputs. A record's *number* is its place in the order in which they were
    taken; those that the task has not read are behind the others. `inputs`, `offsets`: where each lies; `aligned_at`:
    how far its input was at it (ms).
    """

    def __init__(self, records: Sequence[pa.Table], read_to: Sequence[Sequence[int]]) -> None:
        """`records`: of each input, from where the task began: RECORD_SCHEMA behind `offset`; of a repartition stream
        `aligned_at` too. `read_to`: places, an offset an input, where the order began anew, and the present one.
        """
        self._own = [table.column("offset").to_numpy() for table in records]
        self._is_behind_repartition = any(_ALIGNED_AT in table.column_names for table in records)
        times = [table.column(_ALIGNED_AT if _ALIGNED_AT in table.column_names else "timestamp") for table in records]
        aligned_at = [clock.observe(clock.NOT_STARTED, each.to_numpy()) for each in times]
        steps = [
            np.searchsorted(np.array([place[number] for place in read_to], np.int64), own, "right")
            for number, own in enumerate(self._own)
        ]
        inputs = np.repeat(np.arange(len(records)), [len(own) for own in self._own])
        offsets = np.concatenate([_NOTHING, *self._own])
        order = np.lexsort(
            (offsets, inputs, np.concatenate([_NOTHING, *aligned_at]), np.concatenate([_NOTHING, *steps]))
        )
        self.inputs, self.offsets = inputs[order], offsets[order]
        self.aligned_at: Int64s = np.concatenate([_NOTHING, *aligned_at])[order]
        self._records = pa.concat_tables(each.select(RECORD_SCHEMA.names) for each in records).take(pa.array(order))
        self._stamps = self._records.column("timestamp").to_numpy()
        self._numbers = np.argsort(order)

    @classmethod
    def of(cls, count: int, batches: Iterable[pa.RecordBatch], read_to: Sequence[Sequence[int]]) -> Self:
        """`batches`: those of an input one after the other, each with the number of its input in its metadata."""
        found: list[list[pa.RecordBatch]] = [[] for _ in range(count)]
        for batch in batches:
            found[int(batch.schema.metadata[b"input"])].append(batch)
        return cls([cls.table_of(each) for each in found], read_to)

    @staticmethod
    def table_of(batches: Sequence[pa.RecordBatch]) -> pa.Table:
        """The records of an input of a user's stream."""
        own = [batch.select(_SCHEMA.names).replace_schema_metadata() for batch in batches]
        return pa.Table.from_batches(own, own[0].schema).cast(_SCHEMA) if own else _SCHEMA.empty_table()

    def key_of(self, number: int) -> bytes | None:
        """The key of a record."""
        found: bytes | None = self._records.column("key")[number].as_py()
        return found

    def stamp_of(self, number: int) -> int:
        """The time of a record, ms."""
        return int(self._stamps[number])

    def let_go(self) -> None:
        """Where they lie and how far their inputs were is all that is asked for any more."""
        self._records = self._records.slice(0, 0)

    def before(self, place: Sequence[int]) -> int:
        """How many records the task had taken when it had read its inputs so far: the number of the next one."""
        return sum(int(np.searchsorted(own, offset)) for own, offset in zip(self._own, place, strict=True))

    def number_of(self, number: int, offset: int) -> int | None:
        """That of the record at an offset of an input; None: it is not there."""
        own, before = self._own[number], sum(map(len, self._own[:number]))
        at = int(np.searchsorted(own, offset))
        return int(self._numbers[before + at]) if at < len(own) and own[at] == offset else None

    def batches(self) -> Iterator[pa.RecordBatch]:
        """All of them in their order: RECORD_SCHEMA behind `offset`, which is the number; where repartition streams are
        among the inputs, `aligned_at` behind that.
        """
        for at in range(0, len(self.offsets), _AT_ONCE):
            rows = self._records.slice(at, _AT_ONCE).combine_chunks().to_batches()
            for part in rows:
                end = at + part.num_rows
                columns = {"offset": pa.array(np.arange(at, end))} | dict(
                    zip(part.schema.names, part.columns, strict=True)
                )
                if self._is_behind_repartition:
                    columns[_ALIGNED_AT] = pa.array(self.aligned_at[at:end])
                yield pa.RecordBatch.from_pydict(columns)
                at = end
