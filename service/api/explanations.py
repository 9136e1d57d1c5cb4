"""`:explain` over HTTP: why a record of a job came out, or not, and what closed its windows.

Knows the shapes of question and answer, and where the records of a task are. Refuses to know how an explanation is
found (`service.simulate`).
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec
import orjson
import pyarrow as pa
from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.document import router_of
from service.api.models import WindowView
from service.auth import Reader
from service.catalog import jobs, task_moves, task_orders
from service.catalog.inputs import TaskInput, inputs_of_job, inputs_of_tasks
from service.catalog.job_versions import get_version
from service.catalog.tables import ChunkRow, JobRow, SkipRow, StreamRow, TaskInputRow, TaskRow
from service.problems import Refusal, declared, refused
from service.reads.exports import StreamSpan, batches
from service.simulate.explanation import (
    SeveralInputs,
    TaskAgain,
    TaskToExplain,
    WhyUnknown,
    is_handed_on,
    said_no_further,
    unknown,
)
from service.simulate.settling import UNSETTLED, Settling
from service.streams.clock import END_OF_TIME
from service.streams.errors import ExplanationTooLarge, OffsetTruncated
from service.streams.partitioner import partition_of_key
from service.streams.topology.graph import Topology

router = router_of("jobs")

MAX_RECORDS: Final = task_orders.MAX_RECORDS  # that are run again
NEAR_RECORDS: Final = 100_000  # of a longer history: so many are tried first
_COLUMNS: Final = ["offset", "key", "value", "timestamp", "window_start", "window_end", "headers"]


class CauseView(BaseModel):
    """Who brought it about: a record; or nobody, where time moved without one."""

    stream: Annotated[str | None, Field(description="Of the record; null: time moved without.")]
    partition: Annotated[int | None, Field(description="Of the record; null: time moved without.")]
    offset: Annotated[int | None, Field(description="Of the record; null: time moved without.")]
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
    """A record in a window; behind a repartition the one that it comes from."""

    stream: Annotated[str | None, Field(description="Null: it comes from none, but from what closed without one.")]
    partition: Annotated[int | None, Field(description="Null: it comes from no record.")]
    offset: Annotated[int | None, Field(description="Null: it comes from no record.")]
    timestamp: int


class WindowFinalView(BaseModel):
    """A final result of a window, as it came out."""

    operator: Annotated[str, Field(description="The operator that let it go.")]
    reason: Annotated[str, Field(description="`stream_time`, `idle` or `flush`.")]
    stream: Annotated[str | None, Field(description="Of the record by which it left; null: by none.")]
    partition: Annotated[int | None, Field(description="Of the record by which it left; null: by none.")]
    offset: Annotated[int | None, Field(description="Of the record by which it left; null: by none.")]
    value: Any


class PathView(BaseModel):
    """An operator that the record reached, or the condition of a sink."""

    operator: str
    outcome: Annotated[
        Literal["passed", "kept", "dropped"],
        Field(description="It went on; it is in what the operator keeps; it was let go."),
    ]
    reason: Annotated[str | None, Field(description="Why it was let go.")]


class ExplainedOutputView(BaseModel):
    """A record that came out because of this one."""

    stream: str
    timestamp: int
    key: str | None
    value: Any
    window: WindowView | None


class ExplainedWindowView(BaseModel):
    """A window of the key that the record's time lies in: who is in it, and why it closed."""

    operator: str
    start: int
    end: int
    updated: Annotated[int, Field(description="How many records are in it.")]
    updates: Annotated[list[WindowUpdateView], Field(description="These, in order; the last 1,000.")]
    closed: Annotated[CauseView | None, Field(description="What closed it; null: it is open.")]
    closes_at: Annotated[int | None, Field(description="The stream time that closes it, ms; null: none does.")]
    stream_time: Annotated[int | None, Field(description="The operator's stream time now, ms; null: none yet.")]
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
    known_from: Annotated[
        int | None,
        Field(description="The first offset of which all is known: that the task read, is still there, or was needed."),
    ]
    record: Annotated[ExplainedRecordView | None, Field(description="The record; null: there is none.")]
    matched: Annotated[int, Field(description="How many records were asked for, from `known_from` on.")]
    path: Annotated[list[PathView], Field(description="The operators that it reached itself, in their order.")]
    outputs: Annotated[list[ExplainedOutputView], Field(description="What came out because of it; the first 100.")]
    records: Annotated[list[RecordFateView], Field(description="What became of them; the last 100, in order.")]
    windows: Annotated[list[ExplainedWindowView], Field(description="By operator and time; the last 100.")]
    cut: Annotated[
        list[Literal["records", "outputs", "windows"]], Field(description="Which of these lists have not all there is.")
    ]


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


