"""Arrow tables out of answers; pyarrow is loaded when one is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace_client.exchanges import Answer

if TYPE_CHECKING:
    import pyarrow

ARROW: Final = "application/vnd.apache.arrow.stream"


def table_of(answer: Answer) -> pyarrow.Table:
    """The table that an answer holds."""
    from pyarrow import ipc

    with ipc.open_stream(answer.content) as reader:
        return reader.read_all()
