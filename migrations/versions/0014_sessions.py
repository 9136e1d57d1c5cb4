"""Sessions of people who signed in with a key, and one-time codes that stand for a key."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "sessions",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("begun_ms", sa.BigInteger(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_sessions_key_id"),
        sa.PrimaryKeyConstraint("sha256", name="pk_sessions"),
    )
    op.create_index("ix_sessions_key_id", "sessions", ["key_id"])
    op.create_table(
        "sign_in_codes",
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("key_id", sa.Text(), nullable=False),
        sa.Column("expires_ms", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["key_id"], ["api_keys.id"], name="fk_sign_in_codes_key_id"),
        sa.PrimaryKeyConstraint("sha256", name="pk_sign_in_codes"),
    )


def downgrade() -> None:
    op.drop_table("sign_in_codes")
    op.drop_index("ix_sessions_key_id", "sessions")
    op.drop_table("sessions")
