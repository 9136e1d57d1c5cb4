"""Cores are shared between jobs: how many slots of each job every instance runs, and which jobs have none."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "shares",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("instance_id", sa.Text(), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("leave_by_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_shares_job_id"),
        sa.ForeignKeyConstraint(["instance_id"], ["instances.id"], name="fk_shares_instance_id"),
        sa.PrimaryKeyConstraint("job_id", "instance_id", name="pk_shares"),
    )
    op.add_column("jobs", sa.Column("shortage", sa.Text(), nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("jobs", "shortage")
    op.drop_table("shares")
