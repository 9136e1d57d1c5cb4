"""Every way in which Millrace says no, as one tree.

    StreamError
    ├── InvalidInput                          422  what was sent is malformed; carries Problems
    │   ├── InvalidSpec
    │   ├── IncompatibleChange
    │   ├── InvalidRecords
    │   ├── PositionNotDelivered
    │   ├── SimulationTooLarge
    │   └── ExplanationTooLarge
    ├── InvalidExpression                     422  the spec layer adds the pointer
    ├── OperatorFailed                             at run time, on one record: its job can not go on
    │   ├── ExpressionFailed
    │   ├── AggregateFailed
    │   │   ├── AggregateTooLarge
    │   │   ├── IntegerOverflow
    │   │   └── AggregatorFailed
    │   ├── OperatorUnavailable                    the process that is to run it can not
    │   └── SuppressionFull                        a buffer that is to shut down when full
    ├── SegmentUnreadable
    │   ├── SegmentDamaged
    │   └── SegmentMissing
    ├── ReplicaDamaged                             open it again: it starts anew
    ├── Unknown                               404
    │   ├── UnknownStream
    │   ├── UnknownPartition
    │   ├── UnknownSubscription
    │   ├── UnknownJob
    │   ├── UnknownVersion
    │   ├── UnknownRebalance
    │   ├── UnknownStore
    │   ├── UnknownInstance
    │   ├── UnknownSlot
    │   └── UnknownKey
    ├── Conflict                              409
    │   ├── StreamExists
    │   ├── StreamInUse
    │   ├── SubscriptionExists
    │   ├── LeaseLost
    │   ├── SubscriptionPushes
    │   ├── TooManyConsumers
    │   ├── JobExists
    │   ├── IllegalTransition
    │   ├── NothingKept
    │   ├── ReplayUnderWay
    │   ├── IdempotencyInFlight
    │   ├── SegmentNotPending
    │   ├── WrongStoreType
    │   ├── KeyHasNoOwner
    │   ├── NodeElsewhere
    │   └── StaleEpoch
    ├── StaleTag                              412
    ├── StoreNotReadable                      503  nobody can look into it just now
    ├── StoreBehind                           503  it is not as fresh as was asked for
    ├── CatalogUnavailable                    503  the outcome is unknown: ask again under the same id
    ├── StorageUnavailable                    503  nothing was stored
    ├── InternalStream                        403
    ├── OffsetTruncated                       410
    ├── InstanceGone                          410
    ├── BufferFull                            429
    ├── TooManyFilters                        429
    ├── FilterFailed                               the tails that have its condition end
    ├── PayloadTooLarge                       413
    ├── UnsupportedMediaType                  415
    ├── PositionNotOfStore                    422
    ├── KeyNotText                            422  ask for the keys as base64
    └── IdempotencyConflict                   422

It knows the facts and their words; it refuses to know HTTP (the numbers above are drawn for the reader,
`service.problems` owns the table).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with what was sent: a JSON pointer into the body, and what is wrong there."""

    pointer: str
    detail: str

    def __str__(self) -> str:
        return f"{self.pointer or '(the body)'}: {self.detail}"


class StreamError(Exception):
    """Something in the world of streams is not as it was asked for."""

    code: ClassVar[str] = "stream_error"
    errors: Sequence[Problem] = ()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def at(self, pointer: str) -> Self:
        """The same error, which says where in a request it is."""
        self.errors = [Problem(pointer, self.message)]
        return self


class InvalidInput(StreamError):
    """What was sent is malformed; `errors` says where and how."""

    code = "invalid_input"
    subject: ClassVar[str] = "The input"
    fault: ClassVar[str] = "is not valid"

    def __init__(self, errors: Sequence[Problem]) -> None:
        self.errors = list(errors)
        super().__init__(f"{self.subject} {self.fault}: " + "; ".join(str(error) for error in self.errors[:3]))


class InvalidSpec(InvalidInput):
    """A job or stream specification is not valid."""

    code = "invalid_spec"
    subject = "The specification"


