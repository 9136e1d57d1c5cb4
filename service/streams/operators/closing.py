"""Why a result came out: records that leave because time has passed say so in a header.

It knows the header; it refuses to know what closing is to an operator.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

CLOSED_BY: Final = "millrace-closed-by"


def unsaid(headers: pa.Array) -> pa.Array:
    """Headers of records from outside, without a reason that another job had to say, or somebody made up."""
    if headers.null_count == len(headers) or not pc.any(pc.match_substring(headers, CLOSED_BY)).as_py():
        return headers
    encoded = headers.dictionary_encode()
    return pa.array([_without_reason(text) for text in encoded.dictionary.to_pylist()], pa.utf8()).take(encoded.indices)


def say_why(headers: pa.Array, reason: str) -> pa.Array:
    """Headers (JSON object texts or nulls) with the reason in each that does not have one from an earlier operator."""
    alone = pa.scalar(json.dumps({CLOSED_BY: reason}, separators=(",", ":")), pa.utf8())
    if headers.null_count < len(headers):
        encoded = headers.dictionary_encode()
        said = [_with_reason(text, reason) for text in encoded.dictionary.to_pylist()]
        headers = pa.array(said, pa.utf8()).take(encoded.indices)
    return headers.fill_null(alone)


def _without_reason(text: str) -> str | None:
    kept = {name: value for name, value in json.loads(text).items() if name != CLOSED_BY}
    return json.dumps(kept, ensure_ascii=False, separators=(",", ":")) if kept else None


def _with_reason(text: str, reason: str) -> str:
    return json.dumps({CLOSED_BY: reason} | json.loads(text), ensure_ascii=False, separators=(",", ":"))