class _Given(NamedTuple):
    """Records of an input, by its number, of a task; of the only one, or by its place among all."""

    stream_id: str
    span: StreamSpan
    input: int
    task: int = 0


class _ToExplain(NamedTuple):
    """What there is to be explained, and the records that it takes; `asked`: those of the input that is asked about."""

    task: TaskToExplain
    given: Sequence[_Given]
    asked: _Given


@router.get(
    "/v1/jobs/{job:name}:explain",
    responses={200: {"model": ExplanationView}, **declared(401, 403, 404, 414, 422, 429, 503)},
)
async def explain_record(request: Request, job: str, _: Reader, asked: Annotated[ExplainQuery, Query()]) -> Response:
    """Say why a record came out, or not: at which operator, because of which earlier record, by how many ms.

    By `key` (with `timestamp` and `id`, of several the last one), or by `partition` and `offset`. The operators run
    again over all that the record's task has read since it began, other keys too, for those move stream time; with
    what closed on idle input and by flushes in between. `unknown` where that can not be said, and why: retention took
    some of it, the job has become another version. Where tasks behind a repartition go on with it, all tasks of the job
    run again. At most 1,000,000 records are run again, within 30 s and 1 GiB of memory; two questions, or simulations,
    at once (429).
    """
    state = request.state
    found = await run_in_threadpool(state.catalog.read, _find, job, asked)
    said = orjson.dumps(found) if isinstance(found, dict) else await _explained_by_one(state, found)
    if isinstance(said, bytes) and b"repartitioned" in said:  # else it needs no parsing
        before = orjson.loads(said)
        said = await _explained_by_all(state, job, asked, before) if is_handed_on(before) else said
    return said.answer(request) if isinstance(said, Refusal) else Response(said, media_type="application/json")


async def _explained_by_one(state: Any, found: Sequence[_ToExplain]) -> bytes | Refusal:
    """What the record's own task says, by as little of its history as says it. Raises ExplanationTooLarge."""
    for to_explain in found:
        said = await _explained(state, to_explain)
        if to_explain.task.before is None:
            return said
        if isinstance(said, Refusal):
            if said.status in (429, 503):
                return said
            continue  # an operator may fail at what it does not have from before
        if UNSETTLED.encode() not in said or orjson.loads(said)["reason"] != UNSETTLED:
            return said
    raise ExplanationTooLarge(f"more than {MAX_RECORDS} records would have to be run again")


async def _explained(state: Any, found: _ToExplain) -> bytes | Refusal:
    try:
        answer: bytes | Refusal = await state.simulations.explain(_frames(state, found))
    except OffsetTruncated as error:  # retention was faster
        return orjson.dumps(unknown("retention", known_from=error.start_offset))
    return answer


async def _explained_by_all(state: Any, job: str, asked: ExplainQuery, before: dict[str, Any]) -> bytes | Refusal:
    """What all tasks of the job say of a record; where they do not, what the first one said, and why no more."""
    found = await run_in_threadpool(state.catalog.read, _find_all, job, asked)
    if isinstance(found, WhyUnknown):
        return orjson.dumps(said_no_further(before, found.reason, found.why))
    said = await _explained(state, found)
    if isinstance(said, Refusal):
        return said if said.code != ExplanationTooLarge.code else orjson.dumps(before)
    answer = orjson.loads(said)
    is_nothing = answer["record"] is None and before["record"] is not None
    return orjson.dumps(said_no_further(before, answer["reason"], answer["why"])) if is_nothing else said


