"""From an error to its answer: one table, one shape (RFC 9457, `application/problem+json`).

Knows the tree of `StreamError`, the few foreign errors a request may meet, and HTTP's statuses. Refuses to know
why an error happened: its message is the detail.
"""

import random
import re
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any, NamedTuple

import orjson
import structlog
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, ValidationError
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from service.streams import errors
from service.streams.errors import StreamError
from service.streams.topology.complaints import in_words

MEDIA_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:millrace:problem:"

# The nearest class up the tree wins; what is not named here is a fault of ours: 500.
STATUS: dict[type[Exception], int] = {
    errors.InvalidInput: 422,
    errors.InvalidExpression: 422,
    errors.FilterFailed: 422,
    errors.OperatorFailed: 422,  # only :simulate runs operators inside a request
    errors.IdempotencyConflict: 422,
    errors.KeyNotText: 422,
    errors.PositionNotOfStore: 422,
    errors.BufferFull: 429,
    errors.TooManyFilters: 429,
    errors.UnsupportedMediaType: 415,
    errors.PayloadTooLarge: 413,
    errors.StaleTag: 412,
    errors.OffsetTruncated: 410,
    errors.InstanceGone: 410,
    errors.Conflict: 409,
    errors.Unknown: 404,
    errors.InternalStream: 403,
    errors.CatalogUnavailable: 503,
    errors.StoreNotReadable: 503,
    errors.StoreBehind: 503,
    errors.StorageUnavailable: 503,
    StreamError: 500,
}
_PHRASES = {413: "Content Too Large", 422: "Unprocessable Content"}  # as of RFC 9110; Python learns them in 3.13
_REQUEST_IDS = random.Random()  # noqa: S311  of its own: whoever seeds the common one gets the sequence that it asked for
_CODES = {400: "bad_request", 404: "no_such_route", 405: "method_not_allowed", 503: "unavailable"}


def new_request_id() -> str:
    """Of a caller who gave none. It only has to differ from others: no system call."""
    return f"{_REQUEST_IDS.getrandbits(128):032x}"


