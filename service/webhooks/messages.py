"""What is posted of a record, and of a gap: a body and an id that stays with each attempt.

It knows shapes. It refuses to know signatures and addresses.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

import pyarrow as pa

from service.payloads.answers import record_texts
from service.pulls import PulledRange
from service.reads.subscriptions import Delivery
from service.streams.errors import KeyNotText

_LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999, which RFC 3339 has as its last


class Source(NamedTuple):
    """The subscription that messages are of."""

    subscription_id: str
    stream: str
    name: str


class Message(NamedTuple):
    """A message; `position`: what to acknowledge behind it. `row`: the record that it is of; None: it is of a gap."""

    id: str
    body: bytes
    position: int
    row: pa.RecordBatch | None


def messages_of(source: Source, delivery: Delivery) -> dict[int, Iterator[Message]]:
    """By partition, the messages of a pull, in order; each is made when it is its turn."""
    batches: dict[int, list[pa.RecordBatch]] = {partition: [] for partition in delivery.positions}
    for batch in delivery.batches:
        batches[batch.column("partition")[0].as_py()].append(batch)
    gaps = {gap.partition: gap for gap in delivery.gaps}
    return {at: _messages(source, at, gaps.get(at), batches[at]) for at in batches}


def _messages(
    source: Source, partition: int, gap: PulledRange | None, batches: list[pa.RecordBatch]
) -> Iterator[Message]:
    place = f"{source.subscription_id}-{partition}"
    if gap is not None:
        data = {"partition": partition, "start": gap.begin, "end": gap.end}
        yield Message(f"{place}-gap-{gap.end}", _body(source, "gap", None, json.dumps(data)), gap.end, None)
    for batch in batches:
        for number, offset in enumerate(batch.column("offset").to_pylist()):
            row = batch.slice(number, 1)
            [timestamp] = row.column("timestamp").to_pylist()
            yield Message(f"{place}-{offset}", _body(source, "record", timestamp, _record(row)), offset + 1, row)


def _record(row: pa.RecordBatch) -> str:
    """A record as pages show it; its key in base64, and `key_encoding` to say so, where it is no text."""
    try:
        [text] = record_texts(row, "utf8")
    except KeyNotText:
        [text] = record_texts(row, "base64")
        return f'{text[:-1]},"key_encoding":"base64"}}'
    return text


def _body(source: Source, kind: str, timestamp_ms: int | None, data: str) -> bytes:
    """As Standard Webhooks recommends one: what it is, when that happened, and the data."""
    moment = None if timestamp_ms is None or timestamp_ms > _LAST_MS else _rfc3339(timestamp_ms)
    head = {"type": kind, "timestamp": moment, "stream": source.stream, "subscription": source.name}
    return f'{json.dumps(head)[:-1]}, "data": {data}}}'.encode()


def _rfc3339(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
