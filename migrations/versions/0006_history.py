"""History says what kind of change a line is of and what was asked for; replays begin behind a reset."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.add_column("job_transitions", sa.Column("kind", sa.Text(), nullable=False, server_default="state"))
    op.add_column("job_transitions", sa.Column("details", JSON, nullable=True))
    op.add_column("jobs", sa.Column("replays_from", JSON, nullable=True))


def downgrade() -> None:
    op.drop_column("jobs", "replays_from")
    for column in ("details", "kind"):
        op.drop_column("job_transitions", column)
