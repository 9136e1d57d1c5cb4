"""Subscriptions over HTTP: made, shown, deleted; records pulled and acknowledged.

Knows the shapes of requests and answers. Refuses to know how a subscription is kept (`service.catalog.subscriptions`)
and how a pull waits and reads (`service.reads.subscriptions`).
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, Final, Self
from urllib.parse import urlsplit

import orjson
from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, field_validator
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import LOCATION, UNCHANGED, answer, page, read_json, read_model, tagged, with_tag
from service.api.document import router_of, takes
from service.api.models import Cursor as PageCursor
from service.api.models import Limit, PageView, require_name
from service.api.moments import Moment, moment
from service.api.reads import MAX_WAIT_MS, RecordView
from service.api.start_records import first_records
from service.api.streams import MAX_MS, MAX_PARTITIONS, NamedStream, Untaken
from service.auth import Reader, Writer
from service.catalog import streams, subscriptions
from service.catalog.subscriptions import PartitionState, PullWish, SubscriptionSettings, SubscriptionState
from service.payloads import JSON
from service.payloads.answers import KeyEncoding, record_texts
from service.problems import declared, refused
from service.reads.subscriptions import Delivery
from service.streams.errors import InvalidSpec, Problem
from service.streams.operators.fields import JOB_NAME, MAX_INT64, Spec, problem
from service.streams.topology.complaints import validated
from service.streams.topology.starts import Start, unfit_for_partitions, unfit_for_sources
from service.webhooks.addresses import is_private_literal
from service.webhooks.signing import key_of

router = router_of("subscriptions")

DAY_MS: Final = 86_400_000
MAX_LEASE_MS: Final = 3_600_000
MAX_PULL_RECORDS: Final = 10_000
NO_CONTROLS: Final = r"^[^\x00-\x1f]{1,200}$"

NamedSubscription = Annotated[str, Path(description="The subscription's name.")]
Consumer = Annotated[
    str,
    Field(pattern=NO_CONTROLS, description="Who reads: a name of one process or thread, which others do not have."),
]
Offset = Annotated[int, Field(ge=0, le=MAX_INT64)]


class PushRequest(Spec):
    """A target that records are posted to, one by one."""

    url: Annotated[str, Field(max_length=2_000, description="Where to: http or https, a public address.")]
    secret: Annotated[
        str, Field(max_length=200, description="Signs what is posted: `whsec_` and 24 to 64 bytes in base64.")
    ]

    @field_validator("url")
    @classmethod
    def _is_a_target(cls, url: str) -> str:
        try:
            found = urlsplit(url)
            is_one = found.scheme in ("http", "https") and bool(found.hostname) and found.port != 0
        except ValueError:
            is_one = False
        if not is_one or not url.isascii() or not url.isprintable() or " " in url or found.username is not None:
            raise problem("must be a URL: http or https, a host, no user, in ASCII")
        return url

    @field_validator("secret")
    @classmethod
    def _is_a_secret(cls, secret: str) -> str:
        try:
            key_of(secret)
        except ValueError as error:
            raise problem(str(error)) from error
        return secret


class SubscriptionRequest(Spec):
    """A subscription to make."""

    name: Annotated[str, Field(pattern=JOB_NAME, description="Its name, of its own within the stream.")]
    start: Annotated[
        Start, Field(description="Where it begins: `earliest`, `latest`, a timestamp, or an offset a partition.")
    ] = "latest"
    expires_after_ms: Annotated[
        Annotated[int, Field(gt=0, le=MAX_MS)] | None,
        Field(description="How long without a pull until it holds retention back no more; null: never."),
    ] = 7 * DAY_MS
    holds_retention: Annotated[
        bool, Field(description="Whether retention leaves what it has not acknowledged, until it expires.")
    ] = False

    push: Annotated[
        PushRequest | None, Field(description="Where the service posts the records by itself; null: consumers pull.")
    ] = None

    @classmethod
    def parse(cls, body: object) -> Self:
        """A request from decoded JSON. Raises InvalidSpec with the pointer of every problem found."""
        return validated(cls, body)


class SubscriptionPartitionView(BaseModel):
    """How far a subscription is in a partition."""

    partition: int
    position: Annotated[int, Field(description="Everything before this offset is acknowledged.")]
    delivered_to: Annotated[int, Field(description="The end of the batch that is not acknowledged; else `position`.")]
    end: Annotated[int, Field(description="The offset that the next record of the partition gets.")]
    lag_records: Annotated[int, Field(description="Records that are there and not acknowledged.")]
    lag_ms: Annotated[int | None, Field(description="Age of the oldest of them, ms, 0: none; null: not known.")]
    consumer: Annotated[str | None, Field(description="Who holds the partition; null: nobody.")]


class SubscriptionConsumerView(BaseModel):
    """A consumer that has a lease."""

    consumer: Annotated[str, Field(description="Its name.")]
    lease_until: Annotated[Moment, Field(description="When its lease ends, unless it pulls or acknowledges before.")]
    partitions: Annotated[list[int], Field(description="The partitions that it holds.")]


class PushFailureView(Untaken):
    """A partition whose next record the target does not take."""

    partition: int


class PushView(BaseModel):
    """A target that records are posted to."""

    url: Annotated[str, Field(description="Where to.")]
    failures: Annotated[list[PushFailureView], Field(description="Partitions that wait; none: all goes well.")]


class SubscriptionView(BaseModel):
    """A reader of a stream whose positions the service keeps."""

    id: Annotated[str, Field(description="Id of the subscription; one made again under its name has another.")]
    name: str
    stream: str
    stream_id: str
    start: Annotated[Start, Field(description="Where it began.")]
    expires_after_ms: Annotated[int | None, Field(description="As it was made with; null: never.")]
    holds_retention: Annotated[bool, Field(description="As it was made with.")]
    push: Annotated[PushView | None, Field(description="Where its records are posted to; null: consumers pull.")]
    is_expired: Annotated[bool, Field(description="Nobody has pulled for so long; the next pull ends that.")]
    pulled_at: Annotated[Moment, Field(description="When somebody last pulled; at first when it was made.")]
    created_at: Moment
    lag_records: Annotated[int, Field(description="Records that are there and not acknowledged.")]
    lag_ms: Annotated[int | None, Field(description="Age of the oldest of them, ms, 0: none; null: not known.")]
    partitions: Annotated[list[SubscriptionPartitionView], Field(description="The stream's partitions, by number.")]
    consumers: Annotated[list[SubscriptionConsumerView], Field(description="Consumers that have a lease, by name.")]


class PullRequest(BaseModel):
    """What a consumer asks for."""

    model_config = ConfigDict(extra="forbid", strict=True)

    consumer: Consumer
    pull_id: Annotated[
        Annotated[str, Field(pattern=NO_CONTROLS)] | None,
        Field(description="A name for this pull: asked again under it, it gives the same; null: none."),
    ] = None
    lease_ms: Annotated[
        int,
        Field(ge=100, le=MAX_LEASE_MS, description="How long the consumer may neither pull nor acknowledge, ms."),
    ] = 30_000
    max: Annotated[int, Field(ge=1, le=MAX_PULL_RECORDS, description="How many records at most.")] = 500
    wait_ms: Annotated[
        int, Field(ge=0, le=MAX_WAIT_MS, description="How long to wait for a record where there is none yet.")
    ] = 0
    key_encoding: Annotated[KeyEncoding, Field(description="How keys are shown.")] = "utf8"


class SubscriptionPosition(BaseModel):
    """A place in a partition."""

    model_config = ConfigDict(extra="forbid", strict=True)

    partition: Annotated[int, Field(ge=0, lt=2**31)]
    position: Annotated[Offset, Field(description="The offset behind the last record that is done.")]


class GapView(BaseModel):
    """Offsets from `start` up to `end` (not included) that retention took before they were acknowledged."""

    partition: int
    start: Annotated[int, Field(description="The first offset that is gone.")]
    end: Annotated[int, Field(description="The offset behind the last one that is gone.")]


class PulledView(BaseModel):
    """What a pull gave."""

    records: Annotated[list[RecordView], Field(description="The records, in order within each partition.")]
    positions: Annotated[
        list[SubscriptionPosition],
        Field(description="What to acknowledge once the records, and the gaps, are done with."),
    ]
    gaps: Annotated[list[GapView], Field(description="What retention took of what would have come; most often none.")]
    partitions: Annotated[list[int], Field(description="The partitions that the consumer holds.")]
    lease_until: Annotated[Moment, Field(description="When the lease ends, unless it pulls or acknowledges before.")]


class AcknowledgeRequest(BaseModel):
    """What is done."""

    model_config = ConfigDict(extra="forbid", strict=True)

    consumer: Consumer
    positions: Annotated[
        list[SubscriptionPosition],
        Field(max_length=MAX_PARTITIONS, description="As the pull gave them, or before that; one a partition."),
    ]
    leave: Annotated[bool, Field(description="Whether the consumer then gives up its partitions, at once.")] = False


class AcknowledgedView(BaseModel):
    """Where the subscription stands in the partitions that were named."""

    positions: Annotated[
        list[SubscriptionPosition], Field(description="Everything before these offsets is acknowledged.")
    ]
    lease_until: Annotated[Moment | None, Field(description="When the lease ends; null: the consumer has none.")]


SETTINGS_EXAMPLE: Final = {"name": "billing", "start": "earliest", "holds_retention": True}
PULL_EXAMPLE: Final = {"consumer": "billing-1", "pull_id": "7c9e6679", "max": 500, "wait_ms": 20_000}
POSITIONS_EXAMPLE: Final = {"consumer": "billing-1", "positions": [{"partition": 0, "position": 42}]}


# ---------------------------------------------------------------- made, shown, deleted


@router.post(
    "/v1/streams/{stream:name}/subscriptions",
    status_code=201,
    responses={
        200: {"model": SubscriptionView, "description": "An equal subscription was there before"},
        201: {"model": SubscriptionView, "headers": LOCATION},
        **declared(400, 401, 403, 404, 409, 413, 415, 422),
    },
    openapi_extra=takes(SubscriptionRequest, SETTINGS_EXAMPLE),
)
async def create_subscription(request: Request, stream: NamedStream, _: Writer) -> Response:
    """Make a subscription; again with an equal body: nothing happens. It ends with its stream."""
    wanted = SubscriptionRequest.parse(await read_json(request))
    return await run_in_threadpool(_create, request, stream, wanted)


def _create(request: Request, stream: str, wanted: SubscriptionRequest) -> Response:
    catalog = request.state.catalog
    partitions = {stream: catalog.read(streams.get_stream, stream).partitions}
    unfit = [*unfit_for_sources(wanted.start, [stream]), *unfit_for_partitions(wanted.start, partitions)]
    if unfit:
        raise InvalidSpec(unfit)
    settings = SubscriptionSettings(
        wanted.start, wanted.expires_after_ms, wanted.holds_retention, *_sealed(request, wanted.push)
    )
    records = first_records(request, [stream], wanted.start)
    is_new = catalog.write(subscriptions.create_subscription, stream, wanted.name, settings, records)
    shown = _view(catalog.read(subscriptions.get_subscription, stream, wanted.name))
    place = {"Location": f"/v1/streams/{stream}/subscriptions/{wanted.name}"}
    return answer(shown, 201, headers=place) if is_new else answer(shown)


@router.get(
    "/v1/streams/{stream:name}/subscriptions",
    responses={200: {"model": PageView[SubscriptionView]}, **declared(401, 403, 404, 422)},
)
def list_subscriptions(
    request: Request, stream: NamedStream, _: Reader, limit: Limit = 100, cursor: PageCursor = None
) -> Response:
    """List the subscriptions of a stream by name."""
    require_name(cursor, JOB_NAME)
    found = request.state.catalog.read(subscriptions.list_subscriptions, stream, limit=limit + 1, after=cursor)
    return answer(page([_view(each) for each in found], limit=limit))


@router.get(
    "/v1/streams/{stream:name}/subscriptions/{subscription:name}",
    responses={200: with_tag(SubscriptionView), **UNCHANGED, **declared(401, 403, 404)},
)
def get_subscription(request: Request, stream: NamedStream, subscription: NamedSubscription, _: Reader) -> Response:
    """Read where a subscription stands, how far behind it is, and who reads."""
    return tagged(request, _view(request.state.catalog.read(subscriptions.get_subscription, stream, subscription)))


@router.delete(
    "/v1/streams/{stream:name}/subscriptions/{subscription:name}",
    status_code=204,
    responses=declared(401, 403, 404),
)
def delete_subscription(request: Request, stream: NamedStream, subscription: NamedSubscription, _: Writer) -> Response:
    """Delete a subscription and its positions; pulls that wait are answered 404."""
    request.state.catalog.write(subscriptions.delete_subscription, stream, subscription)
    return Response(status_code=204)


def _sealed(request: Request, push: PushRequest | None) -> tuple[str, str, str] | tuple[None, None, None]:
    """The target, its secret sealed, and that secret's digest. Raises InvalidSpec where the address is refused."""
    if push is None:
        return None, None, None
    host = urlsplit(push.url).hostname or ""
    may_be_private = request.state.settings.webhook_private_addresses == "on"
    if not may_be_private and (host == "localhost" or is_private_literal(host)):
        raise InvalidSpec([Problem("/push/url", f"{host} is no public address")])
    digest = hashlib.sha256(push.secret.encode()).hexdigest()
    return push.url, request.state.sealer.seal(push.secret), digest


