"""SQL scalar expressions over a record: admitted by DuckDB's own parser, run by DuckDB on Arrow batches.

    key            VARCHAR   the bytes of the key, which must be UTF-8; null where there is none
    value          JSON
    timestamp      BIGINT    ms; `epoch_ms(timestamp)` makes a TIMESTAMP
    window_start   BIGINT    ms, null outside windows
    window_end     BIGINT

`value->>'a.b'` is the field named `a.b`. Only a text that begins with `$` is a path (`'$.a.b'`), one that
begins with `/` a JSON pointer (`'/a/b'`), and the empty text stands for the whole value.

`allowed` says what may appear, `gate` lets it in, `session` is the sealed engine, `run` evaluates.
"""

from service.streams.expressions.expression import Expression
from service.streams.expressions.run import evaluate, evaluate_lenient, explain

__all__ = ["Expression", "evaluate", "evaluate_lenient", "explain"]
