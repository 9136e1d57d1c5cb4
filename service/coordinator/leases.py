"""Leases: how long a member that says nothing is taken to be alive, by the database's clock.

It knows the states of instances and slots; it refuses to know what becomes of a member whose lease ran out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from sqlalchemy import bindparam, case, select, update
from sqlalchemy.orm import Session

from service.catalog.driver import Prepared
from service.catalog.engine import Now, now_ms
from service.catalog.tables import ShareRow, SlotRow
from service.streams.errors import InstanceGone, UnknownSlot

SESSION_TIMEOUT_MS: Final = 3_000
RENEW_AFTER: Final = 4  # a lease is renewed once a fourth of it has elapsed
LIVE, LEAVING, GONE = "live", "leaving", "gone"
PRESENT: Final = (LIVE, LEAVING)  # instances whose slots may commit; only a live one gets new slots and tasks
UNSEEN: Final = {"synchronize_session": False}  # the session holds no object that the statement changes

IS_SHARE_OF_SLOT: Final = (ShareRow.job_id == SlotRow.job_id) & (ShareRow.instance_id == SlotRow.instance_id)

LEASE_OF_SLOT = Prepared(
    select(SlotRow.instance_id, SlotRow.lease_until_ms - Now(), SlotRow.lease_ms).where(
        SlotRow.id == bindparam("slot_id")
    )
)


def is_renewal_due(left_ms: int, lease_ms: int) -> bool:
    """Whether so much of a lease is over that it should be written anew."""
    return left_ms < lease_ms - lease_ms // RENEW_AFTER


def renew_slot(s: Session, slot_id: str) -> bool:
    """Begin a live slot's lease anew; False: it is not alive."""
    renewed = update(SlotRow).where(SlotRow.id == slot_id, SlotRow.state == LIVE)
    kept = renewed.values(lease_until_ms=now_ms(s) + SlotRow.lease_ms).returning(SlotRow.id)
    return s.scalars(kept, execution_options=UNSEEN).one_or_none() is not None


def renew_slots(s: Session, slot_ids: Collection[str], age_ms: int, *, instance_id: str | None = None) -> set[str]:
    """Begin the leases of live slots (None: of any instance) anew, as of `age_ms` ago; those that there are."""
    until = now_ms(s) - age_ms + SlotRow.lease_ms
    live = update(SlotRow).where(SlotRow.id.in_(slot_ids), SlotRow.state == LIVE)
    if instance_id is not None:
        live = live.where(SlotRow.instance_id == instance_id)
    longest = case((SlotRow.lease_until_ms > until, SlotRow.lease_until_ms), else_=until)
    renewed = live.values(lease_until_ms=longest).returning(SlotRow.id)
    return set(s.scalars(renewed, execution_options=UNSEEN))


def require_slot(s: Session, slot_id: str, *, instance_id: str | None = None) -> SlotRow:
    """A slot that is alive. Raises InstanceGone, UnknownSlot (it is another instance's)."""
    slot = s.get(SlotRow, slot_id)
    if slot is not None:
        require_same_instance(slot_id, slot.instance_id, instance_id)
    if slot is None or slot.state != LIVE:
        raise InstanceGone(f"Slot {slot_id}")
    return slot


def require_own(s: Session, slot_id: str, instance_id: str | None) -> None:
    """A slot that there is, or was, is the instance's. Raises UnknownSlot."""
    owner = s.scalars(select(SlotRow.instance_id).where(SlotRow.id == slot_id)).one_or_none()
    if owner is not None:
        require_same_instance(slot_id, owner, instance_id)


def require_same_instance(slot_id: str, owner: str, instance_id: str | None) -> None:
    """A slot of `owner` was asked for under that instance (None: whoever asks need not say). Raises UnknownSlot."""
    if instance_id not in {None, owner}:
        raise UnknownSlot(slot_id)
