"""Records posted to a stream: read, checked, handed to the append buffer.

Knows the shapes of request and answer. Refuses to know how records become durable (`service.ingest`) and what a body
means (`service.payloads`).
"""

import asyncio
import hashlib
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Any

import orjson
from fastapi import Header
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service import prometheus
from service.api.bodies import answer
from service.api.document import router_of
from service.api.streams import NamedStream
from service.auth import Writer
from service.catalog import streams
from service.catalog.tables import StreamRow
from service.ingest import Answer, Idempotency
from service.payloads import ARROW, JSON, NDJSON, Rules, decode, media_type_of
from service.problems import ProblemItemView, declared
from service.streams.errors import (
    InternalStream,
)

router = router_of("streams")

_RECORD_SCHEMA = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "key": {"type": ["string", "null"], "description": "Null keys take turns over the partitions."},
        "value": {"description": "Any JSON; what the stream's `fields` ask for, where it has some."},
        "timestamp": {"type": ["integer", "null"], "minimum": 0, "description": "ms; its arrival when absent."},
        "partition": {"type": ["integer", "null"], "minimum": 0, "description": "By the key (murmur2) when absent."},
        "headers": {
            "type": ["object", "null"],
            "additionalProperties": {"type": "string"},
            "description": "Headers of the record, as text.",
        },
    },
}
RECORDS_SCHEMA = {
    "type": "object",
    "required": ["records"],
    "additionalProperties": False,
    "properties": {
        "records": {
            "type": "array",
            "minItems": 1,
            "items": _RECORD_SCHEMA,
            "description": "The records, in order.",
        }
    },
}
RECORD_EXAMPLE = {"key": "u1", "value": {"id": "e-1", "amount": 12.5}, "timestamp": 1_700_000_000_000}


class AppendedRangeView(BaseModel):
    """Offsets first to last of a partition, both included."""

    partition: int
    first: int
    last: int


class AppendedView(BaseModel):
    """Posted records: all of them are durable and readable."""

    accepted: int
    offsets: list[AppendedRangeView]
    position: Annotated[str, Field(description="Opaque: the end of this write, as `min_position` of lookups.")]
    warnings: Annotated[
        list[ProblemItemView] | None,
        Field(description="Places of what was taken, and is probably meant otherwise: times in another unit than ms."),
    ] = None


@router.post(
    "/v1/streams/{stream:name}/records",
    responses={200: {"model": AppendedView}, **declared(400, 401, 403, 404, 409, 413, 415, 422, 429, 503)},
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                JSON: {"schema": RECORDS_SCHEMA, "example": {"records": [RECORD_EXAMPLE]}},
                NDJSON: {"schema": {"type": "string"}, "example": orjson.dumps(RECORD_EXAMPLE).decode() + "\n"},
                ARROW: {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
)
async def append_records(
    request: Request,
    stream: NamedStream,
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
    async with request.state.post_bodies.read(request, caller.id) as body:
        post = _Post(target, media_type, body, caller.id, idempotency_key)
        handed_in = await run_in_threadpool(_hand_in, request.state, post)
        return answer(await asyncio.wrap_future(handed_in))


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


def _hand_in(state: Any, post: _Post) -> "Future[Answer]":
    """Read a body and hand its records to the buffer; an answer that was given before is given again."""
    now_ms = time.time_ns() // 1_000_000
    prometheus.INGESTED_BYTES.inc(len(post.body))
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
