// What people write with these types; `tsc --strict` is the test.
import type { Operator, paths, Window } from "../src/index.js";

type Page = paths["/v1/streams/{stream}/records"]["get"]["responses"][200]["content"]["application/json"];

export function lastTimestamp(page: Page): number | null {
  return page.records.at(-1)?.timestamp ?? null;
}

export function length(window: Window): number {
  switch (window.type) {
    case "tumbling":
    case "hopping":
      return window.size_ms;
    case "sliding":
      return window.time_difference_ms;
    case "session":
      return window.gap_ms;
  }
}

export function storeOf(job: string, operator: Operator): string | null {
  switch (operator.op) {
    case "aggregate":
    case "distinct":
    case "suppress":
      return `${job}-${operator.name}`;
    default:
      return null;
  }
}
