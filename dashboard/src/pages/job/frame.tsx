// What all pages of a job have: its name, how it stands, and the way to each of them.
import type { ReactNode } from "react";
import { Link } from "wouter";

import { Badge, Empty, Page, To, isMissing } from "../../parts";
import { useJob } from "../../queries";

export const TABS = ["status", "time", "why", "dropped", "state", "assignment", "try"] as const;
export type Tab = (typeof TABS)[number];

export function pageOf(job: string, tab: Tab = "status"): string {
  const page = `/jobs/${encodeURIComponent(job)}`;
  return tab === "status" ? page : `${page}/${tab}`;
}

export function JobFrame({ job, tab, beside, children }: { job: string; tab: Tab; beside?: ReactNode; children: ReactNode }) {
  const { data, error } = useJob(job);
  const state = data?.now.state;
  if (data === undefined && isMissing(error)) {
    return (
      <Page title={job}>
        <Empty>
          No job has this name (any more): it was deleted, or is called otherwise. Those that there are stand in <To page="/">the overview</To>.
        </Empty>
      </Page>
    );
  }
  return (
    <Page
      title={job}
      beside={
        <>
          {state !== undefined && <Badge kind={state} />}
          {beside}
        </>
      }
    >
      <nav className="tabs" aria-label={`Pages of ${job}`}>
        {TABS.map((each) => (
          <Link key={each} href={pageOf(job, each)} aria-current={each === tab ? "page" : undefined}>
            {each}
          </Link>
        ))}
      </nav>
      {children}
    </Page>
  );
}
