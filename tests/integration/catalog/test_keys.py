"""API keys, and the Idempotency-Keys of those who hold one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import update

from service.catalog import ingest_keys, keys
from service.catalog.engine import Catalog
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
