"""Requests, answers, and when a request is sent again: said once, for callers that block and callers that await.

An exchange is a generator that yields a request and is sent its answer, as `httpx.Auth.auth_flow` is; a `Pause` is sent
nothing. It knows no clock but that of its deadline, and no network: the two clients carry it out.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from millrace_client.codes import BY_CODE
from millrace_client.errors import ApiError, MillraceError, NoAnswer, TooManyRequestsError, family_of

T = TypeVar("T")
Query: TypeAlias = Mapping[str, str | int | bool | None]

_JITTER = random.Random()  # noqa: S311  of its own: a program that seeds the common one gets the sequence it asked for
_MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked. `wait_s`: how long the service may wait before it answers; members of `query` that are None are
    left out. One that `is_repeatable` may be sent again when it is not known whether it was carried out.
    """

    method: str
    path: str
    query: Query = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    wait_s: float = 0.0
    is_repeatable: bool = False

    def parameters(self) -> dict[str, str]:
        """The query as it is sent."""
        return {name: _text(value) for name, value in self.query.items() if value is not None}


def path_of(collection: str, name: str) -> str:
    """The path of one of a collection, whatever its name holds."""
    return f"/v1/{collection}/{quote(name, safe='')}"


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def json_request(
    method: str, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None, **more: Any
) -> Request:
    """A request with a body of JSON, if any; GET is repeatable by itself."""
    content, sent = None, dict(headers or {})
    if body is not None:
        content = json.dumps(body, allow_nan=False).encode()
        sent.setdefault("Content-Type", "application/json")
    more.setdefault("is_repeatable", method == "GET")
    return Request(method, path, headers=sent, content=content, **more)


@dataclass(frozen=True, slots=True)
class Answer:
    """A good answer: below 400."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    def json(self) -> Any:
        """Its body; None where it has none."""
        return json.loads(self.content) if self.content else None


@dataclass(frozen=True, slots=True)
class Pause:
    """Nothing is asked for so long."""

    seconds: float


Exchange: TypeAlias = Generator[Request | Pause, Answer, T]


@dataclass(frozen=True, slots=True)
class Retries:
    """How a request is sent again that the service could not take just now: after a random time up to `first_s`, twice
    as much each time, at most `most_s`, beyond what `Retry-After` asks for; until `limit_s` have passed.
    """

    first_s: float = 0.05
    most_s: float = 5.0
    limit_s: float = 30.0

    def pause_s(self, attempt: int, retry_after_s: float | None) -> float:
        """How long to wait after an attempt, from 0."""
        longest_s = min(self.most_s, self.first_s * 2.0 ** min(attempt, _MOST_DOUBLINGS))
        return (retry_after_s or 0.0) + _JITTER.uniform(0, longest_s)


def answered(request: Request, retries: Retries) -> Exchange[Answer]:
    """The good answer to a request. Raises ApiError, NoAnswer."""
    until_s = time.monotonic() + retries.limit_s
    for attempt in itertools.count():
        try:
            answer = yield request
            if answer.status < 400:
                return answer
            error: MillraceError = error_of(answer.status, answer.headers, answer.content)
        except NoAnswer as no_answer:
            error = no_answer
        pause_s = retries.pause_s(attempt, error.retry_after_s)
        if not _may_be_repeated(request, error) or time.monotonic() + pause_s > until_s:
            raise error
        yield Pause(pause_s)
    raise AssertionError("unreachable")


def _may_be_repeated(request: Request, error: MillraceError) -> bool:
    """One that was refused for now always; one whose outcome is not known only if twice is as good as once."""
    return error.is_transient and (request.is_repeatable or isinstance(error, TooManyRequestsError))


def error_of(status: int, headers: Mapping[str, str], content: bytes) -> ApiError:
    """The error of an answer of 400 or above, also of one that something on the way made."""
    try:
        problem = json.loads(content)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {"detail": content[:200].decode(errors="replace")}
    retry_after = headers.get("Retry-After", "")
    return _typed(status, problem, float(retry_after) if retry_after.isdecimal() else None)


def error_of_event(problem: Mapping[str, Any]) -> ApiError:
    """The error that ends a tail: its status is the one that its code has."""
    kind = BY_CODE.get(str(problem.get("code")))
    return _typed(kind.http_status if kind else 500, problem, None)


def _typed(status: int, problem: Mapping[str, Any], retry_after_s: float | None) -> ApiError:
    kind = BY_CODE.get(str(problem.get("code")), family_of(status))
    return kind(status, problem, retry_after_s)
