"""JSON and NDJSON bodies: `{"records": […]}`, or one record a line.

Knows how a record is written in JSON. Refuses to know what a stream asks of it.

Two ways in: msgspec decodes everything at once and only accepts; when it says no, every record is decoded by
itself and each bad one explained. The second is the definition, the first is the same made fast. Values are never
built as objects: they stay the text that was sent. Measured on one core with records of 110 bytes: accept 1.0 to
1.6 M rec/s, explain 0.3 M rec/s.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Annotated

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.payloads import names
from service.payloads.columns import MAX_PROBLEMS, Columns, refuse_too_many
from service.payloads.units import IN_MS, milliseconds_of
from service.streams.errors import InvalidRecords, Problem

# Lines decoded at a time. The decoder holds the GIL, so this is how long others wait (1 ms); small slices also
# stay in the cache: 1 MiB gave 2.0 M rec/s, 4 MiB 0.8 to 1.3, a whole body of 55 MB 1.0.
SLICE_BYTES = 1 << 20

_Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Record(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """One record as it is written; whatever is absent is null."""

    value: msgspec.Raw = msgspec.Raw(b"null")
    key: str | None = None
    timestamp: _Int64 | None = None
    partition: _Int64 | None = None
    headers: dict[str, str] | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    records: list[Record]


class _RawDocument(msgspec.Struct, forbid_unknown_fields=True):
    records: list[msgspec.Raw]


class NameTwice(Exception):
    """A member is given twice."""


_record = msgspec.json.Decoder(Record)
_document = msgspec.json.Decoder(_Document)
_raw_document = msgspec.json.Decoder(_RawDocument)
_encode = msgspec.json.Encoder().encode

# msgspec lets values with invalid UTF-8 pass, Arrow does not. RecursionError: nested about a thousand deep.
NOT_PLAIN = (msgspec.MsgspecError, UnicodeError, RecursionError, pa.ArrowInvalid, NameTwice)
RECORDS_IN_A_LIST = (
    'records are sent as {"records": [{"key": …, "value": …, "timestamp": …}]}, or one a line as application/x-ndjson'
)
GIVEN_TWICE = "is given more than once"
_NULL = pa.scalar("null", pa.utf8())
_AT = re.compile(r"(?P<detail>.*) - at `(?:key in )?\$(?P<path>[^\[`]*).*", re.DOTALL)
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*)`", re.DOTALL)


def read_document(body: bytes) -> list[Record]:
    """The records of `{"records": […]}`, when all are good but for names given twice; else one of NOT_PLAIN."""
    records = _document.decode(body).records
    refuse_too_many(len(records))
    return records


def read_lines(body: bytes) -> list[Record]:
    """A record of each line, when all are good but for names given twice, and no line is blank; else one of
    NOT_PLAIN.
    """
    records = _record.decode_lines(body)
    if len(records) != body.count(b"\n") + (not body.endswith(b"\n")):
        raise msgspec.DecodeError("blank lines, several records on a line, or one over several lines")
    return records


def json_columns(body: bytes) -> Columns:
    """`{"records": […]}`; InvalidRecords points at `/records/<index>/…`."""
    try:
        arrays = _arrays(read_document(body))
        if not _are_plain(body, arrays, outside=1) and names.in_document(body):
            raise NameTwice
        return _columns([arrays], "/records/{}".format)
    except NOT_PLAIN:
        pass
    problems: list[Problem] = []
    try:
        texts = _raw_document.decode(body).records
    except NOT_PLAIN as error:
        raise InvalidRecords([_without_records(body) or _problem(error, "")]) from error
    if names.is_document_repeated(body, texts):
        raise InvalidRecords([Problem("/records", GIVEN_TWICE)])
    records = _one_by_one(enumerate(texts), "/records", problems)
    if problems:
        raise InvalidRecords(problems)
    return _columns([_arrays(records)], "/records/{}".format)


def ndjson_columns(body: bytes) -> Columns:
    """One record a line, blank lines allowed; InvalidRecords points at `/<line>/…`, lines counted from 0."""
    parts: list[list[pa.Array]] = []
    lines: list[npt.NDArray[np.int64]] = []
    problems: list[Problem] = []
    first_line = 0
    for piece in _slices(body):
        numbers, arrays = _lines(piece, first_line, problems)
        parts.append(arrays)
        lines.append(numbers)
        first_line += piece.count(b"\n")
        refuse_too_many(first_line)
        if len(problems) >= MAX_PROBLEMS:
            break
    if problems:
        raise InvalidRecords(problems)
    line_of = np.concatenate(lines)
    return _columns(parts, lambda row: f"/{line_of[row]}")


def _slices(body: bytes) -> Iterator[bytes]:
    """The body cut after line ends, about SLICE_BYTES each."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start + SLICE_BYTES) + 1 or len(body)
        yield body[start:end]
        start = end


