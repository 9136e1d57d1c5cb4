// One job: how it stands, how far it is, what went wrong, and what can be done about it.
import { Alert, Code, Group, Stack, Text } from "@mantine/core";
import type { components } from "@millrace/client";
import { useQuery } from "@tanstack/react-query";
import { createColumnHelper } from "@tanstack/react-table";
import type { ReactNode } from "react";

import type { Job, JobMetrics, StreamRecord, Task, Transition } from "../../api";
import { hotPartition, lagOf, sourcesOf, untilCaughtUp, type HotPartition } from "../../attention";
import { CHART_MS, Chart, SpanSwitch, useSpan } from "../../chart";
import { count, percent, rate, sum } from "../../figures";
import { Answered, Badge, Curl, Empty, Facts, Json, Rows, Section, To } from "../../parts";
import { addressOf, useHistory, useInstances, useIsAdmin, useJob, useJobMetrics, useLive, useMayWrite, useRecord, useTasks, type Seen } from "../../queries";
import { useRates } from "../../rates";
import { Time, span } from "../../time";
import { newest as readNewest } from "../try/trial";
import { JobFrame } from "./frame";
import { Actions, RaiseBuffer, RollBack, Skip } from "./status/actions";
import { TopologySection } from "./status/graph";

export default function JobPage({ job: name }: { job: string }) {
  const job = useJob(name);
  const metrics = useJobMetrics(name);
  const mayWrite = useMayWrite();
  return (
    <JobFrame job={name} tab="status" beside={<Curl path={`/v1/jobs/${name}`} />}>
      <Answered asked={job} what="The job">
        {({ at, now }) => (
          <>
            {(now.state !== "failed" || now.error === null) && <Text c="dimmed">{now.reason}</Text>}
            {now.error !== null && <JobError job={now} error={now.error} />}
            {now.shortage !== null && (
              <Alert color="yellow" variant="outline" title="It waits for a core">
                Other jobs have all there are: add an instance or cores, or stop a job.
              </Alert>
            )}
            {mayWrite && <Actions job={now} />}
            <Figures seen={{ at, now }} metrics={metrics.data} />
            <TopologySection job={{ at, now }} metrics={metrics.data} />
            <Positions seen={{ at, now }} />
          </>
        )}
      </Answered>
      <OverTime job={name} />
      <Tasks job={name} metrics={metrics.data} />
      <Versions job={name} />
      <History job={name} />
    </JobFrame>
  );
}

/** Why it failed, and the record that it failed at, if there was one. */
function JobError({ job, error }: { job: Job; error: NonNullable<Job["error"]> }) {
  const { stream, partition, offset } = error;
  const isAtRecord = stream != null && partition != null && offset != null;
  const facts: [string, ReactNode][] = [["code", <Code key="code">{error.code}</Code>]];
  if (error.operator != null) facts.push(["operator", error.operator]);
  for (const [name, held, most] of [["records", error.records, error.max_records], ["bytes", error.bytes, error.max_bytes]] as const)
    if (held != null) facts.push([`${name} in its buffer`, most == null ? count(held) : `${count(held)}, and it may hold ${count(most)}`]);
  if (isAtRecord) {
    const page = `/streams/${stream}?partition=${partition}&from_offset=${offset}`;
    facts.push(["record", <To key="record" page={page}>{`${stream}/${partition}, offset ${offset}`}</To>]);
  }
  return (
    <Alert color="red" variant="outline" role="alert" title={job.state === "failed" ? "It failed" : "It failed last"}>
      <Stack gap="xs">
        <Text className="breakable">{error.detail}</Text>
        <Facts facts={facts} />
        {isAtRecord && <FailedRecord stream={stream} partition={partition} offset={offset} />}
        <Remedies job={job} error={error} />
      </Stack>
    </Alert>
  );
}

/** What lets a failed job go on: without the record, or with more room. */
function Remedies({ job, error }: { job: Job; error: NonNullable<Job["error"]> }) {
  const mayWrite = useMayWrite();
  const isAdmin = useIsAdmin();
  if (!mayWrite || job.state !== "failed") return null;
  const { stream, partition, offset } = error;
  return (
    <Group>
      {isAdmin && stream != null && partition != null && offset != null && (
        <Skip job={job} stream={stream} partition={partition} offset={offset} />
      )}
      <RaiseBuffer job={job} error={error} />
    </Group>
  );
}

function FailedRecord({ stream, partition, offset }: { stream: string; partition: number; offset: number }) {
  const record = useRecord(stream, partition, offset);
  return (
    <Answered asked={record} what="The record">
      {(found) => (found === null ? <Text>The record is not there any more.</Text> : <Json value={found} />)}
    </Answered>
  );
}

