"""Streams over HTTP: made, listed, changed, deleted; records posted to them and read from them.

Knows the shapes of requests and answers. Refuses to know how records become durable (`service.ingest`) and what a body
means (`service.payloads`).
"""

import asyncio
import hashlib
import re
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import orjson
import pyarrow as pa
from fastapi import APIRouter, Depends, Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service import metrics
from service.api.bodies import accepts, answer, expected_etag, page, read_model
from service.api.document import takes
from service.api.models import Cursor as PageCursor
from service.api.models import Limit, Page, require_name
from service.auth import Reader, Writer
from service.catalog import segments, streams
from service.catalog.tables import PartitionRow, StreamRow
from service.ingest import Answer, Idempotency, Room
from service.payloads import ARROW, JSON, NDJSON, Rules, decode, media_type_of
from service.payloads.answers import KeyEncoding, arrow_answer, as_page, json_answer, rows_within
from service.payloads.fields import KINDS
from service.positions import Cursor, cursor_of, opaque
from service.problems import ProblemError, declared
from service.streams.errors import (
    InternalStream,
    OffsetTruncated,
    SegmentMissing,
    StaleTag,
    StreamExists,
    UnknownPartition,
    UnknownStream,
)

router = APIRouter(tags=["streams"])

MAX_PARTITIONS = 1024
MAX_MS = 2**53 - 1  # what every JSON reader holds exactly
MAX_PAGE_RECORDS = 100_000
MAX_PAGE_BYTES = 32 << 20
NEXT_HEADER = "Millrace-Next"

NAME = r"^[a-z][a-z0-9_.-]{0,127}$"
ANY_NAME = r"^[a-z][a-z0-9_.-]{0,255}$"  # those of internal streams are made of two names of up to 64, and more
StreamName = Annotated[str, Field(pattern=NAME)]
FieldName = Annotated[str, Field(pattern=r"^[^\x00-\x1f]{1,256}$")]
FieldKind = Annotated[str, Field(pattern=rf"^({'|'.join(KINDS)})\??$")]
Fields = Annotated[
    dict[FieldName, FieldKind] | None,
    Field(
        max_length=256,
        description="Members that every value must have: name → `string|long|double|boolean|json`; `?` behind it: "
        "may be null or absent. Other members may be there. Without it, values are any JSON.",
    ),
]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS)]


class StreamChange(BaseModel):
    """What of a stream may be changed; what is absent stays."""

    model_config = ConfigDict(extra="forbid", strict=True)

    retention_ms: Annotated[
        Milliseconds | None, Field(gt=0, description="How long records are kept after they arrived; null: for ever.")
    ] = None
    fields: Fields = None
    max_future_ms: Annotated[
        Milliseconds, Field(description="How far ahead of its arrival a record's timestamp may be.")
    ] = 3_600_000
    retention_overrides_jobs: Annotated[
        bool, Field(description="Whether retention may remove records that a job has not read yet.")
    ] = False


class StreamRequest(StreamChange):
    """A stream to make."""

    name: StreamName
    partitions: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)] = 4


class PartitionView(BaseModel):
    """Offsets [start_offset, end_offset) are there."""

    partition: int
    start_offset: int
    end_offset: int


class StreamView(BaseModel):
    """A stream. Its ETag changes with its settings, not with its records."""

    id: str
    name: str
    kind: Literal["user", "changelog", "dropped", "repartition"]
    partitions: list[PartitionView]
    records: int
    bytes: int
    retention_ms: int | None
    fields: dict[str, str] | None
    max_future_ms: int
    retention_overrides_jobs: bool
    custom_partitioning: bool
    created_at: str


class AppendedRange(BaseModel):
    """Offsets first to last of a partition, both included."""

    partition: int
    first: int
    last: int


class Appended(BaseModel):
    """What became of posted records: all of them are durable and readable."""

    accepted: int
    offsets: list[AppendedRange]
    position: Annotated[str, Field(description="Opaque: how far this write reached.")]


class Window(BaseModel):
    """[start, end), in ms."""

    start: int
    end: int


class RecordView(BaseModel):
    """One record."""

    partition: int
    offset: int
    timestamp: Annotated[int | None, Field(description="Null in changelogs alone.")]
    key: str | None
    value: Any
    window: Window | None
    headers: dict[str, str]


class RecordPage(BaseModel):
    """Records of one partition, in order."""

    records: list[RecordView]
    next: Annotated[str | None, Field(description="Cursor of the next page; null when the end is reached.")]


