"""Records on their way out: a page of one partition as JSON bytes, as lines of JSON or as an Arrow IPC stream; and
batches one after another, as the pieces of a longer one.

Knows how records are shown. Refuses to know where a page begins and what comes after it.

JSON is put together from prepared texts, for values and headers are JSON already: 0.9 M records/s. A changelog,
whose entries are bytes of a codec, is shown as base64 and without timestamps.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.errors import KeyNotText
from service.streams.records import RECORD_SCHEMA

KeyEncoding = Literal["utf8", "base64"]

PAGE_SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        *(pa.field(column.name, column.type) for column in RECORD_SCHEMA),
    ]
)
_RECORD_BYTES = 128  # about what JSON adds to a record's own bytes

_encode = msgspec.json.Encoder().encode


def as_page(batch: pa.RecordBatch, partition: int, offsets: npt.NDArray[np.int64]) -> pa.RecordBatch:
    """Rows of a chunk (RECORD_SCHEMA or CHANGELOG_SCHEMA) as PAGE_SCHEMA: with partition and offsets in front."""
    rows = batch.num_rows
    if "timestamp" not in batch.schema.names:
        batch = _changelog_as_records(batch)
    where = [pa.array(np.full(rows, partition, np.int32)), pa.array(offsets)]
    return pa.RecordBatch.from_arrays([*where, *batch.columns], schema=PAGE_SCHEMA)


def rows_within(page: pa.RecordBatch, max_bytes: int) -> tuple[int, int]:
    """How many rows fit in an answer of `max_bytes`, and the bytes they take."""
    weight = np.full(page.num_rows, _RECORD_BYTES, np.int64)
    for name in ("key", "value", "headers"):
        weight += pc.fill_null(pc.binary_length(page.column(name)), 0).to_numpy(zero_copy_only=False)
    reached = np.cumsum(weight)
    rows = int(np.searchsorted(reached, max_bytes, side="right"))
    return rows, int(reached[rows - 1]) if rows else 0


def arrow_answer(pages: Sequence[pa.RecordBatch]) -> bytes:
    """An Arrow IPC stream of PAGE_SCHEMA."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, PAGE_SCHEMA) as writer:
        for page in pages:
            writer.write_batch(page)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def json_answer(pages: Sequence[pa.RecordBatch], key_encoding: KeyEncoding, following: str, *, at_end: bool) -> bytes:
    """`{"records": […], "next": …, "at_end": …}`. Raises KeyNotText when a key is not UTF-8 and should be."""
    records = ",".join(text for page in pages for text in record_texts(page, key_encoding))
    return f'{{"records":[{records}],"next":"{following}","at_end":{"true" if at_end else "false"}}}'.encode()


def ndjson_answer(pages: Iterable[pa.RecordBatch], key_encoding: KeyEncoding) -> bytes:
    """A record a line. Raises KeyNotText."""
    return "".join(f"{text}\n" for page in pages for text in record_texts(page, key_encoding)).encode()


class ArrowPieces:
    """An Arrow IPC stream that is handed on as it is written."""

    def __init__(self, schema: pa.Schema) -> None:
        self._sink = _Sink()
        self._writer = pa.ipc.new_stream(self._sink, schema)

    def of(self, batch: pa.RecordBatch) -> bytes:
        """The bytes of one more batch, behind those of the schema where it is the first."""
        self._writer.write_batch(batch)
        return self._sink.taken()

    def end(self) -> bytes:
        """The end mark."""
        self._writer.close()
        return self._sink.taken()


class _Sink:
    """A file for pyarrow. It knows no writer: a circle through C++ would never be freed."""

    closed = False

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, piece: pa.Buffer | bytes) -> int:
        self._pieces.append(bytes(piece))
        return len(self._pieces[-1])

    def taken(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        return b"".join(pieces)


def record_texts(page: pa.RecordBatch, key_encoding: KeyEncoding) -> Iterator[str]:
    """Each record of a page as JSON. Raises KeyNotText."""
    partition, offset, key, value, timestamp, start, end, headers = (column.to_pylist() for column in page.columns)
    keys = _base64_keys(key) if key_encoding == "base64" else _text_keys(key, offset)
    windows = (
        "null" if first is None else f'{{"start":{first},"end":{last}}}' for first, last in zip(start, end, strict=True)
    )
    for p, o, t, k, v, w, h in zip(partition, offset, timestamp, keys, value, windows, headers, strict=True):
        yield (
            f'{{"partition":{p},"offset":{o},"timestamp":{"null" if t is None else t},"key":{k},'
            f'"value":{v or "null"},"window":{w},"headers":{h or "{}"}}}'
        )


def _text_keys(keys: Iterable[bytes | None], offsets: Sequence[int]) -> Iterator[str]:
    for row, key in enumerate(keys):
        try:
            yield "null" if key is None else _encode(key.decode()).decode()
        except UnicodeDecodeError as error:
            raise KeyNotText(offsets[row]) from error


def _base64_keys(keys: Iterable[bytes | None]) -> Iterator[str]:
    return ("null" if key is None else f'"{_base64(key)}"' for key in keys)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _changelog_as_records(batch: pa.RecordBatch) -> pa.RecordBatch:
    key, value = batch.columns
    shown = [None if entry is None else f'"{_base64(entry)}"' for entry in value.to_pylist()]
    none = pa.nulls(batch.num_rows, pa.int64())
    columns = [key, pa.array(shown, pa.utf8()), none, none, none, pa.nulls(batch.num_rows, pa.utf8())]
    return pa.RecordBatch.from_arrays(columns, RECORD_SCHEMA.names)
