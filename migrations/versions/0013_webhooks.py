"""Subscriptions may have a target: records are posted there."""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("subscriptions", sa.Column("push_url", sa.Text(), nullable=True))
    op.add_column("subscriptions", sa.Column("push_secret", sa.Text(), nullable=True))
    op.add_column("subscriptions", sa.Column("push_sha256", sa.Text(), nullable=True))
    op.add_column("subscription_positions", sa.Column("failure", sa.JSON(), nullable=True))


def downgrade() -> None:
    op.drop_column("subscription_positions", "failure")
    op.drop_column("subscriptions", "push_sha256")
    op.drop_column("subscriptions", "push_secret")
    op.drop_column("subscriptions", "push_url")
