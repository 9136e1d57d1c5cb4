"""Samples of the figures that charts need, and what was ever appended to a partition."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"


def upgrade() -> None:
    op.create_table(
        "samples",
        sa.Column("period_ms", sa.BigInteger(), nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("base_ms", sa.BigInteger(), nullable=False),
        sa.Column("is_coarse", sa.Boolean(), nullable=False),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("period_ms", name="pk_samples"),
    )
    op.add_column("partitions", sa.Column("appended_bytes", sa.BigInteger(), server_default="0", nullable=False))
    op.execute("UPDATE partitions SET appended_bytes = bytes")
    op.create_index("ix_job_transitions_at_ms", "job_transitions", ["at_ms"])
    op.create_index("ix_rebalances_at_ms", "rebalances", ["at_ms"])


def downgrade() -> None:
    op.drop_index("ix_rebalances_at_ms", "rebalances")
    op.drop_index("ix_job_transitions_at_ms", "job_transitions")
    op.drop_column("partitions", "appended_bytes")
    op.drop_table("samples")
