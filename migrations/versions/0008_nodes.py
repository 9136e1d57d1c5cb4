"""Nodes have rows; slots say which is theirs; copies say how fast they catch up, rebalances what decided them."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

JSON = sa.JSON(none_as_null=True)


def upgrade() -> None:
    op.create_table(
        "nodes",
        sa.Column("id", sa.Text(), nullable=False),
        sa.Column("host", sa.Text(), nullable=False),
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("tags", JSON, nullable=False),
        sa.Column("seen_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_nodes"),
    )
    op.add_column("slots", sa.Column("node_id", sa.Text(), nullable=False, server_default=""))
    op.create_index("ix_slots_node_id", "slots", ["node_id"])
    op.add_column("replicas", sa.Column("reported_ms", sa.BigInteger(), nullable=True))
    op.add_column("replicas", sa.Column("rate", sa.BigInteger(), nullable=True))
    op.add_column("jobs", sa.Column("is_probing", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("jobs", sa.Column("rebalance_at_ms", sa.BigInteger(), nullable=True))
    op.add_column("instances", sa.Column("leave_by_ms", sa.BigInteger(), nullable=True))
    for column in ("input", "output"):
        op.add_column("rebalances", sa.Column(column, JSON, nullable=True))
    op.execute("INSERT INTO nodes (id, host, place, tags, seen_ms) SELECT id, host, '', tags, joined_ms FROM instances")
    op.execute("UPDATE slots SET node_id = instance_id")


def downgrade() -> None:
    op.execute("DELETE FROM replicas WHERE role <> 'active'")
    op.execute(_NODES_ARE_INSTANCES)
    for column in ("output", "input"):
        op.drop_column("rebalances", column)
    op.drop_column("instances", "leave_by_ms")
    for column in ("rebalance_at_ms", "is_probing"):
        op.drop_column("jobs", column)
    for column in ("rate", "reported_ms"):
        op.drop_column("replicas", column)
    op.drop_index("ix_slots_node_id", "slots")
    op.drop_column("slots", "node_id")
    op.drop_table("nodes")


_NODES_ARE_INSTANCES = """
UPDATE replicas SET node_id = (SELECT slots.instance_id FROM slots WHERE slots.id = replicas.slot_id)
WHERE slot_id IN (SELECT slots.id FROM slots)
"""
