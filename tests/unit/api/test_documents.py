"""JSON documents: a name that stands twice in an object is refused, with its place."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.documents import as_json
from service.problems import ProblemError

REPEATED = [
    (b'{"a":1,"a":2}', "/a"),
    (b'{"a":1,"a":1}', "/a"),
    (b'{"b":[{"a":{}},{"x":1,"a":{"c":1,"c":":"}}]}', "/b/1/a/c"),
    (b'{"a":1,"\\u0061":2}', "/a"),
    (b'{"a":1,"a":"\\u003a"}', "/a"),
    (b'{"a":1,"a":"\\""}', "/a"),
    (b'{"a":1,"a":"\\u003A"}', "/a"),
    (b'{ "a" : 1 , "a" : 2 }', "/a"),
    (b'[{"":1,"":2}]', "/0/"),
    (b'{"a/b~c":1,"a/b~c":2}', "/a~1b~0c"),
    (b'{"value":1,"value":2}', "/value"),
]
WHOLE = [
    b"{}",
    b'{"a":{"a":{"a":1}}}',
    b'[{"a":1},{"a":1}]',
    b'{"a":":","b":"::"}',
    b'{"a":"\\u003a"}',
    b'{"a":"\\"a\\":1,\\"a\\":2"}',
    b'{ "a" : 1.50e3, "A" : 12345678901234567890 }',
    '{"é":1,"e\u0301":2}'.encode(),
]


@pytest.mark.parametrize(("text", "place"), REPEATED)
def test_a_name_that_stands_twice_is_refused_with_its_place(text: bytes, place: str) -> None:
    with pytest.raises(ProblemError) as refused:
        as_json(text)
    assert (refused.value.status_code, refused.value.code) == (400, "malformed_json")
    assert refused.value.errors == [{"pointer": place, "detail": "the name is given more than once"}]


@pytest.mark.parametrize("text", WHOLE)
def test_what_has_each_name_once_is_read(text: bytes) -> None:
    assert as_json(text) is not None


def test_what_is_not_ours_is_not_looked_into() -> None:
    assert as_json(b'{"records":[{"value":{"a":1,"a":2}}]}', opaque="value")
    with pytest.raises(ProblemError):
        as_json(b'{"records":[{"key":"a","key":"b","value":{"a":1,"a":2}}]}', opaque="value")


NAMES = st.sampled_from(["a", "b", ":", "\\", '"', "é"])
TREES = st.recursive(
    st.none() | st.sampled_from([1, ":", '"', "\\u003a"]),
    lambda inner: st.lists(inner, max_size=3) | st.lists(st.tuples(NAMES, inner), max_size=3).map(tuple),
    max_leaves=12,
)


def written(tree: Any) -> str:
    """JSON of a tree whose objects are tuples of members; some characters as escapes."""
    if isinstance(tree, tuple):
        return "{" + ",".join(f"{written(name)}: {written(value)}" for name, value in tree) + "}"
    if isinstance(tree, list):
        return "[" + ",".join(map(written, tree)) + "]"
    return "null" if tree is None else str(tree) if isinstance(tree, int) else _text(tree)


def _text(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("é", "\\u00e9") + '"'


def repeated(tree: Any) -> bool:
    if isinstance(tree, tuple):
        names = [name for name, _ in tree]
        return len(set(names)) < len(names) or any(repeated(value) for _, value in tree)
    return isinstance(tree, list) and any(map(repeated, tree))


@given(TREES)
def test_it_is_refused_if_and_only_if_a_name_stands_twice(tree: Any) -> None:
    text = written(tree).encode()
    if repeated(tree):
        with pytest.raises(ProblemError):
            as_json(text)
    else:
        as_json(text)
