"""API keys, and the Idempotency-Keys of those who hold one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from service.catalog import ingest_keys, keys, sessions
from service.catalog.engine import Catalog, now_ms
from service.catalog.tables import IngestKeyRow, new_id
from service.streams.errors import UnknownKey

SCOPE = {"api_key_id": "k", "stream_id": "s", "idempotency_key": "once"}
KEEP = SCOPE | {"body_sha256": "abc", "response": {"accepted": 1}}


def test_a_key_is_found_by_its_digest_until_it_is_revoked(catalog: Catalog) -> None:
    key, secret = catalog.write(keys.create_key, "ci", "writer")
    assert len(secret) >= 43
    assert secret not in str(vars(key))
    found = catalog.read(keys.find_key, keys.digest(secret))
    assert found is not None
    assert (found.id, found.role) == (key.id, "writer")
    revoked_at = catalog.write(keys.revoke_key, key.id).revoked_at
    assert catalog.write(keys.revoke_key, key.id).revoked_at == revoked_at
    assert catalog.read(keys.find_key, keys.digest(secret)) is None
    with pytest.raises(UnknownKey):
        catalog.write(keys.revoke_key, new_id())


def test_a_session_is_its_keys_until_one_of_them_ends(catalog: Catalog) -> None:
    key, _ = catalog.write(keys.create_key, "ana", "reader")
    over, first, second = (
        keys.digest(catalog.write(sessions.begin_session, key.id, lasts_ms=lasts_ms)[0])
        for lasts_ms in (0, 60_000, 60_000)
    )
    assert catalog.read(sessions.find_key_of_session, over) is None
    assert catalog.read(sessions.end_of_session, over) is None, "what is over is forgotten with the next one"
    assert catalog.read(sessions.find_key_of_session, first).id == key.id
    catalog.write(sessions.end_session, first)
    assert catalog.read(sessions.find_key_of_session, first) is None
    assert catalog.read(sessions.end_of_session, second) is not None
    catalog.write(keys.revoke_key, key.id)
    assert catalog.read(sessions.find_key_of_session, second) is None


def test_of_too_many_sessions_of_a_key_the_oldest_end(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 2)
    (key, _), (other, _) = (catalog.write(keys.create_key, name, "reader") for name in ("ana", "ben"))
    begun = []
    for number, key_id in enumerate((key.id, other.id, key.id, key.id)):
        monkeypatch.setattr(sessions, "now_ms", lambda s, at=number: now_ms(s) + at)
        begun.append(keys.digest(catalog.write(sessions.begin_session, key_id, lasts_ms=60_000)[0]))
    lasting = [catalog.read(sessions.find_key_of_session, sha256) is not None for sha256 in begun]
    assert lasting == [False, True, True, True]


def test_a_code_is_used_up_by_one_of_those_who_use_it_at_once(catalog: Catalog) -> None:
    key, _ = catalog.write(keys.create_key, "ana", "reader")
    code = catalog.write(sessions.make_code, key.id)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: catalog.write(sessions.redeem_code, code), range(4)))
    assert [each.id for each in found if each is not None] == [key.id]
    assert not catalog.read(sessions.is_code, code)


def test_ephemeral_keys_are_not_listed_and_go_together(catalog: Catalog) -> None:
    catalog.write(keys.create_key, "lasting", "admin", secret="chosen")
    _, secret = catalog.write(keys.create_key, "instance", "instance", ephemeral=True)
    assert [key.name for key in catalog.read(keys.list_keys)] == ["lasting"]
    catalog.write(keys.drop_ephemeral_keys)
    assert catalog.read(keys.find_key, keys.digest(secret)) is None
    assert catalog.read(keys.find_key, keys.digest("chosen")) is not None


def test_a_rotated_bootstrap_key_ends_the_one_before(catalog: Catalog) -> None:
    catalog.write(keys.create_key, "another admin", "admin", secret="lasting")
    for secret in ("first", "first", "second"):
        assert catalog.write(keys.replace_bootstrap_key, secret).revoked_at is None
    assert catalog.read(keys.find_key, keys.digest("first")) is None
    for secret in ("second", "lasting"):
        assert catalog.read(keys.find_key, keys.digest(secret)) is not None


def test_a_bootstrap_key_that_was_revoked_stays_so(catalog: Catalog) -> None:
    key = catalog.write(keys.replace_bootstrap_key, "first")
    catalog.write(keys.revoke_key, key.id)
    assert catalog.write(keys.replace_bootstrap_key, "first").revoked_at is not None
    assert catalog.read(keys.find_key, keys.digest("first")) is None


def test_the_first_rotation_ends_bootstrap_keys_that_an_older_version_made(catalog: Catalog) -> None:
    catalog.write(keys.create_key, "bootstrap", "admin", secret="old")
    catalog.write(keys.replace_bootstrap_key, "new")
    assert catalog.read(keys.find_key, keys.digest("old")) is None
    assert catalog.read(keys.find_key, keys.digest("new")) is not None


def test_an_answer_is_remembered_once(catalog: Catalog) -> None:
    assert catalog.read(ingest_keys.find_response, **SCOPE) is None
    assert catalog.write(ingest_keys.remember, **KEEP)
    assert not catalog.write(ingest_keys.remember, **KEEP | {"body_sha256": "other"})
    found = catalog.read(ingest_keys.find_response, **SCOPE)
    assert found is not None
    assert (found.body_sha256, found.response) == ("abc", {"accepted": 1})


@pytest.mark.parametrize("field", list(SCOPE))
def test_a_key_counts_within_its_scope(catalog: Catalog, field: str) -> None:
    catalog.write(ingest_keys.remember, **KEEP)
    assert catalog.write(ingest_keys.remember, **KEEP | {field: "another"})


def test_of_many_at_once_one_is_remembered(catalog: Catalog) -> None:
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(catalog.write, ingest_keys.remember, **KEEP) for _ in range(8)]
        assert sum(answer.result() for answer in answers) == 1


def test_after_a_day_a_key_is_free_again(catalog: Catalog) -> None:
    def age(by_ms: int) -> None:
        catalog.write(lambda s: s.execute(update(IngestKeyRow).values(created_ms=IngestKeyRow.created_ms - by_ms)))

    catalog.write(ingest_keys.remember, **KEEP)
    age(ingest_keys.KEPT_MS - 60_000)
    assert catalog.write(ingest_keys.purge) == 0
    assert not catalog.write(ingest_keys.remember, **KEEP)
    age(60_000)
    assert catalog.read(ingest_keys.find_response, **SCOPE) is None
    assert catalog.write(ingest_keys.remember, **KEEP)
    age(ingest_keys.KEPT_MS)
    assert catalog.write(ingest_keys.purge) == 1
