"""Streams over HTTP: made, listed, changed, deleted.

Knows the shapes of requests and answers. Refuses to know records (`appends`, `reads`).
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Depends, Header, Path
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import ETAG, LOCATION, answer, expected_etag, page, read_model, with_tag
from service.api.document import router_of, takes
from service.api.models import Cursor as PageCursor
from service.api.models import Limit, PageView, require_name
from service.api.moments import Moment, moment
from service.auth import Reader, Writer
from service.catalog import streams
from service.catalog.streams import PartitionBounds
from service.catalog.subscriptions import FailingPush, failing_pushes
from service.catalog.tables import PartitionRow, StreamRow
from service.payloads.fields import KINDS
from service.problems import declared
from service.streams.errors import (
    StaleTag,
    StreamExists,
    UnknownStream,
)
from service.streams.operators.fields import absent_stays

router = router_of("streams")

MAX_PARTITIONS = 1024
MAX_MS = 2**53 - 1  # what every JSON reader holds exactly

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
        "may be null or absent. Other members may be there. Exports as Arrow have a column for each. Without it, "
        "values are any JSON.",
    ),
]
Milliseconds = Annotated[int, Field(ge=0, le=MAX_MS)]

EXAMPLE = {"name": "clicks", "partitions": 4, "fields": {"id": "string", "amount": "double?"}}


class StreamSettings(BaseModel):
    """Settings of a stream that may change."""

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


class StreamChange(StreamSettings):
    """Settings to change; one that is absent stays."""

    model_config = ConfigDict(json_schema_extra=absent_stays)


class StreamRequest(StreamSettings):
    """A stream to make."""

    name: StreamName
    partitions: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)] = 4


class PartitionView(BaseModel):
    """Offsets [start_offset, end_offset) are there."""

    partition: int
    start_offset: int
    end_offset: int


class Untaken(BaseModel):
    """A record that the target of a subscription does not take."""

    attempts: Annotated[int, Field(description="How often that record was posted.")]
    since: Annotated[Moment, Field(description="When it was posted first.")]
    detail: Annotated[str, Field(description="Why it was not taken the last time.")]


class FailingPushView(Untaken):
    """A subscription whose target does not take the next record of a partition."""

    subscription: Annotated[str, Field(description="Its name.")]


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
    failing_pushes: Annotated[
        list[FailingPushView],
        Field(description="Subscriptions whose targets do not take a record; none: all goes well."),
    ]
    created_at: Moment


def stream_name(stream: Annotated[str, Path(description="The stream's name.")]) -> str:
    """A name that no stream can have is not looked for (a database may not even take it)."""
    if not re.fullmatch(ANY_NAME, stream):
        raise UnknownStream(stream)
    return stream


NamedStream = Annotated[str, Depends(stream_name)]


@router.post(
    "/v1/streams",
    status_code=201,
    responses={
        200: with_tag(StreamView, description="An equal stream was there before"),
        201: with_tag(StreamView, headers={**ETAG, **LOCATION}),
        **declared(400, 401, 403, 409, 413, 415, 422),
    },
    openapi_extra=takes(StreamRequest, EXAMPLE),
)
async def create_stream(request: Request, _: Writer) -> Response:
    """Make a stream; again with an equal body: nothing happens."""
    wanted = await read_model(request, StreamRequest)
    described, created = await run_in_threadpool(request.state.catalog.write, _create, wanted)
    return _answer_stream(described, 201 if created else 200)


@router.get("/v1/streams", responses={200: {"model": PageView[StreamView]}, **declared(401, 403, 422)})
def list_streams(request: Request, _: Reader, limit: Limit = 100, cursor: PageCursor = None) -> Response:
    """List streams by name, internal ones included."""
    require_name(cursor, ANY_NAME)
    return answer(page(request.state.catalog.read(_views, limit + 1, cursor), limit=limit))


@router.get("/v1/streams/{stream:name}", responses={200: with_tag(StreamView), **declared(401, 403, 404)})
def get_stream(request: Request, stream: NamedStream, _: Reader) -> Response:
    """Read a stream's settings and how much is in it."""
    return _answer_stream(request.state.catalog.read(_found, stream))


