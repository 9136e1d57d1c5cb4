"""The protocol of instances and their slots: join, heartbeat, poll, commit, leave; and who is there.

Knows bodies, long polls and prepared bytes. Refuses to know who owns what (`service.coordinator`). Polls and
commits are the hot routes of the service: msgspec decodes their bodies and encodes their answers (`service.protocol`).
"""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service import coordinator, prometheus
from service.api.bodies import UNCHANGED, answer, page, read_struct, tagged, with_tag
from service.api.document import WORKER, answers, router_of, takes
from service.api.models import Cursor, Limit, PageView, require_name
from service.api.moments import Moment, moment
from service.auth import Admin, Instance, Reader
from service.catalog import groups, jobs, segments, stores
from service.catalog.engine import JOBS, Catalog
from service.catalog.tables import InstanceRow
from service.coordinator.leases import GONE
from service.faults import fault_point
from service.problems import declared
from service.protocol import (
    MAX_WAIT_MS,
    ChunkRange,
    CommitRequest,
    FailRequest,
    HeartbeatRequest,
    JoinedInstance,
    JoinedSlot,
    JoinRequest,
    LeaveRequest,
    LiveStores,
    LostExecutors,
    Paths,
    PollAnswer,
    PollRequest,
    SegmentsRequest,
    SlotRequest,
    StoresRequest,
    TaskCommit,
    Verdict,
    Verdicts,
    WantedJobs,
)
from service.storage.segments import path_of
from service.streams.errors import UnknownPartition

router = router_of("instances")
workers = router_of(WORKER)

SLOT = "/v1/instances/{instance:name}/slots/{slot:name}"
PROTOCOL: dict[int | str, dict[str, Any]] = declared(400, 401, 403, 404, 409, 410, 413, 415, 422, 503)

ID = r"^[A-Za-z0-9_.-]+$"
JOIN = msgspec.json.Decoder(JoinRequest)
HEARTBEAT = msgspec.json.Decoder(HeartbeatRequest)
LEAVE = msgspec.json.Decoder(LeaveRequest)
LOST_EXECUTORS = msgspec.json.Decoder(LostExecutors)
SLOT_JOIN = msgspec.json.Decoder(SlotRequest)
POLL = msgspec.json.Decoder(PollRequest)
SEGMENTS = msgspec.json.Decoder(SegmentsRequest)
COMMIT = msgspec.json.Decoder(CommitRequest)
FAIL = msgspec.json.Decoder(FailRequest)
STORES = msgspec.json.Decoder(StoresRequest)
encode = msgspec.json.Encoder().encode


class SlotView(BaseModel):
    """A live slot on an instance: the tasks it owns, where it keeps their copies, and whether it is heard."""

    slot: str
    job: str
    index: int
    node: str
    executor: str
    tasks: list[str]
    worked_at: Moment | None
    lease_until: Moment


class LostExecutorView(BaseModel):
    """A Spark executor that ended while its instance went on."""

    executor: Annotated[str, Field(description="What Spark calls it.")]
    lost_at: Annotated[Moment, Field(description="When its slots ended.")]
    slots: Annotated[
        int, Field(description="How many slots ended with it that their jobs still want on this instance.")
    ]
    back: Annotated[int, Field(description="How many of them the instance runs again.")]


class InstanceView(BaseModel):
    """A Spark application that is, or was, attached. `shortage`: what its Spark lacks; `no_cores`: executors."""

    id: str
    name: str
    state: Literal["live", "leaving", "gone"]
    was_lost: Annotated[bool, Field(description="It is gone, and had not said that it would be: its lease ran out.")]
    incarnation: str
    host: str
    cores: int
    shortage: Literal["no_cores"] | None
    tags: dict[str, str]
    spark: dict[str, str]
    slots: list[SlotView]
    lost_executors: Annotated[
        list[LostExecutorView],
        Field(description="Executors that it lost since it joined, within a day; the latest first."),
    ]
    joined_at: Moment
    lease_until: Moment
    heard_at: Moment
    leaves_by: Moment | None


# ---------------------------------------------------------------- who is there


