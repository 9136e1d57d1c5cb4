"""Slots say in which Spark executor they are, instances what their Spark lacks."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.add_column("slots", sa.Column("executor", sa.Text(), nullable=False, server_default=""))
    op.add_column("instances", sa.Column("shortage", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("instances", "shortage")
    op.drop_column("slots", "executor")
