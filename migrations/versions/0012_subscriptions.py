"""Subscriptions: readers of a stream whose positions the catalog keeps."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "subscriptions",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("stream_id", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("start", sa.JSON(), nullable=False),
        sa.Column("expires_after_ms", sa.BigInteger(), nullable=True),
        sa.Column("holds_retention", sa.Boolean(), nullable=False),
        sa.Column("consumers", sa.JSON(), nullable=False),
        sa.Column("pulled_ms", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.ForeignKeyConstraint(["stream_id"], ["streams.id"], name="fk_subscriptions_stream_id"),
        sa.PrimaryKeyConstraint("id", name="pk_subscriptions"),
        sa.UniqueConstraint("stream_id", "name", name="uq_subscriptions_stream_id_name"),
    )
    op.create_table(
        "subscription_positions",
        sa.Column("subscription_id", sa.Text(), nullable=False),
        sa.Column("partition", sa.Integer(), nullable=False),
        sa.Column("position", sa.BigInteger(), nullable=False),
        sa.Column("batch_end", sa.BigInteger(), nullable=False),
        sa.Column("holder", sa.Text(), nullable=True),
        sa.Column("pull_id", sa.Text(), nullable=True),
        sa.Column("given_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(
            ["subscription_id"], ["subscriptions.id"], name="fk_subscription_positions_subscription_id"
        ),
        sa.PrimaryKeyConstraint("subscription_id", "partition", name="pk_subscription_positions"),
    )


def downgrade() -> None:
    op.drop_table("subscription_positions")
    op.drop_table("subscriptions")
