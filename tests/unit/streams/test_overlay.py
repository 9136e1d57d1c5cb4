"""A store under changes that are not committed yet."""

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from service.streams.overlay import Overlay
from service.streams.records import CHANGELOG_SCHEMA
from tests.machine import STORE
from tests.task import DictState

keys = st.binary(max_size=2)


def batch(changes):
    return pa.RecordBatch.from_pylist(
        [{"key": key, "value": value} for key, value in sorted(changes.items())], schema=CHANGELOG_SCHEMA
    )


@st.composite
def stores(draw):
    """What a store holds, and changes to it that delete only what is there."""
    held = draw(st.dictionaries(keys, st.binary(max_size=2), max_size=8))
    written = draw(st.dictionaries(keys, st.binary(max_size=2), max_size=5))
    deleted = draw(st.sets(st.sampled_from(sorted(held)), max_size=5)) if held else set()
    return held, {**written, **dict.fromkeys(deleted)}


def after_batch(held, changes):
    state = DictState(held)
    state.replay(changes, STORE)
    return state


def after(held, changes):
    return after_batch(held, batch(changes))


@given(stores(), keys, keys, st.none() | st.integers(0, 5), st.booleans())
def test_it_scans_what_will_be_there(store, start, end, limit, reverse):
    held, changes = store
    overlay = Overlay(DictState(held), batch(changes))
    expected = after(held, changes).scan(start, end, limit, reverse=reverse)
    assert overlay.scan(start, end, limit, reverse=reverse) == expected


@given(stores(), st.lists(keys, max_size=6))
def test_it_reads_what_will_be_there(store, wanted):
    held, changes = store
    overlay, expected = Overlay(DictState(held), batch(changes)), after(held, changes)
    assert overlay.get_many(wanted, b"none") == expected.get_many(wanted, b"none")
    assert [overlay.get(key) for key in wanted] == [expected.get(key) for key in wanted]


@given(stores(), stores())
def test_changes_merge_into_one_that_does_what_both_do(first, second):
    (held, changes), (_, later) = first, second
    between = after(held, changes)
    later = {key: value for key, value in later.items() if value is not None or key in between}
    net = Overlay(DictState(held), batch(changes)).merged(batch(later))
    assert (DictState(held) if net is None else after_batch(held, net)) == after_batch(between, batch(later))


def test_no_changes_at_all_are_none():
    assert Overlay(DictState({b"a": b"1"}), None).merged(None) is None


def test_what_came_and_went_in_between_is_no_change():
    assert Overlay(DictState(), batch({b"a": b"1"})).merged(batch({b"a": None})) is None
