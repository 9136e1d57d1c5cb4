"""Lookups as they are asked: keys, times, freshness, order and page, from paths, queries and bodies.

Knows the shapes of requests. Keys are read from a request's bytes, for a key is bytes. Refuses to know what an entry is
(`streams.stores`) and where it lies (`service.lookups`).
"""

import base64
import binascii
import re
import zlib
from collections.abc import Sequence
from typing import Annotated, Final, Literal
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request

from service.lookups import Known
from service.positions import Position, StoreCursor, opaque, position_of, store_cursor_of
from service.problems import refused
from service.streams.clock import END_OF_TIME
from service.streams.errors import UnknownStore
from service.streams.stores.reading import Place
from service.streams.stores.reading import Query as StoreQuery

Kind = Literal["sessions", "windows", "keys"]
KeyEncoding = Literal["utf8", "base64"]
TimesAs = Literal["integer", "timestamp"]

NAME = r"^[a-z][a-z0-9_.-]{0,63}-[a-z][a-z0-9_.-]{0,63}$"
TYPES: Final[dict[Kind, str]] = {"sessions": "session", "windows": "window", "keys": "key_value"}
DEFAULT_LIMIT: Final = 100

Time = Annotated[int, Field(ge=0, le=END_OF_TIME)]
PageStart = tuple[int, Place | None]  # where a page begins: the number of a key in a batch, and behind which place


class Fresh(BaseModel):
    """The freshness that an answer must have."""

    model_config = ConfigDict(extra="ignore")

    min_position: Annotated[
        str | None,
        Field(
            description="A `position` of an ingest answer, or of an earlier lookup: the answer reflects it, or is 503.",
        ),
    ] = None
    max_lag_records: Annotated[int | None, Field(ge=0, description="The answer is no staler, or is 503.")] = None
    timeout_ms: Annotated[int, Field(ge=0, le=60_000, description="How long to wait for that.")] = 10_000


class Lookup(Fresh):
    """Keys, order and page of a lookup."""

    key: Annotated[str | None, Field(description="One key; as in the path, and may be empty.")] = None
    from_key: Annotated[str | None, Field(description="Keys from this one on.")] = None
    to_key: Annotated[str | None, Field(description="Keys up to this one.")] = None
    reverse: Annotated[bool, Field(description="From the last entry down.")] = False
    limit: Annotated[
        int | None,
        Field(ge=1, le=1000, description=f"How many entries at most: {DEFAULT_LIMIT}, or all of them in an export."),
    ] = None
    cursor: Annotated[str | None, Field(description="`next` of the page before.")] = None
    key_encoding: Annotated[KeyEncoding, Field(description="How keys are written, here and in the answer.")] = "utf8"
    times_as: Annotated[TimesAs, Field(description="Of Arrow: times as int64 (ms), or as timestamp[ms].")] = "integer"

    @property
    def times(self) -> tuple[int, int]:
        """The bounds of a query's times."""
        return 0, END_OF_TIME

    @property
    def wants_open(self) -> bool:
        """Whether only what may still change is asked for."""
        return False


class SessionLookup(Lookup):
    """Which sessions."""

    earliest_end: Annotated[Time, Field(description="Sessions that end then or later.")] = 0
    latest_start: Annotated[Time, Field(description="Sessions that start then or earlier.")] = END_OF_TIME
    is_open: Annotated[
        bool, Field(alias="open", description="Only sessions that are not final: of a key, the current one.")
    ] = False

    @property
    def times(self) -> tuple[int, int]:
        return self.earliest_end, self.latest_start

    @property
    def wants_open(self) -> bool:
        return self.is_open


class WindowLookup(Lookup):
    """Which windows."""

    from_: Annotated[Time, Field(alias="from", description="Windows that start then or later.")] = 0
    to: Annotated[Time, Field(description="Windows that start then or earlier.")] = END_OF_TIME

    @property
    def times(self) -> tuple[int, int]:
        return self.from_, self.to


class BatchRequest(BaseModel):
    """Several keys at once; the entries come key after key, in the order asked."""

    model_config = ConfigDict(extra="forbid", strict=True)

    keys: Annotated[list[str], Field(min_length=1, max_length=1000)]
    reverse: bool = False
    limit: Annotated[int, Field(ge=1, le=1000, description="How many entries at most, of all keys.")] = 1000
    cursor: str | None = None
    key_encoding: KeyEncoding = "utf8"


