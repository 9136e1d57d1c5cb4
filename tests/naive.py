"""The oracle: every rule once more, as plainly as Python allows, one record at a time.

It shares no code with `service`. A record is a dict of key, value, timestamp (and window, in outputs).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from tests import naive_suppress, naive_windows

Record = dict[str, Any]
Expression = Callable[[Record], Any]


def field_text(name: str) -> Expression:
    """`value->>'name'`: text as it is, anything else as compact JSON, null where there is nothing."""

    def read(record: Record) -> str | None:
        value = record["value"]
        found = value.get(name) if isinstance(value, dict) else None
        if found is None or isinstance(found, str):
            return found
        return json.dumps(found, separators=(",", ":"), ensure_ascii=False)

    return read


def field_integer(name: str) -> Expression:
    """`(value->>'name')::bigint`"""
    text = field_text(name)
    return lambda record: None if text(record) is None else int(text(record))


def field_double(name: str) -> Expression:
    """`(value->>'name')::double`"""
    text = field_text(name)
    return lambda record: None if text(record) is None else float(text(record))


EXPRESSIONS: dict[str, Expression] = {
    "(value->>'d')::double": field_double("d"),
    "value->>'id'": field_text("id"),
    "value->>'path'": field_text("path"),
    "(value->>'v')::bigint": field_integer("v"),
    "(value->>'v')::bigint >= 3": lambda record: (v := field_integer("v")(record)) is not None and v >= 3,
    "(value->>'n')::bigint": field_integer("n"),
    "(value->>'n')::bigint < 3": lambda record: (n := field_integer("n")(record)) is not None and n < 3,
    "window_start": lambda record: None if record["window"] is None else record["window"]["start"],
    "key": lambda record: record["key"],
    "value": lambda record: record["value"],
    "timestamp": lambda record: record["timestamp"],
}


class Deduplicate:
    """KIP-655 with the rules of semantics.md."""

    def __init__(self, identity: Expression, interval_ms: int) -> None:
        self.identity, self.interval_ms = identity, interval_ms
        self.stored: dict[Any, int] = {}
        self.obs = -1
        self.floor = 0  # a version before has forgotten what is older

    def feed(self, record: Record) -> list[Record]:
        """The record, if it goes on."""
        timestamp, who = record["timestamp"], self.identity(record)
        self.obs = max(self.obs, timestamp)
        if who is None:
            return [record]
        oldest = max(self.obs - self.interval_ms, self.floor)
        is_stored = who in self.stored and self.stored[who] >= oldest
        if is_stored and abs(timestamp - self.stored[who]) <= self.interval_ms:
            return []
        if timestamp >= oldest:
            self.stored[who] = timestamp
        return [record]


def deduplicate(records: Iterable[Record], identity: Expression, interval_ms: int) -> list[Record]:
    """The records that go on."""
    machine = Deduplicate(identity, interval_ms)
    return [out for record in records for out in machine.feed(record)]


def partitions_of(records: Iterable[Record], partitions: int) -> list[list[Record]]:
    """The records of each partition, by Kafka's default partitioner."""
    found: list[list[Record]] = [[] for _ in range(partitions)]
    for record in records:
        found[partition_of(record["key"], partitions)].append(record)
    return found


