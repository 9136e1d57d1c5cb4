// A simulation over the newest records of streams: what is read for it, and what is asked.
import type { components } from "@millrace/client";

import { api, good, type RecordPage, type StreamRecord } from "../../api";
import type { Simulation } from "./compare";
import { isObject, type Json } from "./schema";

export interface Choice {
  readonly records: number;
  readonly partition: number | undefined;
  /** Records before this time; undefined: up to the end. */
  readonly until: number | undefined;
  /** Whether all that is open at the end is closed. */
  readonly closes: boolean;
}

export interface FedRecord {
  readonly stream: string;
  readonly partition: number;
  readonly key: string | null;
  readonly value: unknown;
  readonly timestamp: number;
}

export interface Fed {
  readonly records: FedRecord[];
  /** How many were left out, for the request would be larger than a reader may ask for. */
  readonly leftOut: number;
  readonly hasWindows: boolean;
}

export type SimulateBody = components["schemas"]["SimulateRequest"];

export const READERS_BYTES = 256 << 10;
const MAX_PARTITION = 256; // of a simulation

export function sourcesOf(spec: Json): string[] {
  const source = isObject(spec) ? spec.source : undefined;
  return [source ?? []].flat().filter((each): each is string => typeof each === "string" && each !== "");
}

/** Of what a change takes beside the specification. */
export function bare(spec: Json): Json {
  if (!isObject(spec)) return spec;
  const { renames: _renames, restart: _restart, ...rest } = spec;
  return rest as Json;
}

export async function newest(stream: string, { records, partition, until }: Choice): Promise<StreamRecord[]> {
  const query = { reverse: true, limit: records, ...(partition === undefined ? {} : { partition }), ...(until === undefined ? {} : { from_timestamp: until }) };
  const page = (await good(api.GET("/v1/streams/{stream}/records", { params: { path: { stream }, query } }))) as RecordPage;
  return page.records.reverse(); // of each partition in its order again
}

/** Records of several logs in one order: within each as they lie, else by how far the log had come. */
export function inOrder(logs: readonly { stream: string; records: readonly StreamRecord[] }[]): FedRecord[] {
  const reached = new Map<string, number>();
  const found = logs.flatMap(({ stream, records }) =>
    records.map(({ partition, key, value, timestamp }) => {
      const log = `${stream}/${partition}`;
      const at = Math.max(reached.get(log) ?? 0, timestamp ?? 0);
      reached.set(log, at);
      return { at, record: { stream, partition: partition % MAX_PARTITION, key, value, timestamp: timestamp ?? 0 } };
    }),
  );
  return found.sort((one, other) => one.at - other.at).map(({ record }) => record);
}

export async function feed(spec: Json, choice: Choice, maxBytes: number): Promise<Fed> {
  const streams = sourcesOf(spec);
  const each = { ...choice, records: Math.max(1, Math.floor(choice.records / Math.max(1, streams.length))) };
  const logs = await Promise.all(streams.map(async (stream) => ({ stream, records: await newest(stream, each) })));
  const records = inOrder(logs).slice(-choice.records);
  const fitting = newestWithin(records, maxBytes);
  return { records: fitting, leftOut: records.length - fitting.length, hasWindows: logs.some((log) => log.records.some(({ window }) => window !== null)) };
}

function newestWithin(records: FedRecord[], maxBytes: number): FedRecord[] {
  const encoder = new TextEncoder();
  let left = maxBytes;
  let first = records.length;
  while (first > 0 && (left -= encoder.encode(JSON.stringify(records[first - 1])).length + 1) >= 0) first -= 1;
  return records.slice(first);
}

/** A time at which all that these records opened is over: the spans of the specification behind the last of them. */
export function afterAll(spec: Json, records: readonly FedRecord[]): number {
  const last = records.reduce((most, { timestamp }) => Math.max(most, timestamp), 0);
  return last + spansOf(spec) + 1;
}

function spansOf(value: unknown): number {
  if (Array.isArray(value)) return value.reduce<number>((sum, each) => sum + spansOf(each), 0);
  if (!isObject(value)) return 0;
  return Object.entries(value).reduce(
    (sum, [name, each]) => sum + (typeof each === "number" && /^(size|gap|grace|time_difference|time_limit)_ms$/.test(name) ? each : spansOf(each)),
    0,
  );
}

export function simulationOf(spec: Json, records: readonly FedRecord[], advanceTo: number | undefined): SimulateBody {
  const job = bare(spec) as SimulateBody["job"];
  return { job, records: [...records], ...(advanceTo === undefined ? {} : { advance_to: advanceTo }) } as SimulateBody;
}

export function simulate(body: SimulateBody): Promise<Simulation> {
  return good<Simulation>(api.POST("/v1/jobs:simulate", { body }));
}
