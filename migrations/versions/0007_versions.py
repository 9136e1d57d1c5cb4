"""Jobs have versions, tasks and stores say since which; a change of a job may wait until it is quiet."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "job_versions",
        sa.Column("job_id", sa.Text(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("spec", JSON, nullable=False),
        sa.Column("spec_sha256", sa.Text(), nullable=False),
        sa.Column("topology", JSON, nullable=False),
        sa.Column("at_ms", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("who", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("details", JSON, nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.id"], name="fk_job_versions_job_id"),
        sa.PrimaryKeyConstraint("job_id", "version", name="pk_job_versions"),
    )
    op.add_column("jobs", sa.Column("spec_version", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column("jobs", sa.Column("change", JSON, nullable=True))
    op.add_column("jobs", sa.Column("read_to", JSON, nullable=True))
    op.add_column("tasks", sa.Column("spec_version", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column("tasks", sa.Column("next_version", sa.BigInteger(), nullable=True))
    op.add_column("stores", sa.Column("since_version", sa.BigInteger(), nullable=False, server_default="1"))
    op.add_column("stores", sa.Column("is_removed", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.execute(_FIRST_VERSIONS)


def downgrade() -> None:
    for column in ("is_removed", "since_version"):
        op.drop_column("stores", column)
    for column in ("next_version", "spec_version"):
        op.drop_column("tasks", column)
    for column in ("read_to", "change", "spec_version"):
        op.drop_column("jobs", column)
    op.drop_table("job_versions")


_FIRST_VERSIONS = """
INSERT INTO job_versions (job_id, version, spec, spec_sha256, topology, at_ms, kind, who, reason)
SELECT jobs.id, 1, jobs.spec, jobs.spec_sha256, jobs.topology, COALESCE(made.at_ms, 0), 'create',
       COALESCE(made.who, ''), 'created'
FROM jobs LEFT JOIN job_transitions AS made
  ON made.id = (SELECT MIN(first.id) FROM job_transitions AS first WHERE first.job_id = jobs.id)
"""