@router.patch(
    "/v1/streams/{stream:name}",
    responses={200: with_tag(StreamView), **declared(400, 401, 403, 404, 412, 413, 415, 422, 428)},
    openapi_extra=takes(StreamChange, {"retention_ms": 604_800_000}),
)
async def update_stream(
    request: Request,
    stream: NamedStream,
    _: Writer,
    _if_match: Annotated[str | None, Header(alias="If-Match", description="The ETag of what is changed.")] = None,
) -> Response:
    """Change a stream's settings; records that are in it already are not looked at again."""
    tag = expected_etag(request)
    change = await read_model(request, StreamChange)
    changes = change.model_dump(include=change.model_fields_set)
    return _answer_stream(await run_in_threadpool(request.state.catalog.write, _change, stream, tag, changes))


@router.delete("/v1/streams/{stream:name}", status_code=204, responses=declared(401, 403, 404, 409))
def delete_stream(request: Request, stream: NamedStream, _: Writer) -> Response:
    """Delete a stream and its records; 409 while a job reads or writes it."""
    request.state.catalog.write(streams.delete_stream, stream)
    return Response(status_code=204)


Described = tuple[StreamRow, Sequence[PartitionRow | PartitionBounds], list[FailingPush]]


def _create(s: Session, wanted: StreamRequest) -> tuple[Described, bool]:
    settings = wanted.model_dump(exclude={"name"}) | {"fields": wanted.fields or None}
    found = streams.find_stream(s, wanted.name)
    if found is None:
        overrides = settings.pop("retention_overrides_jobs")
        found = streams.create_stream(s, wanted.name, **settings)
        found.retention_overrides_jobs = overrides
        return _described(s, found), True
    if found.kind != "user" or any(getattr(found, name) != value for name, value in settings.items()):
        raise StreamExists(wanted.name)
    return _described(s, found), False


def _change(s: Session, name: str, tag: str, changes: dict[str, Any]) -> Described:
    if tag != _tag(streams.get_stream(s, name)):
        raise StaleTag(name)
    if "fields" in changes:
        changes["fields"] = changes["fields"] or None
    expected = int(tag.rpartition("-")[2])
    return _described(s, streams.update_stream(s, name, expected_etag=expected, **changes))


def _found(s: Session, name: str) -> Described:
    return _described(s, streams.get_stream(s, name))


def _described(s: Session, stream: StreamRow) -> Described:
    return stream, streams.partitions_of(s, stream.id), failing_pushes(s, [stream.id]).get(stream.id, [])


def _views(s: Session, limit: int, after: str | None) -> list[dict[str, Any]]:
    found = streams.list_streams(s, limit=limit, after=after)
    failing = failing_pushes(s, [stream.id for stream in found])
    partitions = streams.partitions_of_each(s, [stream.id for stream in found])
    return [_view((stream, partitions[stream.id], failing.get(stream.id, []))) for stream in found]


def _tag(stream: StreamRow) -> str:
    """A stream's entity tag; one that is made again under the name has another."""
    return f"{stream.id[:12]}-{stream.etag}"


def _answer_stream(described: Described, status: int = 200) -> Response:
    stream = described[0]
    headers = {"ETag": f'"{_tag(stream)}"'}
    if status == 201:
        headers["Location"] = f"/v1/streams/{stream.name}"
    return answer(_view(described), status, headers=headers)


def _view(described: Described) -> dict[str, Any]:
    stream, partitions, failing = described
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
        "failing_pushes": [
            {
                "subscription": each.subscription,
                "attempts": each.attempts,
                "since": moment(each.since_ms),
                "detail": each.detail,
            }
            for each in failing
        ],
        "created_at": stream.created_at.isoformat(),
    }
