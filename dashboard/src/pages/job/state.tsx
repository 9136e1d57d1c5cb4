// What a job remembers: its stores, how large they are and become, what is in them, and where copies lie.
import { SegmentedControl, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import type { components } from "@millrace/client";
import { useSearchParams } from "wouter";

import { CHART_MS, Chart, SpanSwitch, useSpan } from "../../chart";
import { bytes, count } from "../../figures";
import { Answered, Badge, Curl, Empty, Rows, Section } from "../../parts";
import { addressOf, useInstances, useJob, useLive } from "../../queries";
import { Time, span } from "../../time";
import { JobFrame } from "./frame";
import { Entries } from "./state/entries";

type Store = components["schemas"]["StoreView"];
type Copy = components["schemas"]["CopyView"];
type Group = components["schemas"]["GroupView"];

export default function StatePage({ job }: { job: string }) {
  const found = useJob(job);
  const [params, setParams] = useSearchParams();
  return (
    <JobFrame job={job} tab="state">
      <Answered asked={found} what="The job">
        {({ now }) => {
          const stores = now.stores;
          const chosen = stores.find((store) => store === params.get("store")) ?? stores[0];
          if (chosen === undefined) {
            return <Empty>This job keeps nothing: none of its operators has a store. What it reads goes on at once.</Empty>;
          }
          const choose = (store: string) => setParams({ store });
          return (
            <>
              {stores.length > 1 && (
                <SegmentedControl aria-label="Store" className="narrow state-stores" size="xs" value={chosen} onChange={choose} data={[...stores]} />
              )}
              <StoreOf key={chosen} job={job} name={chosen} />
              <Growth job={job} />
            </>
          );
        }}
      </Answered>
    </JobFrame>
  );
}

function StoreOf({ job, name }: { job: string; name: string }) {
  const asked = { path: { store: name } };
  const store = useLive("/v1/stores/{store}", asked);
  return (
    <Answered asked={store} what="The store">
      {({ now }) => (
        <>
          <Section title={name} beside={<Curl path={addressOf("/v1/stores/{store}", asked)} />}>
            <Text size="sm" mb="xs">
              {`${kindOf(now)} of ${now.operator}: ${now.entries === null ? "not known how many" : count(now.entries)} entries, those of indexes and expired ones included, ${now.bytes === null ? "not known how large" : bytes(now.bytes)}.`}
            </Text>
            <Rows caption="Partitions" columns={PARTITIONS} rows={now.partitions} />
          </Section>
          <Section title="What is in it">
            <Entries job={job} store={now} />
          </Section>
          <Copies job={job} store={now} />
        </>
      )}
    </Answered>
  );
}

function kindOf({ kind, type }: Store): string {
  const kinds: Record<string, string> = { aggregate: "aggregates", distinct: "what was seen", deduplicate: "identities", suppress: "updates held back" };
  const types = { session: ", by session", window: ", by window", key_value: "" } as const;
  return `The ${kinds[kind] ?? kind}${types[type]}`;
}

function Growth({ job }: { job: string }) {
  const asked = { path: { job }, query: useSpan() };
  const seen = useLive("/v1/jobs/{job}/series", asked, CHART_MS);
  return (
    <Section
      title="All stores of the job over time"
      beside={
        <>
          <SpanSwitch />
          <Curl path={addressOf("/v1/jobs/{job}/series", asked)} />
        </>
      }
    >
      <Answered asked={seen} what="The figures over time">
        {({ now }) => (
          <div className="charts">
            <Chart title="Size of all stores" at={now.at_ms} lines={[{ name: "size", values: now.store_bytes }]} shown={bytes} />
            <Chart title="Entries in all stores" at={now.at_ms} lines={[{ name: "entries", values: now.store_entries }]} />
          </div>
        )}
      </Answered>
    </Section>
  );
}

// ---------------------------------------------------------------- partitions and copies

function Copies({ job, store }: { job: string; store: Store }) {
  const asked = { path: { job } };
  const group = useLive("/v1/groups/{job}", asked);
  const names = new Map(useInstances().data?.map(({ id, name }) => [id, name]));
  const tasks = new Set(store.partitions.map(({ task }) => task));
  return (
    <Section title="Where copies lie" beside={<Curl path={addressOf("/v1/groups/{job}", asked)} />}>
      <Answered asked={group} what="The copies">
        {({ now: found }) => {
          const now = found as Group; // as asked: without Kafka Streams' bytes
          const copies = now.copies.filter(({ task }) => tasks.has(task)).map((copy) => ({ ...copy, on: placeOf(copy, now, names) }));
          return copies.length === 0 ? (
            <Empty>No node has a copy: only a job that runs makes one. The changelog has it all.</Empty>
          ) : (
            <Stack gap="xs">
              <Rows caption="Copies" columns={COPIES} rows={copies} />
              {now.missing_standbys > 0 && <Text size="sm">{`${now.missing_standbys} of the standbys asked for are not there, or not caught up.`}</Text>}
            </Stack>
          );
        }}
      </Answered>
    </Section>
  );
}

/** The instances that use the node of a copy. */
function placeOf(copy: Copy, group: Group, names: ReadonlyMap<string, string>): string {
  const node = group.nodes.find(({ node: id }) => id === copy.node);
  return node?.instances.map((id) => names.get(id) ?? id).join(", ") || "nobody";
}

const meta = { isNumber: true };
const part = createColumnHelper<Store["partitions"][number]>();
const PARTITIONS = [
  part.accessor("task", { header: "task" }),
  part.accessor("instance", { header: "runs on", cell: (cell) => cell.getValue() ?? "nobody" }),
  part.accessor("entries", { header: "entries", meta, cell: (cell) => known(cell.getValue(), count) }),
  part.accessor("bytes", { header: "size", meta, cell: (cell) => known(cell.getValue(), bytes) }),
  part.accessor((at) => (at.position === null ? null : at.end - at.position), {
    id: "replayed",
    header: "replayed",
    meta,
    cell: (cell) => {
      const { position, end } = cell.row.original;
      if (position === null) return "not readable here";
      return end === 0 || position >= end ? "all" : `${Math.floor((100 * position) / end)} % (${count(end - position)} left)`;
    },
  }),
  part.accessor("lag", { header: "lag", meta, cell: (cell) => count(cell.getValue()) }),
  part.accessor("stream_time", { header: "stream time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
];

const copy = createColumnHelper<Copy & { on: string }>();
const COPIES = [
  copy.accessor("task", { header: "task" }),
  copy.accessor("role", { header: "role", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  copy.accessor("on", { header: "instance" }),
  copy.accessor("node", { header: "node", cell: (cell) => <span title={cell.getValue()}>{cell.getValue().slice(0, 8)}</span> }),
  copy.accessor("state", { header: "state", cell: (cell) => STATES[cell.getValue()] }),
  copy.accessor("lag_records", { header: "behind, changes", meta, cell: (cell) => count(cell.getValue()) }),
  copy.accessor("lag_s", {
    header: "caught up in",
    meta,
    cell: (cell) => {
      const { lag_records, lag_s } = cell.row.original;
      if (lag_records === 0) return "is";
      return lag_s === null ? "not known" : `about ${span(lag_s * 1000)}`;
    },
  }),
];
const STATES: Record<Copy["state"], string> = {
  restoring: "is filled from the changelog",
  warm: "caught up, not at work",
  running: "caught up",
  backlog: "fell behind",
};

function known(value: number | null, shown: (value: number) => string): string {
  return value === null ? "–" : shown(value);
}
