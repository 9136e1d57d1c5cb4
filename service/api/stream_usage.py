"""`:usage` of streams over HTTP: who writes one, who reads it and how far behind, what its partitions hold.

Knows the shapes of answers. Refuses to know how they are found (`service.catalog.stream_usage`).
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import answer, page
from service.api.document import router_of
from service.api.models import Cursor, Limit, PageView, require_name
from service.api.moments import Moment, moment
from service.api.streams import ANY_NAME, NamedStream
from service.auth import Reader
from service.catalog import stream_usage, streams
from service.catalog.stream_usage import PartitionContent, StreamUsage
from service.problems import declared

router = router_of("streams")


class StreamWriterView(BaseModel):
    """A job that writes a stream."""

    job: Annotated[str, Field(description="Its name.")]
    state: Annotated[str, Field(description="Its state.")]


class StreamReaderView(BaseModel):
    """Who reads a stream."""

    kind: Annotated[
        Literal["job", "subscription", "webhook"],
        Field(description="A job; a subscription that consumers pull from, or one that is pushed to a target."),
    ]
    name: Annotated[str, Field(description="The name of the job or subscription.")]
    state: Annotated[
        str,
        Field(description="Of a job its state; of a subscription `reading`, `idle` (nobody has a lease), `expired`."),
    ]
    lag_records: Annotated[int, Field(description="Records that are there and were not read, or not acknowledged.")]
    lag_ms: Annotated[int | None, Field(description="Age of the oldest of them, ms, 0: none; null: not known.")]
    error: Annotated[str | None, Field(description="Why it does not go on; null: it does.")]


class StreamUsageView(BaseModel):
    """Who writes a stream, and who reads it. Who posts records over HTTP is not among them."""

    stream: str
    writers: Annotated[list[StreamWriterView], Field(description="Jobs that write it, by name.")]
    readers: Annotated[list[StreamReaderView], Field(description="Jobs by name, then subscriptions by name.")]


class PartitionContentView(BaseModel):
    """Offsets [start_offset, end_offset) are there: how much that is, and of when."""

    partition: Annotated[int, Field(description="Number of the partition, from 0.")]
    start_offset: int
    end_offset: int
    records: Annotated[int, Field(description="How many records are in it.")]
    bytes: Annotated[int, Field(description="Bytes that they take in the storage.")]
    files: Annotated[int, Field(description="In how many files these lie.")]
    first_timestamp: Annotated[int | None, Field(description="The lowest timestamp in these files; null: none.")]
    last_timestamp: Annotated[int | None, Field(description="The highest timestamp in these files; null: none.")]
    oldest_at: Annotated[
        Moment | None, Field(description="When the oldest of these files was written: retention counts from then.")
    ]
    grew_at: Annotated[Moment | None, Field(description="When records last came; null: never.")]


class StreamContentView(StreamUsageView):
    """A stream's users, and what its partitions hold."""

    partitions: Annotated[list[PartitionContentView], Field(description="Its partitions, by number.")]


@router.get("/v1/streams:usage", responses={200: {"model": PageView[StreamUsageView]}, **declared(401, 403, 422)})
def list_stream_usage(request: Request, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List who writes and reads streams, by the stream's name, internal ones included."""
    require_name(cursor, ANY_NAME)
    found = request.state.catalog.read(_usage, limit + 1, cursor)
    return answer(page(found, limit=limit, cursor_of="stream"))


@router.get("/v1/streams/{stream:name}:usage", responses={200: {"model": StreamContentView}, **declared(401, 403, 404)})
def get_stream_usage(request: Request, stream: NamedStream, _: Reader) -> Response:
    """Show who writes and reads a stream, how far behind, and what its partitions hold."""
    return answer(request.state.catalog.read(_content, stream))


def _usage(s: Session, limit: int, after: str | None) -> list[dict[str, Any]]:
    return [_usage_view(each) for each in stream_usage.usage_of(s, streams.list_streams(s, limit=limit, after=after))]


def _content(s: Session, name: str) -> dict[str, Any]:
    stream = streams.get_stream(s, name)
    [usage] = stream_usage.usage_of(s, [stream])
    contents = stream_usage.contents_of(s, stream)
    return {**_usage_view(usage), "partitions": [_content_view(each) for each in contents]}


def _usage_view(usage: StreamUsage) -> dict[str, Any]:
    return {
        "stream": usage.stream.name,
        "writers": [each._asdict() for each in usage.writers],
        "readers": [each._asdict() for each in usage.readers],
    }


def _content_view(content: PartitionContent) -> dict[str, Any]:
    row = content.row
    return {
        "partition": row.partition,
        "start_offset": row.start_offset,
        "end_offset": row.end_offset,
        "records": row.records,
        "bytes": row.bytes,
        "files": content.files,
        "first_timestamp": content.first_timestamp,
        "last_timestamp": content.last_timestamp,
        "oldest_at": None if content.oldest_ms is None else moment(content.oldest_ms),
        "grew_at": None if row.published_ms is None else moment(row.published_ms),
    }
