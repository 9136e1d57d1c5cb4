"""Nodes: the replica folders that copies are in.

It knows that a folder has one id, which is never live in two places; it refuses to know what is in a folder, and how
it gets its id.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import delete, exists, select, update
from sqlalchemy.orm import Session

from service.catalog.replicas import ACTIVE
from service.catalog.tables import InstanceRow, NodeRow, ReplicaRow, SlotRow
from service.protocol import NodeRef
from service.streams.errors import NodeElsewhere

HOST = "host"  # a tag that every node has


def join_node(s: Session, node: NodeRef | None, instance: InstanceRow, at_ms: int) -> str:
    """The id of the node of a slot that joins; its row says where it is now. None: the instance stands for it.

    Raises NodeElsewhere: slots live on a node of this id on another host or in another folder, as on a cloned volume.
    """
    place = NodeRef(instance.id, instance.host, "") if node is None else node
    query = select(NodeRow).where(NodeRow.id == place.id).with_for_update(key_share=True)
    row = s.scalars(query.execution_options(populate_existing=True)).one_or_none()
    if row is None:
        row = NodeRow(id=place.id)
        s.add(row)
    elif (row.host, row.place) != (place.host, place.place) and _is_in_use(s, place.id):
        raise NodeElsewhere(place.id, row.host)
    row.host, row.place, row.seen_ms = place.host, place.place, at_ms
    row.tags = {**instance.tags, HOST: place.host}
    s.flush()
    return place.id


def nodes_by_id(s: Session, node_ids: Sequence[str]) -> dict[str, NodeRow]:
    """Node id → row, of those that there are."""
    return {row.id: row for row in s.scalars(select(NodeRow).where(NodeRow.id.in_(node_ids)))}


def note_seen(s: Session, node_ids: Collection[str], at_ms: int) -> None:
    """Nodes were in use until now."""
    if node_ids:
        s.execute(update(NodeRow).where(NodeRow.id.in_(node_ids)).values(seen_ms=at_ms))


def forget_unseen(s: Session, before_ms: int) -> None:
    """Forget nodes that nobody has used since, with the copies on them."""
    is_in_use = exists().where(SlotRow.node_id == NodeRow.id, SlotRow.state == "live")
    unseen = s.scalars(select(NodeRow.id).where(NodeRow.seen_ms < before_ms, ~is_in_use)).all()
    if unseen:
        s.execute(delete(ReplicaRow).where(ReplicaRow.node_id.in_(unseen), ReplicaRow.role != ACTIVE))
        s.execute(delete(NodeRow).where(NodeRow.id.in_(unseen)))


def _is_in_use(s: Session, node_id: str) -> bool:
    live = select(SlotRow.id).where(SlotRow.node_id == node_id, SlotRow.state == "live").limit(1)
    return s.execute(live).first() is not None
