"""Small bodies as plain values mean what they mean to the route: no more is accepted, and nothing else is kept."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.payloads import JSON, NDJSON, Rules, decode
from service.payloads.fields import KINDS
from service.payloads.rows import payload_of, small_rows
from service.payloads.units import unit_of
from service.streams.errors import InvalidRecords

NOW = 1_700_000_000_000
FIELDS = {"a": "long?", "b?": "double?", "s": "string?", "x/y": "json?"}

NUMBERS = ["0", "-0", "1.0", "1e2", "-1", "0.1", "9223372036854775807"]
ODD_NUMBERS = ["1e400", "9223372036854775808", "-9223372036854775809", "1" * 30]
TEXTS = ['""', '"a"', '"\\u003a"', '"\\ud83d\\ude00"', '"é:"', '"\\\\"', '"\\"key\\":"']
WRONG = ['"\\ud800"', "NaN", "01", "'a'", ""]


def mostly(good: Sequence[str], odd: Sequence[str]) -> st.SearchStrategy[str]:
    """One of the good, now and then one of the odd."""
    return st.integers(0, 7).flatmap(lambda drawn: st.sampled_from(odd if drawn == 0 else good))


SCALARS = mostly([*NUMBERS, *TEXTS, "null", "true", "false"], [*ODD_NUMBERS, *WRONG])
LONGS = mostly(["0", "-0", "1", "null", "9223372036854775807"], [*NUMBERS, *ODD_NUMBERS, '"1"', "true"])
DOUBLES = mostly(NUMBERS, [*ODD_NUMBERS, *WRONG])
STRINGS = mostly([*TEXTS, "null"], [*NUMBERS, *WRONG])


@st.composite
def objects(draw: st.DrawFn) -> str:
    """Objects that mostly have FIELDS, now and then a name twice."""
    members = {"a": LONGS, "b?": DOUBLES, "s": STRINGS, "x/y": VALUES, "key": SCALARS}
    names = draw(st.lists(st.sampled_from(sorted(members)), max_size=3, unique_by=mostly_once(draw)))
    return "{" + ",".join(f'"{name}":{draw(members[name])}' for name in names) + "}"


def mostly_once(draw: st.DrawFn) -> Callable[[str], object]:
    """What makes two names the same: themselves, now and then nothing."""
    return (lambda name: object()) if draw(st.integers(0, 7)) == 0 else str


VALUES: st.SearchStrategy[str] = st.deferred(
    lambda: objects() | objects() | SCALARS | st.lists(VALUES, max_size=2).map(lambda parts: f"[{','.join(parts)}]")
)
TIMES = mostly(["0", "null", str(NOW), str(NOW + 3_600_000)], [str(NOW + 3_600_001), *NUMBERS, *ODD_NUMBERS, '"1"'])
PARTITIONS = mostly(["null", "0", "3"], ["4", "-1", "0.0", '"0"', "9223372036854775808"])
HEADERS = mostly(["null", "{}", '{"h":"v"}', '{"é":"\\u0000:"}'], ['{"h":"v","h":"w"}', '{"h":1}', "[]"])
KEYS = mostly([*TEXTS, "null"], ["1", *WRONG])
OTHERS = st.sampled_from(["k\\u0065y", "offset", ""])
PARTS = {"key": KEYS, "value": VALUES, "timestamp": TIMES, "partition": PARTITIONS, "headers": HEADERS}
SPACE = st.sampled_from(["", "", "", " ", "\t", "\r"])


@st.composite
def records(draw: st.DrawFn) -> str:
    """A record as text, members in any order; now and then one twice, or one that there is not."""
    names = draw(st.lists(st.sampled_from(sorted(PARTS)), unique=True))
    if draw(st.integers(0, 9)) == 0:
        names.append(draw(st.sampled_from(sorted(PARTS)) | OTHERS))
    space = draw(SPACE)
    members = (f'"{name}"{space}:{draw(PARTS.get(name, st.just("1")))}' for name in names)
    return "{" + f",{space}".join(members) + "}"


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bool, bytes]:
    """(whether it is a record a line, a body): most of them nearly good, some cut or changed at a byte."""
    is_ndjson = draw(st.booleans())
    texts = draw(st.lists(records(), max_size=2))
    if is_ndjson:
        text = draw(mostly(["\n", "\r\n"], ["\n\n", ""])).join(texts) + draw(st.sampled_from(["", "\n"]))
    else:
        text = '{"records":[' + ",".join(texts) + draw(mostly(["]}"], ["]", '],"records":[]}']))
    body = text.encode()
    if body and draw(st.integers(0, 9)) == 0:
        at = draw(st.integers(0, len(body) - 1))
        body = body[:at] + draw(st.sampled_from([b"", b"\xff", b'"', b"\\", b"{}", b":"])) + body[at + 1 :]
    return is_ndjson, body


def read(is_ndjson: bool, body: bytes, rules: Rules) -> tuple[Any, ...]:
    """What the route makes of a body."""
    try:
        payload = decode(NDJSON if is_ndjson else JSON, body, rules)
    except InvalidRecords as error:
        return "refused", error.errors
    return "taken", payload.records.to_pylist(), None if payload.partitions is None else payload.partitions.tolist()


@pytest.mark.parametrize("fields", [None, FIELDS])
@example((False, b'{"records":[{"value":{"a":-0,"b?":1e2,"s":null,"x/y":1}}]}'))
@example((True, b'{"value":{"a":1,"a":null}}'))
@example((True, b'{"key":"a","key":"b"}'))
@given(body=bodies())
def test_rows_are_what_the_route_makes_of_the_body(fields: dict[str, str] | None, body: tuple[bool, bytes]) -> None:
    is_ndjson, text = body
    rules = Rules(partitions=4, now_ms=NOW, fields=fields)
    rows = small_rows(text, rules, is_ndjson=is_ndjson)
    if rows is None:
        return
    payload = payload_of(rows)
    asked = None if payload.partitions is None else payload.partitions.tolist()
    assert read(is_ndjson, text, rules) == ("taken", payload.records.to_pylist(), asked)


PLAIN = st.fixed_dictionaries(
    {},
    optional={
        "key": st.none() | st.text(max_size=5),
        "value": st.none() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=5) | st.lists(st.booleans()),
        "timestamp": st.none() | st.integers(0, NOW + 3_600_000).filter(lambda at: unit_of(at) is None),
        "partition": st.none() | st.integers(0, 3),
        "headers": st.none() | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
    },
)


@given(records=st.lists(PLAIN, min_size=1, max_size=4), is_ndjson=st.booleans(), ascii_only=st.booleans())
def test_what_any_encoder_writes_of_good_records_is_plain(
    records: list[dict[str, Any]], is_ndjson: bool, ascii_only: bool
) -> None:
    texts = [json.dumps(record, ensure_ascii=ascii_only) for record in records]
    body = ("\n".join(texts) if is_ndjson else f'{{"records":[{",".join(texts)}]}}').encode()
    assert small_rows(body, Rules(partitions=4, now_ms=NOW), is_ndjson=is_ndjson) is not None


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (f'"timestamp":{NOW + 3_600_000}', f'"timestamp":{NOW + 3_600_001}'),
        ('"timestamp":0', '"timestamp":-1'),
        ('"partition":3', '"partition":4'),
        ('"partition":0', '"partition":-1'),
        ('"value":{"a":9223372036854775807}', '"value":{"a":9223372036854775808}'),
        ('"value":{"a":-9223372036854775808}', '"value":{"a":-9223372036854775809}'),
        ('"value":{"b?":1e308}', '"value":{"b?":1e309}'),
        ('"value":{"a":1}', '"value":{"a":1,"a":1}'),
        ('"key":"a","value":1e0', '"key":"a","key":"a"'),
    ],
)
def test_what_is_beyond_a_limit_is_not_plain(good: str, bad: str) -> None:
    rules = Rules(partitions=4, now_ms=NOW, fields=FIELDS if '"value":{' in good else None)
    assert small_rows(f"{{{good}}}".encode(), rules, is_ndjson=True) is not None
    assert small_rows(f"{{{bad}}}".encode(), rules, is_ndjson=True) is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_with_the_fields_asked_for_is_plain(kind: str) -> None:
    good = {"string": '"a"', "long": "1", "double": "0.5", "boolean": "true", "json": "[1]"}[kind]
    rules = Rules(partitions=1, now_ms=NOW, fields={"f": kind, "g": f"{kind}?"})
    for value in (f'{{"f":{good}}}', f'{{"f":{good},"g":null,"h":1}}', f'{{"f":{good},"g":{good}}}'):
        assert small_rows(f'{{"value":{value}}}'.encode(), rules, is_ndjson=True) is not None
    for value in ("null", "{}", "[]", f'{{"f":null,"g":{good}}}', f'{{"f":{good},"g":{{}},"f":{good}}}'):
        assert small_rows(f'{{"value":{value}}}'.encode(), rules, is_ndjson=True) is None
