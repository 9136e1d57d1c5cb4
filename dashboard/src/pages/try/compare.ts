// What two simulations over the same records have in common, and what only one of them gives. Pure.
import type { components } from "@millrace/client";

export type Simulation = components["schemas"]["SimulationView"];
export type Output = components["schemas"]["SimulatedOutputView"];
export type Dropped = components["schemas"]["SimulatedDropView"];

export type Verdict = "same" | "changed" | "only yours" | "only running";

export interface Pair {
  readonly verdict: Verdict;
  readonly yours: Output | undefined;
  readonly running: Output | undefined;
}

/** JSON with members in the order of their names: equal values are equal texts. */
export function canonical(value: unknown): string {
  return JSON.stringify(value, (_, each: unknown) =>
    typeof each === "object" && each !== null && !Array.isArray(each)
      ? Object.fromEntries(Object.entries(each).sort(([one], [other]) => (one < other ? -1 : 1)))
      : each,
  );
}

/** Whom a result is of: the stream, key and window. */
export function identityOf({ stream, key, window }: Output): string {
  return JSON.stringify([stream, key, window?.start ?? null, window?.end ?? null]);
}

function grouped(outputs: readonly Output[], by: (output: Output) => string): Map<string, Output[]> {
  const groups = new Map<string, Output[]>();
  for (const each of outputs) {
    const name = by(each);
    const group = groups.get(name);
    if (group === undefined) groups.set(name, [each]);
    else group.push(each);
  }
  return groups;
}

function saidBy({ timestamp, value }: Output): string {
  return canonical([timestamp, value]);
}

/** Results of each key and window side by side: equal ones first, those that are left in their order. By time. */
export function compare(yours: readonly Output[], running: readonly Output[]): Pair[] {
  const [mine, theirs] = [grouped(yours, identityOf), grouped(running, identityOf)];
  const pairs = [...new Set([...mine.keys(), ...theirs.keys()])].flatMap((identity) => paired(mine.get(identity) ?? [], theirs.get(identity) ?? []));
  return pairs
    .map((pair, place) => ({ pair, place, at: (pair.yours ?? pair.running)?.timestamp ?? 0 }))
    .sort((one, other) => one.at - other.at || one.place - other.place)
    .map(({ pair }) => pair);
}

function paired(yours: readonly Output[], running: readonly Output[]): Pair[] {
  const equal = grouped([...running].reverse(), saidBy); // the first one last
  const twins = yours.map((each) => equal.get(saidBy(each))?.pop());
  const taken = new Set(twins);
  const left = running.filter((each) => !taken.has(each));
  let next = 0;
  const pairs: Pair[] = yours.map((each, place) => {
    const twin = twins[place];
    if (twin !== undefined) return { verdict: "same", yours: each, running: twin };
    const other = left[next++];
    return { verdict: other === undefined ? "only yours" : "changed", yours: each, running: other };
  });
  return [...pairs, ...left.slice(next).map((each): Pair => ({ verdict: "only running", yours: undefined, running: each }))];
}

/** The last result of each key and window: what holds in the end. */
export function lastOfEach(outputs: readonly Output[]): Output[] {
  return [...new Map(outputs.map((each) => [identityOf(each), each])).values()];
}

export interface DroppedCount {
  readonly operator: string;
  readonly reason: string;
  readonly yours: number;
  readonly running: number;
}

export function countDropped(yours: readonly Dropped[], running: readonly Dropped[]): DroppedCount[] {
  const counts = new Map<string, DroppedCount>();
  const add = (each: Dropped, mine: number, theirs: number) => {
    const name = JSON.stringify([each.operator, each.reason]);
    const before = counts.get(name) ?? { operator: each.operator, reason: each.reason, yours: 0, running: 0 };
    counts.set(name, { ...before, yours: before.yours + mine, running: before.running + theirs });
  };
  yours.forEach((each) => add(each, 1, 0));
  running.forEach((each) => add(each, 0, 1));
  return [...counts.values()];
}