class IncompatibleChange(InvalidInput):
    """A job can not go on with its stores by this specification; each problem says how to do it otherwise."""

    code = "incompatible_change"
    subject = "The change"
    fault = "is not possible"


class InvalidRecords(InvalidInput):
    """Records are not valid; none of the request was accepted."""

    code = "invalid_records"
    subject = "The body of records"


class PositionNotDelivered(InvalidInput):
    """An acknowledgement names a position beyond what its consumer was given, or a partition that is not there."""

    code = "position_not_delivered"
    subject = "The acknowledgement"
    fault = "goes beyond what was delivered"


class SimulationTooLarge(InvalidInput):
    """More comes of a simulation than one answer takes, or it takes too long."""

    code = "simulation_too_large"
    subject = "The simulation"
    fault = "is too large"

    def __init__(self, detail: str) -> None:
        super().__init__([Problem("/records", detail)])


class ExplanationTooLarge(InvalidInput):
    """More has to be run again for an explanation than one takes, or it takes too long."""

    code = "explanation_too_large"
    subject = "The explanation"
    fault = "is too large"

    def __init__(self, detail: str, pointer: str = "{job}") -> None:
        super().__init__([Problem(pointer, detail)])


class InvalidExpression(StreamError):
    """The text is not an expression that Millrace runs; `detail` says why."""

    code = "invalid_expression"

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(detail)


class OperatorFailed(StreamError):
    """An operator can not take a record.

    Inside a chain `ordinal` names the source row that it comes from (`service.streams.inputs`; None: no record caused
    it); on the way out `stream_id`, `partition` and `offset` take its place.
    """

    code = "operator_failed"
    stream_id: str | None = None
    partition: int | None = None
    offset: int | None = None

    def __init__(self, operator: str, ordinal: int | None, detail: str) -> None:
        self.operator, self.ordinal, self.detail = operator, ordinal, detail
        super().__init__(self.words())

    def words(self) -> str:
        """The message, given what is known so far."""
        return f"Operator {self.operator!r} failed{self.place}: {self.detail}"

    @property
    def place(self) -> str:
        """Where the record lies, in words that follow others; nothing where that is not known."""
        return "" if self.offset is None else f" on source offset {self.offset}"

    def located(self, stream_id: str, partition: int, offset: int) -> Self:
        """The same error, which says where the record lies."""
        self.stream_id, self.partition, self.offset = stream_id, partition, offset
        self.message = self.words()
        self.args = (self.message,)
        return self

    @property
    def figures(self) -> dict[str, int | None]:
        """What of it programs may want to read, by name."""
        return {}


class ExpressionFailed(OperatorFailed):
    """An expression failed on a record. `row` is its index in the batch at hand."""

    code = "expression_failed"

    def __init__(self, operator: str, row: int, detail: str, ordinal: int | None = None) -> None:
        self.row = row
        super().__init__(operator, ordinal, detail)

    @property
    def place(self) -> str:
        """Before the record is known, its row."""
        return super().place or f" on row {self.row}"


class AggregateFailed(OperatorFailed):
    """An aggregate can not take a record. `key` is the key, as text; `row` the record's index in the batch at hand."""

    code = "aggregate_failed"

    def __init__(self, operator: str, aggregate: str, key: str, row: int, ordinal: int, detail: str) -> None:
        self.aggregate, self.key, self.row = aggregate, key, row
        super().__init__(operator, ordinal, detail)

    def words(self) -> str:
        """Which aggregate, and of which key."""
        place = f"{self.place}, key {self.key!r}"
        return f"Operator {self.operator!r}, aggregate {self.aggregate!r}, failed{place}: {self.detail}"


class AggregateTooLarge(AggregateFailed):
    """The value of an aggregate is larger than what the store takes."""

    code = "aggregate_too_large"


class IntegerOverflow(AggregateFailed):
    """A sum of integers does not fit 64 bits."""

    code = "integer_overflow"


class AggregatorFailed(AggregateFailed):
    """An installed aggregator raised, or gave a value that is not JSON."""

    code = "aggregator_failed"


