// Jobs: submitted, waited for, changed, stopped. A handle remembers the specification as it was last seen through it: a
// change is refused with `stale_tag` where somebody else has changed it since. What only moved the job, a rebalance or a
// restart, is no reason.
import { pathOf, type Asked, type Client, type Query } from "./client.js";
import { ApiError, JobFailed, TimedOut } from "./errors.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];
export type JobView = Schemas["JobView"];
/** What is absent has its default. */
export type JobSpec = Schemas["JobSpec"];
export type JobChange = Schemas["JobChange"];
export type ChangeVerdict = Schemas["ChangeVerdictView"];
export type Until = "running" | "caught_up" | "stopped";

/** Beside a specification: operators that have another name now (old: new), and those that begin anew. */
export interface UpdateOptions {
  readonly renames?: Readonly<Record<string, string>>;
  readonly restart?: readonly string[];
}

const LONGEST_WAIT_MS = 30_000; // of one request

export class Job {
  readonly #client: Client;
  readonly #path: string;
  #tag: string | null = null;
  #specVersion = 0;

  constructor(
    client: Client,
    readonly name: string,
  ) {
    this.#client = client;
    this.#path = pathOf("jobs", name);
  }

  /** Make a job; one that is there and equal is that job. */
  static async submit(client: Client, spec: JobSpec): Promise<Job> {
    const job = new Job(client, spec.name);
    await job.#ask("POST", "/v1/jobs", spec, { isRepeatable: true });
    return job;
  }

  view(): Promise<JobView> {
    return this.#ask("GET", this.#path);
  }

  /** Resolves when it is so. Throws JobFailed where it ended before, TimedOut where it was not so in time. */
  async wait(until: Until = "caught_up", timeoutMs = 60_000, signal?: AbortSignal): Promise<JobView> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      const waitMs = Math.round(Math.min(LONGEST_WAIT_MS, Math.max(0, end - performance.now())));
      const query = { wait: until, timeout_ms: waitMs };
      const view = await this.#ask("GET", this.#path, undefined, { query, waitMs, signal });
      if (until === "caught_up" ? view.caught_up : view.state === until) return view;
      if (view.state === "failed" || view.state === "stopped") {
        throw new JobFailed(this.name, view.state, view.error?.code ?? "", view.error?.detail ?? view.reason);
      }
      if (performance.now() >= end) throw new TimedOut(`job ${this.name} is ${view.state}, not ${until}, after ${timeoutMs} ms`);
    }
  }

  /** Change settings that may change as it runs. Throws ApiError: `stale_tag`. */
  async change(settings: JobChange): Promise<JobView> {
    return this.#seen(await this.#asSeen("PATCH", settings));
  }

  /** Give it another specification, over its stores and positions. Throws ApiError: `stale_tag`, `incompatible_change`. */
  async update(spec: JobSpec, options: UpdateOptions = {}): Promise<JobView> {
    return this.#seen(await this.#asSeen("PUT", { ...spec, ...options }));
  }

  /** The service's verdict on an `update`, which changes nothing. */
  async dryRun(spec: JobSpec, options: UpdateOptions = {}): Promise<ChangeVerdict> {
    const answer = await this.#asSeen("PUT", { ...spec, ...options }, { dry_run: true });
    return (await answer.json()) as ChangeVerdict;
  }

  pause(): Promise<JobView> {
    return this.#ask("POST", `${this.#path}:pause`);
  }

  resume(): Promise<JobView> {
    return this.#ask("POST", `${this.#path}:resume`);
  }

  /** Commit what is under way, then stop: `wait("stopped")` is when it has. */
  stop(): Promise<JobView> {
    return this.#ask("POST", `${this.#path}:stop`);
  }

  restart(): Promise<JobView> {
    return this.#ask("POST", `${this.#path}:restart`);
  }

  flush(): Promise<JobView> {
    return this.#ask("POST", `${this.#path}:flush`);
  }

  /** Delete it, with its stores, when it is stopped. */
  async delete(): Promise<void> {
    await this.#client.answer("DELETE", this.#path);
  }

  async #ask(method: string, path: string, body?: unknown, asked?: Asked): Promise<JobView> {
    return this.#seen(await this.#client.answer(method, path, body, asked));
  }

  async #seen(answer: Response): Promise<JobView> {
    const view = (await answer.json()) as JobView;
    this.#tag = answer.headers.get("ETag");
    this.#specVersion = view.spec_version;
    return view;
  }

  /** Asked of the version that was seen last: the tag alone is another one whenever the job's tasks move. */
  async #asSeen(method: string, body: unknown, query?: Query): Promise<Response> {
    if (this.#tag === null) await this.view();
    const version = this.#specVersion;
    for (;;) {
      try {
        const headers = { "If-Match": this.#tag ?? "" };
        const isRepeatable = query !== undefined; // a dry run
        return await this.#client.answer(method, this.#path, body, { query: query ?? {}, headers, isRepeatable });
      } catch (error) {
        if (!(error instanceof ApiError && error.is("stale_tag"))) throw error;
        await this.view();
        if (this.#specVersion !== version) throw error;
      }
    }
  }
}
