"""`:explain` over HTTP: why a record of a job came out, or not, and what closed its windows.

Knows the shapes of question and answer, and where the records of a task are. Refuses to know how an explanation is
found (`service.simulate`).
"""

from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import orjson
import pyarrow as pa
from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.document import router_of
from service.auth import Reader
from service.catalog import jobs, task_moves
from service.catalog.inputs import TaskInput, inputs_of_tasks
from service.catalog.job_versions import get_version
from service.catalog.tables import JobRow, SkipRow, StreamRow, TaskInputRow, TaskRow
from service.problems import Refusal, declared, refused
from service.reads.exports import StreamSpan, batches
from service.simulate.explanation import TaskToExplain, unknown
from service.streams.clock import END_OF_TIME
from service.streams.errors import ExplanationTooLarge, OffsetTruncated
from service.streams.partitioner import partition_of_key
from service.streams.topology.graph import Topology

router = router_of("jobs")

MAX_RECORDS: Final = 1_000_000  # that are run again
_COLUMNS: Final = ["offset", "key", "value", "timestamp", "window_start", "window_end", "headers"]


class CauseView(BaseModel):
    """Who brought it about: a record; or nobody, where time moved without one."""

    offset: Annotated[int | None, Field(description="Of the record, in the same partition; null: time moved without.")]
    timestamp: Annotated[int, Field(description="Of the record; or how far stream time went, ms.")]
    reason: Annotated[
        Literal["record", "idle", "flush"], Field(description="A record; or the job closed on idle input or a flush.")
    ]


class RecordFateView(BaseModel):
    """What became of one record."""

    offset: int
    timestamp: int
    verdict: Literal["in", "out", "unknown"]
    operator: str | None
    reason: str | None
    cause: CauseView | None
    by_ms: int | None


class ExplainedRecordView(BaseModel):
    """Where the record lies."""

    partition: int
    offset: int
    timestamp: int


class WindowUpdateView(BaseModel):
    """A record in a window."""

    offset: int
    timestamp: int


class WindowFinalView(BaseModel):
    """A final result of a window, as it came out."""

    operator: Annotated[str, Field(description="The operator that let it go.")]
    reason: Annotated[str, Field(description="`stream_time`, `idle` or `flush`.")]
    offset: Annotated[int | None, Field(description="Of the record by which it left; null: by none.")]


class ExplainedWindowView(BaseModel):
    """A window of the key that the record's time lies in: who is in it, and why it closed."""

    operator: str
    start: int
    end: int
    updated: Annotated[int, Field(description="How many records are in it.")]
    updates: Annotated[list[WindowUpdateView], Field(description="These, in order; the last 1,000.")]
    closed: Annotated[CauseView | None, Field(description="What closed it; null: it is open.")]
    finals: Annotated[list[WindowFinalView], Field(description="What came out of it when it was final.")]


class ExplanationView(BaseModel):
    """Why the last record that was asked for came out, or not; the ones before it; the windows that it belongs to."""

    verdict: Annotated[
        Literal["in", "out", "unknown"],
        Field(description="It came out or is in what an operator keeps; it was let go; or nobody knows, and `why`."),
    ]
    operator: Annotated[str | None, Field(description="The operator that it is in, or that let it go.")]
    reason: Annotated[
        str | None, Field(description="Why it was let go, as in `dropped`, or `filtered`; or why nobody knows.")
    ]
    cause: Annotated[CauseView | None, Field(description="Because of whom it is out; null: of nobody else.")]
    by_ms: Annotated[
        int | None, Field(description="By how many ms it missed: inside the interval, or behind the close.")
    ]
    why: Annotated[str | None, Field(description="Why nobody knows, in words.")]
    known_from: Annotated[int | None, Field(description="The first offset that the task read, or that is still there.")]
    record: Annotated[ExplainedRecordView | None, Field(description="The record; null: there is none.")]
    matched: Annotated[int, Field(description="How many records were asked for.")]
    records: Annotated[list[RecordFateView], Field(description="What became of them; the last 100, in order.")]
    windows: Annotated[list[ExplainedWindowView], Field(description="By operator and time; the last 100.")]


