"""When a request is sent again: what is transient, for how long, and only where twice is as good as once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from millrace_client import codes, errors
from millrace_client.errors import ApiError, NoAnswer
from millrace_client.exchanges import Answer, Pause, Request, Retries, answered, error_of, json_request

GET = json_request("GET", "/v1/streams")
POST = json_request("POST", "/v1/jobs/visits:stop")
QUICK = Retries(first_s=0.01, most_s=0.02, limit_s=10)


def problem(status: int, code: str, headers: Mapping[str, str] | None = None, **more: Any) -> Answer:
    return Answer(status, headers or {}, json.dumps({"code": code, "detail": "", **more}).encode())


def played(request: Request, *answers: Answer | NoAnswer, retries: Retries = QUICK) -> list[float]:
    """The pauses between the attempts, when each gets the next of these answers."""
    exchange, pauses = answered(request, retries), []
    assert next(exchange) is request
    for answer in answers:
        try:
            step = exchange.throw(answer) if isinstance(answer, NoAnswer) else exchange.send(answer)
        except StopIteration:
            return pauses
        assert isinstance(step, Pause)
        pauses.append(step.seconds)
        assert next(exchange) is request
    raise AssertionError("it goes on")


GOOD = Answer(200, {}, b"{}")


def test_a_good_answer_is_the_end() -> None:
    assert played(GET, GOOD) == []


@pytest.mark.parametrize(
    "failure",
    [
        NoAnswer("it broke off"),
        problem(503, "catalog_unavailable"),
        problem(429, "ingest_buffer_full"),
        problem(409, "idempotency_in_flight"),
        Answer(502, {}, b"<html>"),
    ],
    ids=str,
)
def test_what_fails_for_now_is_sent_again(failure: Answer | NoAnswer) -> None:
    assert len(played(GET, failure, failure, failure, GOOD)) == 3


def test_the_pause_is_at_least_what_the_service_asks_for_and_not_the_same_for_all() -> None:
    busy = problem(429, "ingest_buffer_full", {"Retry-After": "3"})
    [first], [second] = played(GET, busy, GOOD), played(GET, busy, GOOD)
    assert 3 <= first <= 3 + QUICK.first_s
    assert first != second


def test_pauses_double_up_to_a_bound() -> None:
    longest = [max(Retries(0.1, 1.0).pause_s(attempt, None) for _ in range(300)) for attempt in (0, 1, 2, 9, 5_000)]
    assert all(0.7 * bound < found <= bound for found, bound in zip(longest, (0.1, 0.2, 0.4, 1.0, 1.0), strict=True))


def test_after_its_time_the_last_error_is_raised() -> None:
    with pytest.raises(codes.CatalogUnavailable):
        played(GET, problem(503, "catalog_unavailable"), retries=Retries(limit_s=0))
    with pytest.raises(codes.IngestBufferFull):  # it would come back too late
        played(GET, problem(429, "ingest_buffer_full", {"Retry-After": "11"}))


@pytest.mark.parametrize("failure", [NoAnswer("it broke off"), problem(503, "catalog_unavailable")])
def test_what_may_have_been_done_is_not_asked_for_twice(failure: Answer | NoAnswer) -> None:
    with pytest.raises((NoAnswer, codes.CatalogUnavailable)):
        played(POST, failure, GOOD)


def test_what_was_refused_for_now_is_asked_for_again_whatever_it_is() -> None:
    assert len(played(POST, problem(429, "simulations_busy"), GOOD)) == 1


def test_what_is_wrong_is_raised_at_once_with_its_code() -> None:
    faults = [{"pointer": "/operators/0/where", "detail": "no such function"}]
    with pytest.raises(codes.InvalidSpec) as raised:
        played(GET, problem(422, "invalid_spec", errors=faults, request_id="r1"))
    assert isinstance(raised.value, errors.UnprocessableError)
    assert (raised.value.status, raised.value.code, raised.value.request_id) == (422, "invalid_spec", "r1")
    assert [(fault.pointer, fault.detail) for fault in raised.value.faults] == [
        ("/operators/0/where", "no such function")
    ]


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (problem(404, "unknown_galaxy"), errors.NotFoundError),
        (problem(418, "teapot"), errors.RequestError),
        (problem(507, "disk"), errors.ServerError),
        (Answer(504, {}, b"\xff<html>"), errors.UnavailableError),
        (Answer(500, {}, b"[]"), errors.ServerError),
    ],
)
def test_an_error_that_the_client_does_not_know_is_of_its_status(answer: Answer, kind: type[ApiError]) -> None:
    assert type(error_of(answer.status, answer.headers, answer.content)) is kind


def test_a_query_is_written_as_the_service_reads_it() -> None:
    request = json_request("GET", "/v1/stores", query={"limit": 3, "reverse": True, "key": None, "from": "a b"})
    assert request.parameters() == {"limit": "3", "reverse": "true", "from": "a b"}
