"""The first catalog: streams, segments, jobs, tasks, members, keys."""

import uuid

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

TABLES = [
    "api_keys",
    "ingest_keys",
    "skips",
    "task_positions",
    "tasks",
    "stores",
    "rebalances",
    "job_transitions",
    "job_streams",
    "slots",
    "instances",
    "jobs",
    "chunks",
    "segments",
    "partitions",
    "streams",
    "meta",
]


def upgrade() -> None:
    _meta()
    _streams()
    _segments()
    _jobs()
    _tasks()
    _members()
    _keys()


def downgrade() -> None:
    for table in TABLES:
        op.drop_table(table)


def _text(name: str, *, null: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text(), nullable=null)


def _long(name: str, *, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger(), nullable=null)


def _int(name: str, *, null: bool = False) -> sa.Column[int]:
    return sa.Column(name, sa.Integer(), nullable=null)


def _json(name: str, *, null: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.JSON(), nullable=null)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(), nullable=False)


def _moment(name: str, *, null: bool = False) -> sa.Column[object]:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=null)


def _serial() -> sa.Column[int]:
    """Counts by itself; in SQLite only INTEGER PRIMARY KEY does."""
    return sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False)


def _key(table: str, *columns: str) -> sa.PrimaryKeyConstraint:
    return sa.PrimaryKeyConstraint(*columns, name=f"pk_{table}")


def _unique(table: str, column: str) -> sa.UniqueConstraint:
    return sa.UniqueConstraint(column, name=f"uq_{table}_{column}")


def _refers(table: str, target: str, *columns: str, to: tuple[str, ...] = ("id",)) -> sa.ForeignKeyConstraint:
    remote = [f"{target}.{column}" for column in to]
    return sa.ForeignKeyConstraint(columns, remote, name=f"fk_{table}_{'_'.join(columns)}")


def _index(table: str, *columns: str) -> None:
    op.create_index(f"ix_{table}_{'_'.join(columns)}", table, list(columns))


def _meta() -> None:
    meta = op.create_table("meta", _text("name"), _text("value"), _key("meta", "name"))
    op.bulk_insert(meta, [{"name": "lineage", "value": uuid.uuid4().hex}])


def _streams() -> None:
    op.create_table(
        "streams",
        _text("id"),
        _text("name"),
        _text("kind"),
        _int("partitions"),
        _long("retention_ms", null=True),
        _json("fields", null=True),
        _long("max_future_ms"),
        _text("job_id", null=True),
        _flag("custom_partitioning"),
        _flag("retention_overrides_jobs"),
        _long("etag"),
        _moment("created_at"),
        _key("streams", "id"),
        _unique("streams", "name"),
    )
    _index("streams", "job_id")
    op.create_table(
        "partitions",
        _text("stream_id"),
        _int("partition"),
        _long("start_offset"),
        _long("end_offset"),
        _long("bytes"),
        _long("records"),
        _key("partitions", "stream_id", "partition"),
        _refers("partitions", "streams", "stream_id"),
    )


def _segments() -> None:
    op.create_table(
        "segments",
        _text("id"),
        _text("path"),
        _text("state"),
        _text("writer"),
        _long("bytes"),
        _long("created_ms"),
        _long("published_ms", null=True),
        _long("dropped_ms", null=True),
        _key("segments", "id"),
    )
    _index("segments", "state", "created_ms")
    op.create_table(
        "chunks",
        _text("stream_id"),
        _int("partition"),
        _long("end_offset"),
        _long("first_offset"),
        _text("segment_id"),
        _int("idx"),
        _long("records"),
        _long("min_timestamp"),
        _long("max_timestamp"),
        _long("byte_offset"),
        _long("byte_length"),
        _long("crc32"),
        _key("chunks", "stream_id", "partition", "end_offset"),
        _refers("chunks", "partitions", "stream_id", "partition", to=("stream_id", "partition")),
        _refers("chunks", "segments", "segment_id"),
        sqlite_with_rowid=False,
    )
    _index("chunks", "segment_id")


