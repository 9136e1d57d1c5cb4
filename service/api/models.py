"""Shapes that several resources share, for the OpenAPI document: pages, cursors, limits; and how a list is cut.

Knows rows and names. Refuses to know what they are of.
"""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fastapi import Query
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from service.api.bodies import storable
from service.positions import RowCursor, opaque, row_cursor_of
from service.problems import ProblemError, refused

MAX_ROW_ID = 2**63 - 1

Item = TypeVar("Item")


class NumberedRow(Protocol):
    """A row of a table, with a number that rises."""

    @property
    def id(self) -> Any: ...


NumberedRows = TypeVar("NumberedRows", bound=NumberedRow)

Limit = Annotated[int, Query(ge=1, le=1000, description="How many items at most.")]
Cursor = Annotated[
    str | None,
    Query(description="`next` of the page before.", max_length=1000),
    AfterValidator(lambda cursor: cursor and storable(cursor)),
]


class WindowView(BaseModel):
    """In ms; the end of a session or sliding window is included."""

    start: int
    end: int


def _describe_page(schema: JsonDict) -> None:
    schema.setdefault("description", "One page of a list.")


class PageView(BaseModel, Generic[Item]):
    """One page of a list."""

    model_config = ConfigDict(json_schema_extra=_describe_page)
    items: list[Item]
    next: Annotated[str | None, Field(description="The cursor of the next page; null at the end.")]


def require_name(cursor: str | None, pattern: str) -> None:
    """A list by name is read on behind a name. 422 where the cursor is none."""
    if cursor is not None and not re.fullmatch(pattern, cursor):
        raise _no_cursor()


def first_row(of: str, cursor: str | None) -> int | None:
    """The row before which a page of a list begins; None: at the latest. 422 where the cursor is not of the list."""
    if cursor is None:
        return None
    found = row_cursor_of(cursor)
    if found is None or found.of != of or not 0 <= found.before <= MAX_ROW_ID:
        raise _no_cursor()
    return found.before


def rows_page(
    of: str, rows: Sequence[NumberedRows], shown: Callable[[NumberedRows], dict[str, Any]], *, limit: int
) -> dict[str, Any]:
    """`{"items", "next"}` of `limit + 1` rows read, latest first."""
    following = opaque(RowCursor(of, rows[limit - 1].id)) if len(rows) > limit else None
    return {"items": [shown(row) for row in rows[:limit]], "next": following}


def short_page(
    items: Sequence[dict[str, Any]], name_of: Callable[[dict[str, Any]], str], *, limit: int, cursor: str | None
) -> dict[str, Any]:
    """`{"items", "next"}` of a list that is at hand as a whole; its cursor is the name of the last item given."""
    first = 0
    if cursor is not None:
        place = next((i for i, item in enumerate(items) if name_of(item) == cursor), None)
        if place is None:
            raise _no_cursor()
        first = place + 1
    end = first + limit
    return {"items": list(items[first:end]), "next": name_of(items[end - 1]) if len(items) > end else None}


def _no_cursor() -> ProblemError:
    detail = "the cursor is not the `next` of a page of this list"
    return refused("invalid_cursor", "?cursor", detail)
