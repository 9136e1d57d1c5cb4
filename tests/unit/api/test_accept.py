"""Which media type an `Accept` header asks for (RFC 9110, section 12.5.1)."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from service.api.bodies import accepts
from service.payloads import ARROW, JSON, NDJSON
from service.problems import ProblemError


def chosen(*headers: str) -> str:
    scope = {"type": "http", "headers": [(b"accept", header.encode("latin-1")) for header in headers]}
    return accepts(Request(scope), JSON, NDJSON, ARROW)


@pytest.mark.parametrize(
    ("header", "media_type"),
    [
        ("*/*", JSON),
        ("", JSON),
        (ARROW, ARROW),
        (f"{ARROW}, */*;q=0.1", ARROW),
        ("application/JSON; charset=utf-8", JSON),
        ("application/*;q=.3, application/x-ndjson;q=0.2", JSON),
        ("application/x-ndjson;q=0.2, application/json;q=0.1", NDJSON),
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", JSON),  # as Java sends it
        # the most specific range counts, not the most generous one
        ("application/json;q=0, */*", NDJSON),
        ("*/*, application/json;q=0", NDJSON),
        # a weight that is none counts as 1, a range that is none not at all
        ("application/x-ndjson;q=nan, application/json;q=.5", NDJSON),
        ("application/x-ndjson;q=\u00b2", NDJSON),
        ("json, application/x-ndjson", NDJSON),
        ("a/b/c, application/x-ndjson", NDJSON),
    ],
)
def test_the_best_offer_is_taken(header: str, media_type: str) -> None:
    assert chosen(header) == media_type


def test_without_the_header_anything_is_accepted() -> None:
    assert chosen() == JSON


def test_several_headers_are_one() -> None:
    assert chosen("text/html", ARROW) == ARROW


@pytest.mark.parametrize("header", ["text/html", "application/json;q=0", "json", "application/*;q=0, text/*"])
def test_what_no_offer_meets_is_406(header: str) -> None:
    with pytest.raises(ProblemError) as refused:
        chosen(header)
    assert refused.value.status_code == 406
