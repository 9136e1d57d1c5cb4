// What somebody should look at, worst first. Pure: what the API answered in, findings out.
import type { Instance, Job, JobFigures, Overview, Readiness, Stream } from "./api";
import { count, percent, rate, sum } from "./figures";
import { pageOf, type Tab } from "./pages/job/frame";
import { span } from "./time";

export type Kind =
  | "failed"
  | "no cores"
  | "lost"
  | "executor"
  | "webhook"
  | "ahead"
  | "behind"
  | "copy"
  | "dropping"
  | "silent"
  | "skewed"
  | "service";

export interface Finding {
  readonly kind: Kind;
  /** Of what; the page that says more, if there is one. */
  readonly name: string;
  readonly page: string | null;
  readonly detail: string;
  /** Since when, ms, as far as that is known. */
  readonly since: number | null;
}

/** What the API says of all that runs. */
export interface Known {
  readonly jobs: readonly Job[];
  readonly instances: readonly Instance[];
  readonly streams: readonly Stream[];
  readonly readiness: Readiness | undefined;
  readonly overview: Overview | undefined;
}

/** For how long a job is behind before somebody should hear of it: a burst is none of their business. */
const BEHIND_MS = 20_000;
/** How far stream time may be behind the clock, and how long nothing may come where no pace is known. */
const SILENT_MS = 600_000;
/** Nothing comes for so many times the usual pause, and for so long at least. */
const UNUSUAL = { times: 3, ms: 60_000 };
/** Drops that are what an operator is there for. */
const INTENDED = new Set(["duplicate"]);
/** Of what a job reads: less than this is dropped by every stream of the world; and as much as yesterday is no news, up to a limit. */
const DROPS = { share: 0.001, news: 1.5, most: 0.05 };
/** How far stream time may be ahead of the clock: as far as streams let records be, unless they were told otherwise. */
const AHEAD_MS = 3_600_000;
/** For how long somebody should hear of an instance that was lost. */
const LOST_MS = 86_400_000;
/** And of an executor whose slots all run again: by then nobody has to do anything. */
const BACK_MS = 3_600_000;
/** One partition of several has nearly all of a stream, that is not small. */
const SKEWED = { partitions: 3, records: 1_000, share: 0.8 };
/** Of a job that does not say how far a copy may be behind for a task to move to it. */
const DEFAULT_RECOVERY_LAG = 10_000;
const ACTIVE = new Set<Job["state"]>(["starting", "running", "rebalancing", "changing"]);

export function lagOf(job: Job): number {
  return sum(job.positions.map((position) => position.lag));
}

/** How long a job needs to catch up; null: it does not, at this pace. */
export function untilCaughtUp(lag: number, read: number, arriving: number): number | null {
  return lag === 0 ? 0 : read > arriving ? (lag * 1000) / (read - arriving) : null;
}

export function findings({ jobs, instances, streams, readiness, overview }: Known, now: number): Finding[] {
  const figures = new Map(overview?.jobs.map((each) => [each.job, each]));
  const flows = new Map(overview?.streams.map((each) => [each.stream, each]));
  const parts = Object.entries(readiness?.parts ?? {}).filter(([, said]) => said !== "ok");
  return [
    ...parts.map(([name, detail]) => ofService(name, String(detail))),
    ...jobs.flatMap((job) => failed(job, figures.get(job.name)) ?? []),
    ...jobs.flatMap((job) => withoutCores(job) ?? []),
    ...instances.flatMap(short),
    ...instances.flatMap((instance) => lost(instance, now) ?? []),
    ...instances.flatMap((instance) => withoutExecutors(instance, now)),
    ...streams.flatMap(untaken),
    ...jobs.flatMap((job) => ahead(job, figures.get(job.name), now) ?? []),
    ...jobs.flatMap((job) => behind(job, figures.get(job.name), flows, now) ?? []),
    ...jobs.flatMap((job) => copy(job) ?? []),
    ...jobs.flatMap((job) => dropping(job, figures.get(job.name)) ?? []),
    ...jobs.flatMap((job) => standing(job) ?? silent(job, flows, now) ?? []),
    ...jobs.flatMap((job) => skewed(job) ?? []),
  ];
}

type Flows = ReadonlyMap<string, Overview["streams"][number]>;

function of(job: Job, kind: Kind, detail: string, tab: Tab = "status", since: number | null = null): Finding {
  return { kind, name: job.name, page: pageOf(job.name, tab), detail, since };
}

function ofService(name: string, detail: string): Finding {
  return { kind: "service", name, page: name === "instances" ? "/instances" : null, detail, since: null };
}

export function sourcesOf(job: Job): string[] {
  return [job.spec.source].flat().filter((source): source is string => typeof source === "string");
}

