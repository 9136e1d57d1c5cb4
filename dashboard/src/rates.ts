// Rates from totals: what a counter rose by between two looks at it.
import { useRef } from "react";

import type { Seen } from "./queries";

/** Over which time a rate is taken: shorter, and it jumps with every commit. */
const OVER_MS = 10_000;

interface Look {
  readonly at: number;
  readonly totals: ReadonlyMap<string, number>;
}

/** Per second, of each total; nothing is known of one that was seen once, or that began anew. */
export function useRates<T>(seen: Seen<T> | undefined, totalsOf: (now: T) => Map<string, number>): Map<string, number> {
  const looks = useRef<Look[]>([]);
  if (seen !== undefined && looks.current.at(-1)?.at !== seen.at) {
    const recent = looks.current.filter((look, place, all) => {
      const next = all[place + 1]?.at ?? seen.at;
      return seen.at - next < OVER_MS; // one beyond stays: rates are over the whole time
    });
    looks.current = [...recent, { at: seen.at, totals: totalsOf(seen.now) }];
  }
  const [first, last] = [looks.current[0], looks.current.at(-1)];
  const rates = new Map<string, number>();
  if (first === undefined || last === undefined || first === last) return rates;
  for (const [name, total] of last.totals) {
    const before = first.totals.get(name);
    if (before !== undefined && total >= before) rates.set(name, ((total - before) * 1000) / (last.at - first.at));
  }
  return rates;
}
