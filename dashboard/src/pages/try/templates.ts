// Jobs to begin with, fitted to what a stream's records look like. Pure.
import type { StreamRecord } from "../../api";

export interface Template {
  readonly name: string;
  readonly about: string;
  readonly spec: Record<string, unknown>;
}

export interface Fit {
  /** Members of values that name something, most telling first. */
  readonly ids: string[];
  readonly numbers: string[];
  /** Between the records of one key, ms: half of the gaps are shorter. */
  readonly gapMs: number | undefined;
  readonly spanMs: number;
  /** How many records are before the highest time so far by how much at most, ms. */
  readonly latenessMs: number;
}

const NICE_MS = [1_000, 5_000, 10_000, 30_000, 60_000, 300_000, 600_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000];

/** The first of the lengths that people choose that is not shorter. */
export function nice(ms: number): number {
  return NICE_MS.find((each) => each >= ms) ?? NICE_MS.at(-1)!;
}

export function fitOf(records: readonly StreamRecord[]): Fit {
  const inTime = [...records].sort((one, other) => (one.timestamp ?? 0) - (other.timestamp ?? 0));
  const times = inTime.map(({ timestamp }) => timestamp ?? 0);
  return {
    ids: membersOf(records, (value) => typeof value === "string" || Number.isSafeInteger(value)).sort((one, other) => rank(records, other) - rank(records, one)),
    numbers: membersOf(records, (value) => typeof value === "number"),
    gapMs: medianGap(inTime),
    spanMs: (times.at(-1) ?? 0) - (times[0] ?? 0),
    latenessMs: lateness(records),
  };
}

function membersOf(records: readonly StreamRecord[], isFit: (value: unknown) => boolean): string[] {
  const [first, ...others] = records.map(({ value }) => (typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, unknown>) : {}));
  return Object.keys(first ?? {}).filter((name) => [first!, ...others].every((value) => isFit(value[name])));
}

/** How much a member looks like an identity: by its name, then by how many values it has. */
function rank(records: readonly StreamRecord[], name: string): number {
  const different = new Set(records.map(({ value }) => (value as Record<string, unknown>)[name])).size;
  return (/(^|_)(id|uuid|key)$|Id$/.test(name) ? 2 : 0) + different / Math.max(1, records.length);
}

function medianGap(inTime: readonly StreamRecord[]): number | undefined {
  const last = new Map<string, number>();
  const gaps: number[] = [];
  for (const { key, timestamp } of inTime) {
    if (key === null || timestamp === null) continue;
    const before = last.get(key);
    if (before !== undefined) gaps.push(timestamp - before);
    last.set(key, timestamp);
  }
  return gaps.sort((one, other) => one - other)[Math.floor(gaps.length / 2)];
}

function lateness(records: readonly StreamRecord[]): number {
  const highest = new Map<number, number>();
  let most = 0;
  for (const { partition, timestamp } of [...records].sort((one, other) => one.offset - other.offset)) {
    const before = highest.get(partition) ?? timestamp ?? 0;
    most = Math.max(most, before - (timestamp ?? 0));
    highest.set(partition, Math.max(before, timestamp ?? 0));
  }
  return most;
}

function member(name: string): string {
  return `value->>'${name.replaceAll("'", "''")}'`;
}

/** A job's name of a stream's. */
function jobName(stream: string, suffix: string): string {
  return `${stream.slice(0, 63 - suffix.length)}_${suffix}`;
}

export function templatesFor(stream: string, records: readonly StreamRecord[]): Template[] {
  const fit = fitOf(records);
  const gap = nice(3 * (fit.gapMs ?? 200_000));
  const size = nice(Math.min(Math.max(1_000, fit.spanMs / 20), 3_600_000));
  const grace = fit.latenessMs === 0 ? 0 : nice(fit.latenessMs);
  const [id] = fit.ids;
  const number = fit.numbers.find((name) => name !== id) ?? fit.numbers[0];
  const sums = number === undefined ? {} : { total: { fn: "sum", of: `(${member(number)})::double` } };
  const of = (suffix: string, operators: unknown[]) => ({ name: jobName(stream, suffix), source: stream, operators, sink: `${stream.slice(0, 120)}-${suffix}` });
  const count = { n: { fn: "count" }, ...sums };
  const tumbling = { type: "tumbling", size_ms: size, ...(grace ? { grace_ms: grace } : {}) };
  const final = { op: "suppress", name: "final", until: "window_closes" };
  const once = id === undefined ? { op: "deduplicate_by_key", name: "once", interval_ms: gap } : { op: "deduplicate_by_key_value", name: "once", id: member(id), interval_ms: gap };
  return [
    { name: "deduplicate", about: `the first of each ${id === undefined ? "key" : `key and ${id}`}, others dropped`, spec: of("once", [once]) },
    {
      name: "sessions",
      about: "what belongs together, of each key, until it is silent",
      spec: of("sessions", [{ op: "aggregate", name: "visits", window: { type: "session", gap_ms: gap, ...(grace ? { grace_ms: grace } : {}) }, aggregates: count }]),
    },
    { name: "final counts", about: "one result of each key and span of time, when it is over", spec: of("counts", [{ op: "aggregate", name: "counted", window: tumbling, aggregates: count }, final]) },
    {
      name: "alerts",
      about: "a record for each key that comes often in a span of time",
      spec: of("alerts", [{ op: "aggregate", name: "counted", window: tumbling, aggregates: { n: { fn: "count" } } }, final, { op: "filter", where: "(value->>'n')::bigint >= 3" }]),
    },
  ];
}