def _push_view(state: SubscriptionState) -> dict[str, Any] | None:
    if state.row.push_url is None:
        return None
    failures = [(at.progress.partition, at.failure) for at in state.partitions if at.failure is not None]
    return {
        "url": state.row.push_url,
        "failures": [
            {
                "partition": partition,
                "attempts": failure["attempts"],
                "since": moment(failure["since_ms"]),
                "detail": failure["detail"],
            }
            for partition, failure in failures
        ],
    }


def _view(state: SubscriptionState) -> dict[str, Any]:
    row, lag = state.row, state.lag
    return {
        "id": row.id,
        "name": row.name,
        "stream": state.stream,
        "stream_id": row.stream_id,
        "start": row.start,
        "expires_after_ms": row.expires_after_ms,
        "holds_retention": row.holds_retention,
        "push": _push_view(state),
        "is_expired": state.is_expired,
        "pulled_at": moment(row.pulled_ms),
        "created_at": row.created_at.isoformat(),
        "lag_records": lag.records,
        "lag_ms": lag.ms,
        "partitions": [_partition_view(each) for each in state.partitions],
        "consumers": [
            {
                "consumer": consumer,
                "lease_until": moment(until_ms),
                "partitions": [at.progress.partition for at in state.partitions if at.consumer == consumer],
            }
            for consumer, until_ms in sorted(state.consumers.items())
        ],
    }