async def _frames(state: Any, found: _ToExplain) -> AsyncIterator[bytes]:
    task = found.task
    if task.offset is not None:
        task = msgspec.structs.replace(task, key=await run_in_threadpool(_key_at, state, found, task.offset))
    yield msgspec.json.encode(task)
    for given in found.given:
        pages: Iterator[pa.RecordBatch] = batches(state.catalog, state.storage, given.stream_id, given.span)
        while (page := await run_in_threadpool(next, pages, None)) is not None:
            sink = pa.BufferOutputStream()
            said = {"task": str(given.task), "input": str(given.input)}
            records = page.select(_COLUMNS).replace_schema_metadata(said)
            with pa.ipc.new_stream(sink, records.schema) as writer:
                writer.write_batch(records)
            yield sink.getvalue().to_pybytes()


def _key_at(state: Any, found: _ToExplain, offset: int) -> bytes | None:
    """That of one record, whose windows are asked for."""
    stream_id, whole = found.asked[:2]
    if not all(whole.begin[at] <= offset < whole.end[at] for at in whole.begin):
        return None  # nothing is there, and whoever reads beyond the end waits for more
    span = StreamSpan(dict.fromkeys(whole.begin, offset), dict.fromkeys(whole.end, offset + 1), is_whole=True)
    page = next(batches(state.catalog, state.storage, stream_id, span), None)
    return None if page is None or not page.num_rows else page.column("key")[0].as_py()


def _find(s: Session, name: str, asked: ExplainQuery) -> list[_ToExplain] | dict[str, Any]:
    """From the nearest place to the beginning, one of which will do. A dict: the answer where nobody knows. Raises
    UnknownJob, ProblemError, ExplanationTooLarge.
    """
    job = jobs.get_job(s, name)
    stream = _stream(s, job, asked)
    partition = _partition(stream, asked)
    task = _reader(s, job, stream, partition)
    inputs = inputs_of_tasks(s, [task.id])[task.id]
    number = next(i for i, each in enumerate(inputs) if each.stream_id == stream.id)
    if any(each.sub_log is not None for each in inputs):
        return unknown("repartitioned")
    moves = task_moves.moves_of(s, task)
    if moves is None:
        return unknown("not_recorded", f"task {task.name}")
    if len(moves.begin) != len(inputs) or any(each.is_removed for each in inputs):
        return unknown("version_changed", f"task {task.name} has other inputs")
    if gone := _gone(task, inputs, moves, _names(s, job)):
        return unknown("retention", gone, known_from=max(inputs[number].start, moves.begin[number]))
    skips = _skips(s, job, inputs)
    if skips and len(inputs) > 1:
        return unknown("several_inputs", f"task {task.name} skipped a record")
    question = _question(s, job, moves.spec_version, stream, partition, asked)
    to_explain = msgspec.structs.replace(question, skips=skips, ended_by=moves.ended_by)
    to_explain = _with_history(s, job, to_explain, inputs, moves, number)
    nearer = [] if len(inputs) > 1 else _nearer(s, to_explain, inputs[0])
    if nearer and inputs[0].position - moves.begin[0] > MAX_RECORDS:
        return nearer
    given = _given(inputs, moves.begin, number)
    return [*nearer, _ToExplain(to_explain, given, given[number])]


def _nearer(s: Session, task: TaskToExplain, at: TaskInput) -> list[_ToExplain]:
    """A task with one input, begun further on: at chunks, of which the catalog has the times."""
    if at.position - task.begin <= NEAR_RECORDS or task.known_to is not None:
        return []
    sub_topology = Topology.from_json(task.topology).sub_topologies[task.sub_topology]
    if Settling.of(sub_topology, task.on_error) is None:
        return []
    found: list[_ToExplain] = []
    wanted = at.position if task.offset is None else min(task.offset, at.position)
    for records in (NEAR_RECORDS, MAX_RECORDS):
        goal = max(wanted - records, at.position - MAX_RECORDS, task.begin + 1)
        of_log = ChunkRow.stream_id == at.stream_id, ChunkRow.partition == at.partition
        is_behind = ChunkRow.end_offset > goal, ChunkRow.first_offset >= goal
        behind = select(ChunkRow.first_offset).where(*of_log, *is_behind).order_by(ChunkRow.end_offset)
        first = s.scalars(behind.limit(1)).first()
        if first is None or first >= wanted or any(each.task.begin == first for each in found):
            continue
        is_before = ChunkRow.end_offset > task.begin, ChunkRow.end_offset <= first
        before = s.scalar(select(func.max(ChunkRow.max_timestamp)).where(*of_log, *is_before))
        if before is not None:
            begun = msgspec.structs.replace(task, begin=first, before=before)
            given = _given([at], [first], 0)
            found.append(_ToExplain(begun, given, given[0]))
        if at.position - task.begin <= MAX_RECORDS:
            break  # else from the beginning
    return found


