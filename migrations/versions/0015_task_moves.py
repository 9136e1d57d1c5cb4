"""What moved a task otherwise than by records."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    op.create_table(
        "task_moves",
        sa.Column("task_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("spec_version", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["task_id"], ["tasks.id"], name="fk_task_moves_task_id"),
        sa.PrimaryKeyConstraint("task_id", "version", name="pk_task_moves"),
    )


def downgrade() -> None:
    op.drop_table("task_moves")
