"""Starts: their forms, what each says of a source, and what is wrong with one, by pointer."""

from typing import Any

import pytest

from service.streams.errors import InvalidSpec
from service.streams.topology.spec import JobSpec
from service.streams.topology.starts import START, ResetRequest, StartOffsets, unfit_for_partitions


def faults(start: object, source: object = ("a", "b")) -> list[str]:
    """Where a specification with this start is refused."""
    sources = list(source) if isinstance(source, tuple) else source
    try:
        JobSpec.parse({"name": "j", "source": sources, "start": start})
    except InvalidSpec as error:
        return [each.pointer for each in error.errors]
    return []


@pytest.mark.parametrize(
    "start",
    ["earliest", "latest", {"timestamp": 7}, {"offsets": {}}, {"offsets": {"a": {"0": 5}, "b": {"3": 0}}}],
)
def test_a_start_of_several_sources_is_kept_as_it_was_written(start: object) -> None:
    assert JobSpec.parse({"name": "j", "source": ["a", "b"], "start": start}).to_json()["start"] == start
    assert START.dump_python(START.validate_python(start), mode="json") == start


def test_offsets_of_one_source_may_be_named_or_not() -> None:
    for offsets in ({"0": 5}, {"a": {"0": 5}}):
        start = StartOffsets.model_validate({"offsets": offsets})
        assert not faults({"offsets": offsets}, "a")
        assert start.by_partition("a") == {"0": 5}
    assert StartOffsets.model_validate({"offsets": {"a": {"0": 5}}}).by_partition("b") == {}


@pytest.mark.parametrize(
    ("offsets", "pointer"),
    [
        ({"0": 5}, "/start/offsets"),
        ({"c": {"0": 5}}, "/start/offsets/c"),
        ({"a": {"0": -1}}, "/start/offsets/a/0"),
        ({"a": {"0": 2**63}}, "/start/offsets/a/0"),
        ({"a": {"0": "5"}}, "/start/offsets/a/0"),
        ({"a": {"x/y": 5}}, "/start/offsets/a/x~1y"),
        ({"a": {"00": 5}}, "/start/offsets/a/00"),
        ({"a": {}, "0": 5}, "/start/offsets/0"),
        ({"A": {"0": 5}}, "/start/offsets/A"),
        (5, "/start/offsets"),
        (None, "/start/offsets"),
    ],
)
def test_offsets_that_can_not_be_are_pointed_at(offsets: Any, pointer: str) -> None:
    assert pointer in faults({"offsets": offsets})


def test_partitions_that_a_source_does_not_have_are_pointed_at() -> None:
    named = StartOffsets.model_validate({"offsets": {"a": {"0": 1, "4": 1}, "b": {"1": 1}}})
    assert [each.pointer for each in unfit_for_partitions(named, {"a": 4, "b": 1})] == [
        "/start/offsets/a/4",
        "/start/offsets/b/1",
    ]
    assert not list(unfit_for_partitions("latest", {"a": 1}))


@pytest.mark.parametrize(
    ("body", "pointer"),
    [
        ({"start": "now"}, "/start"),
        ({"start": {"timestamp": "1"}}, "/start/timestamp"),
        ({"start": {"offsets": {"0": -1}}}, "/start/offsets/0"),
        ({"from": "latest"}, "/from"),
        ([], ""),
    ],
)
def test_a_request_that_is_none_is_pointed_into(body: object, pointer: str) -> None:
    with pytest.raises(InvalidSpec) as refused:
        ResetRequest.parse(body)
    assert [each.pointer for each in refused.value.errors] == [pointer]
