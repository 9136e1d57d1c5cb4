"""Signatures of webhooks (Standard Webhooks 1.0.0, symmetric): the headers of a message.

It knows secrets and bytes. It refuses to know what is in a message and where it goes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

PREFIX: Final = "whsec_"
MIN_KEY_BYTES: Final = 24
MAX_KEY_BYTES: Final = 64


def key_of(secret: str) -> bytes:
    """The key in a secret. Raises ValueError unless it is `whsec_` and 24 to 64 bytes in base64."""
    try:
        key = base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    except binascii.Error as error:
        raise ValueError(f"must be {PREFIX} and base64") from error
    if not secret.startswith(PREFIX) or not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"must be {PREFIX} and {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes in base64")
    return key


def signed_headers(key: bytes, message_id: str, timestamp_s: int, body: bytes) -> dict[str, str]:
    """The headers of an attempt to deliver a message. The id stays with each attempt, the time does not."""
    digest = hmac.new(key, f"{message_id}.{timestamp_s}.".encode() + body, hashlib.sha256).digest()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp_s),
        "webhook-signature": f"v1,{base64.b64encode(digest).decode()}",
    }