def _lines(piece: bytes, first_line: int, problems: list[Problem]) -> tuple[npt.NDArray[np.int64], list[pa.Array]]:
    """Line numbers and columns of some lines; what is wrong with them is added to `problems`."""
    try:
        arrays = _arrays(read_lines(piece))
        if not _are_plain(piece, arrays, outside=0) and names.in_lines(piece):
            raise NameTwice
        return np.arange(first_line, first_line + len(arrays[0])), arrays
    except NOT_PLAIN:  # line by line
        pass
    numbered = [(first_line + at, line) for at, line in enumerate(piece.split(b"\n")) if line.strip()]
    records = _one_by_one(numbered, "", problems)
    if problems:
        records, numbered = [], []
    return np.array([number for number, _ in numbered], np.int64), _arrays(records)


def _one_by_one(texts: Iterable[tuple[int, bytes | msgspec.Raw]], parent: str, problems: list[Problem]) -> list[Record]:
    """Each record decoded by itself; a problem for each bad one, until there are MAX_PROBLEMS."""
    records = []
    for number, text in texts:
        try:
            str(memoryview(text), "utf-8")
            records.append(_record.decode(text))
            name = names.repeated_in(bytes(text))
            problem = None if name is None else Problem(f"{parent}/{number}{name}", GIVEN_TWICE)
        except NOT_PLAIN as error:
            problem = _with_time(_problem(error, f"{parent}/{number}"), f"{parent}/{number}/timestamp", text)
        if problem is not None:
            problems.append(problem)
        if len(problems) >= MAX_PROBLEMS:
            break
    return records


def _without_records(body: bytes) -> Problem | None:
    """What to send instead of a record, or a list of them, that stands by itself."""
    try:
        document = msgspec.json.decode(body)
    except NOT_PLAIN:
        return None
    is_record = isinstance(document, dict) and "records" not in document and document.keys() & Record.__struct_fields__
    return Problem("", RECORDS_IN_A_LIST) if is_record or isinstance(document, list) else None


def _with_time(problem: Problem, pointer: str, text: bytes | msgspec.Raw) -> Problem:
    """A problem; one with a timestamp says what to send instead."""
    if problem.pointer != pointer:
        return problem
    given = msgspec.json.decode(text)["timestamp"]
    at = milliseconds_of(given) if isinstance(given, str) else None
    return Problem(pointer, f"must be {IN_MS}" + ("" if at is None or at < 0 else f": send {at}"))


def _problem(error: Exception, parent: str) -> Problem:
    """What a decoder said, as a pointer and a detail."""
    if isinstance(error, UnicodeError):
        return Problem(parent, "not valid UTF-8")
    if isinstance(error, RecursionError):
        return Problem(parent, "nested too deeply")
    text = str(error)
    if unknown := _UNKNOWN.fullmatch(text):
        name = unknown["name"].replace("~", "~0").replace("/", "~1")
        return Problem(f"{parent}/{name}", "there is no such field")
    if placed := _AT.fullmatch(text):
        return Problem(parent + placed["path"].replace(".", "/"), placed["detail"])
    return Problem(parent, text)


def _arrays(records: list[Record]) -> list[pa.Array]:
    """The columns of Columns, in order; ArrowInvalid when a value is not UTF-8."""
    return [
        pa.array([record.key for record in records], pa.utf8()).cast(pa.binary()),
        pa.array([bytes(record.value) for record in records], pa.binary()).cast(pa.utf8()),
        _mostly_null([record.timestamp for record in records], pa.int64()),
        _mostly_null([record.partition for record in records], pa.int64()),
        _mostly_null([_encode(record.headers) if record.headers else None for record in records], pa.utf8()),
    ]


def _are_plain(text: bytes, arrays: list[pa.Array], *, outside: int) -> bool:
    """Whether it is plain that no member is given twice; `outside`: the names around the records."""
    key, value, timestamp, partition, headers = arrays
    if headers.null_count < len(headers) or pc.any(pc.equal(value, _NULL)).as_py():
        return False
    members = 4 * len(value) - key.null_count - timestamp.null_count - partition.null_count
    return names.are_accounted_for(text, outside + members, key.buffers()[2], value.buffers()[2])


def _mostly_null(values: list[object], kind: pa.DataType) -> pa.Array:
    """An array; all null, as optional members often are, costs nothing."""
    if values.count(None) == len(values):
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)


def _columns(parts: list[list[pa.Array]], pointer_to: Callable[[int], str]) -> Columns:
    key, value, timestamp, partition, headers = map(pa.concat_arrays, zip(*parts, strict=True))
    return Columns(key, value, timestamp, partition, headers, pointer_to)
