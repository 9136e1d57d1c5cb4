"""Shapes that several resources share, for the OpenAPI document: pages, cursors, limits."""

from typing import Annotated, Generic, TypeVar

from fastapi import Query
from pydantic import AfterValidator, BaseModel, Field

from service.api.bodies import storable

Item = TypeVar("Item")

Limit = Annotated[int, Query(ge=1, le=1000, description="How many items at most.")]
Cursor = Annotated[
    str | None,
    Query(description="`next` of the page before.", max_length=1000),
    AfterValidator(lambda cursor: cursor and storable(cursor)),
]


class Page(BaseModel, Generic[Item]):
    """One page of a list."""

    items: list[Item]
    next: Annotated[str | None, Field(description="The cursor of the next page; null at the end.")]
