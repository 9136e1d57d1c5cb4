"""JSON documents of requests: bytes to a value, a value to one of the API's models.

Knows how a fault of a document is reported: as a problem that points at it. Refuses to know how the bytes came
(`service.api.bodies`) and what a document means.
"""

from __future__ import annotations

from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from service.problems import ProblemError, items_of

Model = TypeVar("Model", bound=BaseModel)


def as_json(body: bytes) -> Any:
    """The value of a JSON text. Raises ProblemError 400 where the bytes are none."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ProblemError(400, "malformed_json", f"the body is not JSON: {error}") from error


def as_model(document: Any, model: type[Model]) -> Model:
    """A JSON value as one of the API's models. Raises ProblemError 422 with a pointer for each fault."""
    try:
        return model.model_validate(document)
    except ValidationError as error:
        items = items_of(error)
        raise ProblemError(422, "invalid_request", items[0]["detail"], items) from error
