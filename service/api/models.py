"""Shapes that several resources share, for the OpenAPI document: pages, cursors, limits."""

from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=1000, description="How many items at most.")]
NO_NUL = r"^[^\x00]*$"  # no database takes U+0000 in a text
Cursor = Annotated[str | None, Query(description="`next` of the page before.", max_length=1000, pattern=NO_NUL)]


class Page(BaseModel, Generic[Item]):
    """One page of a list."""

    items: list[Item]
    next: Annotated[str | None, Field(description="The cursor of the next page; null at the end.")]
