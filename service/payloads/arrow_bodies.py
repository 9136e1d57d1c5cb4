"""Arrow bodies: an IPC stream with columns key, value, timestamp, partition, headers, each of them optional.

Knows Arrow's types and framing. Refuses to know what a stream asks of a record.

Nothing in a body may unfold into more than it is: the columns' types are those whose size follows their bytes
(no dictionaries, views or run ends), and compressed buffers are added up before they are read.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from service.payloads.columns import MAX_PROBLEMS, Columns, refuse_too_many
from service.streams.errors import InvalidRecords, PayloadTooLarge, Problem

_TEXT = (pa.binary(), pa.large_binary(), pa.utf8(), pa.large_utf8())
_WHOLE = (pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32())
_TYPES: dict[str, tuple[tuple[pa.DataType, ...], pa.DataType, str]] = {
    "key": (_TEXT, pa.binary(), "utf8 or binary"),
    "value": (_TEXT, pa.binary(), "utf8 or binary"),
    "timestamp": ((pa.int64(),), pa.int64(), "int64 or timestamp[ms]"),
    "partition": (_WHOLE, pa.int64(), "an integer"),
    "headers": (_TEXT, pa.binary(), "utf8 or binary"),
}
_SLICE_ROWS = 1 << 16  # values checked while holding the GIL: about 8 ms

_json = msgspec.json.Decoder(msgspec.Raw).decode
_headers = msgspec.json.Decoder(dict[str, str]).decode
_BAD = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def arrow_columns(body: bytes, max_bytes: int) -> Columns:
    """An Arrow IPC stream; InvalidRecords points at `/<row>/…`, at `/<column>` where a whole column is wrong."""
    try:
        table = _read(body, max_bytes)
        table.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, struct.error, IndexError) as error:
        raise InvalidRecords([Problem("", f"not an Arrow IPC stream: {error}")]) from error
    column = {name: _column(table, name) for name in _TYPES}
    problems = _bad_texts(column["value"], "value", _json)
    problems += _bad_texts(column["headers"], "headers", _headers)
    if problems:
        raise InvalidRecords(problems[:MAX_PROBLEMS])
    return Columns(
        key=column["key"],
        value=pc.ascii_trim_whitespace(column["value"].view(pa.utf8())),  # UTF-8 as `_bad_texts` found
        timestamp=column["timestamp"],
        partition=column["partition"],
        headers=column["headers"].view(pa.utf8()),
        pointer_to="/{}".format,
    )


def _read(body: bytes, max_bytes: int) -> pa.Table:
    with pa.ipc.open_stream(pa.BufferReader(body)) as reader:
        _refuse_schema(reader.schema)
        _refuse_bomb(body, max_bytes)
        return reader.read_all()


def _refuse_schema(schema: pa.Schema) -> None:
    """InvalidRecords for columns that records do not have, and for types other than theirs."""
    problems = [Problem(f"/{name}", "the column appears twice") for name in _TYPES if schema.names.count(name) > 1]
    for column in schema:
        if column.name not in _TYPES:
            problems.append(Problem(f"/{column.name}", f"there is no such column: {', '.join(_TYPES)}"))
            continue
        types, _, wanted = _TYPES[column.name]
        is_time = column.name == "timestamp" and pa.types.is_timestamp(column.type) and column.type.unit == "ms"
        if not is_time and not pa.types.is_null(column.type) and column.type not in types:
            problems.append(Problem(f"/{column.name}", f"must be {wanted}, not {column.type}"))
    if problems:
        raise InvalidRecords(problems)


def _column(table: pa.Table, name: str) -> pa.Array:
    """One column as a single array of the type that the rules expect; nulls where the body has no such column."""
    kind = _TYPES[name][1]
    if name not in table.column_names:
        return pa.nulls(len(table), kind)
    column = table.column(name)
    if pa.types.is_large_string(column.type) or pa.types.is_large_binary(column.type):
        column = column.cast(pa.large_binary())
    return pa.concat_arrays([chunk.cast(kind) for chunk in column.chunks] or [pa.nulls(0, kind)])


def _bad_texts(texts: pa.Array, member: str, decode: Callable[[bytes], object]) -> list[Problem]:
    """A problem for each text that `decode` refuses. 5 M values/s where all are good."""
    problems: list[Problem] = []
    if texts.null_count == len(texts):
        return problems
    for start in range(0, len(texts), _SLICE_ROWS):
        part = texts.slice(start, _SLICE_ROWS)
        try:
            deque(map(decode, part.drop_null().to_numpy(zero_copy_only=False).tolist()), maxlen=0)
            part.cast(pa.utf8())  # looks at every byte
        except (*_BAD, pa.ArrowInvalid):
            problems += _explained(part, start, member, decode)
        if len(problems) >= MAX_PROBLEMS:
            break
    return problems


def _explained(part: pa.Array, start: int, member: str, decode: Callable[[bytes], object]) -> list[Problem]:
    problems = []
    for row, text in enumerate(part.to_pylist(), start):
        if text is None:
            continue
        try:
            str(text, "utf-8")
            decode(text)
        except _BAD as error:
            detail = "not valid UTF-8" if isinstance(error, UnicodeDecodeError) else f"not valid JSON: {error}"
            problems.append(Problem(f"/{row}/{member}", detail))
    return problems


def _refuse_bomb(body: bytes, max_bytes: int) -> None:
    """PayloadTooLarge when compressed buffers would unfold beyond `max_bytes`; also counts the rows."""
    unfolded = rows = 0
    for message in pa.ipc.MessageReader.open_stream(pa.BufferReader(body)):
        if message.type != "record batch":
            continue
        batch_rows, batch_bytes = _unfolded(memoryview(message.metadata), memoryview(message.body))
        rows += batch_rows
        unfolded += batch_bytes
        refuse_too_many(rows)
        if unfolded > max_bytes:
            raise PayloadTooLarge(max_bytes)


def _unfolded(metadata: memoryview, body: memoryview) -> tuple[int, int]:
    """Rows of a record batch message, and the bytes that its compressed buffers say they hold.

    pyarrow does not tell, so this reads the flatbuffer (Message.fbs: RecordBatch is field 2 of Message and has
    length 0, nodes 1, buffers 2, compression 3). A compressed buffer begins with its decoded length (int64).
    """
    message = struct.unpack_from("<I", metadata, 0)[0]
    batch = _follow(metadata, _member(metadata, message, 2))
    length = _member(metadata, batch, 0)
    rows = struct.unpack_from("<q", metadata, length)[0] if length else 0
    buffers = _member(metadata, batch, 2)
    if not buffers or not _member(metadata, batch, 3):
        return rows, 0
    vector = _follow(metadata, buffers)
    unfolded = 0
    for index in range(struct.unpack_from("<I", metadata, vector)[0]):
        start, size = struct.unpack_from("<qq", metadata, vector + 4 + 16 * index)
        if size >= 8:
            unfolded += max(0, struct.unpack_from("<q", body, start)[0])
    return rows, unfolded


def _member(buffer: memoryview, table: int, index: int) -> int:
    """Where a member of a flatbuffer table lies; 0 when it is absent."""
    vtable = table - struct.unpack_from("<i", buffer, table)[0]
    slot = 4 + 2 * index
    if slot >= struct.unpack_from("<H", buffer, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", buffer, vtable + slot)[0]
    return table + offset if offset else 0


def _follow(buffer: memoryview, at: int) -> int:
    """The target of a flatbuffer offset."""
    return int(at + struct.unpack_from("<I", buffer, at)[0])