def partition_of(key: str, partitions: int) -> int:
    """The partition of a key, by Kafka's default partitioner."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def identity_of(operator: Record) -> Expression:
    """What makes two records the same, for each of the three operators; None = nothing does."""
    if operator["op"] == "deduplicate_by_key":
        return lambda record: record["key"]
    id_of = EXPRESSIONS[operator["id"]]
    if operator["op"] == "deduplicate":
        return id_of

    def pair(record: Record) -> Any:
        found = (record["key"], id_of(record))
        return None if None in found else found

    return pair


def run(operators: list[Record], records: Iterable[Record], *, drop_failing: bool = False) -> list[Record]:
    """The outputs of a chain of operators, one after another, over all records."""
    flow = [{"window": None, **record} for record in records]
    for place, operator in enumerate(operators):
        is_table, is_final, window = naive_suppress.upstream(operators, place)
        if drop_failing:
            flow = [record for record in flow if _is_tombstone(is_table, record) or not _fails(operator, record)]
        if operator["op"] == "aggregate":
            flow = naive_windows.aggregate(operator, flow, EXPRESSIONS, drop_failing=drop_failing)
        elif operator["op"] == "suppress":
            flow = naive_suppress.suppress(operator, flow, window)
        elif operator["op"] in ("filter", "map_values") and is_table and not is_final:
            flow = [_updated(operator, record) for record in flow]
        else:
            flow = _STEPS[operator["op"]](operator, flow)
    return flow


def feeding(operators: list[Record], place: int) -> Callable[[Record], list[Record]]:
    """The operator at a place of a chain, fed one record at a time: what comes out when it comes in."""
    operator = operators[place]
    if operator["op"] in ("aggregate", "distinct", "suppress"):
        feed: Callable[[Record], list[Record]] = machine_of(operators, place).feed
        return feed
    if operator["op"].startswith("deduplicate"):
        return Deduplicate(identity_of(operator), operator["interval_ms"]).feed
    is_table, is_final, _ = naive_suppress.upstream(operators, place)
    if operator["op"] in ("filter", "map_values") and is_table and not is_final:
        return lambda record: [_updated(operator, record)]
    return lambda record: _STEPS[operator["op"]](operator, [record])


def machine_of(operators: list[Record], place: int) -> Any:
    """The operator at a place of a chain, where it holds something open: an aggregate, a distinct or a suppress."""
    operator = operators[place]
    if operator["op"] == "aggregate":
        return naive_windows.Aggregate(operator, EXPRESSIONS)
    if operator["op"] == "distinct":
        return naive_suppress.Distinct(operator)
    return naive_suppress.Suppress(operator, naive_suppress.upstream(operators, place)[2])


class Closing:
    """A chain of such operators, and of `select_key` by key, which can be flushed."""

    def __init__(self, operators: list[Record]) -> None:
        self.machines = [
            None if op["op"] == "select_key" else machine_of(operators, i) for i, op in enumerate(operators)
        ]

    def feed(self, record: Record) -> list[Record]:
        """What comes out when this record comes in."""
        return self.along([{"window": None, **record}], is_flush=False)

    def flush(self) -> list[Record]:
        """What comes out when all that is open is closed: each operator goes as far as it itself needs."""
        return self.along([], is_flush=True)

    def along(self, flow: list[Record], *, is_flush: bool) -> list[Record]:
        for machine in self.machines:
            if machine is None:
                flow = [{**record, "window": None} for record in flow]
                continue
            flow = [out for record in flow for out in machine.feed(record)]
            to = machine.horizon() if is_flush else None
            flow += [] if to is None else machine.advance(to)
        return flow


def murmur2(data: bytes) -> int:
    """org.apache.kafka.common.utils.Utils.murmur2, line by line."""
    m, h = 0x5BD1E995, 0x9747B28C ^ len(data)
    whole = len(data) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(data[i : i + 4], "little") * m & 0xFFFFFFFF
        k = (k ^ (k >> 24)) * m & 0xFFFFFFFF
        h = (h * m & 0xFFFFFFFF) ^ k
    if whole < len(data):
        h = (h ^ int.from_bytes(data[whole:], "little")) * m & 0xFFFFFFFF
    h = (h ^ (h >> 13)) * m & 0xFFFFFFFF
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def _fails(operator: Record, record: Record) -> bool:
    """Whether an expression of the operator can not be evaluated for the record."""
    texts = [operator.get(field) for field in ("where", "key", "id")] + list(operator.get("select", {}).values())
    try:
        for text in texts:
            if text is not None:
                EXPRESSIONS[text](record)
    except ValueError:
        return True
    return False


def _filter(operator: Record, flow: list[Record]) -> list[Record]:
    return [record for record in flow if EXPRESSIONS[operator["where"]](record) is True]


def _map_values(operator: Record, flow: list[Record]) -> list[Record]:
    select = {name: EXPRESSIONS[text] for name, text in operator["select"].items()}
    return [{**record, "value": {name: of(record) for name, of in select.items()}} for record in flow]


def _updated(operator: Record, record: Record) -> Record:
    """An update of a table after filter or map_values: none is lost, and tombstones stay tombstones."""
    if _is_tombstone(True, record):
        return record
    left = _STEPS[operator["op"]](operator, [record])
    return left[0] if left else {**record, "value": None}


def _is_tombstone(is_table: bool, record: Record) -> bool:
    return is_table and record["value"] is None


def _select_key(operator: Record, flow: list[Record]) -> list[Record]:
    key_of = EXPRESSIONS[operator["key"]]
    return [{**record, "key": None if (key := key_of(record)) is None else str(key), "window": None} for record in flow]


def _deduplicate(operator: Record, flow: list[Record]) -> list[Record]:
    return deduplicate(flow, identity_of(operator), operator["interval_ms"])


_STEPS: dict[str, Callable[[Record, list[Record]], list[Record]]] = {
    "filter": _filter,
    "map_values": _map_values,
    "select_key": _select_key,
    "deduplicate_by_key": _deduplicate,
    "deduplicate_by_key_value": _deduplicate,
    "deduplicate": _deduplicate,
    "distinct": naive_suppress.distinct,
}
