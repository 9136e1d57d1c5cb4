"""The time of a job over HTTP: how far its tasks and their inputs are, what is open in them, and what closes it.

Knows the shape of the answer. Refuses to know what is open in a store (`service.streams.stores.pending`) and which
input waits for which (`service.catalog.job_times`).
"""

import threading
import time
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from cachetools import LRUCache
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import answer
from service.api.document import router_of
from service.api.job_views import JobState
from service.api.jobs import AdvancedView
from service.api.models import Cursor, Limit, PageView, short_page
from service.auth import Reader
from service.catalog import job_times
from service.catalog.job_times import InputRole, InputTime, JobTime, TaskTime
from service.lookups import Lookups
from service.problems import declared
from service.reads import places
from service.streams.clock import END_OF_TIME, NOT_STARTED
from service.streams.errors import OperatorUnavailable, SegmentUnreadable, StoreNotReadable, UnknownStore
from service.streams.records import StoreSpec
from service.streams.stores.pending import Ending, Pending
from service.streams.stores.reading import Rule
from service.streams.topology.graph import Node, SubTopology, Topology

router = router_of("jobs")

STORES_S: Final = 2.0  # for what is open in all stores of a page
AHEAD_MS: Final = 60_000  # a stream time that is further ahead of the clock was moved there by something
MOST_AHEAD: Final = 8  # tasks of a page for which the record that moved it there is looked for

_Found = tuple[str, int, int]
_beginnings: LRUCache[_Found, places.Beginning] = LRUCache(1_000)  # what lies at an offset never changes
_beginnings_lock = threading.Lock()


What = Literal["window", "session", "buffered", "identity"]


class EndingView(BaseModel):
    """What is over at the same stream time."""

    stream_time: Annotated[int | None, Field(description="The lowest one that ends it, ms; null: none does.")]
    end: Annotated[int, Field(description="The end of windows and sessions; else the time that waiting began at; ms.")]
    number: Annotated[int, Field(description="How many; at least so many, where not `is_all`.")]
    is_all: bool


class HeldView(BaseModel):
    """What a buffer holds, and may hold."""

    bytes: int
    max_records: int | None
    max_bytes: int | None
    when_full: str | None


class OpenView(BaseModel):
    """What of an operator's store is not over yet, in one task."""

    number: Annotated[int, Field(description="How many; at least so many, where not `is_all`.")]
    is_all: bool
    next: Annotated[
        list[EndingView] | None, Field(description="What is over first, in order; null: too much lies there to know.")
    ]
    last_stream_time: Annotated[
        int | None,
        Field(description="The stream time, ms, at which all of it is over, to which silence or a flush goes."),
    ]
    open_from: Annotated[
        int, Field(description="What ended, or was seen, before this, ms, is closed or forgotten; -1: nothing is.")
    ]
    held: Annotated[HeldView | None, Field(description="Of `suppress`: how full its buffer is.")]


class OperatorOpenView(BaseModel):
    """An operator that keeps a store, in one task: its own stream time, what is open, and when that is over."""

    operator: str
    kind: Annotated[str, Field(description="What its store holds: `aggregate`, `distinct`, `deduplicate`, `suppress`.")]
    store: str
    behind: Annotated[list[str], Field(description="The operators of the task that records pass before it, in order.")]
    what: Annotated[
        What | None,
        Field(description="What is open; null: it keeps a value a key for ever, nothing is ever over."),
    ]
    delay_ms: Annotated[
        int | None,
        Field(description="From an end (`next`) to the stream time that ends it: grace, gap, time limit, interval."),
    ]
    length_ms: Annotated[int | None, Field(description="How long its windows are, where all are as long.")]
    is_emitted: Annotated[bool, Field(description="What is over comes out then; else it takes no more records.")]
    stream_time: Annotated[int | None, Field(description="ms; records of others may be ahead: each has its own.")]
    open: Annotated[OpenView | None, Field(description="Null: nothing is ever over, or `unknown`.")]
    unknown: Annotated[str | None, Field(description="Why the store can not be read now; null: it was.")]


class InputTimeView(BaseModel):
    """One partition that a task reads."""

    stream: str
    partition: int
    is_internal: Annotated[bool, Field(description="Other tasks of the job write it.")]
    position: int
    end: int
    lag: int
    read_to: Annotated[int | None, Field(description="The highest time of what was read of it, ms.")]
    last_timestamp: Annotated[int | None, Field(description="The highest time of what came last, ms; null: nothing.")]
    silent_ms: Annotated[int | None, Field(description="For how long nothing has come; null: nothing ever did.")]
    role: Annotated[
        InputRole,
        Field(
            description="`reading`: it has unread records. `waited_for`: it has none, and those of the task's other "
            "inputs wait until it has, or was silent for `max_task_idle_ms`. `silent`: it has none."
        ),
    ]