def _jobs() -> None:
    op.create_table(
        "jobs",
        _text("id"),
        _text("name"),
        _json("spec"),
        _text("spec_sha256"),
        _json("topology"),
        _text("state"),
        _text("reason"),
        _json("error", null=True),
        _long("generation"),
        _int("parallelism", null=True),
        _long("max_batch_records"),
        _long("etag"),
        _moment("created_at"),
        _key("jobs", "id"),
        _unique("jobs", "name"),
    )
    op.create_table(
        "job_streams",
        _text("job_id"),
        _text("stream_id"),
        _text("role"),
        _key("job_streams", "job_id", "stream_id", "role"),
        _refers("job_streams", "jobs", "job_id"),
        _refers("job_streams", "streams", "stream_id"),
    )
    _index("job_streams", "stream_id")
    op.create_table(
        "job_transitions",
        _serial(),
        _text("job_id"),
        _long("at_ms"),
        _text("from_state", null=True),
        _text("to_state"),
        _text("reason"),
        _text("who"),
        _json("error", null=True),
        _key("job_transitions", "id"),
        _refers("job_transitions", "jobs", "job_id"),
    )
    _index("job_transitions", "job_id")
    op.create_table(
        "skips",
        _text("job_id"),
        _text("stream_id"),
        _int("partition"),
        _long("offset"),
        _key("skips", "job_id", "stream_id", "partition", "offset"),
        _refers("skips", "jobs", "job_id"),
        _refers("skips", "streams", "stream_id"),
    )


def _tasks() -> None:
    op.create_table(
        "stores",
        _text("id"),
        _text("name"),
        _text("job_id"),
        _text("operator"),
        _text("type"),
        _text("kind"),
        _int("sub_topology"),
        _text("changelog_stream_id"),
        _json("spec"),
        _key("stores", "id"),
        _unique("stores", "name"),
        _refers("stores", "jobs", "job_id"),
        _refers("stores", "streams", "changelog_stream_id"),
    )
    _index("stores", "job_id")
    op.create_table(
        "tasks",
        _text("id"),
        _text("job_id"),
        _text("name"),
        _int("sub_topology"),
        _int("partition"),
        _long("epoch"),
        _long("version"),
        _text("slot_id", null=True),
        _text("target_slot_id", null=True),
        _text("last_instance_id", null=True),
        _text("last_commit_id", null=True),
        _json("last_commit_result", null=True),
        _json("counters"),
        _json("applied"),
        _long("stream_time"),
        _long("updated_ms"),
        _key("tasks", "id"),
        _refers("tasks", "jobs", "job_id"),
    )
    _index("tasks", "job_id")
    _index("tasks", "slot_id")
    op.create_table(
        "task_positions",
        _text("task_id"),
        _text("stream_id"),
        _int("partition"),
        _long("position"),
        _key("task_positions", "task_id", "stream_id", "partition"),
        _refers("task_positions", "tasks", "task_id"),
        _refers("task_positions", "partitions", "stream_id", "partition", to=("stream_id", "partition")),
    )
    _index("task_positions", "stream_id", "partition")


def _members() -> None:
    op.create_table(
        "instances",
        _text("id"),
        _text("name"),
        _text("incarnation"),
        _text("host"),
        _int("cores"),
        _json("tags"),
        _json("spark"),
        _text("state"),
        _long("lease_ms"),
        _long("lease_until_ms"),
        _long("joined_ms"),
        _key("instances", "id"),
        _unique("instances", "name"),
    )
    op.create_table(
        "slots",
        _text("id"),
        _text("instance_id"),
        _text("job_id"),
        _int("slot_index"),
        _text("state"),
        _long("lease_ms"),
        _long("lease_until_ms"),
        _long("joined_ms"),
        _long("gone_ms", null=True),
        _key("slots", "id"),
        _refers("slots", "instances", "instance_id"),
        _refers("slots", "jobs", "job_id"),
    )
    _index("slots", "job_id", "state")
    _index("slots", "instance_id", "state")
    op.create_table(
        "rebalances",
        _serial(),
        _text("job_id"),
        _long("generation"),
        _long("at_ms"),
        _text("reason"),
        _json("moved"),
        _long("took_ms", null=True),
        _key("rebalances", "id"),
        _refers("rebalances", "jobs", "job_id"),
    )
    _index("rebalances", "job_id")


def _keys() -> None:
    op.create_table(
        "ingest_keys",
        _text("api_key_id"),
        _text("stream_id"),
        _text("idempotency_key"),
        _text("body_sha256"),
        _json("response"),
        _long("created_ms"),
        _key("ingest_keys", "api_key_id", "stream_id", "idempotency_key"),
    )
    _index("ingest_keys", "created_ms")
    op.create_table(
        "api_keys",
        _text("id"),
        _text("name"),
        _text("role"),
        _text("sha256"),
        _flag("ephemeral"),
        _moment("created_at"),
        _moment("revoked_at", null=True),
        _key("api_keys", "id"),
        _unique("api_keys", "sha256"),
    )