function failed(job: Job, figures: JobFigures | undefined): Finding | null {
  if (job.state !== "failed") return null;
  const { error } = job;
  const detail = error === null ? job.reason : `${error.code}: ${error.detail}`;
  return of(job, "failed", detail, "status", figures?.changes.failed_ms ?? null);
}

function withoutCores(job: Job): Finding | null {
  return job.shortage === null ? null : of(job, "no cores", "waits for a core: other jobs have all there are");
}

function short(instance: Instance): Finding[] {
  if (instance.shortage === null) return [];
  return [{ kind: "no cores", name: instance.name, page: "/instances", detail: `the instance lacks: ${instance.shortage}`, since: null }];
}

function lost(instance: Instance, now: number): Finding | null {
  const ago = now - Date.parse(instance.lease_until);
  if (!instance.was_lost || ago > LOST_MS) return null;
  const detail = `the instance was lost ${span(ago)} ago: its tasks are others' now, or nobody's`;
  return { kind: "lost", name: instance.name, page: "/instances", detail, since: now - ago };
}

/** Executors that an instance lost while it went on: its other slots did too. */
function withoutExecutors({ name, lost_executors: lost }: Instance, now: number): Finding[] {
  return lost.flatMap(({ executor, lost_at, slots, back }) => {
    const since = Date.parse(lost_at);
    if (now - since > (back < slots ? LOST_MS : BACK_MS)) return [];
    const went = `its executor ${executor} was lost with ${count(slots)} ${slots === 1 ? "slot" : "slots"}`;
    const detail = `${went}: ${backWords(slots, back)}`;
    return [{ kind: "executor", name, page: "/instances", detail, since }];
  });
}

/** How many slots of a lost executor run again. */
export function backWords(slots: number, back: number): string {
  if (slots === 1) return back === 1 ? "it is back" : "it is not back";
  if (back === slots) return "all are back";
  return `${back === 0 ? "none" : count(back)} of them ${back > 1 ? "are" : "is"} back`;
}

/** Streams with records that a target of a subscription does not take. */
function untaken({ name, failing_pushes: failing }: Stream): Finding[] {
  return failing.map(({ subscription, attempts, since, detail }) => ({
    kind: "webhook",
    name: `${name}: ${subscription}`,
    page: `/streams/${name}`,
    detail: `its target does not take a record, after ${count(attempts)} ${attempts === 1 ? "attempt" : "attempts"}: ${detail}`,
    since: Date.parse(since),
  }));
}

/** One record of a far future takes stream time there, and all others are late. */
function ahead(job: Job, figures: JobFigures | undefined, now: number): Finding | null {
  const by = (job.stream_time ?? now) - now;
  if (by < AHEAD_MS) return null;
  return of(job, "ahead", `stream time is ${span(by)} ahead of the clock: what comes now is late`, "time", figures?.ahead_since_ms ?? null);
}

/** What a loss would cost: a copy that is so far behind that no task may move to it, or one that is not there. */
function copy(job: Job): Finding | null {
  const { copies } = job;
  if (copies === null || job.state !== "running") return null;
  const { most_behind: worst, missing_standbys: missing } = copies;
  if (worst !== null && worst.lag_records > (job.spec.acceptable_recovery_lag ?? DEFAULT_RECOVERY_LAG))
    return of(job, "copy", `the copy of task ${worst.task} is ${count(worst.lag_records)} changes behind`, "assignment");
  return missing === 0
    ? null
    : of(job, "copy", `${count(missing)} of the standbys asked for are missing or not caught up`, "assignment");
}

/** Needs long for what is there: at which pace, whether that is enough, and whether its tasks have more to give. */
function behind(job: Job, figures: JobFigures | undefined, flows: Flows, now: number): Finding | null {
  const since = figures?.behind_since_ms ?? null;
  const lag = lagOf(job);
  if (!ACTIVE.has(job.state) || job.shortage !== null || figures === undefined || since === null || lag === 0) return null;
  if (now - since < BEHIND_MS) return null;
  const read = figures.records_in_rate ?? 0;
  const arriving = sum(sourcesOf(job).map((source) => flows.get(source)?.records_rate ?? 0));
  const until = untilCaughtUp(lag, read, arriving);
  const words = [`${count(lag)} records to read, at ${rate(read)} a second`];
  words.push(until === null ? `never caught up at this pace: ${rate(arriving)} a second come` : `caught up in ${span(until)}`);
  if (figures.busy !== null && job.tasks.count > 0) words.push(`its tasks are busy for ${percent(figures.busy / job.tasks.count)} of the time`);
  return of(job, "behind", words.join("; "), "status", since);
}

