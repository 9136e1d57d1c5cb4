"""Sessions of people who signed in with a key, and one-time codes that stand for a key: 256 random bits each, kept as
their SHA-256.

It knows how long they last, and that both end with their key; it refuses to know how a browser keeps them
(`service.auth`) and what a role may do.
"""

from __future__ import annotations

import secrets
from typing import Final

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.catalog.engine import Now, now_ms
from service.catalog.keys import digest
from service.catalog.tables import ApiKeyRow, SessionRow, SignInCodeRow

MAX_SESSIONS: Final = 100  # of one key: who has it can not fill the catalog
CODE_LASTS_MS: Final = 600_000


def begin_session(s: Session, key_id: str, *, lasts_ms: int) -> tuple[str, int]:
    """Begin a session of a key: its secret, which nobody can learn again, and when it ends. Of too many the oldest end;
    those that are over are forgotten.
    """
    now, secret = now_ms(s), secrets.token_urlsafe(32)
    s.execute(delete(SessionRow).where(SessionRow.expires_ms <= now))
    latest = select(SessionRow.sha256).where(SessionRow.key_id == key_id)
    latest = latest.order_by(SessionRow.begun_ms.desc(), SessionRow.sha256).limit(MAX_SESSIONS - 1)
    s.execute(delete(SessionRow).where(SessionRow.key_id == key_id, SessionRow.sha256.not_in(latest)))
    s.add(SessionRow(sha256=digest(secret), key_id=key_id, begun_ms=now, expires_ms=now + lasts_ms))
    return secret, now + lasts_ms


def find_key_of_session(s: Session, sha256: str) -> ApiKeyRow | None:
    """The key of the session with this digest, unless the session is over or the key is revoked."""
    found = select(ApiKeyRow).join(SessionRow, SessionRow.key_id == ApiKeyRow.id)
    found = found.where(SessionRow.sha256 == sha256, SessionRow.expires_ms > Now(), ApiKeyRow.revoked_at.is_(None))
    return s.scalars(found).one_or_none()


def end_of_session(s: Session, sha256: str) -> int | None:
    """When the session with this digest ends, in ms; None when there is none."""
    return s.scalars(select(SessionRow.expires_ms).where(SessionRow.sha256 == sha256)).one_or_none()


def end_session(s: Session, sha256: str) -> None:
    """End a session; one that is over already stays so."""
    s.execute(delete(SessionRow).where(SessionRow.sha256 == sha256))


def make_code(s: Session, key_id: str, *, lasts_ms: int = CODE_LASTS_MS) -> str:
    """A code to sign in once as who holds the key; those that are over are forgotten."""
    now, code = now_ms(s), secrets.token_urlsafe(32)
    s.execute(delete(SignInCodeRow).where(SignInCodeRow.expires_ms <= now))
    s.add(SignInCodeRow(sha256=digest(code), key_id=key_id, expires_ms=now + lasts_ms))
    return code


def is_code(s: Session, code: str) -> bool:
    """Whether a code can still be used."""
    found = select(SignInCodeRow.sha256).where(SignInCodeRow.sha256 == digest(code), SignInCodeRow.expires_ms > Now())
    return s.scalars(found).one_or_none() is not None


def redeem_code(s: Session, code: str) -> ApiKeyRow | None:
    """The key of a code, which is used up by that; None when there is none, or it or its key is not valid any more."""
    taken = delete(SignInCodeRow).where(SignInCodeRow.sha256 == digest(code), SignInCodeRow.expires_ms > Now())
    key_id = s.scalars(taken.returning(SignInCodeRow.key_id)).one_or_none()
    key = None if key_id is None else s.get(ApiKeyRow, key_id)
    return None if key is None or key.revoked_at is not None else key
