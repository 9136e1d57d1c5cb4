"""Any way of paging through a store gives what is in it: whatever the limit, the bounds, the partitions, the layout.

The naive twin is a sorted list with a filter. Entries are put into dictionaries in the store's own layout by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.api import key_pages
from service.api.key_pages import KeyPage
from service.lookups import StoreLayout
from service.streams.layouts import reserved, store_keys
from service.streams.layouts.entries import NO_END, NO_TIME, SessionColumns
from service.streams.operators.function_columns import FunctionColumns
from service.streams.operators.functions import FunctionSpec
from service.streams.stores import reading
from service.streams.stores.reading import Page, Place, Query, look_up, read, read_page
from service.streams.topology.graph import form_of
from tests.task import DictState, job

GAP_MS, KEPT_MS = 5, 50
SESSIONS = {"type": "session", "gap_ms": GAP_MS, "retention_ms": KEPT_MS - GAP_MS}
COUNT = {"n": {"fn": "count"}}
NODE = job([{"op": "aggregate", "name": "s", "window": SESSIONS, "aggregates": COUNT}]).sub_topologies[0].nodes[0]
FORM = form_of(NODE)
CODEC = FunctionColumns("s", {"n": FunctionSpec(fn="count")}, has_stamps=False).codec


class One(NamedTuple):
    """A session, in the order in which stores give them."""

    key: bytes
    end: int
    start: int
    partition: int


class Snapshot(DictState):
    position = 7


def packed(entries: list[One]) -> bytes:
    """The newest sessions of a key in one value."""
    columns = [np.array([one.start for one in entries]), np.array([one.end for one in entries])]
    found: bytes = CODEC.pack_sessions(
        SessionColumns(
            counts=np.array([len(entries)]),
            timers=np.array([NO_TIME]),
            cold_ends=np.array([NO_END]),
            starts=columns[0],
            ends=columns[1],
            columns=[columns[0]],
        )
    )[0].as_py()
    return found


def stored(entries: set[One], hot: int, partitions: int, stream_time: int) -> dict[int, Snapshot]:
    """Partitions as dictionaries; the last `hot` sessions of each key are packed."""
    found = {p: Snapshot({reserved.OBS_KEY: reserved.pack_time(stream_time)}) for p in range(partitions)}
    groups: dict[tuple[int, bytes], list[One]] = {}
    for one in sorted(entries):
        groups.setdefault((one.partition, one.key), []).append(one)
    for (partition, key), group in groups.items():
        ordered = store_keys.ordered_one(key)
        cut = max(len(group) - hot, 0)
        for one in group[:cut]:
            value = CODEC.pack([np.array([one.start])])[0].as_py()
            found[partition][store_keys.session_key(ordered, one.end, one.start)] = value
        found[partition][store_keys.HOT + ordered] = packed(group[cut:])
        found[partition][store_keys.INDEX + b"anything"] = b""
    return found


def shown(page: Page) -> list[One]:
    found = []
    for item in page.items:
        assert item.entry.window is not None
        assert item.entry.value == f'{{"n":{item.entry.window[0]}}}'
        start, end = item.entry.window
        found.append(One(item.entry.key or b"", end, start, item.partition))
    return found


def naive(entries: set[One], query: Query, stream_time: int) -> list[One]:
    wanted = [
        one
        for one in entries
        if (query.first is None or one.key >= query.first)
        and (query.last is None or one.key <= query.last)
        and one.end >= query.from_time
        and one.start <= query.to_time
        and one.end + KEPT_MS >= stream_time
    ]
    return sorted(wanted, reverse=query.reverse)


KEYS = st.sampled_from([b"", b"\x00", b"a", b"a\x00", b"aaaaaaaa", b"aaaaaaaab", b"b", b"\xff\xff"])
TIMES = st.integers(0, 60)
ONES = st.sets(
    st.builds(lambda key, start, p: One(key, start + 3, start, p), KEYS, TIMES, st.integers(0, 2)), max_size=40
)
QUERIES = st.builds(
    Query,
    st.none() | KEYS,
    st.none() | KEYS,
    st.integers(0, 70),
    st.integers(0, 70) | st.just(2**63 - 1),
    st.booleans(),
    st.just(False),  # open or not: drawn for a named tuple where it is not given
)


@given(ONES, st.integers(0, 3), QUERIES, st.integers(1, 9), st.integers(0, 90), st.sampled_from([1, 4, 5_000]))
def test_pages_of_any_size_give_what_a_sorted_list_gives(
    entries: set[One], hot: int, query: Query, limit: int, stream_time: int, most_scanned: int
) -> None:
    snapshots = stored(entries, hot, 3, stream_time)
    found: list[One] = []
    after: Place | None = None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "MAX_SCANNED", most_scanned)
        while True:
            page = read(read_page(FORM, query, range(3), limit, after), snapshots)
            assert len(page.items) <= limit
            found += shown(page)
            if page.next is None:
                break
            assert page.next != after, "every page gets further"
            after = page.next
    assert found == naive(entries, query, stream_time)


@given(ONES, ONES, ONES, st.integers(1, 5), st.booleans(), st.integers(0, 3))
def test_what_is_written_between_two_pages_makes_nothing_else_come_twice_or_not_at_all(
    stay: set[One], come: set[One], go: set[One], limit: int, reverse: bool, hot: int
) -> None:
    come, go = come - stay, go - stay
    query, found, after = Query(reverse=reverse), list[One](), None
    turn = 0
    while True:
        written = stay | (go if turn % 2 == 0 else come)
        snapshots = stored(written, (hot + turn) % 4, 3, 0)
        page = read(read_page(FORM, query, range(3), limit, after), snapshots)
        found += shown(page)
        after, turn = page.next, turn + 1
        if after is None:
            break
    assert found == sorted(set(found), reverse=reverse), "in order, nothing twice"
    assert stay <= set(found)
    assert set(found) <= stay | come | go


@given(ONES, st.integers(0, 3), KEYS, st.integers(1, 9), st.booleans())
def test_one_key_in_one_partition_is_what_all_pages_say_of_it(
    entries: set[One], hot: int, key: bytes, limit: int, reverse: bool
) -> None:
    query = Query.of_key(key, reverse=reverse)
    snapshots = stored(entries, hot, 3, 0)
    found: list[One] = []
    after: Place | None = None
    while True:
        page = read(read_page(FORM, query, [1], limit, after), snapshots)
        found += shown(page)
        after = page.next
        if after is None:
            break
    assert found == naive({one for one in entries if one.partition == 1}, query, 0)


STEPS = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.integers(0, 90)), min_size=2, max_size=12)


@given(st.lists(ONES, min_size=3, max_size=3), STEPS, st.sampled_from([b"", b"a", b"aaaaaaaab"]), st.booleans())
def test_a_page_that_is_kept_says_what_a_new_one_says(
    states: list[set[One]], steps: list[tuple[int, int, int]], key: bytes, is_end_inclusive: bool
) -> None:
    """Whatever the store held at the lookups before, and however stream time went on, or back to another replica's."""
    layout = StoreLayout("store", replace(FORM, is_end_inclusive=is_end_inclusive), True, 3)
    kept = KeyPage(layout, key, 1)
    for state, hot, stream_time in steps:
        findings = look_up(stored(states[state], hot, 3, stream_time)[1], kept.ask)
        items = kept.items(findings)
        assert items is not None
        assert items == KeyPage(layout, key, 1).items(findings)
        found = [(one["window"]["end"], one["window"]["start"]) for one in orjson.loads(items)]
        of_partition = {one for one in states[state] if one.partition == 1}
        assert found == [(one.end, one.start) for one in naive(of_partition, Query.of_key(key), stream_time)]