class ExplainQuery(BaseModel):
    """Which record."""

    key: Annotated[str | None, Field(max_length=4096, description="The key of the record.")] = None
    stream: Annotated[str | None, Field(max_length=128, description="A source of the job; needed of several.")] = None
    partition: Annotated[
        int | None,
        Field(ge=0, lt=2**31, description="Where it lies; needed without a key, and where partitions were chosen."),
    ] = None
    offset: Annotated[int | None, Field(ge=0, lt=2**47, description="The offset of the one record.")] = None
    timestamp: Annotated[int | None, Field(ge=0, le=END_OF_TIME, description="Records of this time or earlier.")] = None
    id: Annotated[
        str | None, Field(max_length=65536, description="Records for which the job's `id` expression gives this.")
    ] = None


class _ToExplain(NamedTuple):
    """What there is to be explained, and the records that it takes."""

    task: TaskToExplain
    stream_id: str
    span: StreamSpan


@router.get(
    "/v1/jobs/{job:name}:explain",
    responses={200: {"model": ExplanationView}, **declared(401, 403, 404, 414, 422, 429, 503)},
)
async def explain_record(request: Request, job: str, _: Reader, asked: Annotated[ExplainQuery, Query()]) -> Response:
    """Say why a record came out, or not: at which operator, because of which earlier record, by how many ms.

    By `key` (with `timestamp` and `id`, of several the last one), or by `partition` and `offset`. The operators run
    again over all that the record's task has read since it began, other keys too, for those move stream time; with
    what closed on idle input and by flushes in between. `unknown` where that can not be said, and why: retention took
    some of it, tasks with several inputs took part, the job has become another version. At most 1,000,000 records are
    run again, within 30 s and 1 GiB of memory; two questions, or simulations, at once (429).
    """
    state = request.state
    found = await run_in_threadpool(state.catalog.read, _find, job, asked)
    if isinstance(found, dict):
        return Response(orjson.dumps(found), media_type="application/json")
    try:
        said = await state.simulations.explain(_frames(state, found))
    except OffsetTruncated as error:  # retention was faster
        said = orjson.dumps(unknown("retention", known_from=error.start_offset))
    return said.answer(request) if isinstance(said, Refusal) else Response(said, media_type="application/json")


async def _frames(state: Any, found: _ToExplain) -> AsyncIterator[bytes]:
    task = found.task
    if task.offset is not None:
        task = msgspec.structs.replace(task, key=await run_in_threadpool(_key_at, state, found, task.offset))
    yield msgspec.json.encode(task)
    pages: Iterator[pa.RecordBatch] = batches(state.catalog, state.storage, found.stream_id, found.span)
    while (page := await run_in_threadpool(next, pages, None)) is not None:
        sink = pa.BufferOutputStream()
        records = page.select(_COLUMNS)
        with pa.ipc.new_stream(sink, records.schema) as writer:
            writer.write_batch(records)
        yield sink.getvalue().to_pybytes()


def _key_at(state: Any, found: _ToExplain, offset: int) -> bytes | None:
    """That of one record, whose windows are asked for."""
    span = StreamSpan(dict.fromkeys(found.span.begin, offset), dict.fromkeys(found.span.end, offset + 1), is_whole=True)
    page = next(batches(state.catalog, state.storage, found.stream_id, span), None)
    return None if page is None or not page.num_rows else page.column("key")[0].as_py()


