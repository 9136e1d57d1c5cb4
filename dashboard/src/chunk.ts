// Parts of the dashboard that are loaded when they are first shown.
import { lazy, type ComponentType, type LazyExoticComponent } from "react";

/** So soon after a reload another one would not help. */
const JUST_MS = 10_000;

/** A component of a file of its own. Where the service has become another version since the page was opened, files have
 * other names: then the page is loaded anew. */
export function chunk<T extends ComponentType<any>>(load: () => Promise<{ default: T }>): LazyExoticComponent<T> {
  return lazy(() =>
    load().catch((failure: unknown) => {
      const [opened] = performance.getEntriesByType("navigation") as PerformanceNavigationTiming[];
      if (opened?.type === "reload" && performance.now() < JUST_MS) throw failure;
      location.reload();
      return new Promise<never>(() => {}); // until that has happened
    }),
  );
}
