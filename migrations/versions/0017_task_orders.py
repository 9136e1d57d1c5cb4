"""In which order tasks took the records of several inputs."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"


def upgrade() -> None:
    op.add_column("task_moves", sa.Column("offsets", sa.JSON(), nullable=True))
    op.add_column("tasks", sa.Column("taken_order", sa.LargeBinary(), nullable=True))
    op.create_table(
        "task_orders",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_task_orders_task_id"),
        sa.PrimaryKeyConstraint("task_id", "number", name="pk_task_orders"),
    )


def downgrade() -> None:
    op.drop_table("task_orders")
    op.drop_column("tasks", "taken_order")
    op.drop_column("task_moves", "offsets")
