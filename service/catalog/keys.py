"""API keys: 256 random bits, shown once, kept as their SHA-256.

It knows keys and the names of roles; it refuses to know what a role may do (`service.auth`).
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Final

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from service.catalog.tables import ApiKeyRow, MetaRow, utc_now
from service.streams.errors import UnknownKey

BOOTSTRAP = "bootstrap"
USE_NOTED: Final = timedelta(minutes=1)  # so often at most, whoever uses a key how much


def digest(secret: str) -> str:
    """The digest of a key: all that is kept of it."""
    return hashlib.sha256(secret.encode()).hexdigest()


def create_key(
    s: Session, name: str, role: str, *, ephemeral: bool = False, secret: str | None = None
) -> tuple[ApiKeyRow, str]:
    """Make a key; the second is its secret, which nobody can learn again. A secret given is taken (bootstrap)."""
    chosen = secret or secrets.token_urlsafe(32)
    key = ApiKeyRow(name=name, role=role, sha256=digest(chosen), ephemeral=ephemeral)
    s.add(key)
    s.flush()
    return key, chosen


def find_key(s: Session, sha256: str) -> ApiKeyRow | None:
    """The key with this digest, unless it is revoked."""
    return s.scalars(select(ApiKeyRow).where(ApiKeyRow.sha256 == sha256, ApiKeyRow.revoked_at.is_(None))).one_or_none()


def list_keys(s: Session) -> list[ApiKeyRow]:
    """Every lasting key, revoked ones too, oldest first."""
    return list(
        s.scalars(select(ApiKeyRow).where(ApiKeyRow.ephemeral.is_(False)).order_by(ApiKeyRow.created_at, ApiKeyRow.id))
    )


def revoke_key(s: Session, key_id: str) -> ApiKeyRow:
    """Revoke a key; revoking it again changes nothing. Raises UnknownKey."""
    key = s.get(ApiKeyRow, key_id)
    if key is None:
        raise UnknownKey(key_id)
    key.revoked_at = key.revoked_at or utc_now()
    return key


def is_use_due(key: ApiKeyRow) -> bool:
    """Whether it should be noted that a key is used now."""
    return key.last_used_at is None or utc_now() - key.last_used_at >= USE_NOTED


def note_use(s: Session, key_id: str) -> None:
    """Note that a key is used now; one that is forgotten meanwhile stays so."""
    s.execute(update(ApiKeyRow).where(ApiKeyRow.id == key_id).values(last_used_at=utc_now()))


def replace_bootstrap_key(s: Session, secret: str) -> ApiKeyRow:
    """The admin key that the deployment names, made where there is none with this secret; the one it named before is
    revoked. A key that was revoked is found as it is.
    """
    key = s.scalars(select(ApiKeyRow).where(ApiKeyRow.sha256 == digest(secret))).one_or_none()
    if key is None:
        key, _ = create_key(s, BOOTSTRAP, "admin", secret=secret)
    named = s.get(MetaRow, "bootstrap_key")
    if named is None:  # before there was this fact, a key was known by its name alone
        former = select(ApiKeyRow.id).where(ApiKeyRow.name == BOOTSTRAP, ApiKeyRow.role == "admin")
        ended = list(s.scalars(former))
        s.add(MetaRow(name="bootstrap_key", value=key.id))
    else:
        ended, named.value = [named.value], key.id
    for key_id in ended:
        if key_id != key.id:
            revoke_key(s, key_id)
    return key


def drop_ephemeral_keys(s: Session) -> None:
    """Forget the keys of processes that are no more: `up` calls this before it makes its own."""
    s.execute(delete(ApiKeyRow).where(ApiKeyRow.ephemeral))
