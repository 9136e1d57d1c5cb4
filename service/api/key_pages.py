"""Pages of one key, asked again and again: where to look, and the items as JSON for as long as they stay the same.

Knows that items follow from the store entries of a key and from stream time alone: the same bytes, at a time before the
next window closes or entry expires, are the same items. Refuses to know where stores lie, who asks, and HTTP.

Entries are read for each answer; decoding them and writing them as JSON, half of a lookup's time, is spared (ADR 14).
"""

from __future__ import annotations

from typing import Final

from cachetools import LRUCache

from service.api.lookup_answers import items_as_json
from service.api.lookup_requests import DEFAULT_LIMIT
from service.lookups import Known, StoreLayout
from service.streams.stores.reading import Few, Findings, Query

MAX_PAGES: Final = 8192
MAX_NAME_BYTES: Final = 256  # of a page that is kept
MAX_KEPT_BYTES: Final = 4 << 10  # of a page's items, and of the entries that they were made of


class KeyPage:
    """The first page of all entries of a key."""

    __slots__ = ("_few", "_found", "_items", "_since", "_until", "ask", "layout")

    def __init__(self, layout: StoreLayout, key: bytes, partition: int) -> None:
        self.layout = layout
        self._few = Few(layout.form, Query.of_key(key), partition, DEFAULT_LIMIT)
        self.ask = self._few.ask
        self._found: tuple[object, ...] | None = None  # what `_items` were made of: entries, floor, `closed_to`
        self._items = b""
        self._since = self._until = 0  # stream times at which they are the same, both included

    def items(self, findings: Findings) -> bytes | None:
        """The items as JSON; None where they are too many for a page. Raises ProblemError."""
        time = findings.stream_time
        if self._since <= time <= self._until and self._found == findings[2:]:
            return self._items
        page = self._few.page(findings)
        if page is None:
            return None
        items = items_as_json(page, "utf8")
        if len(items) <= MAX_KEPT_BYTES and _size(findings) <= MAX_KEPT_BYTES:
            self._items, self._found = items, findings[2:]
            self._since, self._until = time, self._few.same_until(page)
        return items


class KeyPages:
    """The pages that were asked for most recently, by a name that stands for store and key."""

    def __init__(self) -> None:
        self._pages: LRUCache[bytes, KeyPage] = LRUCache(MAX_PAGES)

    def page(self, name: bytes, known: Known, key: bytes) -> KeyPage | None:
        """The page of a key; None where its entries may be in several partitions."""
        page = self._pages.get(name)
        if page is None or page.layout != known.layout:
            partitions = known.partitions_of(Query.of_key(key))
            if len(partitions) != 1:
                return None
            page = KeyPage(known.layout, key, partitions[0])
            if len(name) <= MAX_NAME_BYTES:
                self._pages[name] = page
        return page


def _size(findings: Findings) -> int:
    return sum([len(value) for entries in findings.found for _, value in entries])