class ProblemError(HTTPException):
    """A refusal the API makes itself (authentication, preconditions, bodies): status, code and detail as given."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        errors: Sequence[Mapping[str, str]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, detail, headers)
        self.code = code
        self.errors = errors


def refused(code: str, pointer: str, detail: str) -> ProblemError:
    """The refusal (422) of one part of a request; `pointer` as in ProblemItemView."""
    return ProblemError(422, code, detail, [{"pointer": pointer, "detail": detail}])


class ProblemItemView(BaseModel):
    """One fault in the input: where, and what. Where is a JSON pointer into the body; `?name`, a parameter of the
    query; `{name}`, a part of the path; `Name:`, a header.
    """

    pointer: str
    detail: str


class ProblemView(BaseModel):
    """Every error's body (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": f"{TYPE_PREFIX}unknown_job",
                    "title": "Not Found",
                    "status": 404,
                    "detail": "there is no job 'visits'",
                    "instance": "/v1/jobs/visits",
                    "code": "unknown_job",
                    "request_id": "0f8fad5bd9cb469fa165b4e6d0a0b7c1",
                }
            ]
        }
    )
    type: str
    title: str
    status: int
    detail: str
    instance: str
    code: str
    request_id: str
    errors: list[ProblemItemView] | None = None
    start_offset: int | None = None
    reason: str | None = None
    records: int | None = None
    max_records: int | None = None
    bytes: int | None = None
    max_bytes: int | None = None


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses=` of a route: each status with the problem schema, for the OpenAPI document."""
    schema = {"$ref": "#/components/schemas/ProblemView"}
    return {
        status: {"description": phrase(status), "content": {MEDIA_TYPE: {"schema": schema}}}
        for status in sorted(statuses)
    }


def phrase(status: int) -> str:
    """A status in words."""
    return _PHRASES.get(status) or HTTPStatus(status).phrase


def problem(
    request: Request,
    status: int,
    code: str,
    detail: str,
    *,
    items: Sequence[Mapping[str, str]] = (),
    headers: Mapping[str, str] | None = None,
    **more: Any,
) -> Response:
    """The answer itself; `more` becomes extension members."""
    if items:
        more["errors"] = list(items)
    request_id = request.scope.get("request_id", "")
    body = problem_body(status, code, detail, instance=request.url.path, request_id=request_id, **more)
    return Response(body, status, headers=dict(headers or {}), media_type=MEDIA_TYPE)


def problem_body(status: int, code: str, detail: str, *, instance: str, request_id: str, **more: Any) -> bytes:
    """A problem as bytes; `more` becomes extension members."""
    body = {
        "type": TYPE_PREFIX + code,
        "title": phrase(status),
        "status": status,
        "detail": detail,
        "instance": instance,
        "code": code,
        "request_id": request_id,
        **more,
    }
    return orjson.dumps(body)


def install(app: FastAPI) -> None:
    """Give every error that may leave a route its handler."""
    handlers: list[tuple[type[Exception], Any]] = [
        (StreamError, _error),
        (ProblemError, _refusal),
        (RequestValidationError, _invalid_request),
        (HTTPException, _http_error),
        (SQLAlchemyError, _error),
    ]
    for error, handler in handlers:
        app.add_exception_handler(error, handler)


def status_of(error: Exception) -> int:
    """The status of an error: that of its nearest ancestor in the table."""
    return next((STATUS[cls] for cls in type(error).__mro__ if cls in STATUS), 500)


def items_of(error: ValidationError | RequestValidationError, *, skip: int = 0) -> list[dict[str, str]]:
    """Pydantic's errors as pointers into the document; `skip` leading parts of each location are left out."""
    return [{"pointer": pointer_to(fault["loc"][skip:]), "detail": in_words(fault)} for fault in error.errors()]


def pointer_to(location: Sequence[str | int]) -> str:
    """A JSON pointer (RFC 6901): `/operators/0/where`; the whole document is the empty string."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in location)


def _place(location: Sequence[str | int]) -> str:
    """The place in a request of one of the framework's findings."""
    part, *rest = location
    name = str(rest[-1]) if rest else ""
    return {"query": f"?{name}", "path": f"{{{name}}}", "header": f"{name}:"}.get(str(part), pointer_to(rest))


def _with_place(detail: str, items: Sequence[Mapping[str, str]]) -> str:
    """The detail; where it only repeats the first fault, with its place."""
    if not items or detail != items[0]["detail"]:
        return detail
    return f"{items[0]['pointer'] or 'the body'}: {detail}"


class Refusal(NamedTuple):
    """An error as it is answered, whichever request met it; `more` become extension members."""

    status: int
    code: str
    detail: str
    items: Sequence[Mapping[str, str]] = ()
    headers: Mapping[str, str] | None = None
    more: Mapping[str, Any] = {}

    def answer(self, request: Request) -> Response:
        """The problem."""
        return problem(
            request, self.status, self.code, self.detail, items=self.items, headers=self.headers, **self.more
        )


def refusal_of(error: StreamError | ProblemError) -> Refusal:
    """How an error is answered."""
    if isinstance(error, ProblemError):
        detail = _with_place(error.detail, error.errors)
        return Refusal(error.status_code, error.code, detail, error.errors, error.headers)
    status = status_of(error)
    items = [{"pointer": item.pointer, "detail": item.detail} for item in error.errors]
    more: dict[str, Any] = {}
    headers: dict[str, str] = {}
    if isinstance(error, errors.OffsetTruncated):
        more["start_offset"] = error.start_offset
    if isinstance(error, errors.StoreNotReadable | errors.StoreBehind):
        more["reason"] = error.reason
    if isinstance(error, errors.OperatorFailed):
        more |= error.figures
    if isinstance(error, errors.BufferFull):
        headers["Retry-After"] = str(max(1, round(error.retry_after_s)))
    if status == 503 or isinstance(error, errors.TooManyFilters):
        headers["Retry-After"] = "1"
    return Refusal(status, error.code, str(error), items, headers, more)


def answer_error(request: Request, error: StreamError | SQLAlchemyError) -> Response:
    """The problem that ends a request, in a route or ahead of the framework; a fault of ours is logged."""
    if isinstance(error, SQLAlchemyError):
        structlog.get_logger().error("catalog_failed", error=str(error), exc_info=error)
        detail, headers = "the catalog did not answer; try again", {"Retry-After": "1"}
        return problem(request, 503, "catalog_unavailable", detail, headers=headers)
    if status_of(error) >= 500 and not isinstance(error, errors.StoreNotReadable | errors.StoreBehind):
        structlog.get_logger().error("request_failed", code=error.code, error=str(error), exc_info=error)
    return refusal_of(error).answer(request)


async def _error(request: Request, error: StreamError | SQLAlchemyError) -> Response:
    return answer_error(request, error)


async def _refusal(request: Request, error: ProblemError) -> Response:
    return refusal_of(error).answer(request)


async def _invalid_request(request: Request, error: RequestValidationError) -> Response:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return problem(request, 400, "malformed_json", f"the body is not JSON: {first['ctx']['error']}")
    items = [{"pointer": _place(fault["loc"]), "detail": in_words(fault)} for fault in error.errors()]
    return problem(request, 422, "invalid_request", _with_place(items[0]["detail"], items), items=items)


async def _http_error(request: Request, error: HTTPException) -> Response:
    status, headers = error.status_code, dict(error.headers or {})
    detail = error.detail
    if status == 404:
        detail = f"nothing is served at {request.url.path}"
    elif status == 405:
        headers["Allow"] = ", ".join(_methods_of(request))
        detail = f"{request.method} is not served at {request.url.path}, only {headers['Allow']}"
    return problem(request, status, _CODES.get(status, f"http_{status}"), detail, headers=headers)


def _methods_of(request: Request) -> list[str]:
    """The methods that a document has for this path; what is in none (their own pages) is to be read."""
    routes = (each for each in request.app.routes if isinstance(each, APIRoute) and each.include_in_schema)
    path = request.url.path
    found = (each for each in routes if re.fullmatch(re.sub(r"{\w+}", "[^/:]+", each.path_format), path))
    return sorted({method for each in found for method in each.methods or ()}) or ["GET"]