class AheadView(BaseModel):
    """A stream time that is ahead of the clock, and the record that moved it there."""

    by_ms: int
    stream: Annotated[str | None, Field(description="Null: no record that is still there did, see `advanced`.")]
    partition: int | None
    offset: int | None
    timestamp: int | None
    since_ms: Annotated[int | None, Field(description="When that record was published, ms since 1970 (UTC).")]


class TaskClockView(BaseModel):
    """A task: how far it is in time, what it reads, and what is open in its operators."""

    task: str
    instance: Annotated[str | None, Field(description="The name of the instance that runs it; null: none does.")]
    stream_time: int | None
    ahead: Annotated[AheadView | None, Field(description="Its stream time is a minute or more ahead of the clock.")]
    is_closed: Annotated[bool, Field(description="Nothing is open in its stores, as its last commit found.")]
    is_flushing: bool
    advanced: Annotated[AdvancedView | None, Field(description="The last time that closing moved stream time.")]
    inputs: list[InputTimeView]
    operators: list[OperatorOpenView]


class LastInputView(BaseModel):
    """The partition that something was published to last."""

    stream: str
    partition: int
    silent_ms: int


class IdleCloseView(BaseModel):
    """Closing by silence: of all partitions of all sources of the job together."""

    after_ms: int
    due_in_ms: Annotated[
        int | None,
        Field(description="In how long, if nothing comes; null: something is unread, or nothing is open."),
    ]
    unread: Annotated[int, Field(description="Records that are to be read before.")]
    last_input: Annotated[LastInputView | None, Field(description="Who spoke last; null: nothing ever came.")]


class JobTimeView(PageView[TaskClockView]):
    """The time of a job, task by task."""

    job: str
    state: JobState
    now: Annotated[int, Field(description="The clock that silence is measured by, ms since 1970 (UTC).")]
    is_flushing: bool
    idle_close: Annotated[IdleCloseView | None, Field(description="Null: only records close what is open.")]