class OperatorUnavailable(OperatorFailed):
    """The service accepted an operator that the process at hand can not run: something is installed there, not here."""

    code = "operator_unavailable"

    def __init__(self, operator: str, detail: str) -> None:
        super().__init__(operator, None, detail)

    def words(self) -> str:
        """It is no record's fault."""
        return f"Operator {self.operator!r} can not be run here: {self.detail}"


class SuppressionFull(OperatorFailed):
    """The buffer of a suppress operator is over its bounds, and the job is to fail then. None is no bound.

    The record that was too much, if it was one, counts in the figures.
    """

    code = "buffer_full"

    def __init__(
        self,
        operator: str,
        ordinal: int | None,
        records: int,
        max_records: int | None,
        size: int,
        max_bytes: int | None,
    ) -> None:
        self.records, self.max_records, self.bytes, self.max_bytes = records, max_records, size, max_bytes
        held = f"{records} records (at most {_bound(max_records)}) and {size} bytes (at most {_bound(max_bytes)})"
        super().__init__(operator, ordinal, f"the buffer holds {held}")

    def words(self) -> str:
        """How full, and at which record."""
        place = "" if self.offset is None else f" at source offset {self.offset}"
        return f"Operator {self.operator!r} is full{place}: {self.detail}"

    @property
    def figures(self) -> dict[str, int | None]:
        """How much the buffer holds, and how much it may."""
        return {
            "records": self.records,
            "max_records": self.max_records,
            "bytes": self.bytes,
            "max_bytes": self.max_bytes,
        }


class SegmentUnreadable(StreamError):
    """A segment file can not be read; `path` names it."""

    code = "segment_unreadable"

    def __init__(self, path: str, message: str) -> None:
        self.path = path
        super().__init__(message)


class SegmentDamaged(SegmentUnreadable):
    """A segment file does not hold what the catalog says it holds."""

    code = "segment_damaged"

    def __init__(self, path: str, detail: str) -> None:
        self.detail = detail
        super().__init__(path, f"Segment {path} is damaged: {detail}")


class SegmentMissing(SegmentUnreadable):
    """A segment file that the catalog names is not there."""

    code = "segment_missing"

    def __init__(self, path: str) -> None:
        super().__init__(path, f"Segment {path} is missing")


class ReplicaDamaged(StreamError):
    """A replica's file can not be read or was written by somebody else; opened again, it starts anew."""

    code = "replica_damaged"

    def __init__(self, path: str, detail: str) -> None:
        self.path, self.detail = path, detail
        super().__init__(f"Replica {path} is damaged: {detail}")


class Unknown(StreamError):
    """What was named does not exist."""

    code = "unknown"
    noun: ClassVar[str] = "Resource"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{self.noun} {name!r} does not exist")


class UnknownStream(Unknown):
    """No stream has this name."""

    code = "unknown_stream"
    noun = "Stream"


class UnknownPartition(Unknown):
    """The stream has no such partition."""

    code = "unknown_partition"
    noun = "Partition"


class UnknownSubscription(Unknown):
    """The stream has no subscription of this name."""

    code = "unknown_subscription"
    noun = "Subscription"

    def __init__(self, stream: str, name: str) -> None:
        super().__init__(name)
        self.message = f"Stream {stream!r} has no subscription {name!r}: one ends with the stream that it was made for"
        self.args = (self.message,)


class UnknownJob(Unknown):
    """No job has this name."""

    code = "unknown_job"
    noun = "Job"


class UnknownVersion(Unknown):
    """The job has no such version."""

    code = "unknown_version"
    noun = "Version"


class UnknownRebalance(Unknown):
    """The group has no such round of assignment."""

    code = "unknown_rebalance"
    noun = "Rebalance"


class UnknownStore(Unknown):
    """No store has this name."""

    code = "unknown_store"
    noun = "Store"


class UnknownInstance(Unknown):
    """No instance has this id."""

    code = "unknown_instance"
    noun = "Instance"


class UnknownSlot(Unknown):
    """No slot has this id."""

    code = "unknown_slot"
    noun = "Slot"