def _gone(task: TaskRow, inputs: Sequence[TaskInput], moves: task_moves.Moves, names: Mapping[str, str]) -> str:
    """Which records of users' streams, that a task has read, retention took, in words; empty: none."""
    gone = [
        f"{names[each.stream_id]} partition {each.partition} from offset {begin} on, which begins at {each.start} now"
        for begin, each in zip(moves.begin, inputs, strict=True)
        if each.sub_log is None and begin < each.start
    ]
    return f"task {task.name} read " + ", ".join(gone) if gone else ""


def _names(s: Session, job: JobRow) -> dict[str, str]:
    """Of the streams that tasks of a job read, by id."""
    streams = [*jobs.streams_of(s, job.id, "source"), *jobs.streams_of(s, job.id, "internal")]
    return {each.id: each.name for each in streams}


def _find_all(s: Session, name: str, asked: ExplainQuery) -> _ToExplain | WhyUnknown:
    """All tasks of the job, for a record that tasks behind a repartition go on with; or the reason why nobody knows."""
    job = jobs.get_job(s, name)
    stream = _stream(s, job, asked)
    partition = _partition(stream, asked)
    reader, inputs = _reader(s, job, stream, partition), inputs_of_job(s, job.id)
    names = _names(s, job)
    order = TaskRow.sub_topology, TaskRow.partition
    versions, given, found = set[int](), list[_Given](), list[TaskAgain]()
    left, at = MAX_RECORDS, None
    for number, task in enumerate(s.scalars(select(TaskRow).where(TaskRow.job_id == job.id).order_by(*order)).all()):
        own, moves = inputs[task.id], task_moves.moves_of(s, task)
        if isinstance(again := _again(s, job, task, own, moves, names), WhyUnknown):
            return again
        found.append(again)
        for place, each in enumerate(own):
            if each.sub_log is None:
                span = StreamSpan({each.partition: again.begin[place]}, {each.partition: each.position}, is_whole=True)
                given.append(_Given(each.stream_id, span, place, number))
                left -= each.position - again.begin[place]
                if task.id == reader.id and each.stream_id == stream.id:
                    at = len(given) - 1, each.end
        versions |= {moves.spec_version} if moves is not None else set()
    if left < 0:
        return WhyUnknown("repartitioned")
    if len(versions) != 1 or at is None:
        return WhyUnknown("version_changed", "its tasks began with several")
    place, end = at
    asked_of = given[place]
    read_to = min(end, asked_of.span.end[partition] + left)
    given[place] = asked_of._replace(span=StreamSpan(asked_of.span.begin, {partition: read_to}, is_whole=True))
    task_to_explain = _question(s, job, versions.pop(), stream, partition, asked)
    return _ToExplain(msgspec.structs.replace(task_to_explain, tasks=found), given, given[place])


def _again(
    s: Session,
    job: JobRow,
    task: TaskRow,
    inputs: Sequence[TaskInput],
    moves: task_moves.Moves | None,
    names: Mapping[str, str],
) -> TaskAgain | WhyUnknown:
    """A task as it can be run again beside the others of its job; or the reason why it can not."""
    which = f"task {task.name}"
    if moves is None:
        return WhyUnknown("not_recorded", which)
    if len(moves.begin) != len(inputs) or any(each.is_removed for each in inputs):
        return WhyUnknown("version_changed", f"{which} has other inputs")
    if moves.known_to is not None:
        return WhyUnknown("replayed" if moves.ended_by == "replay" else "version_changed", which)
    if gone := _gone(task, inputs, moves, names):
        return WhyUnknown("retention", gone)
    skips, is_behind = _skips(s, job, inputs), any(each.sub_log is not None for each in inputs)
    place = task_orders.place_of(task, inputs)
    if place is None:
        return WhyUnknown("several_inputs", f"nobody took note of what {which} took")
    if skips and (len(inputs) > 1 or is_behind):
        return WhyUnknown("several_inputs", f"{which} skipped a record")
    taken = task_orders.taken_of(task, inputs) if is_behind else None
    return TaskAgain(
        sub_topology=task.sub_topology,
        partition=task.partition,
        inputs=[(names[each.stream_id], each.partition) for each in inputs],
        begin=moves.begin,
        position=place,
        orders=moves.orders,
        advances=moves.advances,
        skips=skips,
        last=None if taken is None else (taken.aligned_at, taken.input),
    )


