// What is otherwise than it was a day ago. Pure: what the API answered in, sentences out.
import type { Job, JobFigures, Overview, Stream } from "./api";
import { bytes, count, percent, rate } from "./figures";
import { pageOf, type Tab } from "./pages/job/frame";

export type ChangeKind = "new" | "failed" | "version" | "rate" | "lag" | "drops" | "store" | "moved";

export interface Change {
  readonly kind: ChangeKind;
  /** Of what, by name, with the page of each. */
  readonly of: readonly (readonly [name: string, page: string])[];
  readonly detail: string;
}

/** By how much a rate has to differ, and how many records there have to be: half of little is nothing. */
const RATE = { ratio: 1.5, records: 100 };
const LAG = { ratio: 2, records: 1_000 };
const STORE = { ratio: 1.5, bytes: 10_000_000 };
const DROPS = { ratio: 1.5, share: 0.001 };
const ORDER: readonly ChangeKind[] = ["failed", "new", "version", "rate", "lag", "drops", "store", "moved"];
const HOUR_S = 3_600;

export function changes(overview: Overview, jobs: readonly Job[], streams: readonly Stream[]): Change[] {
  const known = new Map(jobs.map((job) => [job.name, job]));
  const since = overview.compared_with_ms ?? Date.now() - 24 * HOUR_S * 1000;
  const found = [
    ...overview.jobs.flatMap((figures) => ofJob(figures, known.get(figures.job))),
    ...made("job", overview.jobs.filter((figures) => figures.changes.is_new).map(({ job }) => [job, pageOf(job)])),
    ...made("stream", streams.filter((stream) => isNew(stream, since)).map(({ name }) => [name, pageOfStream(name)])),
    ...overview.streams.flatMap(ofStream),
    ...moved(overview.jobs.filter((figures) => figures.changes.rebalances > 1)),
  ];
  return found.sort((one, other) => ORDER.indexOf(one.kind) - ORDER.indexOf(other.kind));
}

function ofJob(figures: JobFigures, job: Job | undefined): Change[] {
  const { changes: became, last_hour: now, before, job: name } = figures;
  const found: Change[] = [];
  const say = (kind: ChangeKind, detail: string, tab: Tab = "status") => found.push({ kind, of: [[name, pageOf(name, tab)]], detail });
  if (became.failures > 0) say("failed", `failed ${times(became.failures)}${became.starts > 0 ? `, was started again ${times(became.starts)}` : ""}`);
  if (became.former_version !== null) say("version", `version ${became.former_version} is now ${job?.spec_version ?? "another"}`);
  if (before === null) return found;
  const read = compared(now.records_in, before.records_in);
  if (read !== null) say("rate", `reads ${read}`);
  const given = compared(now.records_out, before.records_out);
  if (given !== null && read === null) say("rate", `gives ${given}`);
  const [lag, lagBefore] = [now.lag ?? 0, before.lag ?? 0];
  if (lag >= LAG.records && lag >= lagBefore * LAG.ratio) say("lag", `lag is ${count(lag)} records, it was ${count(lagBefore)}`);
  const [share, shareBefore] = [shareOf(now), shareOf(before)];
  if (differ(share, shareBefore, DROPS.ratio) && Math.max(share, shareBefore) >= DROPS.share && now.records_in >= RATE.records)
    say("drops", `${percent(share)} of what it reads is dropped, it was ${percent(shareBefore)}`, "dropped");
  const [size, sizeBefore] = [now.store_bytes, before.store_bytes];
  if (size !== null && sizeBefore !== null && size >= STORE.bytes && differ(size, sizeBefore, STORE.ratio))
    say("store", `its stores take ${bytes(size)}, it was ${bytes(sizeBefore)}`, "state");
  return found;
}

/** Whose tasks were given out anew, in one line: where one instance goes it is all of them. */
function moved(jobs: readonly JobFigures[]): Change[] {
  if (jobs.length === 0) return [];
  const most = Math.max(...jobs.map(({ changes: became }) => became.rebalances));
  const detail = jobs.length === 1 ? `its tasks were given out anew ${times(most)}` : `their tasks were given out anew, up to ${times(most)} each`;
  return [{ kind: "moved", of: jobs.map(({ job }) => [job, pageOf(job, "assignment")] as const), detail }];
}

function isNew({ kind, created_at: made }: Stream, since: number): boolean {
  return kind === "user" && Date.parse(made) >= since;
}

/** What was made, in one line: it may be many. */
function made(what: string, of: Change["of"]): Change[] {
  if (of.length === 0) return [];
  return [{ kind: "new", of, detail: of.length === 1 ? `the ${what} was made` : `${count(of.length)} ${what}s were made` }];
}

function ofStream({ stream: name, last_hour: now, before }: Overview["streams"][number]): Change[] {
  const detail = before === null ? null : compared(now, before);
  return detail === null ? [] : [{ kind: "rate", of: [[name, pageOfStream(name)]], detail: `gets ${detail}` }];
}

function pageOfStream(name: string): string {
  return `/streams/${encodeURIComponent(name)}`;
}

/** Records of an hour beside those of another one; null: much the same. */
function compared(now: number, before: number): string | null {
  if (Math.max(now, before) < RATE.records || !differ(now, before, RATE.ratio)) return null;
  if (before === 0) return `${rate(now / HOUR_S)} records a second, it was nothing`;
  if (now === 0) return `nothing, it was ${rate(before / HOUR_S)} records a second`;
  return `${rate(now / HOUR_S)} records a second, it was ${rate(before / HOUR_S)}`;
}

function differ(one: number, other: number, ratio: number): boolean {
  return one > other * ratio || other > one * ratio;
}

function shareOf({ dropped, records_in: read }: JobFigures["last_hour"]): number {
  return read === 0 ? 0 : dropped / read;
}

function times(number: number): string {
  return number === 1 ? "once" : number === 2 ? "twice" : `${number} times`;
}