@router.get("/v1/instances", responses={200: {"model": PageView[InstanceView]}, **declared(401, 403, 422)})
def list_instances(request: Request, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List instances by name, those that are gone too."""
    require_name(cursor, ID)
    return answer(page(request.state.catalog.read(_instances, limit + 1, cursor), limit=limit))


@router.get(
    "/v1/instances/{instance:name}", responses={200: with_tag(InstanceView), **UNCHANGED, **declared(401, 403, 404)}
)
def get_instance(request: Request, instance: str, _: Reader) -> Response:
    """Show an instance and its slots."""
    return tagged(request, request.state.catalog.read(_instance, instance))


@router.post(
    "/v1/instances/{instance:name}:drain",
    responses={200: with_tag(InstanceView), **declared(401, 403, 404, 409, 422)},
)
def drain_instance(request: Request, instance: str, _: Admin) -> Response:
    """Have an instance hand its tasks to others and take no more, as if it were asked to end. Its process goes on until
    it is stopped; started again, the instance takes part as before.
    """
    timeout_ms = request.state.settings.scale_down_timeout_ms
    return tagged(request, request.state.catalog.write(_drain, instance, timeout_ms))


# ---------------------------------------------------------------- instances


@workers.post("/v1/instances:join", responses={**answers(JoinedInstance), **PROTOCOL}, openapi_extra=takes(JoinRequest))
async def join_instance(request: Request, _: Instance) -> Response:
    """Join, or join again under the same name."""
    body, state = await read_struct(request, JOIN), request.state
    fields, settings = msgspec.structs.asdict(body), state.settings
    row = await run_in_threadpool(state.catalog.write, coordinator.join_instance, **fields, lease_ms=settings.lease_ms)
    lineage = await run_in_threadpool(lambda: state.catalog.lineage)
    how = (settings.lease_ms, settings.storage_uri, lineage, settings.scale_down_timeout_ms)
    return _answer(JoinedInstance(row.id, *how))


@workers.post(
    "/v1/instances/{instance:name}:heartbeat",
    responses={**answers(WantedJobs), **PROTOCOL},
    openapi_extra=takes(HeartbeatRequest),
)
async def heartbeat(request: Request, instance: str, _: Instance) -> Response:
    """Keep the lease; answers the jobs to run slots for, at once when that differs from `known`."""
    body, state = await read_struct(request, HEARTBEAT), request.state
    asked_s, is_first = time.monotonic(), True
    until = asked_s + min(body.wait_ms, MAX_WAIT_MS, state.settings.lease_ms * coordinator.PATIENCE) / 1000
    living = state.waiting_polls.living(instance, body.pulses)
    while True:
        seen = state.hub.seen
        found = await run_in_threadpool(
            coordinator.heartbeat,
            state.catalog,
            instance,
            incarnation=body.incarnation,
            cores=body.cores,
            shortage=body.shortage,
            scale_down_timeout_ms=state.settings.scale_down_timeout_ms,
            initial_delay_ms=state.settings.initial_rebalance_delay_ms,
            living=living,
            renews=is_first,
        )
        if is_first:
            state.waiting_polls.vouch(instance, living, asked_s)
        living, is_first = {}, False  # as of when it was said
        left = until - time.monotonic()
        if found.version != body.known or left <= 0 or state.hub.is_closed:
            return _answer(found)
        await state.hub.wait([JOBS], seen, left)


@workers.post(
    "/v1/instances/{instance:name}:leave", status_code=204, responses=PROTOCOL, openapi_extra=takes(LeaveRequest)
)
async def leave_instance(request: Request, instance: str, _: Instance) -> Response:
    """Leave with all slots, or begin to: a draining instance leaves once more when its slots have left."""
    body = await read_struct(request, LEAVE)
    write, fields = request.state.catalog.write, msgspec.structs.asdict(body)
    timeout_ms = request.state.settings.scale_down_timeout_ms
    await run_in_threadpool(write, coordinator.leave_instance, instance, **fields, scale_down_timeout_ms=timeout_ms)
    return Response(status_code=204)


@workers.post(
    "/v1/instances/{instance:name}:lost-executors",
    status_code=204,
    responses=PROTOCOL,
    openapi_extra=takes(LostExecutors),
)
async def lose_executors(request: Request, instance: str, _: Instance) -> Response:
    """Say that Spark executors have ended: their slots end together, and their tasks go to others at once."""
    body = await read_struct(request, LOST_EXECUTORS)
    write, fields = request.state.catalog.write, msgspec.structs.asdict(body)
    await run_in_threadpool(write, coordinator.lose_executors, instance, **fields)
    return Response(status_code=204)


# ---------------------------------------------------------------- slots


@workers.post(
    "/v1/instances/{instance:name}/slots",
    responses={**answers(JoinedSlot), **PROTOCOL},
    openapi_extra=takes(SlotRequest),
)
async def join_slot(request: Request, instance: str, _: Instance) -> Response:
    """Join as a slot of a job; the one before with the same index is fenced."""
    body, state = await read_struct(request, SLOT_JOIN), request.state
    found = await run_in_threadpool(
        state.catalog.write,
        coordinator.join_slot,
        instance,
        job_id=body.job,
        slot_id=body.slot,
        index=body.index,
        node=body.node,
        executor=body.executor,
        lease_ms=state.settings.lease_ms,
        initial_delay_ms=state.settings.initial_rebalance_delay_ms,
    )
    settings = state.settings
    return _answer(msgspec.structs.replace(found, redis_url=settings.redis_url, max_busy_ms=settings.max_busy_ms))


@workers.post(SLOT + ":poll", responses={**answers(PollAnswer), **PROTOCOL}, openapi_extra=takes(PollRequest))
async def poll_slot(request: Request, instance: str, slot: str, _: Instance) -> Response:
    """Ask what to do: answers at once when there is work or the owned tasks differ, else when that changes."""
    body, state, is_first = await read_struct(request, POLL), request.state, True
    asked = (instance, msgspec.structs.replace(body, timeout_ms=0))
    with state.waiting_polls.wait(instance, slot) as poll:
        until = poll.asked_s + min(body.timeout_ms, MAX_WAIT_MS) / 1000
        while True:
            seen = state.hub.seen
            found = state.quiet_polls.kept(slot, asked, renews=is_first and not poll.is_vouched_for)
            if found is None:
                found = await run_in_threadpool(
                    coordinator.poll_slot,
                    state.catalog,
                    slot,
                    body.tasks,
                    instance_id=instance,
                    known=body.spec_sha256,
                    known_version=body.job_version,
                    copies=body.copies,
                    waited_ms=round(1000 * (time.monotonic() - poll.asked_s)),
                    renews=is_first,
                )
                state.quiet_polls.keep(slot, asked, found, seen)
            is_first = False
            left = min(until, poll.until_s) - time.monotonic()
            if found.is_ready or left <= 0 or state.hub.is_closed:
                return _answer(found.answer)
            again_ms = found.look_again_ms
            left = left if again_ms is None else min(left, again_ms / 1000)
            if await state.hub.wait(found.topics, seen, left) and not state.hub.has_woken(found.pressing, seen):
                await state.hub.wait(found.pressing, seen, coordinator.PASS_OVER_MS / 1000)


@workers.get(SLOT + "/chunks", responses={**answers(ChunkRange), **PROTOCOL})
def find_chunks(
    request: Request,
    instance: str,
    slot: str,
    _: Instance,
    stream_id: Annotated[str, Query(max_length=64, pattern=r"^[A-Za-z0-9_.-]+$")],
    partition: Annotated[int, Query(ge=0, lt=2**31)],
    from_offset: Annotated[int, Query(alias="from", ge=0, lt=2**63)],
    max_records: Annotated[int, Query(ge=1, lt=2**63)] = 500_000,
) -> Response:
    """Find the chunks that hold the records of a partition, of a stream of the slot's job, from an offset on."""
    which = (stream_id, partition, from_offset, max_records)
    return _answer(request.state.catalog.read(_find_chunks, instance, slot, *which))


@workers.post(SLOT + "/segments", responses={**answers(Paths), **PROTOCOL}, openapi_extra=takes(SegmentsRequest))
async def register_segments(request: Request, instance: str, slot: str, _: Instance) -> Response:
    """Announce segments that the slot is going to write; answers their paths."""
    body = await read_struct(request, SEGMENTS)
    paths = {segment_id: path_of(segment_id) for segment_id in body.segments}
    await run_in_threadpool(request.state.catalog.write, _register, instance, slot, paths)
    return _answer(Paths(paths))


@workers.post(SLOT + ":commit", responses={**answers(Verdicts), **PROTOCOL}, openapi_extra=takes(CommitRequest))
async def commit_tasks(request: Request, instance: str, slot: str, _: Instance) -> Response:
    """Commit what tasks did; each commit is accepted or refused alone."""
    body = await read_struct(request, COMMIT)
    verdicts = await run_in_threadpool(_commit, request.state.catalog, instance, slot, body.commits)
    for verdict in verdicts:
        prometheus.COMMITS.labels(verdict.status).inc()
    return _answer(Verdicts(verdicts))


@workers.post(SLOT + ":fail", status_code=204, responses=PROTOCOL, openapi_extra=takes(FailRequest))
async def fail_task(request: Request, instance: str, slot: str, _: Instance) -> Response:
    """Fail the job of a task that can not go on."""
    body = await read_struct(request, FAIL)
    error = msgspec.to_builtins(body.error)
    write, which = request.state.catalog.write, {"task_id": body.task, "epoch": body.epoch}
    await run_in_threadpool(write, coordinator.fail_task, slot, **which, error=error, instance_id=instance)
    return Response(status_code=204)


@workers.post(SLOT + ":live-stores", responses={**answers(LiveStores), **PROTOCOL}, openapi_extra=takes(StoresRequest))
async def find_live_stores(request: Request, instance: str, slot: str, _: Instance) -> Response:
    """Say which of the stores whose replicas a slot has found on its disk are still there."""
    body = await read_struct(request, STORES)
    found = await run_in_threadpool(request.state.catalog.read, _live_stores, instance, slot, body.stores)
    return _answer(LiveStores(found))


@workers.post(SLOT + ":leave", status_code=204, responses=PROTOCOL)
def leave_slot(request: Request, instance: str, slot: str, _: Instance) -> Response:
    """Leave; the tasks of the slot are free at once."""
    request.state.catalog.write(coordinator.leave_slot, slot, instance_id=instance)
    return Response(status_code=204)


# ---------------------------------------------------------------- in a transaction


def _answer(content: msgspec.Struct) -> Response:
    return Response(encode(content), media_type="application/json")


def _commit(catalog: Catalog, instance: str, slot: str, commits: list[TaskCommit]) -> list[Verdict]:
    fault_point("commit.before")
    verdicts = catalog.write(coordinator.commit_tasks, slot, commits, instance_id=instance)
    fault_point("commit.after")
    return verdicts


def _find_chunks(s: Session, instance: str, slot: str, stream_id: str, partition: int, *which: int) -> ChunkRange:
    """Of a stream that is none of the job's nobody hears whether it exists."""
    job_id = coordinator.require_slot(s, slot, instance_id=instance).job_id
    if not jobs.has_stream(s, job_id, stream_id):
        raise UnknownPartition(f"{stream_id}/{partition}")
    return segments.chunks_from(s, stream_id, partition, *which)


def _live_stores(s: Session, instance: str, slot: str, found: list[str]) -> list[str]:
    coordinator.require_slot(s, slot, instance_id=instance)
    return list(stores.live_stores(s, found))


def _register(s: Session, instance: str, slot: str, paths: dict[str, str]) -> None:
    coordinator.require_slot(s, slot, instance_id=instance)
    segments.register_segments(s, slot, paths.items())


def _instances(s: Session, limit: int, after: str | None) -> list[dict[str, Any]]:
    rows = groups.list_instances(s, limit=limit, after=after)
    return _shown(s, rows)


def _instance(s: Session, instance_id: str) -> dict[str, Any]:
    return _shown(s, [groups.get_instance(s, instance_id)])[0]


def _drain(s: Session, instance_id: str, timeout_ms: int) -> dict[str, Any]:
    incarnation = groups.get_instance(s, instance_id).incarnation
    coordinator.leave_instance(s, instance_id, incarnation=incarnation, drain=True, scale_down_timeout_ms=timeout_ms)
    return _instance(s, instance_id)


def _shown(s: Session, rows: Sequence[InstanceRow]) -> list[dict[str, Any]]:
    slots: dict[str, list[dict[str, Any]]] = {row.id: [] for row in rows}
    found = groups.slots_of_instances(s, list(slots))
    tasks = groups.tasks_of_slots(s, [slot.id for _, slot, _ in found])
    lost = groups.lost_executors(s, list(slots))
    for instance_id, slot, job in found:
        owns = tasks.get(slot.id, groups.SlotTasks([], 0))
        slots[instance_id].append(
            {
                "slot": slot.id,
                "job": job,
                "index": slot.slot_index,
                "node": slot.node_id,
                "executor": slot.executor,
                "tasks": owns.names,
                "worked_at": moment(owns.worked_ms) if owns.names else None,
                "lease_until": moment(slot.lease_until_ms),
            }
        )
    return [
        {
            "id": row.id,
            "name": row.name,
            "state": row.state,
            "was_lost": row.state == GONE and row.leave_by_ms is None,
            "incarnation": row.incarnation,
            "host": row.host,
            "cores": row.cores,
            "shortage": row.shortage or None,
            "tags": row.tags,
            "spark": row.spark,
            "slots": slots[row.id],
            "lost_executors": [_lost_executor(each) for each in lost.get(row.id, [])],
            "joined_at": moment(row.joined_ms),
            "lease_until": moment(row.lease_until_ms),
            "heard_at": moment(row.lease_until_ms - row.lease_ms),
            "leaves_by": moment(row.leave_by_ms) if row.state == "leaving" and row.leave_by_ms is not None else None,
        }
        for row in rows
    ]


def _lost_executor(lost: groups.LostExecutor) -> dict[str, Any]:
    return {"executor": lost.executor, "lost_at": moment(lost.lost_ms), "slots": lost.slots, "back": lost.back}