_RECORD_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "key": {"type": ["string", "null"], "description": "Null keys take turns over the partitions."},
        "value": {"description": "Any JSON; what the stream's `fields` ask for, where it has some."},
        "timestamp": {"type": ["integer", "null"], "minimum": 0, "description": "ms; its arrival when absent."},
        "partition": {"type": ["integer", "null"], "minimum": 0, "description": "By the key (murmur2) when absent."},
        "headers": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
    },
}


def _named(stream: Annotated[str, Path(description="The stream's name.")]) -> str:
    """A name that no stream can have is not looked for (a database may not even take it)."""
    if not re.fullmatch(ANY_NAME, stream):
        raise UnknownStream(stream)
    return stream


Named = Annotated[str, Depends(_named)]

EXAMPLE = {"name": "clicks", "partitions": 4, "fields": {"id": "string", "amount": "double?"}}
RECORDS_SCHEMA = {
    "type": "object",
    "required": ["records"],
    "additionalProperties": False,
    "properties": {"records": {"type": "array", "minItems": 1, "items": _RECORD_SCHEMA}},
}
RECORD = {"key": "u1", "value": {"id": "e-1", "amount": 12.5}, "timestamp": 1_700_000_000_000}


@router.post(
    "/v1/streams",
    status_code=201,
    responses={
        200: {"model": StreamView, "description": "An equal stream was there before"},
        201: {"model": StreamView},
        **declared(400, 401, 403, 409, 413, 415, 422),
    },
    openapi_extra=takes(StreamRequest, EXAMPLE),
)
async def create_stream(request: Request, _: Writer) -> Response:
    """Make a stream; again with an equal body: nothing happens."""
    wanted = await read_model(request, StreamRequest)
    stream, partitions, created = await run_in_threadpool(request.state.catalog.write, _create, wanted)
    return _answer_stream(stream, partitions, 201 if created else 200)


@router.get("/v1/streams", responses={200: {"model": Page[StreamView]}, **declared(401, 403, 422)})
def list_streams(request: Request, _: Reader, limit: Limit = 100, cursor: PageCursor = None) -> Response:
    """List streams by name, internal ones included."""
    require_name(cursor, ANY_NAME)
    return answer(page(request.state.catalog.read(_views, limit + 1, cursor), limit=limit))


@router.get("/v1/streams/{stream:name}", responses={200: {"model": StreamView}, **declared(401, 403, 404)})
def get_stream(request: Request, stream: Named, _: Reader) -> Response:
    """Read a stream's settings and how much is in it."""
    return _answer_stream(*request.state.catalog.read(_found, stream))


@router.patch(
    "/v1/streams/{stream:name}",
    responses={200: {"model": StreamView}, **declared(400, 401, 403, 404, 412, 413, 415, 422, 428)},
    openapi_extra=takes(StreamChange, {"retention_ms": 604_800_000}),
)
async def update_stream(
    request: Request,
    stream: Named,
    _: Writer,
    _if_match: Annotated[str | None, Header(alias="If-Match", description="The ETag of what is changed.")] = None,
) -> Response:
    """Change a stream's settings; records that are in it already are not looked at again."""
    tag = expected_etag(request)
    change = await read_model(request, StreamChange)
    changes = change.model_dump(include=change.model_fields_set)
    return _answer_stream(*await run_in_threadpool(request.state.catalog.write, _change, stream, tag, changes))


@router.delete("/v1/streams/{stream:name}", status_code=204, responses=declared(401, 403, 404, 409))
def delete_stream(request: Request, stream: Named, _: Writer) -> Response:
    """Delete a stream and its records; 409 while a job reads or writes it."""
    request.state.catalog.write(streams.delete_stream, stream)
    return Response(status_code=204)


@router.post(
    "/v1/streams/{stream:name}/records",
    responses={200: {"model": Appended}, **declared(400, 401, 403, 404, 409, 413, 415, 422, 429, 503)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": RECORDS_SCHEMA, "example": {"records": [RECORD]}},
                NDJSON: {"schema": {"type": "string"}, "example": orjson.dumps(RECORD).decode() + "\n"},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
)
async def append_records(
    request: Request,
    stream: Named,
    caller: Writer,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias="Idempotency-Key",
            min_length=1,
            max_length=255,
            description="The same key and body again, within 24 h: appended once, answered the same.",
        ),
    ] = None,
) -> Response:
    """Append records, all or none; when this answers they are durable.

    JSON (`{"records": […]}`), one record a line (NDJSON), or an Arrow IPC stream with the columns key, value
    (JSON text), timestamp (int64 or timestamp[ms]), partition and headers, each of them optional. At most 2,000,000
    records; a key has up to 64 KiB, a value up to 8 MiB.
    """
    media_type = media_type_of(request.headers.get("Content-Type", ""))
    target = await run_in_threadpool(request.state.catalog.read, _writable, stream)
    with request.state.ingest.room() as room:
        body = await _body(request, room)
        post = _Post(target, media_type, body, caller.id, idempotency_key)
        handed_in = await run_in_threadpool(_hand_in, request.state, post)
        return answer(await asyncio.wrap_future(handed_in))


