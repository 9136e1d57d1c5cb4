"""Arrow: which columns and types are records, and that no body unfolds into more than it is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from service.payloads import ARROW, Rules, decode
from service.payloads.columns import MAX_RECORDS
from service.streams.errors import PayloadTooLarge
from tests.unit.ingest.bodies import NOW, RULES, complaints, ipc, pointers, rows


@pytest.mark.parametrize("kind", [pa.utf8(), pa.large_utf8(), pa.binary(), pa.large_binary()])
def test_texts_may_be_utf8_or_binary(kind: pa.DataType) -> None:
    table = pa.table({"key": pa.array(["ü", None], kind), "value": pa.array(['{"a":"ü"}', None], kind)})
    found = rows(decode(ARROW, ipc(table), RULES))
    assert [(row["key"], row["value"]) for row in found] == [("ü".encode(), '{"a":"ü"}'), (None, None)]


@pytest.mark.parametrize("kind", [pa.int64(), pa.timestamp("ms"), pa.timestamp("ms", "Europe/Berlin")])
def test_timestamps_may_be_int64_or_milliseconds(kind: pa.DataType) -> None:
    table = pa.table({"timestamp": pa.array([5, None], pa.int64()).cast(kind)})
    assert [row["timestamp"] for row in rows(decode(ARROW, ipc(table), RULES))] == [5, NOW]


def test_keys_are_any_bytes() -> None:
    table = pa.table({"key": pa.array([b"\x00\xff", b""], pa.binary())})
    assert [row["key"] for row in rows(decode(ARROW, ipc(table), RULES))] == [b"\x00\xff", b""]


def test_a_column_without_any_value_may_have_the_null_type() -> None:
    table = pa.table({"key": pa.nulls(2), "timestamp": [1, 2], "partition": pa.nulls(2)})
    payload = decode(ARROW, ipc(table), RULES)
    assert payload.partitions is None
    assert [row["key"] for row in rows(payload)] == [None, None]


def test_several_batches_are_one() -> None:
    table = pa.concat_tables([pa.table({"key": [f"k{i}"]}) for i in range(5)])
    assert [row["key"] for row in rows(decode(ARROW, ipc(table), RULES))] == [b"k0", b"k1", b"k2", b"k3", b"k4"]


def test_a_value_is_trimmed_as_json_would_be() -> None:
    table = pa.table({"value": [' {"a": 1}\n', "null ", "\t5"]})
    assert [row["value"] for row in rows(decode(ARROW, ipc(table), RULES))] == ['{"a": 1}', None, "5"]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("key", pa.array([1])),
        ("key", pa.array(["a"]).dictionary_encode()),
        ("key", pa.array(["a"], pa.string_view())),
        ("value", pa.array([{"a": 1}])),
        ("timestamp", pa.array([1.5])),
        ("timestamp", pa.array([1], pa.timestamp("us"))),
        ("partition", pa.array(["0"])),
        ("headers", pa.array([{"a": "b"}])),
        ("offset", pa.array([1])),
    ],
)
def test_columns_of_other_types_and_names_are_refused(name: str, column: pa.Array) -> None:
    assert pointers(ARROW, ipc(pa.table({name: column}))) == [f"/{name}"]


def test_a_column_that_appears_twice_is_refused() -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["key", "key"])
    assert "/key" in pointers(ARROW, ipc(table))


@pytest.mark.parametrize("text", [b"", b"x", b"NaN", b'{"a":1,}', b"{} {}", b'"\xff"', b"[" * 5000])
def test_a_value_that_is_not_json_is_pointed_at(text: bytes) -> None:
    table = pa.table({"value": pa.array([b"1", text, None, b"2"], pa.binary())})
    assert pointers(ARROW, ipc(table)) == ["/1/value"]


def test_headers_must_be_an_object_of_texts() -> None:
    table = pa.table({"headers": ['{"a":"b"}', '{"a":1}', "[]", None]})
    assert pointers(ARROW, ipc(table)) == ["/1/headers", "/2/headers"]


@pytest.mark.parametrize("cut", [1, 4, 20, 200])
def test_what_is_not_a_whole_stream_is_refused(cut: int) -> None:
    body = ipc(pa.table({"key": ["a"] * 100}))
    assert pointers(ARROW, body[:-cut] if cut > 8 else b"x" * cut) == [""]


def test_offsets_that_lie_are_refused() -> None:
    body = ipc(pa.table({"key": ["k" * 77]}))
    offsets = (0).to_bytes(4, "little") + (77).to_bytes(4, "little")
    before, found, after = body.rpartition(offsets)
    assert found
    for end in (78_000_000, -1, 2**31 - 1):
        lie = (0).to_bytes(4, "little") + end.to_bytes(4, "little", signed=True)
        assert pointers(ARROW, before + lie + after) == [""]


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
def test_a_compressed_body_counts_as_what_it_holds(compression: str) -> None:
    body = ipc(pa.table({"value": ['"' + "a" * 1_000_000 + '"']}), compression=compression)
    assert len(body) < 50_000
    assert len(rows(decode(ARROW, body, RULES))) == 1
    with pytest.raises(PayloadTooLarge):
        decode(ARROW, body, Rules(partitions=1, now_ms=NOW, max_bytes=900_000))


def test_rows_without_bytes_are_bounded() -> None:
    found = complaints(ARROW, ipc(pa.table({"value": pa.nulls(MAX_RECORDS + 1)})))
    assert found[0][0] == ""
    assert str(MAX_RECORDS) in found[0][1]
