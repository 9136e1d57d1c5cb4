// What the open things of a job wait for, from what the API says of its time. Knows no page: times stay numbers.
import type { components } from "@millrace/client";

export type JobTime = components["schemas"]["JobTimeView"];
export type Clock = components["schemas"]["TaskClockView"];
export type Operator = components["schemas"]["OperatorOpenView"];
export type Ending = components["schemas"]["EndingView"];

/** What ends together in a task, and what ends it. */
export interface Wait {
  readonly task: Clock;
  readonly operator: Operator;
  readonly ending: Ending;
  /** From the operator's stream time to the one that ends it; 0: the next record does, whatever its time. */
  readonly missingMs: number | null;
}

const FAR_MS = 730 * 86_400_000;
const STALLED_MS = 60_000;

/** All that is told of what ends next, what misses least first. */
export function waitsOf(time: JobTime): Wait[] {
  const found = time.items.flatMap((task) =>
    task.operators.filter(holdsBack).flatMap((operator) => (operator.open?.next ?? []).map((ending) => waitOf(task, operator, ending))),
  );
  return found.sort((one, other) => missing(one) - missing(other));
}

/** Identities that are remembered hold nothing back: that they are forgotten some day is no news. */
export function holdsBack(operator: Operator): boolean {
  return operator.what !== null && operator.what !== "identity";
}

function waitOf(task: Clock, operator: Operator, ending: Ending): Wait {
  const isKnown = ending.stream_time !== null && operator.stream_time !== null;
  return { task, operator, ending, missingMs: isKnown ? Math.max(0, ending.stream_time! - operator.stream_time!) : null };
}

function missing({ missingMs }: Wait): number {
  return missingMs ?? Infinity;
}

export function openIn(task: Clock): number {
  return task.operators.filter(holdsBack).reduce((total, { open }) => total + (open?.number ?? 0), 0);
}

/** "12 windows", "at least 20,000 updates". */
export function counted(operator: Operator, number: number, isAll: boolean): string {
  const nouns = { window: "window", session: "session", buffered: "update held back", identity: "identity" } as const;
  const noun = nouns[operator.what ?? "window"];
  const many = noun === "identity" ? "identities" : noun.replace(/^(\w+)/, "$1s");
  return `${isAll ? "" : "at least "}${new Intl.NumberFormat("en").format(number)} ${number === 1 ? noun : many}`;
}

/** Where the record has to come that ends it: "partition 3 of clicks (any key)". */
export function placeOf(task: Clock): string {
  const user = task.inputs.filter((input) => !input.is_internal);
  const [first] = user;
  if (first === undefined) return "this task: one whose new key belongs to it";
  const same = user.every(({ partition }) => partition === first.partition);
  if (same) return `partition ${first.partition} of ${names(user.map(({ stream }) => stream), "or")} (any key)`;
  return `${names(user.map(({ stream, partition }) => `${stream}/${partition}`), "or")} (any key)`;
}

/** The operators that a record has to pass before it moves this one's time. */
export function passing({ behind }: Operator): string {
  return behind.length === 0 ? "" : ` and passes ${names(behind, "and")}`;
}

function names(given: readonly string[], between: string): string {
  const distinct = [...new Set(given)];
  return distinct.length < 2 ? distinct.join("") : `${distinct.slice(0, -1).join(", ")} ${between} ${distinct.at(-1)}`;
}

export type Finding =
  | { readonly kind: "ahead"; readonly task: Clock; readonly ahead: NonNullable<Clock["ahead"]> }
  | { readonly kind: "stalled"; readonly task: Clock; readonly front: Clock; readonly byMs: number }
  | { readonly kind: "waiting"; readonly task: Clock; readonly input: Clock["inputs"][number] }
  | { readonly kind: "endless"; readonly open: number; readonly silentMs: number }
  | { readonly kind: "moved"; readonly task: Clock; readonly advanced: NonNullable<Clock["advanced"]> };

/** What somebody should know before all figures. */
export function findingsOf(time: JobTime): Finding[] {
  const found: Finding[] = [];
  for (const task of time.items) if (task.ahead !== null) found.push({ kind: "ahead", task, ahead: task.ahead });
  found.push(...stalledOf(time));
  for (const task of time.items) {
    for (const input of task.inputs) if (input.role === "waited_for") found.push({ kind: "waiting", task, input });
  }
  const open = time.items.reduce((total, task) => total + openIn(task), 0);
  const silentMs = silenceOf(time);
  if (time.idle_close === null && open > 0 && silentMs !== null && silentMs >= STALLED_MS) {
    found.push({ kind: "endless", open, silentMs });
  }
  for (const task of time.items) {
    if (task.advanced != null && task.advanced.to !== null && task.advanced.to === task.stream_time) {
      found.push({ kind: "moved", task, advanced: task.advanced });
    }
  }
  return found;
}

/** So many of each kind: of a thousand tasks all may stand still. */
export function firstOfKinds(found: readonly Finding[], most: number): Finding[] {
  const seen = new Map<Finding["kind"], number>();
  return found.filter(({ kind }) => {
    seen.set(kind, (seen.get(kind) ?? 0) + 1);
    return seen.get(kind)! <= most;
  });
}

/** Tasks with something open that have read all they have and are behind others: these close, they do not. */
function stalledOf(time: JobTime): Finding[] {
  const started = time.items.filter((task) => task.stream_time !== null && task.ahead === null);
  const front = started.reduce<Clock | undefined>((most, task) => (most && most.stream_time! >= task.stream_time! ? most : task), undefined);
  if (front === undefined) return [];
  return started
    .map((task) => ({ kind: "stalled" as const, task, front, byMs: front.stream_time! - task.stream_time! }))
    .filter(({ task, byMs }) => byMs >= STALLED_MS && openIn(task) > 0 && task.inputs.every(({ lag }) => lag === 0));
}

/** For how long nothing has come anywhere; null: nothing ever did. */
export function silenceOf(time: JobTime): number | null {
  const known = time.items.flatMap(({ inputs }) => inputs.flatMap(({ silent_ms, is_internal }) => (silent_ms === null || is_internal ? [] : [silent_ms])));
  return known.length === 0 ? null : Math.min(...known);
}

/** For how long nothing has come in a task's inputs. */
export function silenceIn(task: Clock): number | null {
  const known = task.inputs.flatMap(({ silent_ms }) => (silent_ms === null ? [] : [silent_ms]));
  return known.length === 0 ? null : Math.min(...known);
}

/** Years where it is years: a span says at most days. */
export function years(ms: number): number | null {
  return ms >= FAR_MS ? Math.floor(ms / (365.2425 * 86_400_000)) : null;
}
