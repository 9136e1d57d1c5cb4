// What somebody should look at, worst first. Pure: what the API answered in, findings out.
import type { Instance, Job, Readiness } from "./api";
import { count, rate, sum } from "./figures";
import { span } from "./time";

export type Kind = "failed" | "no cores" | "behind" | "dropping" | "silent" | "service";

export interface Finding {
  readonly kind: Kind;
  /** Of what; the page that says more, if there is one. */
  readonly name: string;
  readonly page: string | null;
  readonly detail: string;
}

export interface Pace {
  /** Records a second of each job. */
  readonly read: ReadonlyMap<string, number>;
  readonly dropped: ReadonlyMap<string, number>;
}

/** Behind is who needs longer than this, at its own pace, for what is there already. */
const BEHIND_S = 10;
/** How far stream time may be behind the clock before somebody should ask why nothing comes. */
const SILENT_MS = 600_000;
const ACTIVE = new Set<Job["state"]>(["starting", "running", "rebalancing", "changing"]);

export function lagOf(job: Job): number {
  return sum(job.positions.map((position) => position.lag));
}

/** How long a job needs to catch up; null: it does not, at this pace. */
export function untilCaughtUp(lag: number, read: number, arriving: number): number | null {
  return lag === 0 ? 0 : read > arriving ? (lag * 1000) / (read - arriving) : null;
}

export function findings(
  jobs: readonly Job[],
  instances: readonly Instance[],
  readiness: Readiness | undefined,
  pace: Pace,
  now: number,
): Finding[] {
  const parts = Object.entries(readiness?.parts ?? {}).filter(([, said]) => said !== "ok");
  return [
    ...parts.map(([name, detail]) => ({ kind: "service" as const, name, page: null, detail: String(detail) })),
    ...jobs.flatMap((job) => failed(job) ?? []),
    ...jobs.flatMap((job) => withoutCores(job) ?? []),
    ...instances.flatMap(short),
    ...jobs.flatMap((job) => behind(job, pace.read.get(job.name)) ?? []),
    ...jobs.flatMap((job) => dropping(job, pace.dropped.get(job.name)) ?? []),
    ...jobs.flatMap((job) => silent(job, now) ?? []),
  ];
}

function of(job: Job, kind: Kind, detail: string): Finding {
  return { kind, name: job.name, page: `/jobs/${job.name}`, detail };
}

function failed(job: Job): Finding | null {
  if (job.state !== "failed") return null;
  const { error } = job;
  return of(job, "failed", error === null ? job.reason : `${error.code}: ${error.detail}`);
}

function withoutCores(job: Job): Finding | null {
  return job.shortage === null ? null : of(job, "no cores", "waits for a core: other jobs have all there are");
}

function short(instance: Instance): Finding[] {
  if (instance.shortage === null) return [];
  return [{ kind: "no cores", name: instance.name, page: null, detail: `the instance lacks: ${instance.shortage}` }];
}

function behind(job: Job, read: number | undefined): Finding | null {
  const lag = lagOf(job);
  if (!ACTIVE.has(job.state) || job.shortage !== null || read === undefined || lag <= read * BEHIND_S) return null;
  return of(job, "behind", `${count(lag)} records to read, at ${rate(read)} a second`);
}

function dropping(job: Job, dropped: number | undefined): Finding | null {
  return dropped === undefined || dropped === 0 ? null : of(job, "dropping", `${rate(dropped)} records a second`);
}

function silent(job: Job, now: number): Finding | null {
  const { stream_time: time } = job;
  if (!ACTIVE.has(job.state) || lagOf(job) > 0 || time === null || now - time < SILENT_MS) return null;
  return of(job, "silent", `all is read, and the latest record is of ${span(now - time)} ago`);
}
