"""Copies of tasks and their inputs get tables of their own; a task's positions are one value; chunks may be sparse."""

import struct
from itertools import groupby

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

JSON = sa.JSON(none_as_null=True)
POSITION = struct.Struct("<qq")  # offset, frontier (-1: not known)

TASKS = sa.table(
    "tasks",
    sa.column("id", sa.Text),
    sa.column("slot_id", sa.Text),
    sa.column("target_slot_id", sa.Text),
    sa.column("last_instance_id", sa.Text),
    sa.column("applied", JSON),
    sa.column("flush_at", JSON),
    sa.column("positions", sa.LargeBinary),
)
TASK_POSITIONS = sa.table(
    "task_positions",
    sa.column("task_id", sa.Text),
    sa.column("stream_id", sa.Text),
    sa.column("partition", sa.Integer),
    sa.column("position", sa.BigInteger),
)
TASK_INPUTS = sa.table(
    "task_inputs",
    sa.column("task_id", sa.Text),
    sa.column("number", sa.Integer),
    sa.column("stream_id", sa.Text),
    sa.column("partition", sa.Integer),
)
REPLICAS = sa.table(
    "replicas",
    sa.column("task_id", sa.Text),
    sa.column("node_id", sa.Text),
    sa.column("role", sa.Text),
    sa.column("state", sa.Text),
    sa.column("slot_id", sa.Text),
    sa.column("target_slot_id", sa.Text),
    sa.column("applied", JSON),
)


def upgrade() -> None:
    _create_task_inputs()
    _create_replicas()
    op.add_column("tasks", sa.Column("positions", sa.LargeBinary(), nullable=False, server_default=sa.text("''")))
    op.add_column("chunks", sa.Column("is_sparse", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("chunks", sa.Column("ranges", sa.LargeBinary(), nullable=True))
    _number_inputs()
    _move_copies_out()
    op.drop_index("ix_tasks_slot_id", "tasks")
    for column in ("slot_id", "target_slot_id", "last_instance_id", "applied"):
        op.drop_column("tasks", column)
    op.drop_table("task_positions")


def downgrade() -> None:
    _create_task_positions()
    for column in ("slot_id", "target_slot_id", "last_instance_id"):
        op.add_column("tasks", sa.Column(column, sa.Text(), nullable=True))
    op.add_column("tasks", sa.Column("applied", JSON, nullable=False, server_default="{}"))
    op.create_index("ix_tasks_slot_id", "tasks", ["slot_id"])
    _name_inputs()
    _move_copies_in()
    op.drop_table("replicas")
    op.drop_table("task_inputs")
    op.drop_column("tasks", "positions")
    op.drop_column("chunks", "is_sparse")
    op.drop_column("chunks", "ranges")


def _number_inputs() -> None:
    """A task's inputs in the order of their streams, and its positions and flush marks in that of its inputs."""
    connection = op.get_bind()
    rows = connection.execute(
        sa.select(TASK_POSITIONS).order_by(*(TASK_POSITIONS.c[name] for name in ("task_id", "stream_id", "partition")))
    ).all()
    marks = dict(connection.execute(sa.select(TASKS.c.id, TASKS.c.flush_at)).all())
    for task_id, group in groupby(rows, lambda row: row.task_id):
        inputs = list(group)
        connection.execute(
            sa.insert(TASK_INPUTS),
            [
                {"task_id": task_id, "number": number, "stream_id": at.stream_id, "partition": at.partition}
                for number, at in enumerate(inputs)
            ],
        )
        mark = marks[task_id]
        flush_at = None if mark is None else [mark.get(f"{at.stream_id}/{at.partition}", 0) for at in inputs]
        positions = b"".join(POSITION.pack(at.position, -1) for at in inputs)
        connection.execute(sa.update(TASKS).where(TASKS.c.id == task_id).values(positions=positions, flush_at=flush_at))


def _name_inputs() -> None:
    connection = op.get_bind()
    inputs = connection.execute(sa.select(TASK_INPUTS).order_by(TASK_INPUTS.c.task_id, TASK_INPUTS.c.number)).all()
    tasks = {row.id: row for row in connection.execute(sa.select(TASKS.c.id, TASKS.c.positions, TASKS.c.flush_at))}
    for task_id, group in groupby(inputs, lambda row: row.task_id):
        task, read = tasks[task_id], list(group)
        offsets = [offset for offset, _ in POSITION.iter_unpack(task.positions)]
        connection.execute(
            sa.insert(TASK_POSITIONS),
            [
                {"task_id": task_id, "stream_id": at.stream_id, "partition": at.partition, "position": offset}
                for at, offset in zip(read, offsets, strict=True)
            ],
        )
        if task.flush_at is not None:
            marks = {f"{at.stream_id}/{at.partition}": end for at, end in zip(read, task.flush_at, strict=True)}
            connection.execute(sa.update(TASKS).where(TASKS.c.id == task_id).values(flush_at=marks))


def _move_copies_out() -> None:
    """The instance that had a task last has its copy, whether a slot keeps it or not."""
    columns = (TASKS.c.slot_id, TASKS.c.target_slot_id, TASKS.c.applied)
    had = sa.select(TASKS.c.id, TASKS.c.last_instance_id, sa.literal("active"), sa.literal("running"), *columns)
    names = [column.name for column in REPLICAS.c]
    op.get_bind().execute(sa.insert(REPLICAS).from_select(names, had.where(TASKS.c.last_instance_id.is_not(None))))


def _move_copies_in() -> None:
    connection = op.get_bind()
    for at in connection.execute(sa.select(REPLICAS).where(REPLICAS.c.role == "active")).all():
        owner = {"slot_id": at.slot_id, "target_slot_id": at.target_slot_id, "last_instance_id": at.node_id}
        connection.execute(sa.update(TASKS).where(TASKS.c.id == at.task_id).values(**owner, applied=at.applied))


def _create_task_inputs() -> None:
    op.create_table(
        "task_inputs",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("stream_id", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "number", name="pk_task_inputs"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_task_inputs_task_id"),
        _partition("task_inputs"),
    )
    op.create_index("ix_task_inputs_stream_id_partition", "task_inputs", ["stream_id", "partition"])


def _create_task_positions() -> None:
    op.create_table(
        "task_positions",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("stream_id", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("task_id", "stream_id", "partition", name="pk_task_positions"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_task_positions_task_id"),
        _partition("task_positions"),
    )
    op.create_index("ix_task_positions_stream_id_partition", "task_positions", ["stream_id", "partition"])


def _create_replicas() -> None:
    op.create_table(
        "replicas",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("node_id", sa.Text(), nullable=False),
        sa.Column("role", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("slot_id", sa.Text(), nullable=True),
        sa.Column("target_slot_id", sa.Text(), nullable=True),
        sa.Column("applied", JSON, nullable=False),
        sa.PrimaryKeyConstraint("task_id", "node_id", name="pk_replicas"),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_replicas_task_id"),
    )
    op.create_index("ix_replicas_slot_id", "replicas", ["slot_id"])
    is_active = sa.text("role = 'active'")
    op.create_index(
        "uq_replicas_active", "replicas", ["task_id"], unique=True, sqlite_where=is_active, postgresql_where=is_active
    )


def _partition(table: str) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint(
        ["stream_id", "partition"],
        ["partitions.stream_id", "partitions.partition"],
        name=f"fk_{table}_stream_id_partition",
    )
