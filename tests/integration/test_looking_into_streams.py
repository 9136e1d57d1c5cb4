"""What is looked for in a stream: the newest records, those with a key, those that meet a condition; who uses it."""

from __future__ import annotations

from typing import Any

import pytest

from service.reads import pages, searches
from service.simulate.filters import RecordFilter
from service.streams.errors import FilterFailed
from tests.integration.test_streams_api import refused
from tests.serving import Serving

NOON_MS = 1_700_000_000_000
STREAM = "looked-into"
PATH = f"/v1/streams/{STREAM}/records"


@pytest.fixture(scope="module")
def service(working: Serving) -> Serving:
    """Two partitions: 0 to 5 in the first, in posts of two; 6 to 8 in the other."""
    http = working.client("writer")
    http.post("/v1/streams", json={"name": STREAM, "partitions": 2}).raise_for_status()
    for values, partition in (([0, 1], 0), ([6, 7, 8], 1), ([2, 3], 0), ([4, 5], 0)):
        records = [
            {"key": f"k{n % 2}", "value": {"n": n}, "timestamp": NOON_MS + n, "partition": partition} for n in values
        ]
        http.post(PATH, json={"records": records}).raise_for_status()
    return working


def found(service: Serving, **query: Any) -> tuple[list[int], dict[str, Any]]:
    answer = service.client("reader").get(PATH, params=query)
    assert answer.status_code == 200, answer.text
    page = answer.json()
    return [record["value"]["n"] for record in page["records"]], page


def all_of(service: Serving, **query: Any) -> list[list[int]]:
    """Page after page, up to the end."""
    seen = []
    values, page = found(service, **query)
    while values or not page["at_end"]:
        seen.append(values)
        values, page = found(service, **query, cursor=page["next"])
    return seen


