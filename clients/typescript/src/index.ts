// `schema.ts` is made of the OpenAPI document by `make clients`.
import type { components } from "./schema";

export type { components, operations, paths } from "./schema";

type Schemas = components["schemas"];

export type JobSpec = Schemas["JobSpec"];
export type JobView = Schemas["JobView"];
export type Operator = Schemas["Operator"];
export type Problem = Schemas["ProblemView"];
export type RecordView = Schemas["RecordView"];
export type StreamRequest = Schemas["StreamRequest"];
export type StreamView = Schemas["StreamView"];
export type Window = Schemas["Window"];
