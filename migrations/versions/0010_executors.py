"""Slots say in which Spark executor they are, and which of them are too many; instances, what their cores are for."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("slots", sa.Column("executor", sa.Text(), nullable=False, server_default=""))
    op.add_column("slots", sa.Column("is_surplus", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("instances", sa.Column("cores_of", sa.Text(), nullable=False, server_default="job"))
    op.add_column("instances", sa.Column("shortage", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    for column in ("shortage", "cores_of"):
        op.drop_column("instances", column)
    for column in ("is_surplus", "executor"):
        op.drop_column("slots", column)
