// How late is late, and whether more grace would have helped. Pure: what the API answered in, figures and words out.
import type { components } from "@millrace/client";

import type { Job } from "../../../api";
import { count, sum } from "../../../figures";
import { span } from "../../../time";

export type Dropped = components["schemas"]["DroppedCountView"];
export type Missed = NonNullable<Dropped["missed"]>;

/** What a reason means, and what can be done. */
const REASONS: Record<string, string> = {
  late: "Their windows had closed when they came: records of a later time had been there before. More grace keeps windows open for longer.",
  closed_idle: "Their windows had been closed without a record, by idle close or a flush. A longer idle_close_after_ms waits for longer.",
  before_version: "Their windows began before the operator's store did: a change or a restart had it begin anew.",
  duplicate: "The same had been there before, within the interval. That is what the operator is for.",
  null_key: "They have no key, and the operator needs one.",
  null_value: "They have no value, and the operator needs one.",
  key_too_long: "Their keys are too long to be stored.",
  expression_failed: "An expression failed on their values.",
  integer_overflow: "A sum did not fit into 64 bits.",
  aggregate_too_large: "What was computed grew too large.",
  aggregator_failed: "The code of an installed aggregator failed.",
};

export function meaningOf(reason: string): string {
  return REASONS[reason] ?? "The operator did not let them through.";
}

/** The drops that somebody should look at first: not those that are an operator's work. */
export function worstFirst(items: readonly Dropped[]): Dropped[] {
  const rank = ({ reason }: Dropped) => (reason === "duplicate" ? 1 : 0);
  return [...items].sort((a, b) => rank(a) - rank(b) || b.records - a.records);
}

export interface Step {
  /** ms; null: the last bound or more. */
  readonly below: number | null;
  readonly from: number;
  readonly records: number;
  /** With those of all steps before. */
  readonly upTo: number;
}

/** The histogram with where each step begins: bounds that nothing lies below are not in it. */
export function stepsOf({ below }: Missed): Step[] {
  let upTo = 0;
  let from = 0;
  return below.map(({ ms, records }) => {
    upTo += records;
    const step = { below: ms, from, records, upTo };
    from = ms ?? from;
    return step;
  });
}

/** A bound as people say it. */
export function inWords(ms: number): string {
  return ms < 1000 ? `${ms} ms` : ms % 1000 === 0 ? span(ms) : `${span(ms - (ms % 1000))} and ${ms % 1000} ms`;
}

/** So many are below. */
export function within(missed: Missed, ms: number): number {
  return sum(missed.below.filter((each) => each.ms !== null && each.ms <= ms).map(({ records }) => records));
}

/** The least bound below which three quarters lie; the highest there is, where no bound has so many. */
export function worthTrying(missed: Missed): number | undefined {
  const steps = stepsOf(missed).filter(({ below }) => below !== null);
  const enough = steps.find(({ upTo }) => upTo >= missed.records * 0.75);
  return (enough ?? steps.at(-1))?.below ?? undefined;
}

/** What more grace, or a shorter interval, of so much would have done. */
export function hindsight(reason: string, missed: Missed, ms: number, hedge: string): string {
  const [some, all] = [count(within(missed, ms)), count(missed.records)];
  if (reason === "late") return `${inWords(ms)} more grace would have kept ${hedge}${some} of ${all}.`;
  if (reason === "duplicate") return `With an interval ${inWords(ms)} shorter, ${some} of ${all} would have come out.`;
  return `${some} of ${all} missed their window by less than ${inWords(ms)}.`;
}

/** The window of the operator that dropped them, if it has one. */
export function windowOf(job: Job, operator: string): { type: string; grace_ms: number } | undefined {
  const found = job.spec.operators?.find((each) => "name" in each && each.name === operator);
  const window = found !== undefined && "window" in found ? found.window : undefined;
  return window == null ? undefined : { type: window.type, grace_ms: window.grace_ms ?? 0 };
}

/** Sessions that had closed by then might have taken more; other sliding windows would have been there, and closed. */
export function hedgeOf(window: { type: string } | undefined): string {
  return window?.type === "session" ? "at least " : window?.type === "sliding" ? "about " : "";
}
