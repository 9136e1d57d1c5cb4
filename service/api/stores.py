"""Stores over HTTP: their types, partitions and sizes, how far their replicas are, and who owns a key.

Knows the shapes of answers. Refuses to know what is in a store (`service.api.lookups`) and where that lies
(`service.lookups`).
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from fastapi import Query
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import UNCHANGED, answer, page, tagged, with_tag
from service.api.document import router_of
from service.api.lookup_answers import opaque_position
from service.api.lookup_requests import NAME, KeyEncoding, StoreName, decoded_key, query_bytes
from service.api.models import Cursor as PageCursor
from service.api.models import Limit, PageView, require_name
from service.auth import Reader
from service.catalog.replicas import STANDBY
from service.catalog.stores import StoreCopy, StoreNow, stores_now
from service.lookups import Lookups
from service.problems import declared
from service.streams.errors import KeyHasNoOwner

router = router_of("stores")


class StorePartitionView(BaseModel):
    """One partition of a store."""

    partition: int
    task: str
    instance: str | None
    stream_time: int | None
    position: Annotated[int | None, Field(description="The changelog offset up to which the replica is replayed.")]
    end: Annotated[int, Field(description="The end of the changelog.")]
    lag: int
    entries: Annotated[int | None, Field(description="Store keys, those of indexes and of expired entries included.")]
    bytes: int | None


class StoreView(BaseModel):
    """The state of one operator of a job."""

    id: str
    name: str
    type: Literal["session", "window", "key_value"]
    kind: Annotated[str, Field(description="What it holds: `aggregate`, `distinct`, `deduplicate`, `suppress`.")]
    job: str
    operator: str
    partitions: list[StorePartitionView]
    entries: int | None
    bytes: int | None
    position: str
    lag: int


class OwnerInstanceView(BaseModel):
    """An instance that runs a task, or keeps a standby of it."""

    id: str
    name: str
    host: str
    slot: str


class OwnerView(BaseModel):
    """The task of a key and its instances."""

    store: str
    key: str
    partition: int
    task: str
    active: OwnerInstanceView | None
    standbys: list[OwnerInstanceView]


@router.get("/v1/stores", responses={200: {"model": PageView[StoreView]}, **declared(401, 403, 422)})
async def list_stores(request: Request, _: Reader, limit: Limit = 100, cursor: PageCursor = None) -> Response:
    """List stores by name."""
    require_name(cursor, NAME)
    found = await run_in_threadpool(request.state.catalog.read, stores_now, limit=limit + 1, after=cursor)
    return answer(page([await _view(request, now) for now in found], limit=limit))


@router.get(
    "/v1/stores/{store:name}", responses={200: with_tag(StoreView), **UNCHANGED, **declared(401, 403, 404, 422)}
)
async def get_store(request: Request, store: StoreName, _: Reader) -> Response:
    """Show a store: its type, how much is in it, how far its replicas are."""
    known = await request.state.lookups.stores.as_of_now(store)
    return tagged(request, await _view(request, known.now))


@router.get("/v1/stores/{store:name}/owner", responses={200: {"model": OwnerView}, **declared(401, 403, 404, 409, 422)})
async def get_owner(
    request: Request,
    store: StoreName,
    _: Reader,
    key: Annotated[str, Query(description="The key.")],
    key_encoding: KeyEncoding = "utf8",
) -> Response:
    """Show which task has a key, and where it runs."""
    wanted = decoded_key(query_bytes(request, b"key") or b"", key_encoding, "?key")
    known = await request.state.lookups.stores.as_of_now(store)
    if not known.now.is_keyed and len(known.now.partitions) > 1:
        raise KeyHasNoOwner(store)
    at = known.now.partitions[known.partition_of(wanted)]
    shown = {"store": store, "key": key, "partition": at.partition, "task": at.task}
    active = None if at.owner is None else _kept_by(at.owner)
    standbys = [_kept_by(copy) for copy in at.copies if copy.role == STANDBY and copy.slot_id is not None]
    return answer({**shown, "active": active, "standbys": standbys})


def _kept_by(copy: StoreCopy) -> dict[str, Any]:
    return {"id": copy.instance_id, "name": copy.instance, "host": copy.host, "slot": copy.slot_id}


async def _view(request: Request, now: StoreNow) -> Mapping[str, Any]:
    """A store as it is listed."""
    lineage = request.state.catalog.lineage
    partitions = [await _partition_view(request.state.lookups, now, number) for number in range(len(now.partitions))]
    offsets = tuple((at["partition"], at["position"]) for at in partitions if at["position"] is not None)
    return {
        "id": now.id,
        "name": now.name,
        "type": now.type,
        "kind": now.kind,
        "job": now.job,
        "operator": now.operator,
        "partitions": partitions,
        "entries": _total(at["entries"] for at in partitions),
        "bytes": _total(at["bytes"] for at in partitions),
        "position": opaque_position(now.changelog, lineage, offsets),
        "lag": sum(at["lag"] for at in partitions),
    }


async def _partition_view(lookups: Lookups, now: StoreNow, partition: int) -> dict[str, Any]:
    at, replica = now.partitions[partition], await lookups.reader.state(now, partition)
    return {
        "partition": at.partition,
        "task": at.task,
        "instance": None if at.owner is None else at.owner.instance,
        "stream_time": replica.stream_time if replica is not None and replica.stream_time >= 0 else None,
        "position": None if replica is None else replica.position,
        "end": at.end,
        "lag": at.input_lag + max(0, at.end - (0 if replica is None else replica.position)),
        "entries": None if replica is None else replica.entries,
        "bytes": None if replica is None else replica.bytes,
    }


def _total(parts: Iterable[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if known else None