function Figures({ seen, metrics }: { seen: { at: number; now: Job }; metrics: { at: number; now: JobMetrics } | undefined }) {
  const moved = useRates(seen, (job) => {
    const positions = job.positions;
    return new Map([
      ["read", sum(positions.map((at) => at.position))],
      ["arriving", sum(positions.map((at) => at.end))],
    ]);
  });
  const given = useRates(metrics, (now) => new Map([["out", now.records_out], ...batchTotals(now)]));
  const [lag, read, arriving] = [lagOf(seen.now), moved.get("read"), moved.get("arriving")];
  const until = read === undefined || arriving === undefined ? undefined : untilCaughtUp(lag, read, arriving);
  return (
    <Facts
      facts={[
        ["lag, records", count(lag)],
        ["reads, a second", rate(read)],
        ["arrive, a second", rate(arriving)],
        ["gives, a second", rate(given.get("out"))],
        ["caught up", untilText(until, seen.now.state)],
        ["a batch takes", batchTime(given, metrics?.now)],
        ["stream time", <Time key="time" ms={seen.now.stream_time} />],
        ["version", count(seen.now.spec_version)],
        ["reads", <Streams key="reads" names={sourcesOf(seen.now)} />],
        ["writes", <Streams key="writes" names={sinksOf(seen.now)} />],
      ]}
    />
  );
}

function batchTotals({ batch_seconds_count: batches, batch_seconds_sum: seconds }: JobMetrics): [string, number][] {
  return [
    ["batches", batches ?? 0],
    ["seconds", seconds ?? 0],
  ];
}

/** Of the last seconds, else of all that there were; the slowest beside it. */
function batchTime(rates: ReadonlyMap<string, number>, metrics: JobMetrics | undefined): string {
  const { batch_seconds_count: batches, batch_seconds_sum: seconds, batch_seconds_max: slowest } = metrics ?? {};
  if (batches == null || seconds == null || slowest == null) return "–";
  const now = rates.get("batches") ?? 0;
  const average = now > 0 ? rates.get("seconds")! / now : seconds / batches;
  return `${milliseconds(average)}, at most ${milliseconds(slowest)}`;
}

