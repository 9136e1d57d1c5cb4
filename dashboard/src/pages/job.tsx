// One job: how it stands, how far it is, what went wrong, and what can be done about it.
import { Alert, Code, Group, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";

import { api, good, readRecords, type Job, type JobMetrics, type Task, type Transition } from "../api";
import { lagOf, untilCaughtUp } from "../attention";
import { count, rate, sum } from "../figures";
import { Answered, Badge, Confirmed, Curl, Empty, Facts, Json, Page, Rows, Section, To } from "../parts";
import { queries, useHistory, useInstances, useJob, useJobMetrics, useMayWrite, useTasks } from "../queries";
import { useRates } from "../rates";
import { Time, span } from "../time";

type Verb = "pause" | "resume" | "stop" | "restart" | "flush";

interface Action {
  readonly verb: Verb;
  readonly label: string;
  readonly states: readonly Job["state"][];
  readonly meaning: string;
  readonly isDangerous?: boolean;
}

const AT_WORK = ["starting", "running", "rebalancing", "changing"] as const;
const ACTIONS: readonly Action[] = [
  {
    verb: "restart",
    label: "start",
    states: ["stopped", "failed"],
    meaning: "It goes on where it stood, with its stores as they are; nothing is read twice. What made it fail makes it fail again, unless that was mended.",
  },
  {
    verb: "pause",
    label: "pause",
    states: AT_WORK,
    meaning: "It takes in no more records. Its tasks stay where they are and keep their cores, lookups go on, lag grows until it is resumed.",
  },
  { verb: "resume", label: "resume", states: ["paused"], meaning: "It goes on where it was paused." },
  {
    verb: "stop",
    label: "stop",
    states: [...AT_WORK, "paused"],
    meaning: "What it is working on is committed, then it gives its cores back. Positions and stores stay; who reads its output waits until it is started again.",
    isDangerous: true,
  },
  {
    verb: "flush",
    label: "flush",
    states: AT_WORK,
    meaning: "Once what is there now is read, every open window, session and buffer is closed and comes out as final. That can not be undone: records of those windows that come later are dropped as late.",
    isDangerous: true,
  },
];

export default function JobPage({ job: name }: { job: string }) {
  const job = useJob(name);
  const metrics = useJobMetrics(name);
  const mayWrite = useMayWrite();
  return (
    <Page title={name} beside={<Curl path={`/v1/jobs/${name}`} />}>
      <Answered asked={job} what="The job">
        {({ at, now }) => (
          <>
            <Group>
              <Badge kind={now.state} />
              <Text c="dimmed">{now.reason}</Text>
            </Group>
            {now.error !== null && <JobError job={now} error={now.error} />}
            {now.shortage !== null && (
              <Alert color="yellow" variant="outline" title="It waits for a core">
                Other jobs have all there are: add an instance or cores, or stop a job.
              </Alert>
            )}
            {mayWrite && <Actions job={now} />}
            <Figures seen={{ at, now }} metrics={metrics.data} />
            <Section title="Positions" beside={<Text size="sm">{sourcesOf(now)}</Text>}>
              {now.positions.length === 0 ? (
                <Empty>It has not begun to read.</Empty>
              ) : (
                <Rows caption="Positions" columns={POSITIONS} rows={now.positions} />
              )}
            </Section>
          </>
        )}
      </Answered>
      <Topology job={name} />
      <Answered asked={metrics} what="The figures">
        {({ now }) => <Dropped metrics={now} />}
      </Answered>
      <Tasks job={name} />
      <History job={name} />
    </Page>
  );
}

function Actions({ job }: { job: Job }) {
  const act = async (verb: Verb) => {
    await good(api.POST(`/v1/jobs/{job}:${verb}`, { params: { path: { job: job.name } } }));
    await queries.invalidateQueries({ queryKey: ["jobs"] });
  };
  return (
    <Group role="group" aria-label="Actions">
      {ACTIONS.filter(({ states }) => states.includes(job.state)).map(({ verb, label, meaning, isDangerous }) => (
        <Confirmed
          key={verb}
          label={label}
          question={`${label} ${job.name}?`}
          meaning={meaning}
          path={`/v1/jobs/${job.name}:${verb}`}
          isDangerous={isDangerous ?? false}
          act={() => act(verb)}
        />
      ))}
    </Group>
  );
}

/** Why it failed, and the record that it failed at, if there was one. */
function JobError({ job, error }: { job: Job; error: NonNullable<Job["error"]> }) {
  const { stream, partition, offset } = error;
  const isAtRecord = stream != null && partition != null && offset != null;
  const facts: [string, ReactNode][] = [["code", <Code key="code">{error.code}</Code>]];
  if (error.operator != null) facts.push(["operator", error.operator]);
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
      </Stack>
    </Alert>
  );
}