def _partition_view(state: PartitionState) -> dict[str, Any]:
    at = state.progress
    return {
        "partition": at.partition,
        "position": at.position,
        "delivered_to": max(at.batch_end, at.position) if state.consumer is not None else at.position,
        "end": at.end,
        "lag_records": at.unread,
        "lag_ms": state.lag_ms,
        "consumer": state.consumer,
    }


# ---------------------------------------------------------------- pulled and acknowledged


@router.post(
    "/v1/streams/{stream:name}/subscriptions/{subscription:name}:pull",
    responses={200: {"model": PulledView}, **declared(400, 401, 403, 404, 409, 413, 415, 422, 503)},
    openapi_extra=takes(PullRequest, PULL_EXAMPLE),
)
async def pull_records(request: Request, stream: NamedStream, subscription: NamedSubscription, _: Writer) -> Response:
    """Take what comes next, and a lease on a share of the partitions; each record comes until it is acknowledged.

    Consumers that pull at the same time share the partitions; one that stays away for `lease_ms` loses its own. What a
    consumer has not acknowledged comes again with its next pull; with the same `pull_id` in the same ranges. One that
    closes its connection while it waits takes nothing, and has left.
    """
    asked = await read_model(request, PullRequest)
    until_s = time.monotonic() + asked.wait_ms / 1000
    wish = PullWish(asked.consumer, asked.lease_ms, asked.max, asked.pull_id)
    async with _departure(request) as gone:
        delivery = await request.state.deliveries.pull(stream, subscription, wish, until_s, gone)
    return Response(await run_in_threadpool(_delivered, delivery, asked.key_encoding), media_type=JSON)


