"""Stores: entries by key, over a range of keys, as Arrow or pandas.

A store knows which type it has, so its path (sessions, windows, keys) is asked for once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from millrace_client.clients import AsyncClient, Client
from millrace_client.exchanges import Answer, Query, Request, json_request, path_of
from millrace_client.records import Entry, Lookup, as_of, entry_of
from millrace_client.tables import ARROW, table_of

if TYPE_CHECKING:
    import pandas
    import pyarrow

PLACES: Final = {"session": "sessions", "window": "windows", "key_value": "keys"}
PAGE: Final = 1_000


class _StoreRequests:
    """The requests that are made of a store; `place` comes with its view."""

    def __init__(self, name: str) -> None:
        self._path = path_of("stores", name)
        self.place: str | None = None

    def view(self) -> Request:
        return json_request("GET", self._path)

    def seen(self, answer: Answer) -> Mapping[str, Any]:
        view: Mapping[str, Any] = answer.json()
        self.place = PLACES[view["type"]]
        return view

    def page(self, query: Query, cursor: str | None) -> Request:
        wait_s = int(query.get("timeout_ms") or 0) / 1000
        return json_request("GET", self._entries, query={"limit": PAGE, **query, "cursor": cursor}, wait_s=wait_s)

    def arrow(self, query: Query) -> Request:
        return json_request("GET", self._entries, query=query, headers={"Accept": ARROW})

    @property
    def _entries(self) -> str:
        return f"{self._path}/{self.place}"


def _page(answer: Answer) -> tuple[Lookup, str | None]:
    """Entries, and the cursor of those that follow."""
    data = answer.json()
    return Lookup([entry_of(each) for each in data["items"]], as_of(data["as_of"])), data["next"]


def _query(filters: Query, **more: str | None) -> Query:
    """`from_` is what Python has no name for."""
    return {name.removesuffix("_"): value for name, value in {**more, **filters}.items()}


class Store:
    """A store by its name, `<job>-<operator>`.

    `filters` are the query of the store's type: `min_position` (of a post; waits up to `timeout_ms` for it),
    `max_lag_records`, `reverse`; of sessions `earliest_end`, `latest_start`, `open`; of windows `from_`, `to` (ms).
    """

    def __init__(self, client: Client, name: str) -> None:
        self.name = name
        self._client, self._store = client, _StoreRequests(name)

    def view(self) -> Mapping[str, Any]:
        """Its type, size and lag. Raises UnknownStore."""
        return self._store.seen(self._client.answer(self._store.view()))

    def get(self, key: str, **filters: str | int | bool | None) -> Lookup:
        """All entries of a key, none where it is not known, and as of when. Raises StoreBehind, StoreNotReadable."""
        pages = list(self._pages(_query(filters, key=key)))
        return Lookup([entry for page in pages for entry in page.entries], pages[0].as_of)

    def range(
        self, from_key: str | None = None, to_key: str | None = None, **filters: str | int | bool | None
    ) -> Iterator[Entry]:
        """Entries of all keys, or of those from one to another, page by page."""
        for page in self._pages(_query(filters, from_key=from_key, to_key=to_key)):
            yield from page.entries

    def to_arrow(self, **filters: str | int | bool | None) -> pyarrow.Table:
        """All entries, with the columns key, window_start, window_end, value, timestamp, closes_at, is_final.

        Needs the extra `arrow`.
        """
        self._look()
        return table_of(self._client.answer(self._store.arrow(_query(filters))))

    def to_pandas(self, **filters: str | int | bool | None) -> pandas.DataFrame:
        """The same as a data frame. Needs the extra `pandas`."""
        return self.to_arrow(**filters).to_pandas()

    def _pages(self, query: Query) -> Iterator[Lookup]:
        self._look()
        page, cursor = _page(self._client.answer(self._store.page(query, None)))
        yield page
        while cursor is not None:
            page, cursor = _page(self._client.answer(self._store.page(query, cursor)))
            yield page

    def _look(self) -> None:
        if self._store.place is None:
            self.view()


class AsyncStore:
    """As `Store`, for asyncio."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.name = name
        self._client, self._store = client, _StoreRequests(name)

    async def view(self) -> Mapping[str, Any]:
        """As `Store.view`."""
        return self._store.seen(await self._client.answer(self._store.view()))

    async def get(self, key: str, **filters: str | int | bool | None) -> Lookup:
        """As `Store.get`."""
        pages = [page async for page in self._pages(_query(filters, key=key))]
        return Lookup([entry for page in pages for entry in page.entries], pages[0].as_of)

    async def range(
        self, from_key: str | None = None, to_key: str | None = None, **filters: str | int | bool | None
    ) -> AsyncIterator[Entry]:
        """As `Store.range`."""
        async for page in self._pages(_query(filters, from_key=from_key, to_key=to_key)):
            for entry in page.entries:
                yield entry

    async def to_arrow(self, **filters: str | int | bool | None) -> pyarrow.Table:
        """As `Store.to_arrow`."""
        await self._look()
        return table_of(await self._client.answer(self._store.arrow(_query(filters))))

    async def to_pandas(self, **filters: str | int | bool | None) -> pandas.DataFrame:
        """As `Store.to_pandas`."""
        return (await self.to_arrow(**filters)).to_pandas()

    async def _pages(self, query: Query) -> AsyncIterator[Lookup]:
        await self._look()
        page, cursor = _page(await self._client.answer(self._store.page(query, None)))
        yield page
        while cursor is not None:
            page, cursor = _page(await self._client.answer(self._store.page(query, cursor)))
            yield page

    async def _look(self) -> None:
        if self._store.place is None:
            await self.view()
