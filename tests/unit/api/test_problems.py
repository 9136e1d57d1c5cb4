"""The table from errors to answers: complete, and in the words of HTTP."""

from collections.abc import Iterator

import pytest

from service.problems import STATUS, declared, phrase, pointer_to, status_of
from service.streams import errors
from service.streams.errors import StreamError


def below(kind: type[StreamError]) -> Iterator[type[StreamError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from below(child)


def statuses_drawn() -> dict[str, int]:
    """The numbers that the tree in the docstring of `errors` is drawn with, a branch's holding for its leaves."""
    drawn: dict[str, int] = {}
    levels: list[int | None] = []
    for line in (errors.__doc__ or "").splitlines():
        branch, mark, rest = line.partition("── ")
        if not mark:
            continue
        name, *words = rest.split()
        depth = len(branch) // 4
        number = next((int(word) for word in words if word.isdigit() and len(word) == 3), None)
        inherited = levels[depth - 2] if depth >= 2 and len(levels) > depth - 2 else None
        del levels[depth - 1 :]
        levels.append(number if number is not None else inherited)
        if levels[-1] is not None:
            drawn[name] = levels[-1]
    return drawn


@pytest.mark.parametrize(("name", "status"), sorted(statuses_drawn().items()))
def test_each_error_has_the_status_that_its_tree_is_drawn_with(name: str, status: int) -> None:
    kind = getattr(errors, name)
    assert next(STATUS[cls] for cls in kind.__mro__ if cls in STATUS) == status


def test_each_error_has_a_code_of_its_own() -> None:
    codes = [kind.code for kind in below(StreamError) if kind.__module__ == errors.__name__]
    assert len(codes) == len(set(codes))
    assert all(code == code.lower() and " " not in code for code in codes)


def test_an_error_that_nobody_named_is_ours() -> None:
    assert status_of(errors.SegmentMissing("segments/ab/abc.arrows")) == 500
    assert status_of(RuntimeError()) == 500


@pytest.mark.parametrize(
    ("location", "pointer"),
    [((), ""), (("operators", 0, "where"), "/operators/0/where"), (("a/b", "c~d"), "/a~1b/c~0d")],
)
def test_a_location_is_a_json_pointer(location: tuple[str | int, ...], pointer: str) -> None:
    assert pointer_to(location) == pointer


def test_declared_errors_are_problems_in_the_words_of_http() -> None:
    assert phrase(413) == "Content Too Large"
    assert phrase(404) == "Not Found"
    assert list(declared(422, 404)) == [404, 422]
    assert set(declared(404)[404]["content"]) == {"application/problem+json"}
