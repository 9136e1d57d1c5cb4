"""Records that a target refused (4xx): kept in the stream `<subscription>-dead`, with headers that say why.

It knows that stream. It refuses to know who refused what.
"""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa

from service.catalog import subscriptions
from service.catalog.engine import Catalog
from service.ingest import AppendBuffer, Idempotency
from service.payloads import Payload
from service.streams.records import RECORD_SCHEMA
from service.webhooks.messages import Message, Source
from service.webhooks.sender import Attempt

NOBODY = "webhooks"  # whose Idempotency-Keys these are: no API key's


class DeadRecords:
    """What was refused, of one process."""

    def __init__(self, catalog: Catalog, ingest: AppendBuffer) -> None:
        self._catalog, self._ingest = catalog, ingest

    def keep(self, source: Source, message: Message, attempt: Attempt) -> None:
        """Append the record of a message, once. Raises BufferFull, CatalogUnavailable, StorageUnavailable and others:
        it is not known to be kept then.
        """
        if message.row is None:
            return
        stream = self._catalog.write(subscriptions.dead_stream, source.stream, source.name)
        digest = hashlib.sha256(message.body).hexdigest()
        idempotency = Idempotency(NOBODY, stream.id, message.id, digest)
        if self._ingest.answered(idempotency) is None:
            self._ingest.append(stream, Payload(_with_reason(source, message.row, attempt), None), idempotency).result()


def _with_reason(source: Source, row: pa.RecordBatch, attempt: Attempt) -> pa.RecordBatch:
    [known] = row.column("headers").to_pylist()
    headers = json.loads(known or "{}") | {
        "millrace-webhook-status": str(attempt.status),
        "millrace-webhook-stream": source.stream,
        "millrace-webhook-partition": str(row.column("partition")[0].as_py()),
        "millrace-webhook-offset": str(row.column("offset")[0].as_py()),
    }
    columns = [row.column(name) for name in RECORD_SCHEMA.names if name != "headers"]
    return pa.RecordBatch.from_arrays([*columns, pa.array([json.dumps(headers)], pa.utf8())], schema=RECORD_SCHEMA)
