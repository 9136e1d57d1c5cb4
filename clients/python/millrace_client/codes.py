"""A class for each code of docs/errors.md, below its family; written by clients/write_codes.py."""

from __future__ import annotations

from millrace_client.errors import (
    ApiError,
    BadRequestError,
    ConflictError,
    GoneError,
    NotAuthenticatedError,
    NotFoundError,
    PermissionDeniedError,
    PreconditionError,
    RequestError,
    ServerError,
    TooManyRequestsError,
    UnavailableError,
    UnprocessableError,
)


class BadRequest(BadRequestError):
    """The request is no HTTP that the service takes."""

    code = "bad_request"
    http_status = 400


class RequestTimeout(RequestError):
    """The head of a request, or a part of its body, did not come in time."""

    code = "request_timeout"
    http_status = 408
    is_transient = True


class UriTooLong(RequestError):
    """More than 64 KiB of request line, headers or trailers; more than 100 fields."""

    code = "uri_too_long"
    http_status = 414


class HeadersTooLarge(RequestError):
    """More than 64 KiB of request line, headers or trailers; more than 100 fields."""

    code = "headers_too_large"
    http_status = 431


class MalformedJson(BadRequestError):
    """The body is not JSON, or has a name twice in an object; not one whole gzip stream."""

    code = "malformed_json"
    http_status = 400


class MalformedBody(BadRequestError):
    """The body is not JSON, or has a name twice in an object; not one whole gzip stream."""

    code = "malformed_body"
    http_status = 400


class Unauthenticated(NotAuthenticatedError):
    """No key, or one that is not valid or was revoked."""

    code = "unauthenticated"
    http_status = 401


class Forbidden(PermissionDeniedError):
    """The key's role is too low."""

    code = "forbidden"
    http_status = 403


class CrossSiteRequest(PermissionDeniedError):
    """A browser sent it for a page of somebody else's, or without the session's token; the service is reached …"""

    code = "cross_site_request"
    http_status = 403


class InternalStream(PermissionDeniedError):
    """A changelog or `…-dropped` is to be changed."""

    code = "internal_stream"
    http_status = 403


class NoSuchRoute(NotFoundError):
    """Nothing is served there."""

    code = "no_such_route"
    http_status = 404


class UnknownStream(NotFoundError):
    """What was named does not exist."""

    code = "unknown_stream"
    http_status = 404


class UnknownJob(NotFoundError):
    """What was named does not exist."""

    code = "unknown_job"
    http_status = 404


class UnknownVersion(NotFoundError):
    """What was named does not exist."""

    code = "unknown_version"
    http_status = 404


class UnknownRebalance(NotFoundError):
    """What was named does not exist."""

    code = "unknown_rebalance"
    http_status = 404


class UnknownStore(NotFoundError):
    """What was named does not exist."""

    code = "unknown_store"
    http_status = 404


class UnknownPartition(NotFoundError):
    """What was named does not exist."""

    code = "unknown_partition"
    http_status = 404


class UnknownSubscription(NotFoundError):
    """What was named does not exist."""

    code = "unknown_subscription"
    http_status = 404


class UnknownInstance(NotFoundError):
    """What was named does not exist."""

    code = "unknown_instance"
    http_status = 404


class UnknownKey(NotFoundError):
    """What was named does not exist."""

    code = "unknown_key"
    http_status = 404


class MethodNotAllowed(RequestError):
    """The path takes other methods, those in `Allow`."""

    code = "method_not_allowed"
    http_status = 405


class NotAcceptable(RequestError):
    """`Accept` takes nothing that is offered."""

    code = "not_acceptable"
    http_status = 406


class StreamExists(ConflictError):
    """The name is taken by something else."""

    code = "stream_exists"
    http_status = 409


class JobExists(ConflictError):
    """The name is taken by something else."""

    code = "job_exists"
    http_status = 409


class SubscriptionExists(ConflictError):
    """The name is taken by something else."""

    code = "subscription_exists"
    http_status = 409


class StreamInUse(ConflictError):
    """Jobs that `detail` names read or write the stream."""

    code = "stream_in_use"
    http_status = 409


