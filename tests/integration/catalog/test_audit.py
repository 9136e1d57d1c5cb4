"""The audit's entries: found by who, what, what it was about and when; swept by age and number."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from service.catalog import audit
from service.catalog.engine import Catalog, now_ms
from service.catalog.tables import AuditRow

HOUR_MS = 3_600_000


def add(catalog: Catalog, who: str, what: str, resource: str, *, hours_ago: int = 0) -> int:
    how = {"role": "writer", "method": "POST", "path": f"/v1/{resource}", "request_id": "r", "change": {"n": [1]}}
    which = {"key_id": f"id-of-{who}", "key_name": who, "operation": what, "resource": resource, "status": 200}
    entry_id = catalog.write(audit.add_entry, **which, **how)
    at_ms = catalog.read(now_ms) - hours_ago * HOUR_MS
    catalog.write(lambda s: s.execute(update(AuditRow).where(AuditRow.id == entry_id).values(at_ms=at_ms)))
    return entry_id


@pytest.fixture
def entries(catalog: Catalog) -> list[int]:
    return [
        add(catalog, "ana", "create_stream", "streams/a", hours_ago=5),
        add(catalog, "ben", "create_subscription", "streams/a/subscriptions/mail", hours_ago=4),
        add(catalog, "ana", "create_stream", "streams/ab", hours_ago=3),
        add(catalog, "ana", "pause_job", "jobs/a", hours_ago=2),
        add(catalog, "ben", "pause_job", "jobs/a_b", hours_ago=1),
    ]


@pytest.mark.parametrize(
    ("which", "found"),
    [
        ({}, [4, 3, 2, 1, 0]),
        ({"who": "ana"}, [3, 2, 0]),
        ({"who": "id-of-ben"}, [4, 1]),
        ({"what": "pause_job"}, [4, 3]),
        ({"resource": "streams/a"}, [1, 0]),
        ({"resource": "jobs/a_"}, []),
        ({"resource": "streams"}, [2, 1, 0]),
        ({"who": "ana", "what": "create_stream"}, [2, 0]),
        ({"limit": 2}, [4, 3]),
    ],
)
def test_entries_are_found_by_what_is_asked_latest_first(
    catalog: Catalog, entries: list[int], which: dict[str, object], found: list[int]
) -> None:
    rows = catalog.read(audit.list_entries, **which)
    assert [row.id for row in rows] == [entries[place] for place in found]


def test_entries_of_a_time_and_those_before_an_entry(catalog: Catalog, entries: list[int]) -> None:
    third, fourth = (catalog.read(lambda s, at=at: s.get_one(AuditRow, entries[at]).at_ms) for at in (2, 3))
    between = catalog.read(audit.list_entries, from_ms=third, until_ms=fourth)
    assert [row.id for row in between] == [entries[2]]
    before = catalog.read(audit.list_entries, before=entries[2])
    assert [row.id for row in before] == [entries[1], entries[0]]
    assert (before[0].change, before[0].status) == ({"n": [1]}, 200)


def test_old_entries_go_and_the_oldest_of_too_many(catalog: Catalog, entries: list[int]) -> None:
    assert catalog.write(audit.sweep, retention_ms=10 * HOUR_MS, entries=10) == 0
    assert catalog.write(audit.sweep, retention_ms=4 * HOUR_MS + HOUR_MS // 2, entries=10) == 1
    assert catalog.write(audit.sweep, retention_ms=10 * HOUR_MS, entries=2) == 2
    assert [row.id for row in catalog.read(audit.list_entries)] == [entries[4], entries[3]]


def test_an_entry_is_put_right(catalog: Catalog, entries: list[int]) -> None:
    catalog.write(audit.settle_entry, entries[0], 504)
    assert [row.status for row in catalog.read(audit.list_entries)] == [200, 200, 200, 200, 504]


def test_nothing_is_swept_where_nothing_is(catalog: Catalog) -> None:
    assert catalog.write(audit.sweep, retention_ms=0, entries=1) == 0
