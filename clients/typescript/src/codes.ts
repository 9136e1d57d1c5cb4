// The codes of docs/errors.md and the status of each; written by clients/write_codes.py.
export const STATUS_OF_CODE = {
  bad_request: 400, // the request is no HTTP that the service takes
  request_timeout: 408, // the head of a request, or a part of its body, did not come in time
  uri_too_long: 414, // more than 64 KiB of request line, headers or trailers; more than 100 fields
  headers_too_large: 431, // more than 64 KiB of request line, headers or trailers; more than 100 fields
  malformed_json: 400, // the body is not JSON, or has a name twice in an object; not one whole gzip stream
  malformed_body: 400, // the body is not JSON, or has a name twice in an object; not one whole gzip stream
  unauthenticated: 401, // no key, or one that is not valid or was revoked
  forbidden: 403, // the key's role is too low
  cross_site_request: 403, // a browser sent it for a page of somebody else's, or without the session's token; the service is reached under a strange name
  internal_stream: 403, // a changelog or `…-dropped` is to be changed
  no_such_route: 404, // nothing is served there
  unknown_stream: 404, // what was named does not exist
  unknown_job: 404, // what was named does not exist
  unknown_version: 404, // what was named does not exist
  unknown_rebalance: 404, // what was named does not exist
  unknown_store: 404, // what was named does not exist
  unknown_partition: 404, // what was named does not exist
  unknown_subscription: 404, // what was named does not exist
  unknown_instance: 404, // what was named does not exist
  unknown_key: 404, // what was named does not exist
  method_not_allowed: 405, // the path takes other methods, those in `Allow`
  not_acceptable: 406, // `Accept` takes nothing that is offered
  stream_exists: 409, // the name is taken by something else
  job_exists: 409, // the name is taken by something else
  subscription_exists: 409, // the name is taken by something else
  stream_in_use: 409, // jobs that `detail` names read or write the stream
  lease_lost: 409, // the consumer does not hold a partition that it acknowledges: it stayed away longer than `lease_ms`, or never had it
  subscription_pushes: 409, // the service posts the records of the subscription to a target
  too_many_consumers: 409, // 1,000 consumers of a subscription have a lease
  illegal_transition: 409, // the job's state does not allow that, or what is left to do before
  nothing_kept: 409, // the job has no stream of dropped records
  replay_under_way: 409, // dropped records of the job are being replayed
  idempotency_in_flight: 409, // a request with this `Idempotency-Key` is being worked on
  wrong_store_type: 409, // sessions of a store of windows, or the like
  key_has_no_owner: 409, // `…/owner` of a store whose source was written with explicit partitions
  offset_truncated: 410, // the offset lies below the start of the partition
  stale_tag: 412, // somebody changed it since it was read
  payload_too_large: 413, // the decoded body is too large
  unsupported_media_type: 415, // another `Content-Type`, or `Content-Encoding` than gzip
  unsupported_encoding: 415, // another `Content-Type`, or `Content-Encoding` than gzip
  invalid_spec: 422, // a specification is not valid
  invalid_expression: 422, // a specification is not valid
  incompatible_change: 422, // the stores of the job can not go on by the new specification; or a copy would write a sink of the first job
  invalid_records: 422, // records are not valid; none of the request was stored
  simulation_too_large: 422, // more comes of a `:simulate` than one answer takes, or it takes too long or too much memory
  explanation_too_large: 422, // more has to be run again for an `:explain` than one takes, or it takes too long or too much memory; or too many records are asked for
  position_not_delivered: 422, // an acknowledgement goes beyond what the consumer was given, or names a partition that is not there
  invalid_request: 422, // a body or parameter is not what it should be
  invalid_cursor: 422, // it is not of this stream, store or catalog; not in that encoding
  invalid_position: 422, // it is not of this stream, store or catalog; not in that encoding
  invalid_key: 422, // it is not of this stream, store or catalog; not in that encoding
  invalid_topic: 422, // a topic of `/v1/events` is no resource that can be followed, or they are too many
  idempotency_conflict: 422, // the `Idempotency-Key` was used with another body
  key_not_text: 422, // a key's bytes are not UTF-8
  filter_failed: 422, // a condition (`where`) was not evaluated within its bounds (time, memory), or its process ended
  precondition_required: 428, // a change without `If-Match`
  too_many_filters: 429, // tails and searches have as many different conditions as may be evaluated at once
  too_many_event_streams: 429, // the key follows `/v1/events` as often as it may, or all follow as many topics
  simulations_busy: 429, // as many simulations run as may at once
  ingest_buffer_full: 429, // too much waits to be stored
  internal_error: 500, // a fault of the service; it was logged
  segment_missing: 500, // a file of the storage is not there, or not what was written
  segment_damaged: 500, // a file of the storage is not there, or not what was written
  catalog_unavailable: 503, // the database did not answer; the outcome is unknown
  storage_unavailable: 503, // the storage did not take it; nothing was stored
  store_not_readable: 503, // nobody can look into the store just now: `reason`
  store_behind: 503, // the store is not as fresh as was asked for: `reason`
  too_many_connections: 503, // `MILLRACE_MAX_CONNECTIONS` are open, and on each somebody waits for an answer
  draining: 503, // the process is about to stop, or is not up yet
  unavailable: 503, // the process is about to stop, or is not up yet
  expression_failed: 422, // an expression failed on a record, or took too long
  integer_overflow: 422, // a sum of integers passes 64 bits
  aggregate_too_large: 422, // the value of an aggregate passes 1 MiB
  aggregator_failed: 422, // an installed aggregator raised, or gave what is not JSON
  operator_unavailable: 422, // the worker does not have an aggregator that the service has
  buffer_full: 422, // a buffer of `suppress` is full and `when_full` is `shut_down`; with `records`, `max_records`, `bytes`, `max_bytes`
  instance_gone: 410, // its lease ran out, or another process has its name: it joins again
  node_elsewhere: 409, // slots live on a node of this id on another host or in another folder: a volume was cloned, its slot makes another id and joins again
  unknown_slot: 404, // no slot has this id
  stale_epoch: 409, // the task has another owner by now
  segment_not_pending: 409, // the segment is published or was let go already
} as const;

export type ErrorCode = keyof typeof STATUS_OF_CODE;
