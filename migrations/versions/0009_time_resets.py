"""Tasks say what stream time their stores are to be set back to."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("set_back_to", sa.BigInteger(), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "set_back_to")
