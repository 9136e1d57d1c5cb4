"""The tables of the catalog, as the code sees them; `migrations/` makes them.

It knows columns, keys and what an id refers to; it refuses to know any rule about how rows change.
Ids are UUIDs in hex, made when the row is made: a name can be given twice, an id never. Times are integer
milliseconds of the database's clock, but for `created_at` and its like, which people read.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    Text,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

Json = dict[str, Any]


def new_id() -> str:
    """An id that no other row, in any catalog, has."""
    return uuid.uuid4().hex


def utc_now() -> datetime:
    return datetime.now(UTC)


class Moment(TypeDecorator[datetime]):
    """A UTC time; SQLite stores no zone, so it is put back on the way out."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)


Serial = BigInteger().with_variant(Integer(), "sqlite")  # only INTEGER PRIMARY KEY counts by itself there


class CatalogTable(DeclarativeBase):
    """Every table of the catalog."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {str: Text(), int: BigInteger(), datetime: Moment(), Json: JSON(none_as_null=True)}


class MetaRow(CatalogTable):
    """Facts about the catalog itself: `lineage`, `coordinator_seen_ms`, `bootstrap_key` (an id)."""

    __tablename__ = "meta"

    name: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[str]


class StreamRow(CatalogTable):
    """`kind` is `user`, or what made an internal stream: `changelog`, `dropped`, `repartition`."""

    __tablename__ = "streams"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    kind: Mapped[str] = mapped_column(default="user")
    partitions: Mapped[int] = mapped_column(Integer)
    retention_ms: Mapped[int | None]
    fields: Mapped[Json | None]
    max_future_ms: Mapped[int]
    job_id: Mapped[str | None] = mapped_column(index=True)
    custom_partitioning: Mapped[bool] = mapped_column(default=False)
    retention_overrides_jobs: Mapped[bool] = mapped_column(default=False)
    etag: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class PartitionRow(CatalogTable):
    """Where a partition starts and ends; `bytes` and `records` count what is between, `appended_bytes` what ever came.
    `published_ms`: when it grew.
    """

    __tablename__ = "partitions"

    stream_id: Mapped[str] = mapped_column(ForeignKey("streams.id"), primary_key=True)
    partition: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    start_offset: Mapped[int] = mapped_column(default=0)
    end_offset: Mapped[int] = mapped_column(default=0)
    bytes: Mapped[int] = mapped_column(default=0)
    records: Mapped[int] = mapped_column(default=0)
    published_ms: Mapped[int | None]
    appended_bytes: Mapped[int] = mapped_column(server_default="0", default=0)


class SegmentRow(CatalogTable):
    """`pending` before it is written, `published` with its chunks, `dropped` before the collector deletes it."""

    __tablename__ = "segments"
    __table_args__ = (Index(None, "state", "created_ms"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    path: Mapped[str]
    state: Mapped[str]
    writer: Mapped[str]
    bytes: Mapped[int] = mapped_column(default=0)
    created_ms: Mapped[int]
    published_ms: Mapped[int | None]
    dropped_ms: Mapped[int | None]


class ChunkRow(CatalogTable):
    """One published record batch. Keyed by its end, for every reader asks what lies beyond an offset.

    `is_sparse`: it has fewer records than offsets; `ranges`: what lies where inside it, packed by its writer.
    """

    __tablename__ = "chunks"
    __table_args__ = (
        ForeignKeyConstraint(["stream_id", "partition"], ["partitions.stream_id", "partitions.partition"]),
        {"sqlite_with_rowid": False},
    )

    stream_id: Mapped[str] = mapped_column(primary_key=True)
    partition: Mapped[int] = mapped_column(Integer, primary_key=True)
    end_offset: Mapped[int] = mapped_column(primary_key=True)
    first_offset: Mapped[int]
    segment_id: Mapped[str] = mapped_column(ForeignKey("segments.id"), index=True)
    idx: Mapped[int] = mapped_column(Integer)
    records: Mapped[int]
    min_timestamp: Mapped[int]
    max_timestamp: Mapped[int]
    byte_offset: Mapped[int]
    byte_length: Mapped[int]
    crc32: Mapped[int]
    is_sparse: Mapped[bool] = mapped_column(default=False)
    ranges: Mapped[bytes | None]


class IngestKeyRow(CatalogTable):
    """What was answered to an Idempotency-Key, and to which body."""

    __tablename__ = "ingest_keys"

    api_key_id: Mapped[str] = mapped_column(primary_key=True)
    stream_id: Mapped[str] = mapped_column(primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(primary_key=True)
    body_sha256: Mapped[str]
    response: Mapped[Json]
    created_ms: Mapped[int] = mapped_column(index=True)


class SubscriptionRow(CatalogTable):
    """A reader of a stream whose positions are kept here. Whoever changes it, or a position of it, holds its lock.

    `start`: where it began, as it was asked for. `consumers`: who pulls → `{"lease_ms", "until_ms"}`, ended leases
    among them until the next pull; `pulled_ms`: when somebody last pulled, at first when it was made. `push_…`: where
    records are posted to, the secret that signs them (sealed, `service.sealing`) and its digest.
    """

    __tablename__ = "subscriptions"
    __table_args__ = (UniqueConstraint("stream_id", "name"),)

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    stream_id: Mapped[str] = mapped_column(ForeignKey("streams.id"))
    name: Mapped[str]
    start: Mapped[Any] = mapped_column(JSON)
    push_url: Mapped[str | None]
    push_secret: Mapped[str | None]
    push_sha256: Mapped[str | None]
    expires_after_ms: Mapped[int | None]
    holds_retention: Mapped[bool]
    consumers: Mapped[Json] = mapped_column(default=dict)
    pulled_ms: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class SubscriptionPositionRow(CatalogTable):
    """How far a subscription is in a partition: `service.pulls.PartitionProgress` says what the columns mean.
    `failure`: why its target does not take the next record (`{"attempts", "since_ms", "detail"}`).
    """

    __tablename__ = "subscription_positions"

    subscription_id: Mapped[str] = mapped_column(ForeignKey("subscriptions.id"), primary_key=True)
    partition: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    position: Mapped[int]
    batch_end: Mapped[int]
    holder: Mapped[str | None]
    pull_id: Mapped[str | None]
    given_ms: Mapped[int] = mapped_column(default=0)
    failure: Mapped[Json | None]


class JobRow(CatalogTable):
    """`spec` is the body as it was posted and completed, `topology` what it was compiled to.

    `max_repartition_bytes`, `max_task_idle_ms`: null where each of its tasks reads one partition of a user's stream and
    no more. `flush`: the stage ({"stage"}: of sub-topologies) that a flush has reached, until it is done.
    `replays_from`: partition → the first offset of its dropped records that were not dropped before a reset.
    `spec_version`: the version of the job that `spec` and `topology` are; `change`: one that waits until the job is
    quiet, or why the last one was given up; `read_to`: of users' streams (id → an offset a partition), where the
    present version stops reading, while a change waits for what it has read to pass repartition streams.
    `is_probing`: copies are on their way, and once they have caught up something moves; `rebalance_at_ms`: when to
    decide anew who owns what, if nothing happens before.
    `shortage`: what it lacks to run, as a code (`no_cores`), or "".
    """

    __tablename__ = "jobs"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    spec: Mapped[Json]
    spec_sha256: Mapped[str]
    topology: Mapped[Json]
    state: Mapped[str]
    reason: Mapped[str] = mapped_column(default="")
    error: Mapped[Json | None]
    generation: Mapped[int] = mapped_column(default=0)
    parallelism: Mapped[int | None] = mapped_column(Integer)
    max_batch_records: Mapped[int]
    idle_close_after_ms: Mapped[int | None]
    max_repartition_bytes: Mapped[int | None]
    max_task_idle_ms: Mapped[int | None]
    flush: Mapped[Json | None]
    replays_from: Mapped[Json | None]
    spec_version: Mapped[int] = mapped_column(server_default="1", default=1)
    change: Mapped[Json | None]
    read_to: Mapped[Json | None]
    is_probing: Mapped[bool] = mapped_column(server_default=false(), default=False)
    rebalance_at_ms: Mapped[int | None]
    shortage: Mapped[str] = mapped_column(server_default="", default="")
    etag: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)


class JobVersionRow(CatalogTable):
    """A version of a job, present or former: what it was, since when, by whom and why. `kind`: what made it
    (`job_versions.Kind`); `details`: what was asked for, what it meant for each operator, and which operators go on
    with whose stores (`inherits`: new name → former name).
    """

    __tablename__ = "job_versions"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    spec: Mapped[Json]
    spec_sha256: Mapped[str]
    topology: Mapped[Json]
    at_ms: Mapped[int]
    kind: Mapped[str]
    who: Mapped[str]
    reason: Mapped[str]
    details: Mapped[Json | None]


class JobStreamRow(CatalogTable):
    """Which streams a job reads (`source`), writes (`sink`) and keeps (`internal`). `sub_topology`: of a repartition
    stream, whose tasks write it, each on its own partition.
    """

    __tablename__ = "job_streams"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    stream_id: Mapped[str] = mapped_column(ForeignKey("streams.id"), primary_key=True, index=True)
    role: Mapped[str] = mapped_column(primary_key=True)
    sub_topology: Mapped[int | None] = mapped_column(Integer)


class JobTransitionRow(CatalogTable):
    """A change of a job: of its state, or of what `kind` says (`job_states.Kind`); why, and by whom. `error` when it is
    why, `details`: what was asked for.
    """

    __tablename__ = "job_transitions"

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    at_ms: Mapped[int] = mapped_column(index=True)
    from_state: Mapped[str | None]
    to_state: Mapped[str]
    reason: Mapped[str]
    who: Mapped[str]
    error: Mapped[Json | None]
    kind: Mapped[str] = mapped_column(server_default="state")
    details: Mapped[Json | None]


class SkipRow(CatalogTable):
    """A source record that a job shall pass over."""

    __tablename__ = "skips"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    stream_id: Mapped[str] = mapped_column(ForeignKey("streams.id"), primary_key=True)
    partition: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    offset: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)


class StoreRow(CatalogTable):
    """The state of one operator; its truth is its changelog stream. `since_version`: the version of the job that it
    began empty with; `is_removed`: no operator has it any more, it goes with the job.
    """

    __tablename__ = "stores"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    operator: Mapped[str]
    type: Mapped[str]
    kind: Mapped[str]
    sub_topology: Mapped[int] = mapped_column(Integer)
    changelog_stream_id: Mapped[str] = mapped_column(ForeignKey("streams.id"))
    spec: Mapped[Json]
    since_version: Mapped[int] = mapped_column(server_default="1", default=1)
    is_removed: Mapped[bool] = mapped_column(server_default=false(), default=False)


class TaskRow(CatalogTable):
    """The unit of state, of assignment and of commit. `epoch` counts owners, `version` counts commits.

    `positions`: how far it has read each of its inputs, packed (`service.catalog.inputs`). `is_closed`: nothing is open
    in its stores, as its last commit found; `has_backlog`: that commit left operators with output of what they have
    read; `flush_at`: the ends of its inputs, by number, when a flush was asked for, until that is done; `advanced`: the
    last time that stream time was moved without a record; `replay`: the dropped records that it takes in again
    (`service.catalog.replays`). `spec_version`: the version of the job that its stores are of; `next_version`: the one
    that its next commit has to adopt, before anything else; `set_back_to`: the stream time (ms) that it sets the stores
    back to with that. `taken_order`: in which order it took the records of several inputs, as far as that is in no row
    of its own (`service.catalog.task_orders`).
    """

    __tablename__ = "tasks"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    name: Mapped[str]
    sub_topology: Mapped[int] = mapped_column(Integer)
    partition: Mapped[int] = mapped_column(Integer)
    epoch: Mapped[int] = mapped_column(default=0)
    version: Mapped[int] = mapped_column(default=0)
    positions: Mapped[bytes]
    last_commit_id: Mapped[str | None]
    last_commit_result: Mapped[Json | None]
    counters: Mapped[Json] = mapped_column(default=dict)
    stream_time: Mapped[int] = mapped_column(default=-1)
    is_closed: Mapped[bool] = mapped_column(default=True)
    has_backlog: Mapped[bool] = mapped_column(default=False)
    flush_at: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True))
    advanced: Mapped[Json | None]
    replay: Mapped[Json | None]
    spec_version: Mapped[int] = mapped_column(server_default="1", default=1)
    next_version: Mapped[int | None]
    set_back_to: Mapped[int | None]
    updated_ms: Mapped[int]
    taken_order: Mapped[bytes | None]


class TaskInputRow(CatalogTable):
    """Partitions that a task reads, and the numbers under which it does, for ever: [number, number + partitions) are
    [partition, partition + partitions) of the stream. `sub_log`: the target whose part of each it reads, of a
    repartition stream.
    """

    __tablename__ = "task_inputs"
    __table_args__ = (
        ForeignKeyConstraint(["stream_id", "partition"], ["partitions.stream_id", "partitions.partition"]),
        Index(None, "stream_id", "partition"),
    )

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    stream_id: Mapped[str]
    partition: Mapped[int] = mapped_column(Integer)
    partitions: Mapped[int] = mapped_column(Integer, default=1)
    sub_log: Mapped[int | None] = mapped_column(Integer)


class TaskMoveRow(CatalogTable):
    """What moved a task otherwise than by records (`service.catalog.task_moves`): the number of the commit, what it did
    (`kind`), in front of which offset of its one input (`position`), or of each of several (`offsets`, `position` is
    their sum), and which version of the job its stores were of.
    """

    __tablename__ = "task_moves"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    kind: Mapped[str]
    position: Mapped[int]
    spec_version: Mapped[int]
    offsets: Mapped[list[int] | None] = mapped_column(JSON(none_as_null=True))


class TaskOrderRow(CatalogTable):
    """A full part of the order in which a task took the records of several inputs (`service.catalog.task_orders`)."""

    __tablename__ = "task_orders"

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    packed: Mapped[bytes]


class NodeRow(CatalogTable):
    """A replica folder, under the id that stands in it: on which host, and which folder there (`place`, of the file
    system; empty for an instance that does not say, which is its own node). `tags`: of the instances that use it, and
    its host.
    """

    __tablename__ = "nodes"

    id: Mapped[str] = mapped_column(primary_key=True)
    host: Mapped[str]
    place: Mapped[str]
    tags: Mapped[Json]
    seen_ms: Mapped[int]


class ReplicaRow(CatalogTable):
    """A copy of a task's stores on a node, and what it is for (`replicas` says more).

    `slot_id` keeps it up to date, null while nobody does: copies outlive slots. `target_slot_id`: the slot to hand the
    task to when its owner next asks for work. `applied`: store id → the changelog position that the copy has reached,
    as it was `reported_ms`; `rate`: records a second by which it went further there. Whoever changes a row holds the
    lock of its task.
    """

    __tablename__ = "replicas"
    __table_args__ = (
        Index(
            "uq_replicas_active",
            "task_id",
            unique=True,
            sqlite_where=text("role = 'active'"),
            postgresql_where=text("role = 'active'"),
        ),
    )

    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"), primary_key=True)
    node_id: Mapped[str] = mapped_column(primary_key=True)
    role: Mapped[str]
    state: Mapped[str]
    slot_id: Mapped[str | None] = mapped_column(index=True)
    target_slot_id: Mapped[str | None]
    applied: Mapped[Json] = mapped_column(default=dict)
    reported_ms: Mapped[int | None]
    rate: Mapped[int | None]


class InstanceRow(CatalogTable):
    """A Spark application. Its name and id stay when its process is replaced; `incarnation` tells which it is.
    `leave_by_ms`: of one that leaves, until when its slots may keep their tasks.
    `shortage`: what its Spark lacks, as a code, or "".
    """

    __tablename__ = "instances"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str] = mapped_column(unique=True)
    incarnation: Mapped[str]
    host: Mapped[str]
    cores: Mapped[int] = mapped_column(Integer)
    tags: Mapped[Json]
    spark: Mapped[Json]
    state: Mapped[str]
    lease_ms: Mapped[int]
    lease_until_ms: Mapped[int]
    joined_ms: Mapped[int]
    leave_by_ms: Mapped[int | None]
    shortage: Mapped[str] = mapped_column(default="")


class SlotRow(CatalogTable):
    """A resident Spark task of a job, and the node that it keeps its copies on; a new one with the same instance, job
    and index takes its place.

    `executor`: the Spark executor that it runs in ("": not known); `is_executor_lost`: it ended with that.
    """

    __tablename__ = "slots"
    __table_args__ = (Index(None, "job_id", "state"), Index(None, "instance_id", "state"))

    id: Mapped[str] = mapped_column(primary_key=True)
    instance_id: Mapped[str] = mapped_column(ForeignKey("instances.id"))
    node_id: Mapped[str] = mapped_column(server_default="", index=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    slot_index: Mapped[int] = mapped_column(Integer)
    state: Mapped[str]
    lease_ms: Mapped[int]
    lease_until_ms: Mapped[int]
    joined_ms: Mapped[int]
    gone_ms: Mapped[int | None]
    executor: Mapped[str] = mapped_column(default="")
    is_executor_lost: Mapped[bool] = mapped_column(default=False, server_default=false())


class ShareRow(CatalogTable):
    """How many slots of a job an instance should run. `leave_by_ms`: until when those beyond may keep their tasks."""

    __tablename__ = "shares"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    instance_id: Mapped[str] = mapped_column(ForeignKey("instances.id"), primary_key=True)
    slots: Mapped[int] = mapped_column(Integer)
    leave_by_ms: Mapped[int]


class RebalanceRow(CatalogTable):
    """One round of assignment: why, what moved, how long until the last hand-over (null: not yet); the group as it was
    and what was decided, in the shapes of `millrace assign`.
    """

    __tablename__ = "rebalances"

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), index=True)
    generation: Mapped[int]
    at_ms: Mapped[int] = mapped_column(index=True)
    reason: Mapped[str]
    moved: Mapped[Json]
    took_ms: Mapped[int | None]
    input: Mapped[Json | None]
    output: Mapped[Json | None]


class ApiKeyRow(CatalogTable):
    """A key is known by its SHA-256; an ephemeral one belongs to a running process."""

    __tablename__ = "api_keys"

    id: Mapped[str] = mapped_column(primary_key=True, default=new_id)
    name: Mapped[str]
    role: Mapped[str]
    sha256: Mapped[str] = mapped_column(unique=True)
    ephemeral: Mapped[bool] = mapped_column(default=False)
    created_at: Mapped[datetime] = mapped_column(default=utc_now)
    revoked_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]


class SessionRow(CatalogTable):
    """Somebody who signed in with a key, known by the SHA-256 of a secret that only their browser has."""

    __tablename__ = "sessions"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"), index=True)
    begun_ms: Mapped[int]
    expires_ms: Mapped[int]


class SignInCodeRow(CatalogTable):
    """A code with which somebody may sign in once as who holds the key."""

    __tablename__ = "sign_in_codes"

    sha256: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[str] = mapped_column(ForeignKey("api_keys.id"))
    expires_ms: Mapped[int]


class SampleRow(CatalogTable):
    """The figures of all jobs and users' streams at one moment (`service.catalog.samples`): one a period of sampling,
    written by whichever API process comes first.

    `at_ms`: when exactly. `base_ms`: the sample that `content` is packed against, itself where it stands alone.
    `is_coarse`: the first of its minute, which is kept for longer than the others.
    """

    __tablename__ = "samples"

    period_ms: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    at_ms: Mapped[int]
    base_ms: Mapped[int]
    is_coarse: Mapped[bool]
    content: Mapped[bytes]


class AuditRow(CatalogTable):
    """What somebody changed: with which key (by name too: one may be forgotten), by which operation, and the outline of
    what was sent. Ids rise with time.
    """

    __tablename__ = "audit"

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at_ms: Mapped[int] = mapped_column(index=True)
    key_id: Mapped[str]
    key_name: Mapped[str]
    role: Mapped[str]
    operation: Mapped[str]
    method: Mapped[str]
    path: Mapped[str]
    resource: Mapped[str] = mapped_column(index=True)
    status: Mapped[int] = mapped_column(Integer)
    request_id: Mapped[str]
    change: Mapped[Json | None]
