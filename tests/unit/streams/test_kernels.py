"""Kernels against what numpy says of the same arrays."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.streams.kernels import windows
from service.streams.operators import into_time_windows

pairs_of = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 70)), min_size=1, max_size=200)


@given(st.integers(0, 2**64 - 1))
def test_the_bits_of_a_word_are_counted(word):
    assert windows.ones(np.uint64(word)) == word.bit_count()


@given(pairs_of, st.sampled_from([1, 7, 2**40]))
def test_pairs_of_key_and_start_get_their_slots_in_order(pairs, advance):
    """Starts may lie so far apart that there is no table of them."""
    ids, starts = np.array([i for i, _ in pairs], np.int32), np.array([step * advance for _, step in pairs], np.int64)
    of_keys, of_starts, slots = into_time_windows._slots(ids, starts, 1)
    assert list(zip(of_keys.tolist(), of_starts.tolist(), strict=True)) == sorted(
        {(i, step * advance) for i, step in pairs}
    )
    assert (of_keys.dtype, of_starts.dtype, slots.dtype) == (np.int32, np.int64, np.int32)
    assert of_keys[slots].tolist() == ids.tolist()
    assert of_starts[slots].tolist() == starts.tolist()
