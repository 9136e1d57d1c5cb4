// Jobs: submitted, waited for, changed, stopped. A handle remembers the tag of the job as it was last seen through it; a
// change is refused with `stale_tag` where somebody else has changed the job since.
import type { Asked, Client } from "./client.js";
import { JobFailed, MillraceError } from "./errors.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];
export type JobView = Schemas["JobView"];
/** What is absent has its default. */
export type JobSpec = Schemas["JobSpec"];
export type Until = "running" | "caught_up" | "stopped";

const LONGEST_WAIT_MS = 30_000; // of one request

export class Job {
  readonly #client: Client;
  readonly #path: string;
  #tag: string | null = null;

  constructor(
    client: Client,
    readonly name: string,
  ) {
    this.#client = client;
    this.#path = `/v1/jobs/${name}`;
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

  /** Resolves when it is so. Throws JobFailed where it ended before; MillraceError where it took too long. */
  async wait(until: Until = "caught_up", timeoutMs = 60_000): Promise<JobView> {
    const end = performance.now() + timeoutMs;
    for (;;) {
      const waitMs = Math.round(Math.min(LONGEST_WAIT_MS, Math.max(0, end - performance.now())));
      const view = await this.#ask("GET", this.#path, undefined, { query: { wait: until, timeout_ms: waitMs }, waitMs });
      if (until === "caught_up" ? view.caught_up : view.state === until) return view;
      if (view.state === "failed" || view.state === "stopped") {
        throw new JobFailed(this.name, view.state, view.error?.code ?? "", view.error?.detail ?? view.reason);
      }
      if (performance.now() >= end) throw new MillraceError(`job ${this.name} is ${view.state}, not ${until}`);
    }
  }

  /** Change settings that may change as it runs. */
  async change(settings: Schemas["JobChange"]): Promise<JobView> {
    return this.#ask("PATCH", this.#path, settings, { headers: await this.#ifMatch() });
  }

  /** Give it another specification, over its stores and positions. */
  async update(
    spec: JobSpec,
    more: { renames?: Record<string, string>; restart?: string[] } = {},
  ): Promise<JobView> {
    return this.#ask("PUT", this.#path, { ...spec, ...more }, { headers: await this.#ifMatch() });
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
    const answer = await this.#client.answer(method, path, body, asked);
    this.#tag = answer.headers.get("ETag") ?? this.#tag;
    return (await answer.json()) as JobView;
  }

  async #ifMatch(): Promise<Record<string, string>> {
    if (this.#tag === null) await this.view();
    return { "If-Match": this.#tag ?? "" };
  }
}