@router.get("/v1/jobs/{job:name}/time", responses={200: {"model": JobTimeView}, **declared(401, 403, 404, 422)})
async def get_job_time(request: Request, job: str, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """Show how far a job's tasks are in time, what is open in them, and which record or silence closes what next."""
    found = await run_in_threadpool(request.state.catalog.read, job_times.job_time, job)
    tasks = {task.name: task for task in found.tasks}
    page = short_page([{"task": name} for name in tasks], lambda each: str(each["task"]), limit=limit, cursor=cursor)
    clocks = _Clocks(request, found, time.monotonic() + STORES_S)
    items = [await clocks.view(tasks[each["task"]]) for each in page["items"]]
    shown = {"job": found.name, "state": found.state, "now": found.now_ms, "is_flushing": found.is_flushing}
    return answer({**shown, "idle_close": _idle_close(found), "items": items, "next": page["next"]})


class _Clocks:
    """The tasks of one answer."""

    def __init__(self, request: Request, found: JobTime, until_s: float) -> None:
        self._request, self._found, self._until_s = request, found, until_s
        self._lookups: Lookups = request.state.lookups
        self._parts = {part.id: part for part in Topology.from_json(found.topology).sub_topologies}
        self._ahead_left = MOST_AHEAD

    async def view(self, task: TaskTime) -> dict[str, Any]:
        part = self._parts[task.sub_topology]
        return {
            "task": task.name,
            "instance": task.instance,
            "stream_time": task.stream_time,
            "ahead": await self._ahead(task),
            "is_closed": task.is_closed,
            "is_flushing": task.is_flushing,
            "advanced": task.advanced,
            "inputs": [_input(at) for at in task.inputs],
            "operators": [
                await self._operator(part, node, node.store, task.partition)
                for node in part.nodes
                if node.store is not None
            ],
        }

    async def _operator(self, part: SubTopology, node: Node, store: StoreSpec, partition: int) -> dict[str, Any]:
        rule, pending, unknown = await self._pending(store.name, partition)
        is_started = pending is not None and pending.stream_time != NOT_STARTED
        return {
            "operator": node.name,
            "kind": store.kind,
            "store": store.name,
            "behind": _before(part, node),
            "what": None if rule is None else rule.what,
            "delay_ms": None if rule is None else _moment(rule.delay_ms),
            "length_ms": None if rule is None else rule.length_ms,
            "is_emitted": rule is not None and rule.is_emitted,
            "stream_time": pending.stream_time if pending is not None and is_started else None,
            "open": None if pending is None else _open(pending, node.spec),
            "unknown": unknown,
        }

    async def _pending(self, store: str, partition: int) -> tuple[Rule | None, Pending | None, str | None]:
        """When what is in a store is over, what is open of it, and why that is not known."""
        try:
            known = await self._lookups.stores.get(store)
        except (UnknownStore, OperatorUnavailable) as error:
            return None, None, str(error)
        if time.monotonic() > self._until_s:
            return known.form.rule, None, "there was no time left for it: ask for fewer tasks (`limit`)"
        try:
            return known.form.rule, await self._lookups.reader.pending(known, partition), None
        except StoreNotReadable as error:
            return known.form.rule, None, error.reason

    async def _ahead(self, task: TaskTime) -> dict[str, Any] | None:
        if task.stream_time is None or task.stream_time - self._found.now_ms < AHEAD_MS:
            return None
        by = {"by_ms": task.stream_time - self._found.now_ms}
        self._ahead_left -= 1
        found = await run_in_threadpool(self._mover, task, task.stream_time) if self._ahead_left >= 0 else None
        if found is None:
            return {**by, "stream": None, "partition": None, "offset": None, "timestamp": None, "since_ms": None}
        stream, partition, at = found
        place = {"stream": stream, "partition": partition, "offset": at.offset}
        return {**by, **place, "timestamp": at.timestamp, "since_ms": at.published_ms}

    def _mover(self, task: TaskTime, timestamp: int) -> tuple[str, int, places.Beginning] | None:
        """The record that moved stream time so far: the first of that time in what the task reads, or in what its
        records come from.
        """
        own = [(at.stream, at.stream_id, at.partition) for at in task.inputs if not at.is_internal]
        if not own:
            every = (at for each in self._found.tasks for at in each.inputs if not at.is_internal)
            own = sorted({(at.stream, at.stream_id, at.partition) for at in every})
        found = []
        for stream, stream_id, partition in own:
            at = self._beginning(stream_id, partition, timestamp)
            if at is not None:
                found.append((stream, partition, at))
        return min(found, key=lambda each: each[2].published_ms or 0, default=None)

    def _beginning(self, stream_id: str, partition: int, timestamp: int) -> places.Beginning | None:
        key = (stream_id, partition, timestamp)
        with _beginnings_lock:
            known = _beginnings.get(key)
        if known is None:
            state = self._request.state
            try:
                known = places.begins(state.catalog, state.storage, stream_id, partition, timestamp)
            except SegmentUnreadable:
                return None  # retention took it, or nobody can read it now
            if known is not None:
                with _beginnings_lock:
                    _beginnings[key] = known
        return known


def _before(part: SubTopology, node: Node) -> list[str]:
    """The names of the nodes from the source on to this one."""
    found: list[str] = []
    place = node.parent
    while place is not None:
        found.append(part.nodes[place].name)
        place = part.nodes[place].parent
    return found[::-1]


def _open(pending: Pending, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "number": pending.number,
        "is_all": pending.is_all,
        "next": None if pending.first is None else [_ending(due) for due in pending.first],
        "last_stream_time": None if pending.last_at is None else _moment(pending.last_at),
        "open_from": max(pending.open_from, NOT_STARTED),
        "held": None if pending.bytes is None else _held(pending.bytes, spec),
    }


def _ending(due: Ending) -> dict[str, Any]:
    return {"stream_time": _moment(due.at), "end": due.time, "number": due.number, "is_all": due.is_all}


def _held(size: int, spec: Mapping[str, Any]) -> dict[str, Any]:
    bounds = spec.get("buffer") or {}
    return {"bytes": size, **{name: bounds.get(name) for name in ("max_records", "max_bytes", "when_full")}}


def _moment(time_ms: int) -> int | None:
    return None if time_ms >= END_OF_TIME else time_ms


def _input(at: InputTime) -> dict[str, Any]:
    return {
        "stream": at.stream,
        "partition": at.partition,
        "is_internal": at.is_internal,
        "position": at.position,
        "end": at.end,
        "lag": max(at.end - at.position, 0),
        "read_to": at.read_to,
        "last_timestamp": at.last_timestamp,
        "silent_ms": at.silent_ms,
        "role": at.role,
    }


def _idle_close(found: JobTime) -> dict[str, Any] | None:
    idle = found.idle_close
    if idle is None:
        return None
    last = None
    if idle.last is not None:
        last = {"stream": idle.last.stream, "partition": idle.last.partition, "silent_ms": idle.last.silent_ms}
    return {"after_ms": idle.after_ms, "due_in_ms": idle.due_in_ms, "unread": idle.unread, "last_input": last}
