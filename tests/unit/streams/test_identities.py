"""Store keys and values are bytes that nobody misreads."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.layouts import expiry, identities, reserved
from service.streams.layouts.changelog import sorted_changelog
from service.streams.records import StoreSpec


def keys_of(*given):
    return identities.store_keys(pa.array(given, pa.binary())).to_pylist()


def spec(interval_ms):
    return StoreSpec("j-once", "once", "key_value", "j-once-changelog", "deduplicate", "identities", interval_ms)


def changes(*stamps, obs=None):
    keys = pa.array([b"\x00" + bytes([i]) for i in range(len(stamps))], pa.binary())
    zeros = np.zeros(len(stamps), np.int64)
    return sorted_changelog((keys, identities.pack_entries(np.array(stamps, np.int64), zeros)), obs)


@pytest.mark.parametrize("length", [0, 1, 399, 400])
def test_identities_of_up_to_400_bytes_are_kept_whole(length):
    (key,) = keys_of(b"x" * length)
    assert identities.identity_of(key) == b"x" * length


@pytest.mark.parametrize("length", [401, 600, 5000])
def test_longer_identities_are_kept_as_their_hash_and_fit_lmdb(length):
    (key,) = keys_of(b"x" * length)
    assert identities.identity_of(key) is None
    assert len(key) == 33


def test_long_identities_beside_short_ones_change_no_short_key():
    assert keys_of(b"a", b"x" * 401)[0] == keys_of(b"a")[0]


@given(st.lists(st.one_of(st.binary(max_size=8), st.binary(min_size=398, max_size=403)), unique=True, max_size=8))
def test_different_identities_have_different_keys_none_of_them_reserved(identities):
    keys = keys_of(*identities)
    assert len(set(keys)) == len(identities)
    assert reserved.OBS_KEY not in keys


pairs = st.tuples(st.binary(max_size=6), st.binary(max_size=6))


@given(st.lists(pairs, unique=True, min_size=1, max_size=20))
def test_pairs_are_unambiguous_also_with_nul_bytes(pairs):
    keys, ids = zip(*pairs, strict=True)
    joined = identities.pair_identities(pa.array(keys, pa.binary()), pa.array(ids, pa.binary())).to_pylist()
    assert [identities.split_pair(each) for each in joined] == pairs


def test_a_pair_starts_with_the_length_of_its_key_in_network_order():
    joined = identities.pair_identities(pa.array([b"ab"], pa.binary()), pa.array([b"c"], pa.binary()))
    assert joined.to_pylist() == [b"\x00\x00\x00\x02abc"]


def test_an_entry_is_timestamp_and_offset_little_endian():
    packed = identities.pack_entries(np.array([1], np.int64), np.array([258], np.int64)).to_pylist()
    assert packed == [b"\x01" + bytes(7) + b"\x02\x01" + bytes(6)]
    stamps, offsets = identities.unpack_entries([*packed, identities.ABSENT_ENTRY])
    assert stamps.tolist() == [1, identities.ABSENT]
    assert offsets.tolist() == [258, identities.ABSENT]


def test_an_entry_expires_when_stream_time_passes_its_timestamp_by_more_than_the_interval():
    assert expiry.expires_after(spec(10), changes(5, 7)).tolist() == [15, 17]


def test_expiry_saturates():
    assert expiry.expires_after(spec(2**63 - 1), changes(5)).tolist() == [expiry.NEVER]


def test_stream_time_and_deletes_never_expire():
    batch = changes(5, obs=9)
    gone = pa.RecordBatch.from_pylist([{"key": b"\x00a", "value": None}], schema=batch.schema)
    assert expiry.expires_after(spec(10), batch).tolist() == [15, expiry.NEVER]
    assert expiry.expires_after(spec(10), gone).tolist() == [expiry.NEVER]


def test_changes_carry_stream_time_last_and_only_when_it_moved():
    assert reserved.time_in(reserved.OBS_KEY, changes(5, obs=9)) == 9
    assert reserved.time_in(reserved.OBS_KEY, changes(5)) is None
    assert reserved.time_in(reserved.OBS_KEY, changes()) is None