class LeaseLost(ConflictError):
    """The consumer does not hold a partition that it acknowledges: it stayed away longer than `lease_ms`, or never …"""

    code = "lease_lost"
    http_status = 409


class SubscriptionPushes(ConflictError):
    """The service posts the records of the subscription to a target."""

    code = "subscription_pushes"
    http_status = 409


class TooManyConsumers(ConflictError):
    """1,000 consumers of a subscription have a lease."""

    code = "too_many_consumers"
    http_status = 409


class IllegalTransition(ConflictError):
    """The job's state does not allow that, or what is left to do before."""

    code = "illegal_transition"
    http_status = 409


class NothingKept(ConflictError):
    """The job has no stream of dropped records."""

    code = "nothing_kept"
    http_status = 409


class ReplayUnderWay(ConflictError):
    """Dropped records of the job are being replayed."""

    code = "replay_under_way"
    http_status = 409


class IdempotencyInFlight(ConflictError):
    """A request with this `Idempotency-Key` is being worked on."""

    code = "idempotency_in_flight"
    http_status = 409
    is_transient = True


class WrongStoreType(ConflictError):
    """Sessions of a store of windows, or the like."""

    code = "wrong_store_type"
    http_status = 409


class KeyHasNoOwner(ConflictError):
    """`…/owner` of a store whose source was written with explicit partitions."""

    code = "key_has_no_owner"
    http_status = 409


class OffsetTruncated(GoneError):
    """The offset lies below the start of the partition."""

    code = "offset_truncated"
    http_status = 410


class StaleTag(PreconditionError):
    """Somebody changed it since it was read."""

    code = "stale_tag"
    http_status = 412


class PayloadTooLarge(RequestError):
    """The decoded body is too large."""

    code = "payload_too_large"
    http_status = 413


class UnsupportedMediaType(RequestError):
    """Another `Content-Type`, or `Content-Encoding` than gzip."""

    code = "unsupported_media_type"
    http_status = 415


class UnsupportedEncoding(RequestError):
    """Another `Content-Type`, or `Content-Encoding` than gzip."""

    code = "unsupported_encoding"
    http_status = 415


class InvalidSpec(UnprocessableError):
    """A specification is not valid."""

    code = "invalid_spec"
    http_status = 422


class InvalidExpression(UnprocessableError):
    """A specification is not valid."""

    code = "invalid_expression"
    http_status = 422


class IncompatibleChange(UnprocessableError):
    """The stores of the job can not go on by the new specification; or a copy would write a sink of the first job."""

    code = "incompatible_change"
    http_status = 422


class InvalidRecords(UnprocessableError):
    """Records are not valid; none of the request was stored."""

    code = "invalid_records"
    http_status = 422


class SimulationTooLarge(UnprocessableError):
    """More comes of a `:simulate` than one answer takes, or it takes too long or too much memory."""

    code = "simulation_too_large"
    http_status = 422


class ExplanationTooLarge(UnprocessableError):
    """More has to be run again for an `:explain` than one takes, or it takes too long or too much memory; or too …"""

    code = "explanation_too_large"
    http_status = 422


class PositionNotDelivered(UnprocessableError):
    """An acknowledgement goes beyond what the consumer was given, or names a partition that is not there."""

    code = "position_not_delivered"
    http_status = 422


class InvalidRequest(UnprocessableError):
    """A body or parameter is not what it should be."""

    code = "invalid_request"
    http_status = 422


class InvalidCursor(UnprocessableError):
    """It is not of this stream, store or catalog; not in that encoding."""

    code = "invalid_cursor"
    http_status = 422


class InvalidPosition(UnprocessableError):
    """It is not of this stream, store or catalog; not in that encoding."""

    code = "invalid_position"
    http_status = 422


class InvalidKey(UnprocessableError):
    """It is not of this stream, store or catalog; not in that encoding."""

    code = "invalid_key"
    http_status = 422


class InvalidTopic(UnprocessableError):
    """A topic of `/v1/events` is no resource that can be followed, or they are too many."""

    code = "invalid_topic"
    http_status = 422


