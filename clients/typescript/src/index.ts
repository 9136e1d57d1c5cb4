// A client of Millrace. `schema.ts` is made of the OpenAPI document by `make clients`; `operationsOf` is the whole API, typed
// by it; `Producer`, `Consumer`, `SubscriptionConsumer`, `Job` and `Store` are what most programs need.
import createClient from "openapi-fetch";

import type { ClientOptions } from "./client.js";
import type { components, paths } from "./schema.js";

export { Client, type Asked, type ClientOptions, type Query, type Retries } from "./client.js";
export { STATUS_OF_CODE, type ErrorCode } from "./codes.js";
export { Consumer, type ConsumerOptions, type PlacedRecord, type StreamRecord } from "./consumer.js";
export {
  ApiError,
  DeliveryFailed,
  JobFailed,
  MillraceError,
  NoAnswer,
  TimedOut,
  type FailedBatch,
  type Fault,
  type Problem,
} from "./errors.js";
export {
  Job,
  type ChangeVerdict,
  type JobChange,
  type JobSpec,
  type JobView,
  type Until,
  type UpdateOptions,
} from "./job.js";
export { Producer, type Appended, type Limits, type RecordParts, type Sent } from "./producer.js";
export type { components, operations, paths } from "./schema.js";
export { Store, type Entry, type Lookup, type StoreView } from "./store.js";
export { SubscriptionConsumer, type Gap, type SubscriptionOptions } from "./subscription.js";

type Schemas = components["schemas"];
export type Operator = Schemas["Operator"];
export type StreamRequest = Schemas["StreamRequest"];
export type StreamView = Schemas["StreamView"];
export type SubscriptionRequest = Schemas["SubscriptionRequest"];
export type SubscriptionView = Schemas["SubscriptionView"];
export type Window = Schemas["Window"];

/** Each operation of the API by its path: `operationsOf({ url, key }).GET("/v1/streams")`. No retries, no time-outs. */
export function operationsOf(options: Pick<ClientOptions, "url" | "key" | "fetch">): ReturnType<typeof createClient<paths>> {
  return createClient<paths>({
    baseUrl: options.url ?? "http://127.0.0.1:8080",
    headers: options.key === undefined ? {} : { Authorization: `Bearer ${options.key}` },
    ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
  });
}