@router.get(
    "/v1/streams/{stream:name}/records",
    responses={
        200: {
            "model": RecordPage,
            "description": "A page; as Arrow with the columns partition, offset, key, value, timestamp, window_start, "
            f"window_end, headers, and the cursor of the next page in the header `{NEXT_HEADER}`",
            "content": {ARROW: {"schema": {"type": "string", "format": "binary"}}},
        },
        **declared(401, 403, 404, 406, 410, 422, 503),
    },
)
def read_records(
    request: Request,
    stream: Named,
    _: Reader,
    partition: Annotated[int | None, Query(ge=0, description="0 unless the cursor says otherwise.")] = None,
    from_offset: Annotated[
        int | None, Query(ge=0, le=2**63 - 1, description="Where to begin; at the start when absent.")
    ] = None,
    cursor: PageCursor = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_RECORDS, description="How many records at most.")] = 500,
    key_encoding: Annotated[
        KeyEncoding, Query(description="How JSON shows keys; those of changelogs are always base64.")
    ] = "utf8",
) -> Response:
    """Read records of one partition by offset, or on from a cursor; as JSON, or as Arrow by `Accept`.

    A page ends at `limit`, at 32 MiB, or where it takes too many files; `next` tells whether there is more.
    """
    kind = accepts(request, JSON, ARROW)
    state = request.state
    found = state.catalog.read(streams.get_stream, stream)
    place = _place(found, state.catalog.lineage, partition, from_offset, cursor)
    try:
        pages, end = _pages(state, found, *place, limit)
    except SegmentMissing:  # the collector was faster: ask the catalog where the records are now
        pages, end = _pages(state, found, *place, limit)
    following = None
    if pages:
        offset = pages[-1].column("offset")[-1].as_py() + 1
        if offset < end:
            following = opaque(Cursor(found.id, state.catalog.lineage, place[0], offset))
    if kind == ARROW:
        headers = {NEXT_HEADER: following} if following else {}
        return Response(arrow_answer(pages), headers=headers, media_type=ARROW)
    encoding: KeyEncoding = "base64" if found.kind == "changelog" else key_encoding
    return Response(json_answer(pages, encoding, following), media_type=JSON)


# ---------------------------------------------------------------- streams as they are shown


Described = tuple[StreamRow, list[PartitionRow]]


def _create(s: Session, wanted: StreamRequest) -> tuple[StreamRow, list[PartitionRow], bool]:
    settings = wanted.model_dump(exclude={"name"}) | {"fields": wanted.fields or None}
    found = streams.find_stream(s, wanted.name)
    if found is None:
        overrides = settings.pop("retention_overrides_jobs")
        found = streams.create_stream(s, wanted.name, **settings)
        found.retention_overrides_jobs = overrides
        return found, streams.partitions_of(s, found.id), True
    if found.kind != "user" or any(getattr(found, name) != value for name, value in settings.items()):
        raise StreamExists(wanted.name)
    return found, streams.partitions_of(s, found.id), False


def _change(s: Session, name: str, tag: str, changes: dict[str, Any]) -> Described:
    if tag != _tag(streams.get_stream(s, name)):
        raise StaleTag(name)
    if "fields" in changes:
        changes["fields"] = changes["fields"] or None
    expected = int(tag.rpartition("-")[2])
    stream = streams.update_stream(s, name, expected_etag=expected, **changes)
    return stream, streams.partitions_of(s, stream.id)


def _found(s: Session, name: str) -> Described:
    stream = streams.get_stream(s, name)
    return stream, streams.partitions_of(s, stream.id)


def _views(s: Session, limit: int, after: str | None) -> list[dict[str, Any]]:
    found = streams.list_streams(s, limit=limit, after=after)
    return [_view(stream, streams.partitions_of(s, stream.id)) for stream in found]


def _tag(stream: StreamRow) -> str:
    """A stream's entity tag; one that is made again under the name has another."""
    return f"{stream.id[:12]}-{stream.etag}"


def _answer_stream(stream: StreamRow, partitions: list[PartitionRow], status: int = 200) -> Response:
    headers = {"ETag": f'"{_tag(stream)}"'}
    if status == 201:
        headers["Location"] = f"/v1/streams/{stream.name}"
    return answer(_view(stream, partitions), status, headers=headers)