def _find(s: Session, name: str, asked: ExplainQuery) -> _ToExplain | dict[str, Any]:
    """A dict: the answer where nobody knows. Raises UnknownJob, ProblemError, ExplanationTooLarge."""
    job = jobs.get_job(s, name)
    stream = _stream(s, job, asked)
    partition = _partition(stream, asked)
    reads = (
        select(TaskRow)
        .join(TaskInputRow, TaskInputRow.task_id == TaskRow.id)
        .where(TaskRow.job_id == job.id, TaskInputRow.stream_id == stream.id, TaskInputRow.sub_log.is_(None))
        .where(TaskInputRow.partition == partition)
    )
    task = s.scalars(reads.limit(1)).one()
    inputs = inputs_of_tasks(s, [task.id])[task.id]
    if len(inputs) > 1:
        return unknown("several_inputs")
    [at] = inputs
    moves = task_moves.moves_of(s, task)
    if moves is None:
        return unknown("not_recorded")
    if moves.begin < at.start:
        return unknown("retention", known_from=at.start)
    span = _span(at, moves)
    version = get_version(s, job, moves.spec_version)
    topology = Topology.from_json(version.topology)
    reader = next(each for each in topology.sub_topologies if stream.name in each.sources)
    skipped = select(SkipRow.offset).where(SkipRow.job_id == job.id, SkipRow.stream_id == stream.id)
    to_explain = TaskToExplain(
        topology=version.topology,
        sub_topology=reader.id,
        partition=partition,
        on_error=version.spec["on_error"],
        begin=moves.begin,
        position=at.position,
        advances=list(moves.advances),
        skips=list(s.scalars(skipped.where(SkipRow.partition == partition))),
        known_to=moves.known_to,
        ended_by=moves.ended_by,
        key=None if asked.key is None else asked.key.encode(),
        offset=asked.offset,
        timestamp=asked.timestamp,
        id=None if asked.id is None else (_id_expression(version.spec), asked.id),
    )
    return _ToExplain(to_explain, stream.id, span)


def _stream(s: Session, job: JobRow, asked: ExplainQuery) -> StreamRow:
    sources = jobs.streams_of(s, job.id, "source")
    wanted = [each for each in sources if asked.stream in (None, each.name)]
    if not wanted:
        raise refused("invalid_request", "?stream", f"{asked.stream!r} is not a source of the job")
    if len(wanted) > 1:
        names = ", ".join(sorted(each.name for each in wanted))
        raise refused("invalid_request", "?stream", f"say which: the job reads {names}")
    return wanted[0]


def _partition(stream: StreamRow, asked: ExplainQuery) -> int:
    if asked.offset is not None and (asked.key is not None or asked.id is not None or asked.timestamp is not None):
        raise refused("invalid_request", "?offset", "says which record alone: no key, timestamp or id beside it")
    if asked.offset is None and asked.key is None:
        raise refused("invalid_request", "?key", "say a key, or a partition and an offset")
    if asked.partition is not None:
        if asked.partition >= stream.partitions:
            raise refused("invalid_request", "?partition", f"the stream has {stream.partitions} partitions")
        return asked.partition
    if stream.partitions == 1:
        return 0
    if asked.key is None or stream.custom_partitioning:
        raise refused("invalid_request", "?partition", "say which: the key does not")
    try:
        return partition_of_key(asked.key.encode(), stream.partitions)
    except UnicodeEncodeError as error:
        raise refused("invalid_request", "?key", "is not Unicode text") from error


def _span(at: TaskInput, moves: task_moves.Moves) -> StreamSpan:
    """What the task has read, and what it has not read yet."""
    most = moves.begin + MAX_RECORDS
    if at.position > most:
        detail = f"{at.position - moves.begin} records would be run again, at most {MAX_RECORDS} are"
        raise ExplanationTooLarge(detail)
    return StreamSpan({at.partition: moves.begin}, {at.partition: min(at.end, most)}, is_whole=True)


def _id_expression(spec: dict[str, Any]) -> str:
    """That of the first operator that has one."""
    found = next((each["id"] for each in spec["operators"] if "id" in each), None)
    if found is None:
        raise refused("invalid_request", "?id", "no operator of the job has an id")
    return str(found)
