// A client of Millrace. `schema.ts` is made of the OpenAPI document by `make clients`; `operations` is the whole API, typed
// by it; `Producer`, `Consumer`, `Job` and `Store` are what most programs need.
import createClient from "openapi-fetch";

import type { ClientOptions } from "./client.js";
import type { components, paths } from "./schema.js";

export { Client, type ClientOptions, type Query, type Retries } from "./client.js";
export { STATUS_OF_CODE, type ErrorCode } from "./codes.js";
export { Consumer, EventParser, type ConsumerOptions, type StreamRecord } from "./consumer.js";
export { ApiError, DeliveryFailed, JobFailed, MillraceError, NoAnswer, type FailedBatch, type Fault, type Problem } from "./errors.js";
export { Job, type JobSpec, type JobView, type Until } from "./job.js";
export { Producer, type Appended, type Limits, type RecordParts, type Sent } from "./producer.js";
export type { components, operations, paths } from "./schema.js";
export { Store, type Entry, type Lookup, type StoreView } from "./store.js";

type Schemas = components["schemas"];
export type Operator = Schemas["Operator"];
export type StreamRequest = Schemas["StreamRequest"];
export type StreamView = Schemas["StreamView"];
export type Window = Schemas["Window"];

/** Each operation of the API by its path: `operationsOf({ url, key }).GET("/v1/streams")`. No retries. */
export function operationsOf(options: ClientOptions): ReturnType<typeof createClient<paths>> {
  return createClient<paths>({
    baseUrl: options.url ?? "http://127.0.0.1:8080",
    headers: options.key === undefined ? {} : { Authorization: `Bearer ${options.key}` },
    ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
  });
}
