"""Signatures of webhooks, by the vector that implementations of Standard Webhooks share."""

from __future__ import annotations

import base64

import pytest

from service.webhooks.signing import key_of, signed_headers

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


def test_a_message_is_signed_as_the_standard_says() -> None:
    headers = signed_headers(key_of(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, b'{"test": 2432232314}')
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    "secret",
    [
        SECRET.removeprefix("whsec_"),
        "whsec_",
        "whsec_not base64",
        f"whsec_{base64.b64encode(bytes(23)).decode()}",
        f"whsec_{base64.b64encode(bytes(65)).decode()}",
    ],
)
def test_what_is_no_secret_is_refused(secret: str) -> None:
    with pytest.raises(ValueError, match="must be whsec_"):
        key_of(secret)
