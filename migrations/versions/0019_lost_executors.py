"""Which slots ended with their executor."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    lost = sa.Column("is_executor_lost", sa.Boolean(), nullable=False, server_default=sa.false())
    op.add_column("slots", lost)


def downgrade() -> None:
    op.drop_column("slots", "is_executor_lost")