function FailedRecord({ stream, partition, offset }: { stream: string; partition: number; offset: number }) {
  const record = useQuery({
    queryKey: ["streams", stream, "record", partition, offset],
    queryFn: async () => (await readRecords(stream, { partition, from_offset: offset }, 1)).records[0] ?? null,
    staleTime: Infinity, // what lies at an offset never changes
  });
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
  const given = useRates(metrics, (now) => new Map([["out", now.records_out]]));
  const [lag, read, arriving] = [lagOf(seen.now), moved.get("read"), moved.get("arriving")];
  const until = read === undefined || arriving === undefined ? undefined : untilCaughtUp(lag, read, arriving);
  return (
    <Facts
      facts={[
        ["lag, records", count(lag)],
        ["reads, a second", rate(read)],
        ["arrive, a second", rate(arriving)],
        ["gives, a second", rate(given.get("out"))],
        ["caught up", until === undefined ? "–" : until === null ? "not at this pace" : until === 0 ? "now" : `in ${span(until)}`],
        ["stream time", <Time key="time" ms={seen.now.stream_time} />],
        ["version", count(seen.now.spec_version)],
        ["stores", seen.now.stores.join(", ") || "none"],
      ]}
    />
  );
}

function sourcesOf(job: Job): ReactNode {
  const sources = [job.spec.source].flat().filter((source): source is string => typeof source === "string");
  const sinks = [job.spec.sink ?? []].flat().map((sink) => (typeof sink === "string" ? sink : sink.stream));
  const links = (names: readonly string[]) =>
    names.map((name, place) => (
      <span key={name}>
        {place > 0 && ", "}
        <To page={`/streams/${name}`}>{name}</To>
      </span>
    ));
  return (
    <>
      reads {links(sources)}
      {sinks.length > 0 && <>, writes {links(sinks)}</>}
    </>
  );
}

function Topology({ job }: { job: string }) {
  return (
    <Section title="Topology" beside={<Curl path={`/v1/jobs/${job}/topology`} />}>
      <div className="scrolled" role="region" aria-label="Topology" tabIndex={0}>
        <img className="picture" src={`/v1/jobs/${job}/topology`} alt={`The operators of ${job} and what goes from one to the next`} />
      </div>
    </Section>
  );
}

function Dropped({ metrics }: { metrics: JobMetrics }) {
  const rows = Object.entries(metrics.dropped).flatMap(([operator, reasons]) =>
    Object.entries(reasons).map(([reason, records]) => ({ operator, reason, records })),
  );
  return (
    <Section title="Dropped">
      {rows.length === 0 ? <Text>Nothing was dropped.</Text> : <Rows caption="Dropped records" columns={DROPPED} rows={rows} />}
    </Section>
  );
}

function Tasks({ job }: { job: string }) {
  const tasks = useTasks(job);
  const names = new Map(useInstances().data?.map(({ id, name }) => [id, name]));
  const rows = (found: Task[]) =>
    found.map((each) => ({ ...each, on: each.instance === null ? "nobody" : (names.get(each.instance) ?? each.instance) }));
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
const position = createColumnHelper<Job["positions"][number]>();
const POSITIONS = [
  position.accessor("stream", { header: "stream" }),
  position.accessor("partition", { header: "partition", meta }),
  position.accessor("position", { header: "position", meta, cell: (cell) => count(cell.getValue()) }),
  position.accessor("end", { header: "end", meta, cell: (cell) => count(cell.getValue()) }),
  position.accessor("lag", { header: "lag", meta, cell: (cell) => count(cell.getValue()) }),
];

const drop = createColumnHelper<{ operator: string; reason: string; records: number }>();
const DROPPED = [
  drop.accessor("operator", { header: "operator" }),
  drop.accessor("reason", { header: "reason" }),
  drop.accessor("records", { header: "records", meta, cell: (cell) => count(cell.getValue()) }),
];

const task = createColumnHelper<Task & { on: string }>();
const TASKS = [
  task.accessor("task", { header: "task" }),
  task.accessor("on", { header: "runs on" }),
  task.accessor((row) => sum(row.positions.map((at) => at.lag)), {
    id: "lag",
    header: "lag",
    meta,
    cell: (cell) => count(cell.getValue()),
  }),
  task.accessor("stream_time", { header: "stream time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  task.accessor("epoch", { header: "epoch", meta }),
];

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
  change.accessor((row) => (row.error === null ? "" : `${row.error.code}: ${row.error.detail}`), { id: "error", header: "error" }),
];
