// Every way in which a call fails.
//
// MillraceError
// ├── NoAnswer        no whole answer came; whether the request was carried out is not known
// ├── JobFailed       a job that was waited for failed or stopped
// ├── TimedOut        a job that was waited for was not so far in time
// ├── DeliveryFailed  batches of a producer that were not appended
// └── ApiError        the service answered with a problem (RFC 9457); `code` says which
import type { ErrorCode } from "./codes.js";
import type { components } from "./schema.js";

export type Problem = components["schemas"]["ProblemView"];
export type Fault = components["schemas"]["ProblemItemView"];

const TRANSIENT_STATUS = new Set([429, 502, 503, 504]);
const TRANSIENT_CODES = new Set<string>(["request_timeout", "idempotency_in_flight"]);

export class MillraceError extends Error {
  /** Whether the same request may succeed a moment later. */
  readonly isTransient: boolean = false;
  readonly retryAfterMs: number | null = null;

  constructor(message: string, options?: ErrorOptions) {
    super(message, options);
    this.name = this.constructor.name;
  }
}

export class NoAnswer extends MillraceError {
  override readonly isTransient = true;
}

export class ApiError extends MillraceError {
  override readonly isTransient: boolean;

  constructor(
    readonly status: number,
    readonly problem: Partial<Problem>,
    override readonly retryAfterMs: number | null = null,
  ) {
    super(`${status} ${problem.code ?? ""}: ${problem.detail ?? ""}`);
    this.isTransient = TRANSIENT_STATUS.has(status) || TRANSIENT_CODES.has(this.code);
  }

  /** One of docs/errors.md, or one that a newer service has; empty where something on the way answered. */
  get code(): ErrorCode | (string & {}) {
    return this.problem.code ?? "";
  }

  /** What is wrong with the request, and where. */
  get faults(): readonly Fault[] {
    return this.problem.errors ?? [];
  }

  is(...codes: ErrorCode[]): boolean {
    return (codes as string[]).includes(this.code);
  }
}

export class TimedOut extends MillraceError {}

export class JobFailed extends MillraceError {
  constructor(
    readonly job: string,
    readonly state: string,
    readonly code: string,
    readonly detail: string,
  ) {
    super(`job ${job} is ${state}: ${code} ${detail}`);
  }
}

export interface FailedBatch {
  /** Not appended, or (after `NoAnswer`) perhaps: the same key and records again settle it. */
  readonly records: readonly unknown[];
  readonly idempotencyKey: string;
  readonly error: unknown;
}

export class DeliveryFailed extends MillraceError {
  constructor(readonly batches: readonly FailedBatch[]) {
    super(`${batches.length} batches were not appended: ${batches.map((batch) => String(batch.error)).join("; ")}`);
  }
}
