"""Closing without a record: when partitions grew, which tasks are closed, which are asked to flush."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

JSON = sa.JSON(none_as_null=True)
ADDED = {
    "partitions": [("published_ms", sa.BigInteger())],
    "jobs": [("idle_close_after_ms", sa.BigInteger())],
    "tasks": [("flush_at", JSON), ("advanced", JSON)],
}


def upgrade() -> None:
    for table, columns in ADDED.items():
        for name, kind in columns:
            op.add_column(table, sa.Column(name, kind, nullable=True))
    is_closed = sa.Column("is_closed", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("tasks", is_closed)


def downgrade() -> None:
    for table, columns in ADDED.items():
        for name, _ in columns:
            op.drop_column(table, name)
    op.drop_column("tasks", "is_closed")
