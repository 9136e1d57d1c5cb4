// What goes through each box of a job's topology, from what the API answered. Pure but for `useFlow`, which looks twice.
import type { components } from "@millrace/client";

import type { Job, JobMetrics } from "../../../api";
import { bytes, count, rate, sum } from "../../../figures";
import type { Seen } from "../../../queries";
import { useRates } from "../../../rates";

export type Box = components["schemas"]["BoxView"];
export type Topology = components["schemas"]["TopologyView"];

/** Rates per second, `busy` as a share of the time of its tasks; undefined: not known yet, or nothing such. */
export interface BoxFlow {
  readonly box: Box;
  readonly taken: number | undefined;
  readonly given: number | undefined;
  readonly total: number;
  readonly busy: number | undefined;
  readonly lag: number | undefined;
  readonly dropped: number;
  readonly entries: number | undefined;
  readonly bytes: number | undefined;
  readonly store: string | undefined;
}

export type Load = "unknown" | "idle" | "light" | "busy" | "full";

export function loadOf(busy: number | undefined): Load {
  if (busy === undefined) return "unknown";
  return busy < 0.01 ? "idle" : busy < 0.3 ? "light" : busy < 0.7 ? "busy" : "full";
}

function metricTotals({ flow }: JobMetrics): Map<string, number> {
  const totals = Object.entries(flow).flatMap(([name, each]): [string, number][] => [
    [`in ${name}`, each.records_in],
    [`out ${name}`, each.records_out],
    [`busy ${name}`, each.busy_seconds],
  ]);
  return new Map(totals);
}

function sourceTotals({ positions }: Job): Map<string, number> {
  const totals = new Map<string, number>();
  for (const { stream, position, end } of positions) {
    totals.set(`read ${stream}`, (totals.get(`read ${stream}`) ?? 0) + position);
    totals.set(`end ${stream}`, (totals.get(`end ${stream}`) ?? 0) + end);
  }
  return totals;
}

/** Of each box but frames and entries, from the top to the bottom. */
export function useFlow(topology: Topology, job: Seen<Job>, metrics: Seen<JobMetrics> | undefined): BoxFlow[] {
  const read = useRates(job, sourceTotals);
  const went = useRates(metrics, metricTotals);
  const boxes = (topology.layout?.boxes ?? []).filter(({ role }) => role !== "sub_topology" && role !== "entry");
  return [...boxes].sort((a, b) => a.y - b.y || a.x - b.x).map((box) => flowOf(box, topology, job.now, metrics?.now, read, went));
}

type Rates = ReadonlyMap<string, number>;

export function flowOf(box: Box, topology: Topology, job: Job, metrics: JobMetrics | undefined, read: Rates, went: Rates): BoxFlow {
  const { name } = box;
  if (box.role === "source") {
    const own = job.positions.filter(({ stream }) => stream === name);
    return {
      ...NOTHING,
      box,
      taken: read.get(`end ${name}`),
      given: read.get(`read ${name}`),
      total: sum(own.map(({ end }) => end)),
      lag: sum(own.map(({ lag }) => lag)),
    };
  }
  const counted = box.counted_as ?? name;
  const sub = topology.sub_topologies.find(({ id }) => id === box.sub_topology);
  const node = box.role === "operator" ? sub?.nodes.find((each) => each.name === name) : undefined;
  const busy = went.get(`busy ${counted}`);
  const measured = metrics?.operators[name];
  const hasRates = went.size > 0;
  return {
    ...NOTHING,
    box,
    taken: went.get(`in ${counted}`) ?? (hasRates ? 0 : undefined),
    given: went.get(`out ${counted}`) ?? (hasRates ? 0 : undefined),
    total: metrics?.flow[counted]?.records_out ?? 0,
    busy: busy === undefined ? (hasRates ? 0 : undefined) : busy / (sub?.partitions ?? 1),
    dropped: sum(Object.values(metrics?.dropped[counted] ?? {})),
    entries: measured?.store_entries ?? undefined,
    bytes: measured?.store_bytes ?? undefined,
    store: node?.store?.name,
  };
}

const NOTHING = {
  taken: undefined,
  given: undefined,
  total: 0,
  busy: undefined,
  lag: undefined,
  dropped: 0,
  entries: undefined,
  bytes: undefined,
  store: undefined,
};

export function share(part: number | undefined): string {
  if (part === undefined) return "–";
  const percent = part * 100;
  return `${percent > 0 && percent < 1 ? "< 1" : Math.round(percent)} %`;
}

export function through({ box, taken, given, total }: BoxFlow): string {
  if (box.role === "source") return `${rate(taken)}/s come · ${rate(given)}/s read`;
  if (box.role === "sink") return `${rate(given)}/s · ${count(total)} in all`;
  return `${rate(taken)}/s in · ${rate(given)}/s out`;
}

export function storeSize({ entries, bytes: size }: BoxFlow): string {
  return entries === undefined ? "store" : `${count(entries)} entries, ${bytes(size ?? 0)}`;
}
