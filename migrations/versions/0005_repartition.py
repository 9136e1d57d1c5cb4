"""Tasks read ranges of inputs, parts of repartition logs among them; backlogs and flushes in stages are known."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.add_column("task_inputs", sa.Column("partitions", sa.Integer(), nullable=False, server_default="1"))
    op.add_column("task_inputs", sa.Column("sub_log", sa.Integer(), nullable=True))
    op.add_column("job_streams", sa.Column("sub_topology", sa.Integer(), nullable=True))
    op.add_column("tasks", sa.Column("has_backlog", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("max_repartition_bytes", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("max_task_idle_ms", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("flush", JSON, nullable=True))


def downgrade() -> None:
    for column in ("flush", "max_task_idle_ms", "max_repartition_bytes"):
        op.drop_column("jobs", column)
    op.drop_column("tasks", "has_backlog")
    op.drop_column("job_streams", "sub_topology")
    for column in ("sub_log", "partitions"):
        op.drop_column("task_inputs", column)
