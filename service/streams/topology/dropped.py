"""What operators did not let through: counted by reason, and kept where a job asks for it.

It knows how far records were from going on, in the steps that people think of when they set an interval or a grace; and
how a dropped record looks in the stream `<job>-dropped`: as it reached the operator, with the reason in its
headers, and with the error where it failed. It refuses to know why an operator drops.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.streams import measures
from service.streams.inputs import NO_CAUSE, Origins, split_words
from service.streams.records import RECORD_SCHEMA, Dropped, as_records

OPERATOR, REASON, OFFSET = "millrace-operator", "millrace-reason", "millrace-offset"
ERROR = "millrace-error"  # what the operator failed at: of records that failed alone
OURS = {OPERATOR, REASON, OFFSET, ERROR}

_SECOND, _MINUTE, _HOUR, _DAY = 1_000, 60_000, 3_600_000, 86_400_000
BOUNDS: Final = (
    *(1, 2, 5, 10, 20, 50, 100, 200, 500),
    *(_SECOND * n for n in (1, 2, 5, 10, 30)),
    *(_MINUTE * n for n in (1, 2, 5, 10, 30)),
    *(_HOUR * n for n in (1, 2, 6, 12)),
    *(_DAY * n for n in (1, 2, 7, 30, 90, 365)),
)  # ms
BEYOND: Final = "beyond"  # what lies at the last bound or above


def counted(dropped: Sequence[Dropped]) -> dict[str, dict[str, int]]:
    """How many records each operator dropped, by reason."""
    found: dict[str, Counter[str]] = {}
    for each in dropped:
        found.setdefault(each.operator, Counter())[each.reason] += each.rows.num_rows
    return {operator: dict(reasons) for operator, reasons in found.items()}


def missed(dropped: Sequence[Dropped]) -> dict[str, dict[str, Any]]:
    """By how many ms records missed going on, by operator and reason, of those that time would have let go on: count,
    sum and max, and how many lie `below` each bound and not below the one before. Bounds with none are left out.
    """
    found: dict[str, dict[str, Any]] = {}
    for each in dropped:
        if each.missed_by_ms is None or not len(each.missed_by_ms):
            continue
        places = np.bincount(np.searchsorted(BOUNDS, each.missed_by_ms, side="right"))
        below = {_BELOW[place]: int(places[place]) for place in np.flatnonzero(places).tolist()}
        reading = {**measures.spread(each.missed_by_ms), "below": below}
        reasons = found.setdefault(each.operator, {})
        reasons[each.reason] = measures.after(reasons.get(each.reason, {}), reading)
    return found


_BELOW = [*map(str, BOUNDS), BEYOND]


def kept(dropped: Sequence[Dropped], origins: Origins) -> pa.RecordBatch:
    """The dropped records (RECORD_SCHEMA) in the order of the source rows that caused them.

    Their headers say which operator dropped them, why, the offset of the record that caused it, and its error.
    """
    rows = pa.concat_batches([each.rows for each in dropped])
    headers = pa.concat_arrays([_headers(each, origins) for each in dropped])
    marked = rows.set_column(rows.schema.get_field_index("headers"), RECORD_SCHEMA.field("headers"), headers)
    order = pc.sort_indices(pa.chunked_array([rows.column("ordinal")]))  # stable: of one cause as it happened
    return as_records(marked.take(order))


def _headers(each: Dropped, origins: Origins) -> pa.Array:
    """The record's own headers, a JSON object, with ours in front; of the same name only ours stay."""
    ours = json.dumps({OPERATOR: each.operator, REASON: each.reason})[:-1] + f', "{OFFSET}": "'
    own = _others(each.rows.column("headers")).fill_null("{}")
    rest = pc.utf8_replace_slice(pc.utf8_trim_whitespace(own), 0, 1, "")
    comma = pc.if_else(pc.equal(pc.utf8_trim_whitespace(rest), "}"), "", ", ")
    words = origins.words(each.rows.column("ordinal").to_numpy())
    offsets = pa.array(np.where(words == NO_CAUSE, NO_CAUSE, split_words(words)[1])).cast(pa.utf8())
    return pc.binary_join_element_wise(ours, offsets, '"', _errors(each), comma, rest, "")


def _errors(each: Dropped) -> pa.Array | str:
    """The header with the error, behind others."""
    if each.errors is None:
        return ""
    texts = [f", {json.dumps(ERROR)}: {json.dumps(error, ensure_ascii=False)}" for error in each.errors]
    return pa.array(texts, pa.utf8())


def _others(headers: pa.Array) -> pa.Array:
    """Headers without those that have our names, as records have that were dropped before."""
    if not pc.any(pc.match_substring(headers, "millrace-")).as_py():
        return headers
    return pa.array([text and _without_ours(text) for text in headers.to_pylist()], pa.utf8())


def _without_ours(text: str) -> str:
    kept = {name: value for name, value in json.loads(text).items() if name not in OURS}
    return json.dumps(kept, ensure_ascii=False)