def _view(stream: StreamRow, partitions: list[PartitionRow]) -> dict[str, Any]:
    return {
        "id": stream.id,
        "name": stream.name,
        "kind": stream.kind,
        "partitions": [
            {"partition": p.partition, "start_offset": p.start_offset, "end_offset": p.end_offset} for p in partitions
        ],
        "records": sum(p.records for p in partitions),
        "bytes": sum(p.bytes for p in partitions),
        "retention_ms": stream.retention_ms,
        "fields": stream.fields,
        "max_future_ms": stream.max_future_ms,
        "retention_overrides_jobs": stream.retention_overrides_jobs,
        "custom_partitioning": stream.custom_partitioning,
        "created_at": stream.created_at.isoformat(),
    }


# ---------------------------------------------------------------- records in


@dataclass(frozen=True, slots=True)
class _Post:
    """A request to append, its body read."""

    stream: StreamRow
    media_type: str
    body: bytes
    api_key_id: str
    idempotency_key: str | None

    def idempotency(self) -> Idempotency | None:
        if self.idempotency_key is None:
            return None
        sha256 = hashlib.sha256(self.media_type.encode() + b"\n")
        sha256.update(self.body)
        return Idempotency(self.api_key_id, self.stream.id, self.idempotency_key, sha256.hexdigest())


def _writable(s: Session, name: str) -> StreamRow:
    stream = streams.get_stream(s, name)
    if stream.kind != "user":
        raise InternalStream(name)
    return stream


async def _body(request: Request, room: Room) -> bytes:
    """The body; BufferFull as soon as it is known that there is no room for it."""
    declared_length = request.headers.get("Content-Length", "")
    if declared_length.isdigit():
        room.at_least(int(declared_length))
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        room.at_least(size)
        parts.append(part)
    return b"".join(parts)


def _hand_in(state: Any, post: _Post) -> "Future[Answer]":
    """Read a body and hand its records to the buffer; an answer that was given before is given again."""
    now_ms = time.time_ns() // 1_000_000
    metrics.INGESTED_BYTES.inc(len(post.body))
    idempotency = post.idempotency()
    if idempotency is not None:
        answered = state.ingest.answered(idempotency)
        if answered is not None:
            done: Future[Answer] = Future()
            done.set_result(answered)
            return done
    stream = post.stream
    rules = Rules(
        partitions=stream.partitions,
        now_ms=now_ms,
        max_future_ms=stream.max_future_ms,
        fields=stream.fields,
        max_bytes=state.settings.max_body_bytes,
    )
    handed_in: Future[Answer] = state.ingest.append(stream, decode(post.media_type, post.body, rules), idempotency)
    return handed_in


# ---------------------------------------------------------------- records out


def _place(
    stream: StreamRow, lineage: str, partition: int | None, from_offset: int | None, cursor: str | None
) -> tuple[int, int | None]:
    """(partition, offset) to read from; None: the start."""
    if cursor is None:
        return partition or 0, from_offset
    found = cursor_of(cursor)
    if found is None or found.stream != stream.id or found.lineage != lineage:
        raise _no_cursor(f"the cursor does not belong to the stream {stream.name!r}")
    if from_offset is not None or partition not in (None, found.partition):
        raise _no_cursor("the cursor says where to read on, the query says otherwise")
    return found.partition, found.offset


def _no_cursor(detail: str) -> ProblemError:
    return ProblemError(422, "invalid_cursor", detail, [{"pointer": "?cursor", "detail": detail}])


def _pages(
    state: Any, stream: StreamRow, partition: int, offset: int | None, limit: int
) -> tuple[list[pa.RecordBatch], int]:
    """Batches of PAGE_SCHEMA from `offset` on, and the partition's end. Raises OffsetTruncated."""
    if partition >= stream.partitions:
        raise UnknownPartition(f"{stream.name}/{partition}")
    wanted = state.catalog.read(segments.chunks_from, stream.id, partition, offset or 0, limit)
    if offset is not None and offset < wanted.start_offset:
        raise OffsetTruncated(wanted.start_offset)
    pages: list[pa.RecordBatch] = []
    rows_left, bytes_left = limit, MAX_PAGE_BYTES
    for chunk in wanted.chunks:
        skipped = max(0, (offset or 0) - chunk.first_offset)
        batch = state.storage.read_chunk(chunk).slice(skipped, rows_left)
        found = as_page(batch, partition, chunk.first_offset + skipped)
        rows, size = rows_within(found, bytes_left)
        pages.append(found.slice(0, max(rows, 0 if pages else 1)))
        rows_left, bytes_left = rows_left - rows, bytes_left - size
        if rows < found.num_rows or rows_left <= 0:
            break
    return [found for found in pages if found.num_rows], wanted.end_offset
