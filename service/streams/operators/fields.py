"""The kinds of fields that operator and job specifications are made of.

It knows the limits of each; it refuses to know which specification uses it. No coercion: a string is
never taken for a number, a boolean never for an integer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, cast

import pyarrow as pa
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict
from pydantic_core import PydanticCustomError

from service.streams.errors import InvalidExpression
from service.streams.expressions import Expression

MAX_INT64 = 2**63 - 1
JOB_NAME = r"^[a-z][a-z0-9_.-]{0,63}$"  # of an operator too: streams and stores are called by two of them, and more
STREAM_NAME = r"^[a-z][a-z0-9_.-]{0,127}$"


def absent_stays(schema: JsonDict) -> None:
    """Take the defaults out of the JSON schema of a change: what it does not name stays, whatever that is."""
    for each in cast("dict[str, JsonDict]", schema.get("properties", {})).values():
        each.pop("default", None)


def is_absent(value: object) -> bool:
    """Whether a field that came later is not there: then it is not shown either, and a body stays equal to itself."""
    return value is None


class Spec(BaseModel):
    """A part of a specification: immutable, strict, and without unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def problem(detail: str) -> PydanticCustomError:
    """A finding whose words go to the person as they are."""
    return PydanticCustomError("millrace", "{detail}", {"detail": detail})


@lru_cache(maxsize=1024)
def admitted(text: str) -> Expression:
    """The expression of a text that passed the gate; raises InvalidExpression."""
    return Expression(text)


def _admit(text: str) -> str:
    try:
        admitted(text).type_of()
    except InvalidExpression as error:
        raise problem(error.detail) from error
    return text


def _yields_boolean(text: str) -> str:
    found = admitted(text).type_of()
    if not pa.types.is_boolean(found):
        raise problem(f"must be a condition (true or false), this gives {kind_name(found)}")
    return text


def _yields_text(text: str) -> str:
    found = admitted(text).type_of()
    if not is_textual(found):
        wanted = "must give text, an integer or a boolean"
        raise problem(f"{wanted}, this gives {kind_name(found)}; write ->> or (…)::varchar for its text")
    return text


def kind_name(kind: pa.DataType) -> str:
    """The type of an expression's result, in a person's words."""
    if isinstance(kind, pa.JsonType):
        return "JSON"
    return {"string": "text", "bool": "true or false", "null": "always null"}.get(str(kind), str(kind))


def is_textual(kind: pa.DataType) -> bool:
    """Whether values of this type have one obvious text, fit for a key or an identity."""
    is_text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return bool(is_text or pa.types.is_integer(kind) or pa.types.is_boolean(kind))


ExpressionText = Annotated[str, Field(min_length=1), AfterValidator(_admit)]
Condition = Annotated[ExpressionText, AfterValidator(_yields_boolean)]
TextExpression = Annotated[ExpressionText, AfterValidator(_yields_text)]
OperatorName = Annotated[str, Field(pattern=JOB_NAME)]
StreamName = Annotated[str, Field(pattern=STREAM_NAME)]
Duration = Annotated[int, Field(ge=0, le=MAX_INT64)]
