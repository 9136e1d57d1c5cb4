"""select_key: gives each record another key, and makes it a plain record again (no window).

The key is the text of the expression in UTF-8; null gives a null key.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import pyarrow as pa

from service.streams.operators.declaration import OperatorSpec, operator
from service.streams.operators.fields import TextExpression, admitted
from service.streams.operators.step import OnError, Step, evaluate_for
from service.streams.operators.upstream import PLAIN, Upstream


@operator
class SelectKeySpec(OperatorSpec):
    """`{"op": "select_key", "key": expression}`"""

    op: Literal["select_key"]
    key: TextExpression

    changes_key: ClassVar[bool] = True

    def runner(self, name: str, on_error: OnError, upstream: Upstream) -> SelectKey:
        """It gives each record a key."""
        return SelectKey(self, name, on_error)

    def downstream(self, upstream: Upstream) -> Upstream:
        """Plain records."""
        return PLAIN


class SelectKey:
    """Runs a SelectKeySpec."""

    def __init__(self, spec: SelectKeySpec, name: str, on_error: OnError) -> None:
        self.name, self.on_error = name, on_error
        self.expressions = {"key": admitted(spec.key)}

    def process(self, rows: pa.RecordBatch) -> Step:
        """Every row (TASK_SCHEMA) under its new key, outside of any window. Raises ExpressionFailed."""
        done = evaluate_for(self.name, self.expressions, rows, self.on_error)
        no_window = pa.nulls(done.rows.num_rows, pa.int64())
        forward = (
            done.rows.set_column(0, "key", as_bytes(done.results.column("key")))
            .set_column(3, "window_start", no_window)
            .set_column(4, "window_end", no_window)
        )
        return Step(forward, dropped=done.dropped)


def as_bytes(texts: pa.Array) -> pa.Array:
    """The text of text, integers or booleans as UTF-8 bytes; nulls stay null."""
    return texts.cast(pa.utf8()).cast(pa.binary())
