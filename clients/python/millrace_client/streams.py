"""Streams as tables: what is in one, or lies from a place on, as Arrow or pandas.

Knows what is asked. Refuses to know how a stream is followed (`millrace_client.consumer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from millrace_client.clients import AsyncClient, Client
from millrace_client.exchanges import Query, Request, json_request, path_of
from millrace_client.tables import ARROW, table_of

if TYPE_CHECKING:
    import pandas
    import pyarrow

PATIENCE_S: Final = 600.0  # with `max_bytes`: the service counts the records before it answers


def _export(name: str, filters: Query) -> Request:
    path, wait_s = f"{path_of('streams', name)}/export", PATIENCE_S if filters.get("max_bytes") else 0.0
    return json_request("GET", path, query=filters, headers={"Accept": ARROW}, wait_s=wait_s)


class Stream:
    """A stream by its name.

    `filters` say what of it: `partition`, `from_offset`, `from_timestamp` (ms) or `cursor`; `limit` records or
    `max_bytes` at most.
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client = client

    def to_arrow(self, **filters: str | int | None) -> pyarrow.Table:
        """All records as they stand, with the columns partition, offset, key, value, timestamp, window_start,
        window_end, headers, and `value.<name>` for each of the stream's `fields`.

        `table.schema.metadata[b"millrace.next"]` is the `cursor` of what comes behind, also the `start` of a consumer.
        Needs the extra `arrow`. Raises UnknownStream, OffsetTruncated.
        """
        return table_of(self._client.answer(_export(self.name, filters)))

    def to_pandas(self, **filters: str | int | None) -> pandas.DataFrame:
        """The same as a data frame. Needs the extra `pandas`."""
        return self.to_arrow(**filters).to_pandas()


class AsyncStream:
    """As `Stream`, for asyncio."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = name
        self._client = client

    async def to_arrow(self, **filters: str | int | None) -> pyarrow.Table:
        """As `Stream.to_arrow`."""
        return table_of(await self._client.answer(_export(self.name, filters)))

    async def to_pandas(self, **filters: str | int | None) -> pandas.DataFrame:
        """As `Stream.to_pandas`."""
        return (await self.to_arrow(**filters)).to_pandas()