def _reader(s: Session, job: JobRow, stream: StreamRow, partition: int) -> TaskRow:
    """The task that reads a partition of a source."""
    reads = (
        select(TaskRow)
        .join(TaskInputRow, TaskInputRow.task_id == TaskRow.id)
        .where(TaskRow.job_id == job.id, TaskInputRow.stream_id == stream.id, TaskInputRow.sub_log.is_(None))
        .where(TaskInputRow.partition == partition)
    )
    return s.scalars(reads.limit(1)).one()


def _skips(s: Session, job: JobRow, inputs: Sequence[TaskInput]) -> list[int]:
    """Offsets of records that a task with these inputs passes over."""
    skipped = select(SkipRow.stream_id, SkipRow.partition, SkipRow.offset).where(SkipRow.job_id == job.id)
    read = {(each.stream_id, each.partition) for each in inputs}
    return [offset for *log, offset in s.execute(skipped) if tuple(log) in read]


def _question(
    s: Session, job: JobRow, version_number: int, stream: StreamRow, partition: int, asked: ExplainQuery
) -> TaskToExplain:
    """What is asked of the task that reads the record, as the job was in a version; nothing of its history."""
    version = get_version(s, job, version_number)
    topology = Topology.from_json(version.topology)
    reader = next(each for each in topology.sub_topologies if stream.name in each.sources)
    return TaskToExplain(
        topology=version.topology,
        sub_topology=reader.id,
        stream=stream.name,
        partition=partition,
        on_error=version.spec["on_error"],
        key=None if asked.key is None else asked.key.encode(),
        offset=asked.offset,
        timestamp=asked.timestamp,
        id=None if asked.id is None else (_id_expression(version.spec), asked.id),
    )


def _with_history(
    s: Session, job: JobRow, task: TaskToExplain, inputs: Sequence[TaskInput], moves: task_moves.Moves, asked: int
) -> TaskToExplain:
    """What went into it beside records, and in which order it took these."""
    if len(inputs) == 1:
        return msgspec.structs.replace(
            task,
            begin=moves.begin[0],
            position=inputs[0].position,
            advances=[(place[0], reason) for place, reason in moves.advances],
            known_to=None if moves.known_to is None else moves.known_to[0],
        )
    names = _names(s, job)
    several = SeveralInputs(
        inputs=[(names[each.stream_id], each.partition) for each in inputs],
        asked=asked,
        begin=moves.begin,
        position=[each.position for each in inputs],
        orders=moves.orders,
        advances=moves.advances,
        known_to=moves.known_to,
    )
    return msgspec.structs.replace(task, several=several)


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


def _given(inputs: Sequence[TaskInput], begins: Sequence[int], asked: int) -> list[_Given]:
    """What the task has read, and of the input that is asked about what it has not read yet."""
    read = sum(at.position - begin for begin, at in zip(begins, inputs, strict=True))
    if read > MAX_RECORDS:
        raise ExplanationTooLarge(f"{read} records would be run again, at most {MAX_RECORDS} are")
    return [
        _Given(at.stream_id, StreamSpan({at.partition: begin}, {at.partition: end}, is_whole=True), number)
        for number, (begin, at) in enumerate(zip(begins, inputs, strict=True))
        for end in [min(at.end, at.position + MAX_RECORDS - read) if number == asked else at.position]
    ]


def _id_expression(spec: dict[str, Any]) -> str:
    """That of the first operator that has one."""
    found = next((each["id"] for each in spec["operators"] if "id" in each), None)
    if found is None:
        raise refused("invalid_request", "?id", "no operator of the job has an id")
    return str(found)
