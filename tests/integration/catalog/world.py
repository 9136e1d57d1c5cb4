"""A small world in a catalog: streams with records, jobs, instances, slots that poll and commit. No files, no Spark."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session

from service import coordinator
from service.catalog import driver, job_creation, jobs, replicas, segments, streams
from service.catalog.engine import Catalog, now_ms
from service.catalog.tables import InstanceRow, JobRow, MetaRow, SegmentRow, SlotRow, StreamRow, new_id
from service.protocol import AssignedTask, HeldTask, JoinedSlot, Move, TaskCommit, Verdict, WrittenSegment
from service.streams.records import ChunkMeta, Published
from service.streams.topology import graph
from service.streams.topology.spec import JobSpec

LEASE_MS = 60_000  # no lease runs out here unless a test has it do so

STATEMENT = re.compile(r"(SELECT|UPDATE|INSERT INTO|DELETE FROM) \w+(?=[. ])")


def chunk(stream: StreamRow | str, partition: int, records: int, *, timestamp: int = 0) -> ChunkMeta:
    stream_id = stream if isinstance(stream, str) else stream.id
    return ChunkMeta(stream_id, partition, records, timestamp, timestamp + records - 1, 0, 8 * records, 7)


def register(catalog: Catalog, writer: str = "test") -> str:
    segment_id = new_id()
    catalog.write(segments.register_segments, writer, [(segment_id, f"segments/{segment_id}.arrow")])
    return segment_id


def post(catalog: Catalog, stream: StreamRow | str, sizes: dict[int, int], *, timestamp: int = 0) -> list[Published]:
    """Publish `sizes[partition]` records to each partition, as one segment."""
    chunks = [chunk(stream, partition, records, timestamp=timestamp) for partition, records in sizes.items()]
    return catalog.write(segments.publish, register(catalog), bytes=100, chunks=chunks)


def make_stream(catalog: Catalog, name: str = "clicks", partitions: int = 4) -> StreamRow:
    return catalog.write(streams.create_stream, name, partitions=partitions)


def spec_of(name: str = "visits", source: str = "clicks", **more: Any) -> JobSpec:
    once = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1_000}
    return JobSpec.parse({"name": name, "source": source, "operators": [once], "sink": f"{name}-out"} | more)


def submit(catalog: Catalog, spec: JobSpec, **more: Any) -> tuple[JobRow, bool]:
    def create(s: Session) -> tuple[JobRow, bool]:
        counts = {source: streams.get_stream(s, source).partitions for source in spec.sources}
        return job_creation.create_job(s, spec, graph.compile(spec, counts), **more)

    return catalog.write(create)


def make_job(catalog: Catalog, name: str = "visits", **more: Any) -> JobRow:
    return submit(catalog, spec_of(name, **more))[0]


def state_of(catalog: Catalog, name: str = "visits") -> str:
    return catalog.read(jobs.get_job, name).state


def join(catalog: Catalog, name: str = "one", *, incarnation: str = "first", cores: int = 4, **more: Any) -> str:
    arguments = {"name": name, "incarnation": incarnation, "host": "here", "cores": cores, "lease_ms": LEASE_MS}
    return catalog.write(coordinator.join_instance, **arguments | more).id


@dataclass
class SlotDouble:
    """A slot as its process sees it: what it holds, what it was told last."""

    catalog: Catalog
    id: str
    joined: JoinedSlot
    held: list[HeldTask] = field(default_factory=list)

    def poll(self) -> coordinator.PollOutcome:
        outcome = coordinator.poll_slot(self.catalog, self.id, self.held)
        before = {task.task: task.applied for task in self.held}
        self.held = [
            HeldTask(task.task, task.epoch, applied=before.get(task.task, {})) for task in outcome.answer.tasks
        ]
        return outcome

    def apply(self, store: str, position: int, *, has_backlog: bool = False) -> None:
        """Every replica of a store is at `position`, as the next poll says."""
        applied = {self.joined.stores[store].id: position}
        self.held = [replace(task, applied=applied, has_backlog=has_backlog) for task in self.held]

    def tasks(self) -> list[AssignedTask]:
        return self.poll().answer.tasks

    def names(self) -> list[str]:
        return [task.name for task in self.tasks()]

    def commit(self, *commits: TaskCommit) -> list[Verdict]:
        return self.catalog.write(coordinator.commit_tasks, self.id, commits)

    def run(self) -> int:
        """Run all the work of one poll, as many records out as in; how many there were."""
        commits = [batch(self.catalog, task, self.joined) for task in self.tasks() if task.work]
        assert all(verdict.status == "accepted" for verdict in self.commit(*commits))
        return sum(commit.positions[0].end - commit.positions[0].start for commit in commits)

    def leave(self) -> None:
        self.catalog.write(coordinator.leave_slot, self.id)


def slot(catalog: Catalog, instance_id: str, job: JobRow, index: int = 0, **more: Any) -> SlotDouble:
    slot_id = new_id()
    how = {"job_id": job.id, "slot_id": slot_id, "index": index, "lease_ms": LEASE_MS, **more}
    joined = catalog.write(coordinator.join_slot, instance_id, **how)
    return SlotDouble(catalog, slot_id, joined)


def job_at_work(catalog: Catalog, **more: Any) -> tuple[JobRow, SlotDouble]:
    """A job over two partitions that has read ten records of each."""
    clicks = make_stream(catalog, partitions=2)
    job = make_job(catalog, **more)
    worker = slot(catalog, join(catalog), job)
    post(catalog, clicks, {0: 10, 1: 10})
    worker.run()
    return job, worker


def batch(catalog: Catalog, task: AssignedTask, joined: JoinedSlot) -> TaskCommit:
    """The commit of a task's work: every record forwarded to the sink's same partition, one change per record."""
    [work] = task.work
    records = work.end - work.start
    sink = next(at.id for name, at in joined.streams.items() if name.endswith("-out"))
    changelog = joined.stores[min(task.changelogs)].changelog
    return commit_of(
        task,
        moves=[(work.input, work.start, work.end)],
        segment=register(catalog, joined.slot),
        chunks=[chunk(sink, task.partition, records), chunk(changelog, task.partition, records)],
        counters={"records_in": records, "records_out": records},
    )


def commit_of(
    task: AssignedTask,
    *,
    moves: Iterable[tuple[int, int, int]] = (),
    segment: str | None = None,
    chunks: Sequence[ChunkMeta] = (),
    **more: Any,
) -> TaskCommit:
    """A commit of a task; `moves`: (input, from, to)."""
    return TaskCommit(
        commit_id=new_id(),
        task=task.task,
        epoch=task.epoch,
        version=task.version,
        positions=[Move(*move) for move in moves],
        segments=[WrittenSegment(segment, 100, list(chunks))] if segment else [],
        **more,
    )


def ends(catalog: Catalog, name: str) -> list[int]:
    """The end offset of every partition of a stream."""

    def read(s: Session) -> list[int]:
        return [at.end_offset for at in streams.partitions_of(s, streams.get_stream(s, name).id)]

    return catalog.read(read)


def owners(catalog: Catalog, job: JobRow) -> dict[str, str | None]:
    """Task name → slot id."""
    return {at.task: at.slot_id for at in catalog.read(replicas.owners_of, job.id)}


@contextmanager
def statements(catalog: Catalog) -> Iterator[list[str]]:
    """The statements on tables that the catalog sends meanwhile: the verb and the first table."""
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if found := STATEMENT.match(statement):
            seen.append(found[0])

    def run(connection: Any, text: str, parameters: Any) -> Any:
        if connection.engine.pool in engines:  # another catalog of this process may have a sampler at work
            note(connection, None, text)
        return driver_run(connection, text, parameters)

    driver_run = driver.run  # these go past SQLAlchemy's events
    # on Postgres readers are a view of the writer's engine, and hear what it hears
    engines = {engine.pool: engine for engine in (catalog._reader, catalog._writer)}
    for engine in engines.values():
        event.listen(engine, "before_cursor_execute", note)
    try:
        with patch.object(driver, "run", run):
            yield seen
    finally:
        for engine in engines.values():
            event.remove(engine, "before_cursor_execute", note)


# ---------------------------------------------------------------- what only time does


def expire_slot(catalog: Catalog, slot_id: str) -> None:
    catalog.write(lambda s: s.execute(update(SlotRow).where(SlotRow.id == slot_id).values(lease_until_ms=0)))


def expire_instance(catalog: Catalog, *instance_ids: str) -> None:
    expired = update(InstanceRow).where(InstanceRow.id.in_(instance_ids)).values(lease_until_ms=0)
    catalog.write(lambda s: s.execute(expired))


def silence_instance(catalog: Catalog, instance_id: str, left_ms: int) -> None:
    """Have it said nothing since so much of its lease was left."""

    def shift(s: Session) -> None:
        s.get_one(InstanceRow, instance_id).lease_until_ms = now_ms(s) + left_ms

    catalog.write(shift)


def silence_slot(catalog: Catalog, slot_id: str, left_ms: int) -> None:
    """Have it said nothing since so much of its lease was left."""

    def shift(s: Session) -> None:
        s.get_one(SlotRow, slot_id).lease_until_ms = now_ms(s) + left_ms

    catalog.write(shift)


def lease_of(catalog: Catalog, slot_id: str) -> int:
    return catalog.read(lambda s: s.scalars(select(SlotRow.lease_until_ms).where(SlotRow.id == slot_id)).one())


def tick(catalog: Catalog, **how: float) -> int:
    """A round of the coordinator, which takes no pause of a test for an outage."""
    return coordinator.tick(catalog, **{"lease_ms": LEASE_MS, **how})


def silence_coordinator(catalog: Catalog, for_ms: int) -> None:
    """The last tick was `for_ms` earlier than it was."""

    def shift(s: Session) -> None:
        seen = s.scalars(select(MetaRow).where(MetaRow.name == coordinator.SEEN)).one()
        seen.value = str(int(seen.value) - for_ms)

    catalog.write(shift)


def age_segments(catalog: Catalog, by_ms: int) -> None:
    """Every segment was announced, published and dropped `by_ms` earlier than it was."""
    shifted = {column: getattr(SegmentRow, column) - by_ms for column in ("created_ms", "published_ms", "dropped_ms")}
    catalog.write(lambda s: s.execute(update(SegmentRow).values(**shifted)))