def test_items_that_stay_the_same_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    monkeypatch.setattr(key_pages, "items_as_json", lambda page, _: made.append(len(page.items)) or b"[]")
    kept = KeyPage(StoreLayout("store", FORM, True, 1), b"a", 0)
    one, other = One(b"a", 3, 0, 0), One(b"a", 30, 20, 0)
    closes_at, lives_until = one.end + GAP_MS, one.end + KEPT_MS
    for entries, stream_time in (
        ({one}, 3),
        ({one}, closes_at),
        ({one}, closes_at + 1),
        ({one}, lives_until),
        ({one}, lives_until + 1),
        ({one}, lives_until + 9),
        ({one, other}, 40),
    ):
        kept.items(look_up(stored(entries, 3, 1, stream_time)[0], kept.ask))
    assert made == [1, 1, 0, 2], "new, final, expired, with another one"


@pytest.mark.parametrize("long", ["items", "entries", "nothing"])
def test_a_large_page_is_not_kept(monkeypatch: pytest.MonkeyPatch, long: str) -> None:
    made = 0

    def items_as_json(*_: object) -> bytes:
        nonlocal made
        made += 1
        return bytes(500 + (long == "items"))

    monkeypatch.setattr(key_pages, "items_as_json", items_as_json)
    monkeypatch.setattr(key_pages, "MAX_KEPT_BYTES", 500)
    kept = KeyPage(StoreLayout("store", FORM, True, 1), b"a", 0)
    sessions = {One(b"a", start + 3, start, 0) for start in range(0, 900 if long == "entries" else 10, 10)}
    findings = look_up(stored(sessions, 100, 1, 903)[0], kept.ask)
    for _ in range(3):
        kept.items(findings)
    assert made == (1 if long == "nothing" else 3)


def test_an_answer_tells_the_moment_even_where_nothing_can_be_found() -> None:
    snapshots = stored(set(), 0, 2, 33)
    page: Any = read(read_page(FORM, Query(b"b", b"a"), range(2), 10), snapshots)
    assert {p: (findings.position, findings.stream_time) for p, findings in page.findings.items()} == {
        0: (7, 33),
        1: (7, 33),
    }
