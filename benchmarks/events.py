"""Seeded event streams: the bids of an auction site, as Nexmark has them, made for tests of stateful operators.

Knows how a bid looks, how its deliveries repeat and how they get out of order. Knows nothing of Millrace. The same
arguments give the same bytes on every machine: numpy's PCG64 is specified, and nothing here reads a clock.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from service.streams.partitioner import partition_of_key

START_MS = 1_700_000_000_000
CHANNELS = ("apple", "baidu", "facebook", "google")


@dataclass(frozen=True)
class Workload:
    """What to make.

    records:      how many deliveries, the repeated ones included
    keys:         `zipf` (exponent 1.2 over 500,000 bidders) or `uniform` (over 10,000,000)
    duplicates:   the share of deliveries that repeat an earlier one
    disorder_ms:  how late a delivery may come, in event time
    rate_per_s:   deliveries in a second of event time
    """

    records: int
    keys: Literal["zipf", "uniform"] = "zipf"
    duplicates: float = 0.10
    disorder_ms: int = 5_000
    rate_per_s: int = 10_000
    seed: int = 20


def bids(workload: Workload) -> pa.Table:
    """The deliveries in their order of arrival.

    Columns: key utf8 (`bidder-17`), value utf8 (JSON with id, auction, price, channel), timestamp int64 (ms).
    The field `id` names the bid: two deliveries of one bid have the same key, value and timestamp.
    """
    rng = np.random.default_rng(workload.seed)
    unique = round(workload.records * (1 - workload.duplicates))
    ids = np.concatenate([np.arange(unique), rng.integers(0, unique, workload.records - unique)])
    event_ms = START_MS + (np.arange(unique) * 1000) // workload.rate_per_s
    bid = _bids_of(unique, workload.keys, rng)
    timestamps = event_ms[ids]
    arrival = timestamps + rng.integers(0, workload.disorder_ms + 1, len(ids))
    order = np.argsort(arrival, kind="stable")
    chosen = pa.array(ids[order])
    return pa.table(
        {
            "key": pc.take(bid["key"], chosen),
            "value": pc.take(bid["value"], chosen),
            "timestamp": pa.array(timestamps[order]),
        }
    )


def _bids_of(count: int, keys: str, rng: np.random.Generator) -> dict[str, pa.Array]:
    bidders = _zipf(count, 500_000, 1.2, rng) if keys == "zipf" else rng.integers(0, 10_000_000, count)
    auctions = rng.integers(0, 50_000, count)
    cents = rng.integers(100, 1_000_000, count)
    channel = pa.DictionaryArray.from_arrays(
        pa.array(rng.integers(0, len(CHANNELS), count), pa.int32()), pa.array(CHANNELS)
    ).cast(pa.utf8())
    value = pc.binary_join_element_wise(
        '{"id":"b',
        _text(np.arange(count)),
        '","auction":',
        _text(auctions),
        ',"price":',
        _text(cents),
        ',"channel":"',
        channel,
        '"}',
        "",
    )
    return {"key": pc.binary_join_element_wise("bidder-", _text(bidders), ""), "value": value}


def _zipf(count: int, keys: int, exponent: float, rng: np.random.Generator) -> np.ndarray:
    """Draws from the zipf law cut off at `keys`, by inverting its cumulative distribution."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    cumulative = np.cumsum(weights)
    return np.searchsorted(cumulative, rng.random(count) * cumulative[-1])


def _text(numbers: np.ndarray) -> pa.Array:
    return pa.array(numbers).cast(pa.utf8())


def ndjson(table: pa.Table) -> bytes:
    """The same deliveries as a body of `application/x-ndjson`, a record a line."""
    lines = pc.binary_join_element_wise(
        '{"key":"',
        table["key"],
        '","value":',
        table["value"],
        ',"timestamp":',
        table["timestamp"].cast(pa.utf8()),
        "}\n",
        "",
    )
    return "".join(lines.to_pylist()).encode()


def arrow_stream(table: pa.Table) -> bytes:
    """The same deliveries as a body of `application/vnd.apache.arrow.stream`."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def key_in(partition: int, partitions: int, prefix: str) -> str:
    """The first key of `<prefix>0`, `<prefix>1`, … that belongs to a partition."""
    keys = (f"{prefix}{number}" for number in itertools.count())
    return next(key for key in keys if partition_of_key(key.encode(), partitions) == partition)
