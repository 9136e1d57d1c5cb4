"""How far a task has replayed dropped records."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("tasks", sa.Column("replay", sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column("tasks", "replay")
