"""The two ways from stored values to texts give the same: by columns for many, one by one for few."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.layouts.entries import NO_END, NO_TIME, SessionColumns
from service.streams.operators import stored_results
from service.streams.operators.function_columns import FunctionColumns
from service.streams.operators.functions import FunctionSpec
from service.streams.operators.stored_results import StoredResults

BIGINT, DOUBLE = "(value->>'v')::bigint", "(value->>'v')::double"
OTHERS = ("(value->>'v')::boolean", "(value->>'v')::date", "(value->>'v')::timestamp", "(value->>'v')::float")
SPECS = {"n": FunctionSpec(fn="count")} | {
    f"{fn}_{i}": FunctionSpec(fn=fn, of=of)
    for fn in ("sum", "mean", "min", "max", "first", "last")
    for i, of in enumerate((BIGINT, DOUBLE, *OTHERS))
    if fn not in ("sum", "mean") or of in (BIGINT, DOUBLE)
}
SMALL = st.integers(0, 2_000_000)  # so that it is a date as well


def column(draw: st.DataObject, kind: str, count: int) -> Any:
    of = {"<i8": SMALL, "<f8": st.floats(allow_nan=True), "?": st.booleans()}[kind]
    return np.array(draw.draw(st.lists(of, min_size=count, max_size=count)), kind)


@given(st.data(), st.booleans())
def test_few_values_read_as_many_do(data: st.DataObject, has_stamps: bool) -> None:
    codec = FunctionColumns("a", SPECS, has_stamps=has_stamps).codec
    columns = [column(data, kind, 3) for kind in codec.types]
    packed = codec.pack(columns).to_pylist()
    shown = StoredResults("a", SPECS, has_stamps=has_stamps)
    few = shown.shown(packed, [1, 2, 3])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_results, "FEW", 0)
        assert few == shown.shown(packed, [1, 2, 3])


@given(st.data(), st.lists(st.integers(0, 3), min_size=1, max_size=4))
def test_packed_sessions_read_as_many_do(data: st.DataObject, counts: list[int]) -> None:
    specs = {
        "n": FunctionSpec(fn="count"),
        "s": FunctionSpec(fn="sum", of=BIGINT),
        "m": FunctionSpec(fn="mean", of=BIGINT),
    }
    codec = FunctionColumns("a", specs, has_stamps=False).codec
    total = sum(counts)
    columns = [column(data, kind, total) for kind in codec.types]
    starts = np.arange(total) * 10
    sessions = SessionColumns(
        np.array(counts), np.full(len(counts), NO_TIME), np.full(len(counts), NO_END), starts, starts + 5, columns
    )
    packed = codec.pack_sessions(sessions).to_pylist()
    shown = StoredResults("a", specs, has_stamps=False)
    few = shown.sessions(packed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored_results, "FEW", 0)
        many = shown.sessions(packed)
    assert [list(part) for part in few] == [list(part) for part in many]
    assert few.stamps == [start + 5 for start in starts.tolist()]


def test_texts_among_the_columns_are_read_by_columns() -> None:
    specs = {"all": FunctionSpec(fn="collect", of="value->>'v'"), "n": FunctionSpec(fn="count")}
    codec = FunctionColumns("a", specs, has_stamps=True).codec
    columns = [np.array([b'"x","y"'], object) if kind == "O" else np.array([7], kind) for kind in codec.types]
    shown = StoredResults("a", specs, has_stamps=True)
    assert shown.shown(codec.pack(columns).to_pylist(), []) == ([7], ['{"all":["x","y"],"n":7}'])