/** Drops that nobody asked for, of the last hour: so many that they count, and that it was not like that yesterday. */
function dropping(job: Job, figures: JobFigures | undefined): Finding | null {
  if (figures === undefined) return null;
  const [drops, share] = unasked(figures.last_hour);
  const [, yesterday] = figures.before === null ? [[], 0] : unasked(figures.before);
  const isUsual = share <= yesterday * DROPS.news && share < DROPS.most;
  const [worst] = drops;
  if (worst === undefined || share < DROPS.share || isUsual) return null;
  const all = sum(drops.map(({ records }) => records));
  const reasons = [...new Set(drops.map(({ reason }) => reason.replaceAll("_", " ")))].join(", ");
  const detail = `${count(all)} of ${count(figures.last_hour.records_in)} records dropped as ${reasons} in the last hour, by “${worst.operator}”`;
  const beside = yesterday > 0 ? `; it was ${percent(yesterday)} of them the day before` : "";
  return of(job, "dropping", detail + beside, "dropped", figures.dropping_since_ms);
}

function unasked(hour: JobFigures["last_hour"]): [JobFigures["last_hour"]["dropped_by"], number] {
  const drops = hour.dropped_by.filter(({ reason }) => !INTENDED.has(reason));
  const all = sum(drops.map(({ records }) => records));
  return [drops, all === 0 ? 0 : all / Math.max(hour.records_in, all)];
}

/** Whether results of the job come when stream time has closed something, and not before. */
function waitsForClose(job: Job): boolean {
  return (job.spec.operators ?? []).some(
    (operator) => operator.op === "suppress" || (operator.op === "aggregate" && operator.emit === "on_window_close"),
  );
}

/** A task whose stream time stands still while that of others goes on: what is open there waits for a record. */
function standing(job: Job): Finding | null {
  const { slowest } = job.tasks;
  const by = (job.stream_time ?? 0) - (slowest?.stream_time ?? Infinity);
  if (!ACTIVE.has(job.state) || slowest === null || !waitsForClose(job) || lagOf(job) > 0 || by < SILENT_MS) return null;
  const detail = `task ${slowest.task} is ${span(by)} behind the others: no record comes that would close what is open there`;
  return of(job, "silent", detail, "time");
}

/** All is read, and what is open waits for a record; or nothing comes for longer than is usual. */
function silent(job: Job, flows: Flows, now: number): Finding | null {
  const { stream_time: time } = job;
  if (!ACTIVE.has(job.state) || lagOf(job) > 0 || time === null) return null;
  const came = latest(sourcesOf(job).map((source) => flows.get(source)?.published_ms ?? null));
  if (job.tasks.open > 0 && waitsForClose(job) && now - time >= SILENT_MS) {
    const read = `all is read, and the latest record is of ${span(now - time)} ago`;
    const idle = job.spec.idle_close_after_ms;
    const open = idle == null ? "what is open stays open: idle close is off" : `what is open closes after ${span(idle)} without a record`;
    return of(job, "silent", `${read}; ${open}`, "time", came);
  }
  const usual = latest(sourcesOf(job).map((source) => flows.get(source)?.usual_pause_ms ?? null));
  const patience = usual === null ? SILENT_MS : Math.max(UNUSUAL.ms, UNUSUAL.times * usual);
  if (came === null || now - came < patience) return null;
  const pause = usual === null ? "" : `; usually something comes after ${span(usual)} at most`;
  return of(job, "silent", `all is read, and nothing has come for ${span(now - came)}${pause}`, "time", came);
}

function latest(times: (number | null)[]): number | null {
  const known = times.filter((time): time is number => time !== null);
  return known.length === 0 ? null : Math.max(...known);
}

export interface HotPartition {
  readonly stream: string;
  readonly partition: number;
  readonly records: number;
  readonly ofRecords: number;
  readonly partitions: number;
}

/** Of what a job reads, the first partition that has nearly all records of its stream: one task does nearly all of the work. */
export function hotPartition({ positions }: Pick<Job, "positions">): HotPartition | null {
  for (const stream of new Set(positions.map((position) => position.stream))) {
    const found = positions.filter((position) => position.stream === stream);
    const [most, all] = [found.reduce((one, other) => (other.end > one.end ? other : one)), sum(found.map(({ end }) => end))];
    if (found.length >= SKEWED.partitions && all >= SKEWED.records && most.end >= SKEWED.share * all)
      return { stream, partition: most.partition, records: most.end, ofRecords: all, partitions: found.length };
  }
  return null;
}

function skewed(job: Job): Finding | null {
  const hot = hotPartition(job);
  if (hot === null) return null;
  return of(job, "skewed", `${count(hot.records)} of ${count(hot.ofRecords)} records are in one of ${hot.partitions} partitions of ${hot.stream}`);
}