@asynccontextmanager
async def _departure(request: Request) -> AsyncIterator[asyncio.Future[None]]:
    """Done once the caller of a request, whose body was read, has closed the connection."""

    async def noticed() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass  # the end of the body, once more

    gone = asyncio.ensure_future(noticed())
    try:
        yield gone
    finally:
        gone.cancel()


def _delivered(delivery: Delivery, encoding: KeyEncoding) -> bytes:
    records = ",".join(text for batch in delivery.batches for text in record_texts(batch, encoding))
    rest = {
        "positions": _positions(delivery.positions.items()),
        "gaps": [{"partition": at.partition, "start": at.begin, "end": at.end} for at in delivery.gaps],
        "partitions": list(delivery.held),
        "lease_until": moment(delivery.lease_until_ms),
    }
    return b'{"records":[' + records.encode() + b"]," + orjson.dumps(rest)[1:]


@router.post(
    "/v1/streams/{stream:name}/subscriptions/{subscription:name}:ack",
    responses={200: {"model": AcknowledgedView}, **declared(400, 401, 403, 404, 409, 413, 415, 422)},
    openapi_extra=takes(AcknowledgeRequest, POSITIONS_EXAMPLE),
)
async def acknowledge_records(
    request: Request, stream: NamedStream, subscription: NamedSubscription, _: Writer
) -> Response:
    """Say that everything before these positions is done, all of them or none.

    One that is not beyond what is acknowledged already changes nothing. 409 where the consumer does not hold the
    partition (any more), 422 beyond what it was given.
    """
    asked = await read_model(request, AcknowledgeRequest)
    positions = [(each.partition, each.position) for each in asked.positions]
    _require_one_each([partition for partition, _ in positions])
    found = await run_in_threadpool(
        request.state.catalog.write,
        subscriptions.acknowledge,
        stream,
        subscription,
        asked.consumer,
        positions,
        leave=asked.leave,
    )
    until_ms = found.lease_until_ms
    lease_until = None if until_ms is None else moment(until_ms)
    return answer({"positions": _positions(found.positions.items()), "lease_until": lease_until})


def _positions(positions: Iterable[tuple[int, int]]) -> list[dict[str, int]]:
    return [{"partition": partition, "position": position} for partition, position in positions]


def _require_one_each(partitions: Sequence[int]) -> None:
    for number, partition in enumerate(partitions):
        if partition in partitions[:number]:
            raise refused("invalid_request", f"/positions/{number}/partition", "the partition is named twice")