function milliseconds(seconds: number): string {
  return seconds >= 10 ? span(seconds * 1000) : `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
}

type Position = Job["positions"][number] & { readonly share: number; readonly read: number | undefined; readonly until: number | null | undefined; readonly state: Job["state"] };

/** Each partition: how far it is read, when it is caught up, and which share of its stream's records it has. */
function Positions({ seen }: { seen: Seen<Job> }) {
  const { positions } = seen.now;
  const rates = useRates(seen, (job) => {
    const each = job.positions.map((at) => [`${at.stream}/${at.partition}`, at] as const);
    return new Map(each.flatMap(([name, at]) => [[`read ${name}`, at.position] as const, [`end ${name}`, at.end] as const]));
  });
  const rows = positions.map((at): Position => {
    const name = `${at.stream}/${at.partition}`;
    const [read, arriving] = [rates.get(`read ${name}`), rates.get(`end ${name}`)];
    const all = sum(positions.filter(({ stream }) => stream === at.stream).map(({ end }) => end));
    const until = read === undefined || arriving === undefined ? undefined : untilCaughtUp(at.lag, read, arriving);
    return { ...at, share: all === 0 ? 0 : at.end / all, read, until, state: seen.now.state };
  });
  const hot = hotPartition(seen.now);
  return (
    <Section title="Positions">
      {rows.length === 0 ? (
        <Empty>It has not begun to read.</Empty>
      ) : (
        <>
          {hot !== null && <Hot {...hot} />}
          <Rows caption="Positions" columns={POSITIONS} rows={rows} />
        </>
      )}
    </Section>
  );
}

/** So many of its newest records are looked at for who they are of. */
const LOOKED_AT = 1_000;
/** And so many keys are named, each with this share of them at least. */
const NAMED = 3;
const HEAVY = 0.05;

/** A partition that has nearly all records, and the keys that they have. */
function Hot({ stream, partition, records, ofRecords }: HotPartition) {
  const newest = useQuery({
    queryKey: ["streams", stream, "newest", partition],
    queryFn: () => readNewest(stream, { records: LOOKED_AT, partition, until: undefined, closes: false }),
    staleTime: HOT_MS,
    refetchInterval: HOT_MS,
  });
  return (
    <Text mb="xs" className="breakable">
      {percent(records / ofRecords)} of the records of {stream} are in partition {partition}: one task does the work.{" "}
      {newest.data !== undefined && newest.data.length > 0 && `${keyWords(newest.data)} `}
      Which records they are shows <To page={`/streams/${stream}?partition=${partition}`}>the stream's page</To>.
    </Text>
  );
}

const HOT_MS = 60_000;

/** The heaviest keys of a partition's newest records. */
function keyWords(records: readonly StreamRecord[]): string {
  const times = new Map<string | null, number>();
  for (const { key } of records) times.set(key, (times.get(key) ?? 0) + 1);
  const heaviest = [...times].sort(([, one], [, other]) => other - one).slice(0, NAMED);
  const named = heaviest
    .filter(([, many]) => many >= HEAVY * records.length)
    .map(([key, many]) => `${key === null ? "no key" : `“${key}”`} (${percent(many / records.length)})`);
  const others = times.size - named.length;
  if (named.length === 0) return `No key has ${percent(HEAVY)} of its newest ${count(records.length)} records: ${count(others)} keys share them.`;
  const rest = others === 0 ? "" : ` and ${count(others)} other ${others === 1 ? "key" : "keys"}`;
  return `Its newest ${count(records.length)} records are of ${named.join(", ")}${rest}.`;
}

/** In words, when what is there is read. */
function untilText(until: number | null | undefined, state: Job["state"]): string {
  if (until === null) return AT_REST.has(state) ? `not while ${state}` : "not at this pace";
  return until === undefined ? "–" : until === 0 ? "now" : `in ${span(until)}`;
}

const AT_REST = new Set<Job["state"]>(["failed", "stopped", "paused"]);

function sinksOf(job: Job): string[] {
  return [job.spec.sink ?? []].flat().map((sink) => (typeof sink === "string" ? sink : sink.stream));
}

function Streams({ names }: { names: readonly string[] }) {
  if (names.length === 0) return "–";
  return names.map((name, place) => (
    <span key={name}>
      {place > 0 && ", "}
      <To page={`/streams/${name}`}>{name}</To>
    </span>
  ));
}

interface TaskRow extends Task {
  readonly on: string;
  readonly counted: JobMetrics["tasks"][string] | undefined;
}

function Tasks({ job, metrics }: { job: string; metrics: Seen<JobMetrics> | undefined }) {
  const tasks = useTasks(job);
  const names = new Map(useInstances().data?.map(({ id, name }) => [id, name]));
  const rows = (found: Task[]) =>
    found.map((each): TaskRow => {
      const on = each.instance === null ? "nobody" : (names.get(each.instance) ?? each.instance);
      return { ...each, on, counted: metrics?.now.tasks[each.task] };
    });
  return (
    <Section title="Tasks" beside={<Curl path={`/v1/jobs/${job}/tasks`} />}>
      <Answered asked={tasks} what="The tasks">
        {(found) =>
          found.length === 0 ? <Empty>It has no tasks yet.</Empty> : <Rows caption="Tasks" columns={TASKS} rows={rows(found)} />
        }
      </Answered>
    </Section>
  );
}

function OverTime({ job }: { job: string }) {
  const asked = { path: { job }, query: useSpan() };
  const series = useLive("/v1/jobs/{job}/series", asked, CHART_MS);
  return (
    <Section
      title="Over time"
      beside={
        <>
          <SpanSwitch />
          <Curl path={addressOf("/v1/jobs/{job}/series", asked)} />
        </>
      }
    >
      <Answered asked={series} what="The figures over time">
        {({ now }) => (
          <div className="charts">
            <Chart
              title="Records, a second"
              at={now.at_ms}
              lines={[{ name: "read", values: now.records_in }, { name: "given", values: now.records_out }, { name: "dropped", values: now.dropped }]}
              shown={rate}
            />
            <Chart title="Lag, records" at={now.at_ms} lines={[{ name: "not read yet", values: now.lag }]} />
            <Chart
              title="A batch on average, ms"
              at={now.at_ms}
              lines={[{ name: "a batch", values: now.batch_ms }]}
              shown={(ms) => milliseconds(ms / 1000)}
            />
          </div>
        )}
      </Answered>
    </Section>
  );
}

function Versions({ job }: { job: string }) {
  const asked = { path: { job }, query: { limit: 20 } };
  const versions = useLive("/v1/jobs/{job}/versions", asked, 10_000);
  const mayWrite = useMayWrite();
  return (
    <Section title="Versions" beside={<Curl path={`/v1/jobs/${job}/versions?limit=20`} />}>
      <Answered asked={versions} what="The versions">
        {({ now }) => (
          <Rows
            caption="Versions"
            columns={mayWrite && now.items.length > 1 ? [...VERSIONS, back(job)] : VERSIONS}
            rows={now.items}
            idOf={({ version }) => String(version)}
          />
        )}
      </Answered>
    </Section>
  );
}

function History({ job }: { job: string }) {
  const history = useHistory(job);
  return (
    <Section title="What happened" beside={<Curl path={`/v1/jobs/${job}/history?limit=20`} />}>
      <Answered asked={history} what="The history">
        {(found) => <Rows caption="What happened" columns={HISTORY} rows={found} />}
      </Answered>
    </Section>
  );
}

const meta = { isNumber: true };
const position = createColumnHelper<Position>();
const POSITIONS = [
  position.accessor("stream", { header: "stream" }),
  position.accessor("partition", {
    header: "partition",
    meta,
    cell: ({ row: { original } }) => (
      <To page={`/streams/${original.stream}?partition=${original.partition}`}>{original.partition}</To>
    ),
  }),
  position.accessor("position", { header: "position", meta, cell: (cell) => count(cell.getValue()) }),
  position.accessor("end", { header: "end", meta, cell: (cell) => count(cell.getValue()) }),
  position.accessor("lag", { header: "lag", meta, cell: (cell) => count(cell.getValue()) }),
  position.accessor("read", { header: "read/s", meta, cell: (cell) => rate(cell.getValue()) }),
  position.accessor("until", { header: "caught up", meta, cell: ({ row: { original } }) => untilText(original.until, original.state) }),
  position.accessor("share", { header: "share of the stream", meta, cell: (cell) => `${Math.round(cell.getValue() * 100)} %` }),
];

const task = createColumnHelper<TaskRow>();
const TASKS = [
  task.accessor("task", { header: "task" }),
  task.accessor("on", { header: "runs on" }),
  task.accessor((row) => sum(row.positions.map((at) => at.lag)), {
    id: "lag",
    header: "lag",
    meta,
    cell: (cell) => count(cell.getValue()),
  }),
  task.accessor((row) => row.counted?.records_in, {
    id: "records in",
    header: "records in",
    meta,
    cell: (cell) => (cell.getValue() === undefined ? "–" : count(cell.getValue()!)),
  }),
  task.accessor((row) => batchMean(row.counted), {
    id: "batch",
    header: "a batch, on average",
    meta,
    cell: (cell) => (cell.getValue() === undefined ? "–" : milliseconds(cell.getValue()!)),
  }),
  task.accessor((row) => row.counted?.batch_seconds_max ?? undefined, {
    id: "slowest",
    header: "the slowest",
    meta,
    cell: (cell) => (cell.getValue() === undefined ? "–" : milliseconds(cell.getValue()!)),
  }),
  task.accessor("stream_time", { header: "stream time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  task.accessor("epoch", { header: "epoch", meta }),
];

function batchMean(counted: TaskRow["counted"]): number | undefined {
  const { batch_seconds_count: batches, batch_seconds_sum: seconds } = counted ?? {};
  return batches == null || seconds == null ? undefined : seconds / batches;
}

type Version = components["schemas"]["JobVersionView"];
const version = createColumnHelper<Version>();
const VERSIONS = [
  version.accessor((row) => `${row.version}${row.is_present ? " (now)" : ""}`, { id: "version", header: "version" }),
  version.accessor("at", { header: "at", cell: (cell) => <Time ms={Date.parse(cell.getValue())} /> }),
  version.accessor("who", { header: "who" }),
  version.accessor("kind", { header: "by" }),
  version.accessor("reason", { header: "what changed" }),
];

function back(job: string) {
  return version.display({
    id: "back",
    header: "go back",
    cell: ({ row: { original } }) => (original.is_present ? null : <RollBack job={job} version={original.version} />),
  });
}

const change = createColumnHelper<Transition>();
const HISTORY = [
  change.accessor("at", { header: "at", cell: (cell) => <Time ms={Date.parse(cell.getValue())} /> }),
  change.accessor((row) => (row.kind === "state" ? row.to_state : row.kind), {
    id: "what",
    header: "what",
    cell: (cell) => <Badge kind={cell.getValue()} />,
  }),
  change.accessor("reason", { header: "why" }),
  change.accessor("who", { header: "who" }),
  change.accessor(({ error, reason }) => (error === null ? "" : error.detail === reason ? error.code : `${error.code}: ${error.detail}`), {
    id: "error",
    header: "error",
  }),
];
