"""Every way in which a call fails, as one tree.

    MillraceError
    ├── NoAnswer                    no whole answer came; whether the request was carried out is not known
    ├── JobFailed                   a job that was waited for failed or stopped
    ├── DeliveryFailed              batches of a producer that were not appended
    └── ApiError                    the service answered with a problem (RFC 9457)
        ├── BadRequestError         400
        ├── NotAuthenticatedError   401
        ├── PermissionDeniedError   403
        ├── NotFoundError           404
        ├── ConflictError           409
        ├── GoneError               410
        ├── PreconditionError       412, 428
        ├── UnprocessableError      422
        ├── TooManyRequestsError    429
        ├── RequestError            any other 4xx
        ├── UnavailableError        502, 503, 504: ask again
        └── ServerError             any other 5xx

Below each family there is a class for each code of docs/errors.md (`millrace_client.codes`): `UnknownStream` is a
`NotFoundError`. A code that a newer service has, and this client does not know, is raised as its family.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class MillraceError(Exception):
    """Anything that this package raises by itself."""

    is_transient: bool = False  # whether the same request may succeed a moment later
    retry_after_s: float | None = None


class NoAnswer(MillraceError):
    """The service was not reached, or its answer broke off or took too long."""

    is_transient = True


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request. `pointer`: a JSON pointer into the body; `?name`, `{name}`, `Name:`: a parameter
    of the query, a part of the path, a header.
    """

    pointer: str
    detail: str


class ApiError(MillraceError):
    """The service refused a request, or could not carry it out.

    `problem` has all members of the answer, such as `start_offset` with `offset_truncated`.
    """

    code: str = ""
    http_status: ClassVar[int] = 0  # of a known code, the status that it comes with

    def __init__(self, status: int, problem: Mapping[str, Any], retry_after_s: float | None = None) -> None:
        self.status, self.problem, self.retry_after_s = status, problem, retry_after_s
        self.code = str(problem.get("code", self.code))
        self.detail = str(problem.get("detail", ""))
        self.request_id: str | None = problem.get("request_id")
        self.faults: Sequence[Fault] = [Fault(each["pointer"], each["detail"]) for each in problem.get("errors") or ()]
        super().__init__(f"{status} {self.code}: {self.detail}")


class BadRequestError(ApiError):
    """400: it could not be read."""


class NotAuthenticatedError(ApiError):
    """401: no key, or none that is valid."""


class PermissionDeniedError(ApiError):
    """403: the key may not do that, or nobody may."""


class NotFoundError(ApiError):
    """404: what was named does not exist."""


class ConflictError(ApiError):
    """409: it contradicts what is there."""


class GoneError(ApiError):
    """410: it was there and is not any more."""


class PreconditionError(ApiError):
    """412, 428: `If-Match` is stale, or missing."""


class UnprocessableError(ApiError):
    """422: it could be read, and is not valid; `faults` says where."""


class TooManyRequestsError(ApiError):
    """429: ask again after `retry_after_s`; nothing was done."""

    is_transient = True


class RequestError(ApiError):
    """Any other 4xx."""


class UnavailableError(ApiError):
    """502, 503, 504: ask again."""

    is_transient = True


class ServerError(ApiError):
    """Any other 5xx: a fault of the service."""


class JobFailed(MillraceError):
    """A job ended before it was what was waited for. `code` is one of a failed job, empty where it was stopped."""

    def __init__(self, job: str, state: str, code: str, detail: str) -> None:
        self.job, self.state, self.code, self.detail = job, state, code, detail
        super().__init__(f"job {job!r} is {state}: {code} {detail}".rstrip(": "))


@dataclass(frozen=True, slots=True)
class FailedBatch:
    """Records that were not appended, or (after `NoAnswer`) perhaps were: the same key and records again settle it."""

    records: Sequence[Mapping[str, Any]]
    idempotency_key: str
    error: BaseException


class DeliveryFailed(MillraceError):
    """Some of what was sent since the last `flush` was not appended."""

    shown: ClassVar[int] = 3

    def __init__(self, batches: Sequence[FailedBatch]) -> None:
        self.batches = batches
        reasons = "; ".join(f"{len(each.records)} records: {each.error}" for each in batches[: self.shown])
        super().__init__(f"{len(batches)} batches were not appended: {reasons}")


_FAMILIES: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: NotAuthenticatedError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    412: PreconditionError,
    422: UnprocessableError,
    428: PreconditionError,
    429: TooManyRequestsError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}


def family_of(status: int) -> type[ApiError]:
    """The class for a status whose code is not known."""
    return _FAMILIES.get(status, RequestError if status < 500 else ServerError)