def query_of(request: Request, asked: Lookup, path_key: bytes | None) -> StoreQuery:
    """The query of a request; keys are read from its bytes, for a key is bytes."""
    low, high = asked.times
    given = {name: query_bytes(request, name.encode()) for name in ("key", "from_key", "to_key")}
    names = [name for name, value in given.items() if value is not None]
    if path_key is not None:
        names.insert(0, "the path")
    if len(names) > 1 and names != ["from_key", "to_key"]:
        detail = f"{' and '.join(names)} say different things: one key, or a range of keys"
        raise refused("invalid_request", f"?{names[-1]}", detail)
    decoded = {
        name: None if value is None else decoded_key(value, asked.key_encoding, f"?{name}")
        for name, value in given.items()
    }
    key = decoded_key(path_key, asked.key_encoding, "{key}") if path_key is not None else decoded["key"]
    if key is not None:
        return StoreQuery.of_key(key, low, high, reverse=asked.reverse, is_open=asked.wants_open)
    return StoreQuery(decoded["from_key"], decoded["to_key"], low, high, asked.reverse, asked.wants_open)


def path_key(request: Request) -> bytes:
    parts: list[bytes] = request.scope["raw_path"].split(b"/", 5)
    return unquote_to_bytes(parts[5])


def query_bytes(request: Request, name: bytes) -> bytes | None:
    """A parameter, as the bytes that were sent; the last one of its name."""
    found = [part.partition(b"=") for part in request.scope["query_string"].split(b"&")]
    values = [value for key, _, value in found if unquote_to_bytes(key) == name]
    return unquote_to_bytes(values[-1].replace(b"+", b" ")) if values else None


def decoded_key(key: bytes | str, encoding: KeyEncoding, pointer: str) -> bytes:
    """A key as it is stored."""
    try:
        raw = key.encode() if isinstance(key, str) else key
        if encoding == "base64":
            return base64.b64decode(raw.replace(b"-", b"+").replace(b"_", b"/"), validate=True)
        raw.decode()
    except (UnicodeError, binascii.Error) as error:
        what = "base64" if encoding == "base64" else "UTF-8; write keys in base64 with key_encoding=base64"
        raise refused("invalid_key", pointer, f"the key is not {what}") from error
    return raw


def wanted_position(fresh: Fresh, lineage: str) -> Position | None:
    if fresh.min_position is None:
        return None
    found = position_of(fresh.min_position)
    if found is None or found.lineage != lineage:
        raise refused("invalid_position", "?min_position", "this is not the `position` of an answer of this service")
    return found


def query_digest(kind: str, queries: Sequence[StoreQuery]) -> int:
    """The digest of a query, as its cursors carry it."""
    return zlib.crc32(repr((kind, queries)).encode())


def page_start(cursor: str | None, known: Known, lineage: str, digest: int, pointer: str = "?cursor") -> PageStart:
    """The beginning of a page, from its cursor. 422 where that is of another lookup."""
    if cursor is None:
        return 0, None
    found = store_cursor_of(cursor)
    if found is None or (found.store, found.lineage, found.query) != (known.now.id, lineage, digest):
        detail = f"the cursor is not the `next` of a page of this lookup in the store {known.now.name!r}"
        raise refused("invalid_cursor", pointer, detail)
    return found.number, None if found.within is None else Place(found.within, found.partition)


def cursor_of_start(known: Known, lineage: str, digest: int, start: PageStart) -> str:
    number, place = start
    within, partition = (None, 0) if place is None else place
    return opaque(StoreCursor(known.now.id, lineage, digest, within, partition, number))


def store_name(store: Annotated[str, Path(description="The store's name: `<job>-<operator>`.")]) -> str:
    """A name that no store can have is not looked for (a database may not even take it)."""
    if not re.fullmatch(NAME, store):
        raise UnknownStore(store)
    return store


StoreName = Annotated[str, Depends(store_name)]
PathKey = Annotated[str, Path(description="A key; it may hold slashes.")]
