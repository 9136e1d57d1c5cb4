"""The same records in the three formats, so that one test asks all of them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from service.payloads import ARROW, JSON, NDJSON, Payload, Rules, decode
from service.streams.errors import InvalidRecords

NOW = 1_700_000_000_000
FORMATS = (JSON, NDJSON, ARROW)
RULES = Rules(partitions=4, now_ms=NOW)
PREFIX = {JSON: "/records/", NDJSON: "/", ARROW: "/"}


def body_of(media_type: str, records: Sequence[Mapping[str, Any]]) -> bytes:
    """Records as a client would send them; every value is written as JSON."""
    if media_type == JSON:
        return json.dumps({"records": records}).encode()
    if media_type == NDJSON:
        return "".join(json.dumps(record) + "\n" for record in records).encode()
    texts = ("value", "headers")
    names = sorted({name for record in records for name in record})
    columns = {
        name: [
            json.dumps(record[name]) if name in texts and record.get(name) is not None else record.get(name)
            for record in records
        ]
        for name in names
    }
    return ipc(pa.table(columns))


def ipc(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    body: bytes = sink.getvalue().to_pybytes()
    return body


def rows(payload: Payload) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = payload.records.to_pylist()
    return found


def complaints(media_type: str, body: bytes, rules: Rules = RULES) -> list[tuple[str, str]]:
    """(pointer, detail) of what is wrong with a body; an empty list when it is accepted."""
    try:
        decode(media_type, body, rules)
    except InvalidRecords as error:
        return [(problem.pointer, problem.detail) for problem in error.errors]
    return []


def pointers(media_type: str, body: bytes, rules: Rules = RULES) -> list[str]:
    return [pointer for pointer, _ in complaints(media_type, body, rules)]