class UnknownKey(Unknown):
    """No API key has this id."""

    code = "unknown_key"
    noun = "API key"


class Conflict(StreamError):
    """What was asked for contradicts what is there."""

    code = "conflict"


class StreamExists(Conflict):
    """Another stream has this name."""

    code = "stream_exists"

    def __init__(self, name: str, way_out: str = "") -> None:
        self.name = name
        super().__init__(f"Stream {name!r} already exists" + (f": {way_out}" if way_out else ""))


class StreamInUse(Conflict):
    """Jobs read or write the stream."""

    code = "stream_in_use"

    def __init__(self, name: str, users: Sequence[str] = ()) -> None:
        self.name, self.users = name, list(users)
        by = f" by {', '.join(users)}" if users else ""
        super().__init__(f"Stream {name!r} is in use{by}")


class SubscriptionExists(Conflict):
    """A subscription of this name with other settings exists."""

    code = "subscription_exists"

    def __init__(self, stream: str, name: str) -> None:
        self.stream, self.name = stream, name
        super().__init__(f"Stream {stream!r} already has a subscription {name!r} with other settings")


class LeaseLost(Conflict):
    """The consumer does not hold a partition that it acknowledges: its lease ran out, or it never had one."""

    code = "lease_lost"

    def __init__(self, consumer: str, errors: Sequence[Problem]) -> None:
        self.consumer, self.errors = consumer, list(errors)
        super().__init__(f"Consumer {consumer!r} does not hold what it acknowledges: pull again")


class SubscriptionPushes(Conflict):
    """The subscription has a target that its records are posted to: nobody else pulls."""

    code = "subscription_pushes"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Subscription {name!r} posts its records to a target: make another one to pull from")


class TooManyConsumers(Conflict):
    """As many consumers have a lease as a subscription can have at once."""

    code = "too_many_consumers"

    def __init__(self, most: int) -> None:
        self.most = most
        super().__init__(f"{most} consumers have a lease already: that is as many as a subscription can have")


class JobExists(Conflict):
    """A job with this name and another specification exists."""

    code = "job_exists"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Job {name!r} already exists with another specification: `PUT` changes it")


class IllegalTransition(Conflict):
    """The job's state does not allow the verb."""

    code = "illegal_transition"

    def __init__(self, state: str, verb: str, way_out: str = "") -> None:
        self.state, self.verb = state, verb
        super().__init__(f"A job that is {state} can not {verb}" + (f": {way_out}" if way_out else ""))


class NothingKept(Conflict):
    """The job has no stream of dropped records."""

    code = "nothing_kept"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(
            f"Job {name!r} keeps no dropped records: that needs `keep_dropped`, or `on_error: dead_letter`"
        )


class ReplayUnderWay(Conflict):
    """The job replays dropped records already."""

    code = "replay_under_way"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Job {name!r} replays dropped records already: ask again when it has `caught_up`")


class IdempotencyInFlight(Conflict):
    """A request with this Idempotency-Key is being worked on."""

    code = "idempotency_in_flight"

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"A request with the Idempotency-Key {key!r} is in flight")


class SegmentNotPending(Conflict):
    """The segment was never registered, or is published or dropped already: it can not be published."""

    code = "segment_not_pending"

    def __init__(self, segment: str, state: str | None) -> None:
        self.segment, self.state = segment, state
        super().__init__(f"Segment {segment} is {state or 'not registered'}, not pending")


class StaleEpoch(Conflict):
    """The task has another owner, or another commit came first."""

    code = "stale_epoch"

    def __init__(self, task: str, message: str | None = None) -> None:
        self.task = task
        super().__init__(message or f"Task {task} is held under another epoch or version")


class WrongStoreType(Conflict):
    """The store is looked up in another way."""

    code = "wrong_store_type"

    def __init__(self, name: str, kind: str, asked_for: str) -> None:
        self.name, self.kind, self.asked_for = name, kind, asked_for
        super().__init__(f"Store {name!r} is a {kind} store: it has no {asked_for}")


