"""What of a body the audit keeps."""

from __future__ import annotations

import orjson
import pytest

from service.audit import MAX_OUTLINE_BYTES, outline


@pytest.mark.parametrize(
    ("content", "kept"),
    [
        ({"name": "a", "partitions": 2, "fields": None}, {"name": "a", "partitions": 2, "fields": None}),
        (
            {"push": {"url": "https://hooks.example/T0/B0/xyz?token=1", "secret": "whsec_abc"}},
            {"push": {"url": "https://hooks.example/…", "secret": "…"}},
        ),
        ({"url": "http://["}, {"url": "…"}),
        ({"headers": {"Authorization": "Bearer x"}, "Password": "p"}, {"headers": "…", "Password": "…"}),
        ({"reason": "x" * 201}, {"reason": "x" * 200 + "…"}),
        ({"list": list(range(51))}, {"list": [*range(50), "…"]}),
        ({"a": [[[[[[[[1]]]]]]]]}, {"a": [[[[[[["…"]]]]]]]}),
    ],
)
def test_an_outline_has_no_secrets_and_the_beginnings_of_texts_and_lists(
    content: dict[str, object], kept: dict[str, object]
) -> None:
    assert outline(content) == kept


def test_of_too_much_the_names_stay() -> None:
    long = {"name": "a", "operators": [{"where": "x" * 150} for _ in range(40)], "source": "clicks"}
    assert outline(long) == {"name": "a", "operators": "…", "source": "clicks"}


def test_an_outline_is_bounded_whatever_is_sent() -> None:
    wild = {f"{n}" * 100: "y" * 500 for n in range(1000)}
    assert len(orjson.dumps(outline(wild))) <= MAX_OUTLINE_BYTES