class IdempotencyConflict(UnprocessableError):
    """The `Idempotency-Key` was used with another body."""

    code = "idempotency_conflict"
    http_status = 422


class KeyNotText(UnprocessableError):
    """A key's bytes are not UTF-8."""

    code = "key_not_text"
    http_status = 422


class FilterFailed(UnprocessableError):
    """A condition (`where`) was not evaluated within its bounds (time, memory), or its process ended."""

    code = "filter_failed"
    http_status = 422


class PreconditionRequired(PreconditionError):
    """A change without `If-Match`."""

    code = "precondition_required"
    http_status = 428


class TooManyFilters(TooManyRequestsError):
    """Tails and searches have as many different conditions as may be evaluated at once."""

    code = "too_many_filters"
    http_status = 429


class TooManyEventStreams(TooManyRequestsError):
    """The key follows `/v1/events` as often as it may, or all follow as many topics."""

    code = "too_many_event_streams"
    http_status = 429


class SimulationsBusy(TooManyRequestsError):
    """As many simulations run as may at once."""

    code = "simulations_busy"
    http_status = 429


class IngestBufferFull(TooManyRequestsError):
    """Too much waits to be stored."""

    code = "ingest_buffer_full"
    http_status = 429


class InternalError(ServerError):
    """A fault of the service; it was logged."""

    code = "internal_error"
    http_status = 500


class SegmentMissing(ServerError):
    """A file of the storage is not there, or not what was written."""

    code = "segment_missing"
    http_status = 500


class SegmentDamaged(ServerError):
    """A file of the storage is not there, or not what was written."""

    code = "segment_damaged"
    http_status = 500


class CatalogUnavailable(UnavailableError):
    """The database did not answer; the outcome is unknown."""

    code = "catalog_unavailable"
    http_status = 503


class StorageUnavailable(UnavailableError):
    """The storage did not take it; nothing was stored."""

    code = "storage_unavailable"
    http_status = 503


class StoreNotReadable(UnavailableError):
    """Nobody can look into the store just now: `reason`."""

    code = "store_not_readable"
    http_status = 503


class StoreBehind(UnavailableError):
    """The store is not as fresh as was asked for: `reason`."""

    code = "store_behind"
    http_status = 503


class TooManyConnections(UnavailableError):
    """`MILLRACE_MAX_CONNECTIONS` are open, and on each somebody waits for an answer."""

    code = "too_many_connections"
    http_status = 503


class Draining(UnavailableError):
    """The process is about to stop, or is not up yet."""

    code = "draining"
    http_status = 503


class Unavailable(UnavailableError):
    """The process is about to stop, or is not up yet."""

    code = "unavailable"
    http_status = 503


class ExpressionFailed(UnprocessableError):
    """An expression failed on a record, or took too long."""

    code = "expression_failed"
    http_status = 422


class IntegerOverflow(UnprocessableError):
    """A sum of integers passes 64 bits."""

    code = "integer_overflow"
    http_status = 422


class AggregateTooLarge(UnprocessableError):
    """The value of an aggregate passes 1 MiB."""

    code = "aggregate_too_large"
    http_status = 422


class AggregatorFailed(UnprocessableError):
    """An installed aggregator raised, or gave what is not JSON."""

    code = "aggregator_failed"
    http_status = 422


class OperatorUnavailable(UnprocessableError):
    """The worker does not have an aggregator that the service has."""

    code = "operator_unavailable"
    http_status = 422


class BufferFull(UnprocessableError):
    """A buffer of `suppress` is full and `when_full` is `shut_down`; with `records`, `max_records`, `bytes`, …"""

    code = "buffer_full"
    http_status = 422


class InstanceGone(GoneError):
    """Its lease ran out, or another process has its name: it joins again."""

    code = "instance_gone"
    http_status = 410


class NodeElsewhere(ConflictError):
    """Slots live on a node of this id on another host or in another folder: a volume was cloned, its slot makes …"""

    code = "node_elsewhere"
    http_status = 409


class UnknownSlot(NotFoundError):
    """No slot has this id."""

    code = "unknown_slot"
    http_status = 404


