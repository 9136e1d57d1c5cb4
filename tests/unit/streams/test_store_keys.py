"""Store keys sort as what they are made of, and are read back; entries and their ends of life."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.storage import expiry
from service.streams.layouts import reserved, store_keys
from service.streams.layouts.changelog import changelog_of
from service.streams.layouts.entries import NO_END, NO_TIME, EntryCodec, SessionColumns
from service.streams.layouts.expiry import NEVER, expires_after
from service.streams.records import StoreSpec

keys = st.lists(st.binary(max_size=40) | st.text("\x00\x01\xff", max_size=40).map(str.encode), max_size=20)
times = st.integers(0, 2**63 - 1)


def binary(values):
    return pa.array(values, pa.binary())


@given(keys)
def test_ordered_forms_sort_as_keys_do_and_none_begins_another(found):
    found = sorted(set(found))
    forms = store_keys.ordered(binary(found)).to_pylist()
    assert forms == sorted(forms)
    assert forms == [store_keys.ordered_one(key) for key in found]
    assert not any(b.startswith(a) for a, b in itertools.pairwise(forms))


@given(keys, st.binary(max_size=16))
def test_ordered_forms_are_read_back_with_what_follows(found, rest):
    forms = binary([form + rest for form in store_keys.ordered(binary(found)).to_pylist()])
    plain, rests = store_keys.split_ordered(forms)
    assert (plain.to_pylist(), rests.to_pylist()) == (found, [rest] * len(found))


def test_slices_of_arrays_are_ordered_too():
    whole = binary([b"a", b"bb", b"ccccccccc", b""])
    assert store_keys.ordered(whole[1:3]).to_pylist() == [store_keys.ordered_one(k) for k in (b"bb", b"ccccccccc")]
    assert len(store_keys.ordered(binary([]))) == 0


@pytest.mark.parametrize("key", [b"\0" * 400, b"x" * 400])
def test_the_longest_key_fits_into_what_lmdb_takes(key):
    assert len(store_keys.session_key(store_keys.ordered_one(key), 2**63 - 1, 2**63 - 1)) <= 511


def test_keys_of_up_to_400_bytes_can_be_stored():
    lengths = [b"x" * length for length in (0, 400, 401, 600, 5000)]
    assert store_keys.is_storable(binary([*lengths, None])).to_pylist() == [True, True, False, False, False, None]


@given(st.lists(st.tuples(st.sampled_from([b"", b"a", b"a\0", b"b"]), times, times), min_size=1))
def test_sessions_sort_by_key_end_and_start(rows):
    rows = sorted(set(rows))
    forms = store_keys.ordered(binary([key for key, _, _ in rows]))
    ends, starts = (np.array([row[i] for row in rows], np.int64) for i in (1, 2))
    found = store_keys.session_keys(forms, ends, starts).to_pylist()
    assert found == sorted(found)
    assert found == [store_keys.session_key(store_keys.ordered_one(k), end, start) for k, end, start in rows]


def test_index_keys_are_read_back_and_bounded_by_time():
    forms = store_keys.ordered(binary([b"b", b"a"]))
    found = store_keys.index_keys(np.array([7, 300]), forms).to_pylist()
    assert found[0] < store_keys.index_bound(8) < store_keys.index_bound(300) < found[1]
    assert found[1] < store_keys.index_bound(2**63)
    stamps, ordered = store_keys.split_index_keys(found)
    assert (stamps.tolist(), ordered) == ([7, 300], forms.to_pylist())


def test_a_changelog_is_sorted_and_holds_stream_time():
    parts = [(binary([b"w"]), binary([b"1"])), (binary([b"i", b"h"]), binary([None, b""]))]
    changes = changelog_of(parts, 5)
    assert changes.column("key").to_pylist() == [reserved.OBS_KEY, b"h", b"i", b"w"]
    assert changes.column("value").to_pylist()[1:] == [b"", None, b"1"]
    assert reserved.time_in(reserved.OBS_KEY, changes) == 5
    assert changelog_of([], None) is None


@given(st.lists(st.lists(st.binary(max_size=3), max_size=4), max_size=4))
def test_a_changelog_is_sorted_whatever_order_its_parts_come_in(parts):
    seen: set[bytes] = set()
    distinct = [[key for key in part if not (key in seen or seen.add(key))] for part in parts]
    changes = changelog_of([(binary(part), binary(part)) for part in distinct], None)
    assert (changes.column("key").to_pylist() if changes else []) == sorted(seen)
    assert changes is None or changes.column("value").equals(changes.column("key"))


# ---------------------------------------------------------------- entries

TYPES = ["<i8", "?", "<f8", "O", "O"]


def columns(rows):
    return [np.array([row[i] for row in rows], "O" if kind == "O" else kind) for i, kind in enumerate(TYPES)]


rows_of = st.lists(
    st.tuples(
        st.integers(-(2**63), 2**63 - 1),
        st.booleans(),
        st.floats(allow_nan=False),
        st.none() | st.binary(max_size=9),
        st.none() | st.binary(max_size=9),
    ),
    max_size=6,
)


@given(rows_of)
def test_entries_are_read_back(rows):
    entries = EntryCodec(TYPES)
    packed = entries.pack(columns(rows)).to_pylist()
    present, found = entries.unpack([*packed, entries.absent])
    assert present.tolist() == [True] * len(rows) + [False]
    assert [column.tolist()[:-1] for column in found] == [column.tolist() for column in columns(rows)]


@given(st.lists(rows_of, max_size=5), st.booleans())
def test_packed_sessions_are_read_back(groups, has_texts):
    width = len(TYPES) if has_texts else 3
    flat = [row for rows in groups for row in rows]
    counts = np.array([len(rows) for rows in groups], np.int64)
    sessions = SessionColumns(
        counts=counts,
        timers=np.arange(len(groups), dtype=np.int64),
        cold_ends=np.full(len(groups), NO_END, np.int64),
        starts=np.arange(len(flat), dtype=np.int64),
        ends=np.arange(len(flat), dtype=np.int64) + 5,
        columns=columns(flat)[:width],
    )
    entries = EntryCodec(TYPES[:width])
    found = entries.unpack_sessions([*entries.pack_sessions(sessions).to_pylist(), b""])
    assert found.counts.tolist() == [*counts.tolist(), 0]
    assert found.timers.tolist() == [*range(len(groups)), NO_TIME]
    assert (found.starts.tolist(), found.ends.tolist()) == (sessions.starts.tolist(), sessions.ends.tolist())
    assert [c.tolist() for c in found.columns] == [c.tolist() for c in sessions.columns]


def test_numeric_columns_come_first():
    with pytest.raises(ValueError, match="first"):
        EntryCodec(["O", "<i8"])


# ---------------------------------------------------------------- expiry


def spec(interval_ms, kind="aggregate"):
    return StoreSpec("t-agg", "agg", "session", "t-agg-changelog", kind, "ordered", interval_ms)


def test_sessions_live_by_their_end_windows_by_their_start_and_packed_ones_by_the_last():
    form = store_keys.ordered_one(b"a")
    none = np.empty(0, np.int64)
    packed = SessionColumns(np.array([2]), np.array([9]), np.array([NO_END]), np.array([1, 8]), np.array([3, 9]), [])
    empty = SessionColumns(np.array([0]), np.array([9]), np.array([40]), none, none, [])
    entries = {
        store_keys.HOT + form: EntryCodec([]).pack_sessions(packed)[0].as_py(),
        store_keys.HOT + form + b"\0": EntryCodec([]).pack_sessions(empty)[0].as_py(),
        store_keys.INDEX + bytes(8) + form: b"",
        store_keys.SESSION + form + bytes(16): None,
        store_keys.session_key(form, 20, 1): b"\1",
        store_keys.window_key(form, 30): b"\1",
    }
    changes = changelog_of([(binary(list(entries)), binary(list(entries.values())))], 99)
    found = dict(zip(changes.column("key").to_pylist(), expires_after(spec(100), changes).tolist(), strict=True))
    assert [found[key] for key in entries] == [109, 140, NEVER, NEVER, 120, 130]
    assert found[reserved.OBS_KEY] == NEVER
    assert expires_after(spec(100), changes.slice(2)).tolist() == list(found.values())[2:]


def test_only_entries_without_a_time_in_their_key_are_read_to_know_whether_they_are_over():
    form = store_keys.ordered_one(b"a")
    timed = [store_keys.session_key(form, 20, 1), store_keys.window_key(form, 30)]
    packed = SessionColumns(np.array([1]), np.array([9]), np.array([NO_END]), np.array([1]), np.array([900]), [])
    hot = {store_keys.HOT + form: EntryCodec([]).pack_sessions(packed)[0].as_py()}
    asked = []

    def read(keys):
        asked.extend(keys)
        return [hot[key] for key in keys]

    assert expiry.expired(spec(100), 500, timed, read) == timed
    assert asked == []
    assert expiry.expired(spec(100), 500, [*hot, *timed], read) == timed
    assert asked == list(hot)
    assert sorted(expiry.expired(spec(100), 1001, [*hot, *timed], read)) == sorted([*hot, *timed])


def test_what_has_no_interval_never_expires_and_none_passes_the_end_of_time():
    changes = changelog_of([(binary([store_keys.window_key(store_keys.ordered_one(b"a"), 30)]), binary([b""]))], None)
    assert expires_after(spec(None), changes).tolist() == [NEVER]
    assert expires_after(spec(2**63 - 1), changes).tolist() == [NEVER]