def test_backwards_the_last_record_of_each_partition_comes_first(service: Serving) -> None:
    assert found(service, reverse=True)[0] == [8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert found(service, reverse=True, partition=0, limit=2)[0] == [5, 4]
    assert found(service, reverse=True)[1]["at_end"]


def test_backwards_page_by_page_each_record_comes_once(service: Serving) -> None:
    assert all_of(service, reverse=True, limit=4) == [[8, 7, 5, 4], [6, 3, 2, 1], [0]]
    assert all_of(service, reverse=True, partition=0, limit=5) == [[5, 4, 3, 2, 1], [0]]
    assert all_of(service, reverse=True, limit=1) == [[n] for n in (8, 7, 6, 5, 4, 3, 2, 1, 0)]


def test_backwards_from_a_place_comes_what_lies_before_it(service: Serving) -> None:
    assert found(service, reverse=True, partition=0, from_offset=3)[0] == [2, 1, 0]
    assert found(service, reverse=True, partition=0, from_offset=0) == (
        [],
        found(service, reverse=True, partition=0, from_offset=0)[1],
    )
    assert found(service, reverse=True, from_timestamp=NOON_MS + 4)[0] == [3, 2, 1, 0]
    _, page = found(service, partition=0, limit=2)
    assert found(service, partition=0, reverse=True, cursor=page["next"])[0] == [1, 0]


def test_backwards_a_page_holds_as_many_bytes_as_one_onward(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "MAX_PAGE_BYTES", 300)  # two records
    monkeypatch.setattr(searches, "MAX_PAGE_BYTES", 1)
    seen = all_of(service, reverse=True, partition=0, limit=6)
    assert [n for page in seen for n in page] == [5, 4, 3, 2, 1, 0]
    assert len(seen) > 2


@pytest.mark.parametrize(("reverse", "in_order"), [(False, [0, 2, 4, 6, 8]), (True, [8, 6, 4, 2, 0])])
def test_a_key_leaves_out_all_others(service: Serving, reverse: bool, in_order: list[int]) -> None:
    assert found(service, key="k0", reverse=reverse)[0] == in_order
    pages_of = all_of(service, key="k0", reverse=reverse, limit=2)
    assert pages_of == [in_order[:2], in_order[2:4], in_order[4:]]
    assert found(service, key="nobody", reverse=reverse)[1]["at_end"]


def test_a_condition_leaves_out_all_others(service: Serving) -> None:
    large = "(value->>'n')::bigint >= 5"
    assert found(service, where=large)[0] == [5, 6, 7, 8]
    assert all_of(service, where=large, key="k0", reverse=True, limit=1) == [[8], [6]]


def test_a_search_that_takes_long_says_where_to_look_on(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "LOOK_S", 0.0)
    monkeypatch.setattr(searches, "LOOK_RECORDS", 2)
    values, page = found(service, where="(value->>'n')::bigint = 3", partition=0, limit=1)
    assert (values, page["at_end"]) == ([], False)
    assert all_of(service, where="(value->>'n')::bigint = 3", partition=0, limit=1) == [[], [3]]


def test_what_can_not_be_looked_for_is_refused(service: Serving) -> None:
    reader = service.client("reader")
    for query, pointer in (
        ({"reverse": True, "wait_ms": 5}, "?wait_ms"),
        ({"where": "value->>'n'"}, "?where"),
        ({"where": "read_text('/etc/passwd')"}, "?where"),
    ):
        answer = reader.get(PATH, params=query)
        assert answer.status_code == 422
        assert [each["pointer"] for each in answer.json()["errors"]] == [pointer]


def test_a_condition_that_is_too_dear_is_refused(service: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ended(*_: object) -> None:
        raise FilterFailed("its process ended")

    monkeypatch.setattr(RecordFilter, "_asked", ended)
    answer = service.client("reader").get(PATH, params={"where": "true"})
    assert refused(answer, 422, "filter_failed") == ["?where"]


def test_who_uses_a_stream_is_said_with_how_far_behind_they_are(service: Serving) -> None:
    http = service.client("writer")
    dedup = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000}
    spec = {"name": "looking", "source": STREAM, "sink": "looked-once", "operators": [dedup], "trust_partitions": True}
    http.post("/v1/jobs", json=spec).raise_for_status()
    http.get("/v1/jobs/looking?wait=caught_up&timeout_ms=60000").raise_for_status()
    http.post(f"/v1/streams/{STREAM}/subscriptions", json={"name": "bills", "start": "earliest"}).raise_for_status()
    usage = http.get(f"/v1/streams/{STREAM}:usage").json()
    assert usage["writers"] == []
    job, subscription = usage["readers"]
    assert job == {
        "kind": "job",
        "name": "looking",
        "state": "running",
        "lag_records": 0,
        "lag_ms": None,
        "error": None,
    }
    assert (subscription["kind"], subscription["name"], subscription["state"]) == ("subscription", "bills", "idle")
    assert subscription["lag_records"] == 9
    assert subscription["lag_ms"] > 0
    first, second = usage["partitions"]
    assert (first["records"], first["files"], first["start_offset"], first["end_offset"]) == (6, 3, 0, 6)
    assert (first["first_timestamp"], first["last_timestamp"]) == (NOON_MS, NOON_MS + 5)
    assert (second["records"], second["files"], second["last_timestamp"]) == (3, 1, NOON_MS + 8)
    assert first["oldest_at"] < first["grew_at"]
    for stream, readers in (("looked-once", []), ("looking-once-changelog", [])):
        found_of = http.get(f"/v1/streams/{stream}:usage").json()
        assert found_of["writers"] == [{"job": "looking", "state": "running"}]
        assert found_of["readers"] == readers
    assert http.get("/v1/streams/looking-once-changelog:usage").json()["partitions"][0]["first_timestamp"] is None
    http.post("/v1/jobs/looking:stop?wait=stopped&timeout_ms=60000").raise_for_status()
    http.post(PATH, json={"records": [{"key": "k0", "value": {"n": 9}, "partition": 1}]}).raise_for_status()
    lags = {each["name"]: each["lag_records"] for each in http.get(f"/v1/streams/{STREAM}:usage").json()["readers"]}
    assert lags == {"looking": 1, "bills": 10}


def test_the_use_of_all_streams_is_listed_page_by_page(service: Serving) -> None:
    reader = service.client("reader")
    seen, cursor = [], {}
    while cursor is not None:
        page = reader.get("/v1/streams:usage", params={"limit": 2, **cursor}).json()
        seen += [each["stream"] for each in page["items"]]
        cursor = None if page["next"] is None else {"cursor": page["next"]}
    assert STREAM in seen
    assert seen == sorted(set(seen))
    assert reader.get("/v1/streams:usage?cursor=%00").status_code == 422
    assert refused(reader.get("/v1/streams/nobody:usage"), 404, "unknown_stream") == []