class KeyHasNoOwner(Conflict):
    """Records of one key come in any partition, so no single task has it."""

    code = "key_has_no_owner"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Store {name!r} is fed by a stream whose partitions were chosen by hand")


class StoreNotReadable(StreamError):
    """No replica of the store can be looked into just now; `reason` says why."""

    code = "store_not_readable"

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"The store can not be looked into just now: {reason}")


class StoreBehind(StreamError):
    """The store is not as fresh as was asked for, and did not become it in time; `reason` says what it waits for."""

    code = "store_behind"

    def __init__(self, name: str, reason: str) -> None:
        self.name, self.reason = name, reason
        super().__init__(f"Store {name!r} does not reflect that yet: {reason}")


class PositionNotOfStore(StreamError):
    """The position is not one of a stream that feeds the store, nor of the store itself."""

    code = "invalid_position"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"The position is not one of a stream that feeds the store {name!r}, nor of the store")


class StaleTag(StreamError):
    """The resource changed since the caller read it."""

    code = "stale_tag"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name!r} was changed by someone else: read it again")


class CatalogUnavailable(StreamError):
    """The catalog did not answer; whether the transaction counts is settled by asking again."""

    code = "catalog_unavailable"


class StorageUnavailable(StreamError):
    """The storage did not take what was to be written; nothing of it counts."""

    code = "storage_unavailable"


class InternalStream(StreamError):
    """An internal stream can be read, never written, truncated or deleted by people."""

    code = "internal_stream"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"Stream {name!r} is internal: it can be read, not changed")


class OffsetTruncated(StreamError):
    """The offset lies below the start of the partition."""

    code = "offset_truncated"

    def __init__(self, start_offset: int) -> None:
        self.start_offset = start_offset
        super().__init__(f"The partition starts at offset {start_offset}")


class NodeElsewhere(Conflict):
    """Slots live on a node of this id in another place: the folder was cloned, and needs an id of its own."""

    code = "node_elsewhere"

    def __init__(self, node_id: str, host: str) -> None:
        self.node_id = node_id
        super().__init__(f"Node {node_id} is in use in another place, on host {host!r}: make another id and join again")


class InstanceGone(StreamError):
    """The instance lost its lease, or another incarnation took its place; it may join again."""

    code = "instance_gone"

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"{name} is gone: join again")


class BufferFull(StreamError):
    """The append buffer is full; `retry_after_s` says when to come back."""

    code = "ingest_buffer_full"

    def __init__(self, retry_after_s: int) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(f"The append buffer is full, retry in {retry_after_s} s")


class PayloadTooLarge(StreamError):
    """The body is larger than the limit."""

    code = "payload_too_large"

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        super().__init__(f"The body is larger than {limit_bytes} bytes")


class UnsupportedMediaType(StreamError):
    """The body's media type is not one that this resource reads."""

    code = "unsupported_media_type"

    def __init__(self, media_type: str, supported: Sequence[str] = ()) -> None:
        self.media_type, self.supported = media_type, list(supported)
        known = f"; supported: {', '.join(supported)}" if supported else ""
        super().__init__(f"Media type {media_type!r} is not supported{known}")


class KeyNotText(StreamError):
    """A key was asked for as text, and its bytes are not UTF-8."""

    code = "key_not_text"

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"The key at offset {offset} is not UTF-8: ask with key_encoding=base64")


class TooManyFilters(StreamError):
    """As many conditions on records are evaluated as may be at once."""

    code = "too_many_filters"

    def __init__(self, at_once: int) -> None:
        super().__init__(f"{at_once} conditions of tails are evaluated already: try again, or use one of them")


class FilterFailed(StreamError):
    """A condition on records was not evaluated within its bounds."""

    code = "filter_failed"

    def __init__(self, detail: str) -> None:
        super().__init__(f"The condition was not evaluated: {detail}")


class IdempotencyConflict(StreamError):
    """The Idempotency-Key was used with another body."""

    code = "idempotency_conflict"

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"The Idempotency-Key {key!r} was used with another body")
        self.at("Idempotency-Key:")


def _bound(bound: int | None) -> str:
    return "any number" if bound is None else str(bound)