class StaleEpoch(ConflictError):
    """The task has another owner by now."""

    code = "stale_epoch"
    http_status = 409


class SegmentNotPending(ConflictError):
    """The segment is published or was let go already."""

    code = "segment_not_pending"
    http_status = 409


BY_CODE: dict[str, type[ApiError]] = {
    "bad_request": BadRequest,
    "request_timeout": RequestTimeout,
    "uri_too_long": UriTooLong,
    "headers_too_large": HeadersTooLarge,
    "malformed_json": MalformedJson,
    "malformed_body": MalformedBody,
    "unauthenticated": Unauthenticated,
    "forbidden": Forbidden,
    "cross_site_request": CrossSiteRequest,
    "internal_stream": InternalStream,
    "no_such_route": NoSuchRoute,
    "unknown_stream": UnknownStream,
    "unknown_job": UnknownJob,
    "unknown_version": UnknownVersion,
    "unknown_rebalance": UnknownRebalance,
    "unknown_store": UnknownStore,
    "unknown_partition": UnknownPartition,
    "unknown_subscription": UnknownSubscription,
    "unknown_instance": UnknownInstance,
    "unknown_key": UnknownKey,
    "method_not_allowed": MethodNotAllowed,
    "not_acceptable": NotAcceptable,
    "stream_exists": StreamExists,
    "job_exists": JobExists,
    "subscription_exists": SubscriptionExists,
    "stream_in_use": StreamInUse,
    "lease_lost": LeaseLost,
    "subscription_pushes": SubscriptionPushes,
    "too_many_consumers": TooManyConsumers,
    "illegal_transition": IllegalTransition,
    "nothing_kept": NothingKept,
    "replay_under_way": ReplayUnderWay,
    "idempotency_in_flight": IdempotencyInFlight,
    "wrong_store_type": WrongStoreType,
    "key_has_no_owner": KeyHasNoOwner,
    "offset_truncated": OffsetTruncated,
    "stale_tag": StaleTag,
    "payload_too_large": PayloadTooLarge,
    "unsupported_media_type": UnsupportedMediaType,
    "unsupported_encoding": UnsupportedEncoding,
    "invalid_spec": InvalidSpec,
    "invalid_expression": InvalidExpression,
    "incompatible_change": IncompatibleChange,
    "invalid_records": InvalidRecords,
    "simulation_too_large": SimulationTooLarge,
    "explanation_too_large": ExplanationTooLarge,
    "position_not_delivered": PositionNotDelivered,
    "invalid_request": InvalidRequest,
    "invalid_cursor": InvalidCursor,
    "invalid_position": InvalidPosition,
    "invalid_key": InvalidKey,
    "invalid_topic": InvalidTopic,
    "idempotency_conflict": IdempotencyConflict,
    "key_not_text": KeyNotText,
    "filter_failed": FilterFailed,
    "precondition_required": PreconditionRequired,
    "too_many_filters": TooManyFilters,
    "too_many_event_streams": TooManyEventStreams,
    "simulations_busy": SimulationsBusy,
    "ingest_buffer_full": IngestBufferFull,
    "internal_error": InternalError,
    "segment_missing": SegmentMissing,
    "segment_damaged": SegmentDamaged,
    "catalog_unavailable": CatalogUnavailable,
    "storage_unavailable": StorageUnavailable,
    "store_not_readable": StoreNotReadable,
    "store_behind": StoreBehind,
    "too_many_connections": TooManyConnections,
    "draining": Draining,
    "unavailable": Unavailable,
    "expression_failed": ExpressionFailed,
    "integer_overflow": IntegerOverflow,
    "aggregate_too_large": AggregateTooLarge,
    "aggregator_failed": AggregatorFailed,
    "operator_unavailable": OperatorUnavailable,
    "buffer_full": BufferFull,
    "instance_gone": InstanceGone,
    "node_elsewhere": NodeElsewhere,
    "unknown_slot": UnknownSlot,
    "stale_epoch": StaleEpoch,
    "segment_not_pending": SegmentNotPending,
}
