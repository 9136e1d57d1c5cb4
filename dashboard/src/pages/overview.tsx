// What somebody opens first: what needs them, what went in and out, what is otherwise than yesterday, then all that runs.
import { Button, Group, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useState } from "react";

import type { Instance, Job, JobFigures, Overview as Figures } from "../api";
import { findings, lagOf, type Finding } from "../attention";
import { changes, type Change } from "../changes";
import { CHART_MS, Chart, SpanSwitch, useSpan } from "../chart";
import { bytes, count, percent, rate, sum } from "../figures";
import { Answered, Badge, Curl, Empty, Facts, Failure, Page, Rows, Section, To, curlOf } from "../parts";
import { addressOf, useInstances, useJobs, useLive, useReadiness, useStreams } from "../queries";
import { Time, span } from "../time";
import { pageOf } from "./job/frame";

/** Figures are noted every 10 s. */
const FIGURES_MS = 5_000;
/** So many of a list are shown until somebody wants the rest. */
const FIRST = 12;
/** What is asked for beside jobs and instances. */
const OTHERS = ["The figures", "The streams", "What is ready"];

interface Row {
  readonly job: Job;
  readonly figures: JobFigures | undefined;
}

export function Overview() {
  const jobs = useJobs();
  const instances = useInstances();
  const readiness = useReadiness();
  const streams = useStreams();
  const figures = useLive("/v1/overview", {}, FIGURES_MS);
  const overview = figures.data?.now;
  const users = streams.data?.now.filter((stream) => stream.kind === "user") ?? [];
  const ofJob = new Map(overview?.jobs.map((each) => [each.job, each]));
  return (
    <Page title="Overview" beside={<Curl path="/v1/overview" />}>
      <Answered asked={jobs} what="The jobs">
        {({ now }) => (
          <>
            {jobs.error === null && [figures, streams, readiness].map(({ error }, place) => (error === null ? null : <Failure key={place} error={error} what={OTHERS[place]!} />))}
            <Attention
              isAllKnown={[figures, streams, instances, readiness].every(({ data }) => data !== undefined)}
              found={findings(
                { jobs: now, instances: instances.data ?? [], streams: users, readiness: readiness.data, overview },
                Date.now(),
              )}
            />
            <Facts
              facts={[
                ["records in, a second", rate(known(overview?.streams.map((stream) => stream.records_rate)))],
                ["read by jobs, a second", rate(known(overview?.jobs.map((job) => job.records_in_rate)))],
                ["bytes in, a second", bytesRate(known(overview?.streams.map((stream) => stream.bytes_rate)))],
                ["streams", count(users.length)],
                ["jobs", count(now.length)],
                ["instances", count(instances.data?.filter(({ state }) => state === "live").length ?? 0)],
              ]}
            />
            <Flow />
            {overview !== undefined && <SinceYesterday overview={overview} found={changes(overview, now, users)} />}
            <Section title="Jobs" beside={<Curl path="/v1/jobs?limit=1000" />}>
              {now.length === 0 ? (
                <NoJob hasStream={users.length > 0} />
              ) : (
                <Rows caption="Jobs" columns={JOBS} rows={now.map((job) => ({ job, figures: ofJob.get(job.name) }))} />
              )}
            </Section>
          </>
        )}
      </Answered>
      <Section title="Instances" beside={<Curl path="/v1/instances" />}>
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

function Attention({ found, isAllKnown }: { found: Finding[]; isAllKnown: boolean }) {
  return (
    <Section title="Needs somebody">
      {found.length === 0 && !isAllKnown ? (
        <Text>Not known yet: not all that would say so has come.</Text>
      ) : found.length === 0 ? (
        <Text>Nothing: no job is failed, behind, silent, dropping or short of cores.</Text>
      ) : (
        <Shortened label="findings">
          {found.map(({ kind, name, page, detail, since }) => (
            <li key={`${kind}/${name}/${page}/${since}`}>
              <Badge kind={kind} />
              {page === null ? <b>{name}</b> : <To page={page}>{name}</To>}
              <span>{detail}</span>
              {since !== null && (
                <Text component="span" size="sm" c="dimmed">
                  since <Time ms={since - (since % 1000)} /> ({span(Date.now() - since)})
                </Text>
              )}
            </li>
          ))}
        </Shortened>
      )}
    </Section>
  );
}

/** A list of lines, of which the first are shown. */
function Shortened({ label, children }: { label: string; children: React.ReactNode[] }) {
  const [isWhole, show] = useState(false);
  const rest = children.length - FIRST;
  return (
    <>
      <ul className="findings">{isWhole ? children : children.slice(0, FIRST)}</ul>
      {rest > 0 && !isWhole && (
        <Button size="compact-sm" variant="default" onClick={() => show(true)}>
          {`${count(rest)} more ${label}`}
        </Button>
      )}
    </>
  );
}

/** What went in and out of all of it. */
function Flow() {
  const query = useSpan();
  const series = useLive("/v1/series", { query }, CHART_MS);
  return (
    <Section
      title="In and out"
      beside={
        <Group gap="xs">
          <SpanSwitch />
          <Curl path={addressOf("/v1/series", { query })} />
        </Group>
      }
    >
      <Answered asked={series} what="The series">
        {({ now }) => (
          <div className="charts">
            <Chart
              title="Records, a second"
              at={now.at_ms}
              shown={rate}
              lines={[
                { name: "in", values: now.appended_records },
                { name: "read by jobs", values: now.records_in },
                { name: "dropped", values: now.dropped },
                { name: "out", values: now.records_out },
              ]}
            />
            <Chart title="Lag of all jobs, records" at={now.at_ms} lines={[{ name: "lag", values: now.lag }]} />
            <Chart title="Work, seconds a second" at={now.at_ms} shown={(value) => value.toFixed(2)} lines={[{ name: "busy", values: now.busy }]} />
          </div>
        )}
      </Answered>
    </Section>
  );
}

function SinceYesterday({ overview, found }: { overview: Figures; found: Change[] }) {
  const then = overview.compared_with_ms;
  return (
    <Section
      title="What changed since yesterday"
      beside={
        <Text size="sm" c="dimmed">
          {then === null ? "figures are noted for less than two hours" : <>the last hour, beside the one up to <Time ms={then - (then % 1000)} /></>}
        </Text>
      }
    >
      {found.length === 0 ? (
        <Text>Nothing of note: no job failed, changed its version or came to be, and rates, lag, drops and stores are much the same.</Text>
      ) : (
        <Shortened label="changes">
          {found.map(({ kind, of, detail }) => (
            <li key={`${kind}/${of[0]![1]}/${detail}`}>
              <Badge kind={kind} />
              {of.slice(0, FIRST).map(([name, page]) => (
                <To key={page} page={page}>
                  {name}
                </To>
              ))}
              <span>{of.length > FIRST ? `and ${count(of.length - FIRST)} more: ${detail}` : detail}</span>
            </li>
          ))}
        </Shortened>
      )}
    </Section>
  );
}

/** The sum of what is known; undefined: nothing is. */
function known(rates: (number | null)[] | undefined): number | undefined {
  const found = rates?.filter((each): each is number => each !== null) ?? [];
  return found.length === 0 ? undefined : sum(found);
}

function bytesRate(value: number | undefined): string {
  return value === undefined ? "–" : bytes(Math.round(value));
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

const job = createColumnHelper<Row>();
const isNumber = { isNumber: true };
const JOBS = [
  job.accessor((row) => row.job.name, {
    id: "job",
    header: "job",
    cell: (cell) => <To page={pageOf(cell.getValue())}>{cell.getValue()}</To>,
  }),
  job.accessor((row) => row.job.state, { id: "state", header: "state", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  job.accessor((row) => row.figures?.records_in_rate, { id: "read", header: "reads/s", meta: isNumber, cell: (cell) => rate(cell.getValue() ?? undefined) }),
  job.accessor((row) => row.figures?.records_out_rate, { id: "out", header: "gives/s", meta: isNumber, cell: (cell) => rate(cell.getValue() ?? undefined) }),
  job.accessor((row) => lagOf(row.job), { id: "lag", header: "lag", meta: isNumber, cell: (cell) => count(cell.getValue()) }),
  job.accessor((row) => row.figures?.last_hour.dropped, {
    id: "dropped",
    header: "dropped in an hour",
    meta: isNumber,
    cell: (cell) => (cell.getValue() === undefined ? "–" : count(cell.getValue()!)),
  }),
  job.accessor((row) => (row.figures == null || row.figures.busy === null || row.job.tasks.count === 0 ? undefined : row.figures.busy / row.job.tasks.count), {
    id: "busy",
    header: "busy",
    meta: isNumber,
    cell: (cell) => (cell.getValue() === undefined ? "–" : percent(cell.getValue()!)),
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
