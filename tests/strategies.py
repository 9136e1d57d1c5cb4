"""Hypothesis strategies of this project, in one place.

What is drawn most often is made once: Hypothesis looks through each strategy before it first draws from it, which took
longer than to draw. So a record is drawn as places in what its example has drawn before: keys, ids.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from hypothesis import strategies as st

Record = dict[str, Any]

# few keys that often meet, and those that break byte layouts: empty, NUL, at and over the inline limit
texts = st.sampled_from(["a", "b", "c", "", "\x00", "a\x00", "é", "x" * 399, "x" * 400, "x" * 401, "x" * 5000])
ids = st.one_of(st.none(), texts, st.integers(-2, 2), st.booleans())


_some_keys = st.lists(texts, min_size=1, max_size=3, unique=True)
_keys = st.lists(texts, min_size=1, max_size=4, unique=True)
_some_ids = st.lists(ids, min_size=1, max_size=3)
_last = st.sampled_from([8, 25, 2**40])
_at_least = st.sampled_from([0, 20])  # left alone, Hypothesis makes lists of about five
_place = st.integers(0, 59)  # modulo 1 to 5 each is as likely as the others


@cache
def _places(last: int, at_least: int, *, failing: bool) -> st.SearchStrategy[list[Any]]:
    """Of records: places of key and id, other values, and times up to `last`."""
    v = st.one_of(st.none(), st.integers(-5, 5), *([st.just("x")] if failing else []))
    values = st.one_of(st.tuples(_place, v), st.sampled_from([None, {}]))
    each = st.tuples(_place, values, st.integers(0, last))
    return st.lists(each, min_size=at_least, max_size=40)


@st.composite
def record_lists(draw: st.DrawFn, *, failing: bool = False) -> list[Record]:
    """Records of few keys that meet within short times; with `failing`, some `v` are no numbers."""
    keys, some_ids = [None, *draw(_some_keys)], draw(_some_ids)

    def record(key: int, value: Any, timestamp: int) -> Record:
        if isinstance(value, tuple):
            value = {"id": some_ids[value[0] % len(some_ids)], "v": value[1]}
        return {"key": keys[key % len(keys)], "value": value, "timestamp": timestamp}

    return [record(*each) for each in draw(_places(draw(_last), draw(_at_least), failing=failing))]


records = record_lists()
intervals = st.one_of(st.integers(0, 6), st.integers(0, 20), st.sampled_from([2**40, 2**63 - 1]))
batch_sizes = st.lists(st.integers(1, 12), max_size=40)


@st.composite
def deduplications(draw: st.DrawFn, name: str = "once") -> Record:
    """The JSON of one of the three operators."""
    op = draw(st.sampled_from(["deduplicate_by_key", "deduplicate_by_key_value", "deduplicate"]))
    operator = {"op": op, "name": name, "interval_ms": draw(intervals)}
    if op != "deduplicate_by_key":
        operator["id"] = draw(st.sampled_from(["value->>'id'", "(value->>'v')::bigint"]))
    return operator


stateless = st.sampled_from(
    [
        {"op": "filter", "where": "(value->>'v')::bigint >= 3"},
        {"op": "select_key", "key": "value->>'id'"},
        {"op": "select_key", "key": "(value->>'v')::bigint"},
        {"op": "map_values", "select": {"id": "value->>'id'", "v": "(value->>'v')::bigint"}},
        {"op": "map_values", "select": {"id": "key", "was": "value", "at": "timestamp"}},
    ]
)


@st.composite
def distincts(draw: st.DrawFn, name: str = "first") -> Record:
    """The JSON of a distinct operator."""
    grace = draw(st.sampled_from([0, 1, 7]))
    size = draw(st.sampled_from([1, 3, 10]))
    window = draw(st.sampled_from([{"type": "tumbling", "size_ms": size}, {"type": "session", "gap_ms": size}]))
    return {"op": "distinct", "name": name, "window": {**window, "grace_ms": grace}}


@st.composite
def buffers(draw: st.DrawFn, *, is_final: bool) -> Record:
    """The JSON of a buffer; small enough to be full."""
    some = {"max_records": st.integers(0, 5), "max_bytes": st.integers(0, 120)}
    bounds = draw(st.fixed_dictionaries({}, optional=some))
    ways = ["shut_down", "spill_to_disk"] + ([] if is_final else ["emit_early"] * 3)
    return {**bounds, "when_full": draw(st.sampled_from(ways))} if bounds else {}


@st.composite
def suppressions(draw: st.DrawFn, name: str = "held", *, is_final: bool = False) -> Record:
    """The JSON of a suppress operator."""
    operator = {"op": "suppress", "name": name, "buffer": draw(buffers(is_final=is_final))}
    if is_final:
        return {**operator, "until": "window_closes"}
    limit = draw(st.sampled_from([0, 1, 3, 10, 2**63 - 1]))
    return {**operator, "until": "time_limit", "time_limit_ms": limit}


windows = st.one_of(
    st.fixed_dictionaries({"type": st.just("tumbling"), "size_ms": st.just(4), "grace_ms": st.sampled_from([0, 3])}),
    st.fixed_dictionaries({"type": st.just("session"), "gap_ms": st.just(2), "grace_ms": st.sampled_from([0, 3])}),
    st.fixed_dictionaries(
        {"type": st.just("sliding"), "time_difference_ms": st.just(3), "grace_ms": st.sampled_from([0, 3])}
    ),
)


@cache
def _updated(last: int) -> st.SearchStrategy[list[Any]]:
    """Of updates: place of the key, value, time up to `last`, how late."""
    values = st.sampled_from([None, {"n": 1}, {"n": 22, "t": ' "\\" é'}])
    return st.lists(st.tuples(_place, values, st.integers(0, last), st.integers(0, 4)), max_size=40)


_last_update = st.sampled_from([12, 40])


@st.composite
def updates(draw: st.DrawFn, window: Record | None) -> list[Record]:
    """Updates as an aggregate over `window` might forward them: few keys, few windows, some tombstones."""
    keys = [None, *draw(_keys)]
    found, now = [], 0
    for key, value, time, back in draw(_updated(draw(_last_update))):
        now = max(now, time)
        at = max(0, now - back)
        update = {"key": keys[key % len(keys)], "value": value, "timestamp": at}
        found.append({**update, "window": _window_at(window, at, back)})
    return found


def _window_at(window: Record | None, at: int, back: int) -> Record | None:
    if window is None:
        return None
    if window["type"] == "session":
        return {"start": max(0, at - back), "end": at}
    if window["type"] == "sliding":
        return {"start": at, "end": at + 3}
    return {"start": at // 4 * 4, "end": at // 4 * 4 + 4}


FUNCTIONS = (
    {"fn": "count"},
    *({"fn": fn, "of": "(value->>'v')::bigint"} for fn in ("sum", "min", "max", "mean", "first", "last", "collect")),
    *({"fn": fn, "of": "(value->>'d')::double"} for fn in ("sum", "min", "max", "mean", "first", "last", "collect")),
    *({"fn": fn, "of": "value->>'id'"} for fn in ("min", "max", "first", "last", "collect")),
)


_picked = st.lists(st.sampled_from(FUNCTIONS), min_size=1, max_size=4)
_lengths = st.sampled_from([1, 2, 3, 5, 10])
_graces = st.sampled_from([0, 1, 4, 20])
_emits = st.sampled_from(["on_update", "on_window_close"])


@cache
def _steps(*, large: bool) -> st.SearchStrategy[list[Any]]:
    """Of records: place of the key, value, how far time goes on, how late."""
    v = st.integers(-9, 9) | st.sampled_from([2**62, 2**63 - 1, -(2**62), -(2**63)] if large else [0])
    halves = st.integers(-8, 8).map(lambda n: n / 2)
    value = st.fixed_dictionaries({"v": st.none() | v, "d": st.none() | halves, "id": st.none() | texts})
    late = st.sampled_from([0, 0, 0, 1, 2, 5, 9, 30])
    return st.lists(st.tuples(_place, st.none() | value, st.integers(0, 4), late), max_size=40)


_begins = st.sampled_from([0, 0, 100])


@st.composite
def aggregations(draw: st.DrawFn, name: str = "agg", kinds: tuple[str, ...] | None = None) -> Record:
    """The JSON of an aggregate operator, with small windows; `kinds` of window, "table" for none."""
    kind = draw(st.sampled_from(kinds or ("table", "tumbling", "hopping", "sliding", "session")))
    picked = draw(_picked)
    operator = {"op": "aggregate", "name": name, "aggregates": {f"f{i}": each for i, each in enumerate(picked)}}
    if kind == "table":
        return {**operator, "window": None}
    length = draw(_lengths)
    window = {"type": kind, "grace_ms": draw(_graces)}
    if kind == "hopping":
        window |= {"size_ms": length, "advance_ms": draw(st.integers(1, length))}
    else:
        window |= {{"tumbling": "size_ms", "sliding": "time_difference_ms", "session": "gap_ms"}[kind]: length}
    return {**operator, "window": window, "emit": draw(_emits)}


@st.composite
def arrivals(draw: st.DrawFn, *, large: bool = False) -> list[Record]:
    """Records of few keys that come in nearly in order, some of them late, some null, some after a long pause; with
    `large`, most `v` are so large that few make a sum of more than 64 bits.
    """
    keys = [None, *draw(_keys)]
    found, now = [], draw(_begins)
    for key, given, step, back in draw(_steps(large=large)):
        now += 50 if step == 4 and back == 30 else step
        found.append({"key": keys[key % len(keys)], "value": given, "timestamp": max(0, now - back)})
    return found


@st.composite
def chains(draw: st.DrawFn) -> list[Record]:
    """Operators of a job: stateless ones around a few that keep state and are never full."""
    held = suppressions().filter(lambda operator: operator["buffer"].get("when_full") != "shut_down")
    stateful = st.one_of(deduplications(), deduplications(), distincts(), held)
    parts = draw(st.lists(st.one_of(stateless, stateful), max_size=4))
    return [{**part, "name": f"part_{i}"} for i, part in enumerate(parts)]
