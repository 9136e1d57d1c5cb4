"""What a person reads when a specification, or another part of a request, is not valid: a pointer and plain words.

It knows pydantic's findings; it refuses to find anything itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from service.streams.errors import InvalidSpec, Problem, StreamError
from service.streams.operators import AVAILABLE

Model = TypeVar("Model", bound=BaseModel)

_CHOICES = {"source", "sink", "start"}  # fields whose location carries the tag of the shape that was tried
_OTHERWISE = {
    "branch": "operators and sinks say with `after` whose results they get, so one may have several behind it",
    "split": "operators and sinks say with `after` whose results they get; a sink's `where` chooses among them",
    "merge": "give `source` a list",
    "join": "give `source` a list, bring both to one key (`select_key`), and `aggregate` what each has",
    "through": "`repartition` sends records to other tasks",
    "group_by": "put a `select_key` in front of the operator, which then works by that key",
    "count": "an `aggregate` has functions, `count` among them",
    "reduce": "an `aggregate` has functions; one of your own is installed (docs/aggregators.md)",
    "flat_map": "an operator of your own is installed (docs/installed-operators.md)",
}
_IN_FRONT = {  # fields that one operator has and another needs an operator for
    "where": "put a `filter` in front of it",
    "key": "put a `select_key` in front of it",
    "partitions": "put a `repartition` in front of it",
}
_NO_SHAPE = {"string_type", "literal_error"}
_SHAPES: dict[
    tuple[str | int, ...], str
] = {  # of what is one of several, what the person should have written who gave none of them
    ("source", "one"): "must be a string, or a list of strings",
    ("sink", "one"): 'must be a string, or a list of objects: [{"stream": "…"}]',
    ("start", "word"): 'must be "earliest", "latest", {"timestamp": ms} or {"offsets": {"0": 17}}',
}
_WORDS = {
    "missing": "is required",
    "extra_forbidden": "is not a known field",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "int_from_float": "must be an integer",
    "int_parsing": "must be an integer",
    "int_parsing_size": "must be an integer of at most 64 bits",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "string_unicode": "must be Unicode text",
    "string_pattern_mismatch": "must match {pattern}",
    "string_too_short": "must have at least {min_length} character(s)",
    "string_too_long": "must have at most {max_length} characters",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must have at least {min_length} item(s), has {actual_length}",
    "too_long": "must have at most {max_length} items, has {actual_length}",
    "literal_error": "must be one of {expected}",
}


def validated(model: type[Model], body: object) -> Model:
    """Decoded JSON as a model. Raises InvalidSpec with the pointer of every problem found."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise InvalidSpec(complaints(error)) from error


def complaints(error: ValidationError) -> list[Problem]:
    """Every finding as a Problem, in the order of the fields."""
    return [Problem(_pointer(finding), _detail(finding)) for finding in error.errors(include_url=False)]


def pointer(*parts: str | int) -> str:
    """A JSON pointer (RFC 6901)."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


@contextmanager
def errors_below(place: str) -> Iterator[None]:
    """Errors of a job are at this place of the body."""
    try:
        yield
    except StreamError as error:
        placed = [Problem(place + each.pointer, each.detail) for each in error.errors]
        if isinstance(error, InvalidSpec):
            raise InvalidSpec(placed) from error  # its words repeat the pointers
        error.errors = placed
        raise


def _pointer(finding: ErrorDetails) -> str:
    place = list(finding["loc"])
    if len(place) > 2 and place[0] == "operators":
        del place[2]  # the operator's tag
        if len(place) > 3 and place[2] == "window":
            del place[3]  # the window's
    elif len(place) > 1 and place[0] in _CHOICES:
        del place[1]
        if len(place) > 2 and place[:2] == ["start", "offsets"]:
            del place[2]
    if place and place[-1] == "[key]":
        place.pop()
    if finding["type"] in {"union_tag_invalid", "union_tag_not_found"}:
        place.append(finding["ctx"]["discriminator"].strip("'"))
    return pointer(*place)


def _detail(finding: ErrorDetails) -> str:
    context: dict[str, Any] = finding.get("ctx", {})
    if finding["type"] == "union_tag_invalid":
        is_operator = context["discriminator"] == "'op'"
        return _unknown_operator(context["tag"]) if is_operator else f"must be one of {context['expected_tags']}"
    if finding["type"] == "union_tag_not_found":
        is_operator = context["discriminator"] == "'op'"
        return "is required: one of " + ", ".join(AVAILABLE) if is_operator else "is required"
    if finding["type"] == "millrace":
        return str(context["detail"])
    if finding["type"] in _NO_SHAPE and finding["loc"] in _SHAPES:
        return _SHAPES[finding["loc"]]
    return in_words(finding) + _way_out(finding)


def _way_out(finding: ErrorDetails) -> str:
    """How else an operator or a sink gets what a field of another operator does; nothing where none does."""
    place = finding["loc"]
    is_unknown = finding["type"] == "extra_forbidden" and place[0] in ("operators", "sink")
    return f": {_IN_FRONT[str(place[-1])]}" if is_unknown and place[-1] in _IN_FRONT else ""


def in_words(finding: Mapping[str, Any]) -> str:
    """What a finding of pydantic says, of whatever model."""
    words = _WORDS.get(finding["type"])
    if words is None:
        return str(finding["msg"]).removeprefix("Value error, ")
    return words.format(**finding.get("ctx", {}))


def _unknown_operator(op: str) -> str:
    if op in _OTHERWISE:
        return f"{op!r} is not an operator: {_OTHERWISE[op]}"
    return f"{op!r} is not an operator; available: {', '.join(AVAILABLE)}"
