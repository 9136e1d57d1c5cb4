// What somebody opens first: what needs them, then everything that runs.
import { Group, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useQueries } from "@tanstack/react-query";

import { api, good, type Instance, type Job, type JobMetrics } from "../api";
import { findings, lagOf } from "../attention";
import { count, rate, sum } from "../figures";
import { Answered, Badge, Curl, Empty, Facts, Page, Rows, Section, To, curlOf } from "../parts";
import { useInstances, useJobs, useReadiness, useStreams } from "../queries";
import { useRates } from "../rates";
import { Time } from "../time";

/** Drops change slowly, and each job's figures are a request: not with every look at the list. */
const METRICS_MS = 10_000;
/** Of more jobs the figures are on their own pages. */
const MOST_MEASURED = 50;

interface Row {
  readonly job: Job;
  readonly read: number | undefined;
  readonly out: number | undefined;
  readonly dropped: number | undefined;
}

export function Overview() {
  const jobs = useJobs();
  const instances = useInstances();
  const readiness = useReadiness();
  const streams = useStreams();
  const read = useRates(jobs.data, (now) => new Map(now.map((job) => [job.name, sum(job.positions.map((at) => at.position))])));
  const arriving = useRates(streams.data, (now) => new Map(now.map((stream) => [stream.name, sum(stream.partitions.map((at) => at.end_offset))])));
  const measured = useMetrics(jobs.data?.now ?? []);
  const counted = { at: Math.max(0, ...measured.map((each) => each.at)), now: measured };
  const dropped = useRates(counted, (now) => new Map(now.map(({ job, metrics }) => [job, drops(metrics)])));
  const given = useRates(counted, (now) => new Map(now.map(({ job, metrics }) => [job, metrics.records_out])));
  const totals = new Map(measured.map(({ job, metrics }) => [job, drops(metrics)]));
  const users = streams.data?.now.filter((stream) => stream.kind === "user") ?? [];
  return (
    <Page title="Overview" beside={<Curl path="/v1/jobs?limit=1000" />}>
      <Answered asked={jobs} what="The jobs">
        {({ now }) => (
          <>
            <Attention
              found={findings(now, instances.data ?? [], readiness.data, { read, dropped }, Date.now())}
            />
            <Facts
              facts={[
                ["records in, a second", rate(total(arriving, users.map((stream) => stream.name)))],
                ["read by jobs, a second", rate(total(read, now.map((job) => job.name)))],
                ["streams", count(users.length)],
                ["jobs", count(now.length)],
                ["instances", count(instances.data?.length ?? 0)],
              ]}
            />
            <Section title="Jobs">
              {now.length === 0 ? (
                <NoJob hasStream={users.length > 0} />
              ) : (
                <Rows
                  caption="Jobs"
                  columns={JOBS}
                  rows={now.map((job) => ({
                    job,
                    read: read.get(job.name),
                    out: given.get(job.name),
                    dropped: totals.get(job.name),
                  }))}
                />
              )}
            </Section>
          </>
        )}
      </Answered>
      <Section title="Instances">
        <Answered asked={instances} what="The instances">
          {(found) =>
            found.length === 0 ? (
              <Empty curl={`millrace instance --api ${location.origin} --spark-master 'local[2]'`}>
                No instance is here, so no job runs. Start one:
              </Empty>
            ) : (
              <Rows caption="Instances" columns={INSTANCES} rows={found} />
            )
          }
        </Answered>
      </Section>
    </Page>
  );
}

function Attention({ found }: { found: ReturnType<typeof findings> }) {
  return (
    <Section title="Needs somebody">
      {found.length === 0 ? (
        <Text>Nothing: no job is failed, behind, silent, dropping or short of cores.</Text>
      ) : (
        <ul className="findings">
          {found.map(({ kind, name, page, detail }) => (
            <li key={`${kind}/${name}`}>
              <Badge kind={kind} />
              {page === null ? <b>{name}</b> : <To page={page}>{name}</To>}
              <span>{detail}</span>
            </li>
          ))}
        </ul>
      )}
    </Section>
  );
}

function NoJob({ hasStream }: { hasStream: boolean }) {
  const stream = curlOf("/v1/streams", "POST", { name: "clicks", partitions: 1 });
  const job = curlOf("/v1/jobs", "POST", {
    name: "once",
    source: "clicks",
    sink: "clicks-once",
    operators: [{ op: "deduplicate_by_key", name: "dedup", interval_ms: 600_000 }],
  });
  return <Empty curl={hasStream ? job : `${stream}\n\n${job}`}>No job was submitted yet. One that drops repetitions:</Empty>;
}

interface Measured {
  readonly job: string;
  readonly at: number;
  readonly metrics: JobMetrics;
}

function useMetrics(jobs: readonly Job[]): Measured[] {
  const asked = useQueries({
    queries: jobs.slice(0, MOST_MEASURED).map(({ name: job }) => ({
      queryKey: ["jobs", job, "totals"],
      queryFn: () => good<JobMetrics>(api.GET("/v1/jobs/{job}/metrics", { params: { path: { job } } })),
      refetchInterval: METRICS_MS,
    })),
  });
  return asked.flatMap(({ data, dataUpdatedAt }, place) =>
    data === undefined ? [] : [{ job: jobs[place]!.name, at: dataUpdatedAt, metrics: data }],
  );
}

function drops(metrics: JobMetrics): number {
  return sum(Object.values(metrics.dropped).flatMap((reasons) => Object.values(reasons)));
}

function total(rates: ReadonlyMap<string, number>, names: string[]): number | undefined {
  const known = names.flatMap((name) => rates.get(name) ?? []);
  return known.length < names.length ? undefined : sum(known);
}

const job = createColumnHelper<Row>();
const isNumber = { isNumber: true };
const JOBS = [
  job.accessor((row) => row.job.name, {
    id: "job",
    header: "job",
    cell: (cell) => <To page={`/jobs/${cell.getValue()}`}>{cell.getValue()}</To>,
  }),
  job.accessor((row) => row.job.state, { id: "state", header: "state", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  job.accessor("read", { header: "reads/s", meta: isNumber, cell: (cell) => rate(cell.getValue()) }),
  job.accessor("out", { header: "gives/s", meta: isNumber, cell: (cell) => rate(cell.getValue()) }),
  job.accessor((row) => lagOf(row.job), { id: "lag", header: "lag", meta: isNumber, cell: (cell) => count(cell.getValue()) }),
  job.accessor("dropped", {
    header: "dropped",
    meta: isNumber,
    cell: (cell) => (cell.getValue() === undefined ? "–" : count(cell.getValue()!)),
  }),
  job.accessor((row) => row.job.stream_time, {
    id: "stream time",
    header: "stream time",
    meta: isNumber,
    cell: (cell) => <Time ms={cell.getValue()} />,
  }),
];

const instance = createColumnHelper<Instance>();
const INSTANCES = [
  instance.accessor("name", { header: "instance" }),
  instance.accessor("state", { header: "state", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  instance.accessor("host", { header: "host" }),
  instance.accessor("cores", { header: "cores", meta: isNumber }),
  instance.accessor((row) => row.slots.length, { id: "slots", header: "slots", meta: isNumber }),
];
