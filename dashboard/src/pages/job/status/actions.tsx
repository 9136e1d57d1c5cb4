// What can be done about a job: each says what it does, what is lost by it, and what can not be undone.
import { Button, Checkbox, Group, NativeSelect, Stack, Text, TextInput } from "@mantine/core";
import type { components } from "@millrace/client";
import { createColumnHelper } from "@tanstack/react-table";
import { useQuery } from "@tanstack/react-query";
import { useEffect, useState, type ReactNode } from "react";
import { Link, useLocation } from "wouter";

import { api, good, type Job } from "../../../api";
import { Answered, Confirmed, Rows } from "../../../parts";
import { lookAgain, useIsAdmin } from "../../../queries";
import { inZone, ofZone, useZone } from "../../../time";
import { pageOf } from "../frame";

type Verb = "pause" | "resume" | "stop" | "restart" | "flush";
type TimeReset = components["schemas"]["TimeResetView"];

interface Action {
  readonly verb: Verb;
  readonly label: string;
  readonly states: readonly Job["state"][];
  readonly meaning: string;
  readonly isDangerous?: boolean;
}

const AT_WORK = ["starting", "running", "rebalancing", "changing"] as const;
const AT_REST: readonly Job["state"][] = ["stopped", "failed"];
const ACTIONS: readonly Action[] = [
  {
    verb: "restart",
    label: "start",
    states: AT_REST,
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
    states: [...AT_WORK, "paused", "failed"],
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

/** After a change everything of the job is asked for again. */
export async function asked<T>(answer: Promise<T>): Promise<T> {
  const found = await answer;
  await lookAgain();
  return found;
}

export function Actions({ job }: { job: Job }) {
  const isAdmin = useIsAdmin();
  const isAtRest = AT_REST.includes(job.state);
  const act = (verb: Verb) => asked(good(api.POST(`/v1/jobs/{job}:${verb}`, { params: { path: { job: job.name } } })));
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
      <Button
        component={Link}
        href={pageOf(job.name, "try")}
        size="compact-md"
        variant="default"
        title="Opens the running version in the editor of Try: what a change means and gives is shown before it is made."
      >
        change in Try
      </Button>
      {isAtRest && <Reset job={job} />}
      {isAtRest && isAdmin && <ResetTime job={job} />}
      <Copy job={job} />
      {job.state === "stopped" && <Delete job={job} />}
    </Group>
  );
}

type Start = "specified" | "earliest" | "latest" | "time";

function Reset({ job }: { job: Job }) {
  const zone = useZone();
  const [start, setStart] = useState<Start>("specified");
  const [text, setText] = useState("");
  const timestamp = ofZone(text, zone);
  const body = start === "specified" ? undefined : { start: start === "time" ? { timestamp: timestamp ?? 0 } : start };
  return (
    <Confirmed
      label="reset"
      question={`reset ${job.name}?`}
      meaning={
        <>
          It is set back to a start, with empty stores and counters from 0. <b>Lost for good:</b> what is in {storesOf(job)}, and how far
          it had read. Sinks keep what was written: what comes out again is there twice. Dropped records and skips stay. It is stopped
          then; start it to read again.
        </>
      }
      path={`/v1/jobs/${job.name}:reset`}
      body={body}
      isDangerous
      isReady={start !== "time" || timestamp !== undefined}
      act={() => asked(good(api.POST("/v1/jobs/{job}:reset", { params: { path: { job: job.name } }, ...(body && { body }) })))}
    >
      <NativeSelect
        label="To where"
        value={start}
        onChange={(event) => setStart(event.currentTarget.value as Start)}
        data={[
          { value: "specified", label: `as its specification says: ${JSON.stringify(job.spec.start ?? "earliest")}` },
          { value: "earliest", label: "the first record that is there" },
          { value: "latest", label: "behind the last record: reads nothing again" },
          { value: "time", label: "the first record of a time" },
        ]}
      />
      {start === "time" && <TimeField label="From" text={text} set={setText} />}
    </Confirmed>
  );
}

function TimeField({ label, text, set }: { label: string; text: string; set: (text: string) => void }) {
  const zone = useZone();
  return (
    <TextInput
      type="datetime-local"
      step="0.001"
      label={`${label} (${zone === "utc" ? "UTC" : "local time"})`}
      value={text}
      onChange={(event) => set(event.currentTarget.value)}
    />
  );
}

function ResetTime({ job }: { job: Job }) {
  const zone = useZone();
  const [text, setText] = useState("");
  const streamTime = ofZone(text, zone);
  const body = { stream_time: streamTime ?? 0 };
  const ask = (dryRun: boolean): Promise<TimeReset> => {
    const params = { path: { job: job.name }, query: { dry_run: dryRun } };
    return good(api.POST("/v1/jobs/{job}:reset-time", { params, body }));
  };
  const meant = useQuery({
    queryKey: ["jobs", job.name, "reset-time", streamTime],
    queryFn: () => ask(true),
    enabled: streamTime !== undefined,
  });
  return (
    <Confirmed
      label="reset time"
      question={`set back the stream time of ${job.name}?`}
      meaning="For a job that a record from far ahead took with it: its tasks go on from an earlier time, so records of now are not late any more. Positions, stores and sinks stay. What was closed stays closed, and what was over stays away: that can not be undone."
      path={`/v1/jobs/${job.name}:reset-time`}
      body={body}
      isDangerous
      isReady={meant.data !== undefined && meant.data.tasks.length > 0}
      act={() => asked(ask(false))}
    >
      <TimeField label="Stream time" text={text} set={setText} />
      {streamTime !== undefined && (
        <Answered asked={meant} what="What it would mean">
          {({ tasks, operators }) => (
            <Stack gap="xs" role="status">
              <Text size="sm">
                {tasks.length === 0
                  ? "No task is ahead of that: nothing would change."
                  : `Set back: ${tasks.map(({ task, was }) => `${task} (was ${inZone(was, zone)})`).join(", ")}.`}
              </Text>
              {operators.map(({ operator, detail }) => (
                <Text size="sm" key={operator}>
                  <b>{operator}</b>: {detail}
                </Text>
              ))}
            </Stack>
          )}
        </Answered>
      )}
    </Confirmed>
  );
}

function Copy({ job }: { job: Job }) {
  const [name, setName] = useState(`${job.name}_copy`);
  const [sink, setSink] = useState("");
  const [isPaused, setPaused] = useState(true);
  const [, go] = useLocation();
  const body = { name, sink: sink === "" ? null : sink, start_paused: isPaused };
  const act = async () => {
    await asked(good(api.POST("/v1/jobs/{job}:copy", { params: { path: { job: job.name } }, body })));
    go(pageOf(name));
  };
  return (
    <Confirmed
      label="copy"
      question={`copy ${job.name}?`}
      meaning="A second job that goes on where this one stands, with stores that hold the same, for a trial beside it. This one goes on as it is, and nothing of it is lost. The copy takes cores of its own and reads everything too; counters and history are its own."
      path={`/v1/jobs/${job.name}:copy`}
      body={body}
      isReady={name !== ""}
      act={act}
    >
      <TextInput label="Name of the copy" value={name} onChange={(event) => setName(event.currentTarget.value)} />
      <TextInput
        label="Sink"
        description="a stream that this job does not write; empty: the copy only keeps stores"
        value={sink}
        onChange={(event) => setSink(event.currentTarget.value)}
      />
      <Checkbox label="start it paused" checked={isPaused} onChange={(event) => setPaused(event.currentTarget.checked)} />
    </Confirmed>
  );
}

function Delete({ job }: { job: Job }) {
  const [typed, setTyped] = useState("");
  const [, go] = useLocation();
  const act = async () => {
    await good(api.DELETE("/v1/jobs/{job}", { params: { path: { job: job.name } } }));
    go("/");
    await lookAgain();
  };
  return (
    <Confirmed
      label="delete"
      question={`delete ${job.name}?`}
      meaning={
        <>
          <b>Lost for good:</b> what is in {storesOf(job)}, how far it had read, its dropped records, counters, versions and history. That
          can not be undone. Sources and sinks stay with all their records.
        </>
      }
      path={`/v1/jobs/${job.name}`}
      method="DELETE"
      isDangerous
      isReady={typed === job.name}
      act={act}
    >
      <TextInput label={`Type ${job.name} to delete it`} value={typed} onChange={(event) => setTyped(event.currentTarget.value)} />
    </Confirmed>
  );
}

function storesOf(job: Job): string {
  return job.stores.length === 0 ? "no store (it has none)" : `its ${job.stores.length === 1 ? "store" : "stores"} ${job.stores.join(", ")}`;
}

/** The record that a job failed at is passed over: from then on as if it had never been there. */
export function Skip({ job, stream, partition, offset }: { job: Job; stream: string; partition: number; offset: number }) {
  const body = { stream, partition, offset };
  const act = async () => {
    const params = { path: { job: job.name } };
    await good(api.POST("/v1/jobs/{job}:skip", { params, body }));
    await asked(good(api.POST("/v1/jobs/{job}:restart", { params })));
  };
  return (
    <Confirmed
      label="skip this record and start"
      question={`skip offset ${offset} of ${stream}/${partition}?`}
      meaning={`${job.name} passes over this one record for ever, also after a reset, and starts. Nothing comes of the record; it stays in the stream, for this job alone it is not there. That can not be undone.`}
      path={`/v1/jobs/${job.name}:skip`}
      body={body}
      isDangerous
      act={act}
    >
      <Text size="sm">Then, to start it: POST /v1/jobs/{job.name}:restart</Text>
    </Confirmed>
  );
}

const MORE = 2;

/** A buffer that was full may hold twice as much. */
export function RaiseBuffer({ job, error }: { job: Job; error: NonNullable<Job["error"]> }) {
  const { operator } = error;
  if (operator == null) return null;
  const bounds = Object.entries({ max_records: error.max_records, max_bytes: error.max_bytes });
  const raised = Object.fromEntries(bounds.flatMap(([name, most]) => (most == null ? [] : [[name, most * MORE]])));
  if (Object.keys(raised).length === 0) return null;
  const body = { buffers: { [operator]: raised } };
  return (
    <Changed
      job={job}
      label="raise the bound and start"
      question={`let ${operator} hold twice as much?`}
      meaning={`The buffer of ${operator} may hold ${Object.entries(raised).map(([name, most]) => `${most.toLocaleString("en")} ${name === "max_bytes" ? "bytes" : "records"}`).join(", ")} from now on, and the job starts where it stood: nothing was lost. It takes that much more memory; should stream time stand still, it fills again.`}
      body={body}
    />
  );
}

type JobChange = components["schemas"]["JobChange"];

/** A PATCH of a job at rest, which starts then. */
function Changed({ job, label, question, meaning, body }: { job: Job; label: string; question: string; meaning: ReactNode; body: JobChange }) {
  const act = async () => {
    const params = { path: { job: job.name } };
    const tag = await tagOf(job.name);
    await good(api.PATCH("/v1/jobs/{job}", { params: { ...params, header: { "If-Match": tag } }, body }));
    await asked(good(api.POST("/v1/jobs/{job}:restart", { params })));
  };
  return (
    <Confirmed
      label={label}
      question={question}
      meaning={meaning}
      path={`/v1/jobs/${job.name}`}
      method="PATCH"
      body={body}
      condition="$ETAG"
      act={act}
    >
      <Text size="sm">
        $ETAG is the ETag of GET /v1/jobs/{job.name}. Then, to start it: POST /v1/jobs/{job.name}:restart
      </Text>
    </Confirmed>
  );
}

/** What a change of a job has to name: it is refused where somebody else changed it meanwhile. */
async function tagOf(job: string): Promise<string> {
  const { response } = await api.GET("/v1/jobs/{job}", { params: { path: { job } } });
  return response.headers.get("ETag") ?? "";
}

type Verdict = components["schemas"]["ChangeVerdictView"];

/** Back to a former version: what that means for each operator is asked for first. */
export function RollBack({ job, version }: { job: string; version: number }) {
  const [restart, setRestart] = useState<string[]>([]);
  const body = { version, restart };
  const ask = async (dryRun: boolean) => {
    const params = { path: { job }, query: { dry_run: dryRun }, header: { "If-Match": await tagOf(job) } };
    return good(api.POST("/v1/jobs/{job}:rollback", { params, body }));
  };
  const [isReady, setReady] = useState(false);
  return (
    <Confirmed
      label={`roll back to ${version}`}
      question={`roll ${job} back to version ${version}?`}
      meaning={`${job} gets the specification of version ${version} again, as a new version, over its stores as they are. Positions and what was written stay, finals stay final. It can be rolled back in turn; what a store that begins empty held is lost then.`}
      path={`/v1/jobs/${job}:rollback`}
      body={body}
      condition="$ETAG"
      isDangerous
      isReady={isReady}
      isWide
      act={() => asked(ask(false))}
    >
      <Verdicts asked={[job, version, restart]} ask={() => ask(true) as Promise<Verdict>} restart={restart} choose={setRestart} judge={setReady} />
    </Confirmed>
  );
}

interface VerdictsProps {
  readonly asked: readonly unknown[];
  readonly ask: () => Promise<Verdict>;
  readonly restart: string[];
  readonly choose: (restart: string[]) => void;
  readonly judge: (isPossible: boolean) => void;
}

function Verdicts({ asked: key, ask, restart, choose, judge }: VerdictsProps) {
  const verdict = useQuery({
    queryKey: ["dry run", ...key],
    queryFn: ask,
    gcTime: 0,
    placeholderData: (before) => before,
  });
  const isPossible = !verdict.isPlaceholderData && verdict.data?.is_possible === true;
  useEffect(() => judge(isPossible), [judge, isPossible]);
  return (
    <Answered asked={verdict} what="The dry run">
      {(found) => (
        <Stack gap="xs" role="status">
          <Text size="sm">{found.is_possible ? `It would be version ${found.version}.` : "It can not be done so."}</Text>
          {found.errors.map(({ pointer, detail }) => (
            <Text size="sm" c="red" key={pointer + detail}>
              {detail}
            </Text>
          ))}
          <Rows caption="What it would mean" columns={VERDICTS} rows={[...found.operators, ...streamsOf(found)]} />
          {found.operators.some(({ store }) => store !== null) && (
            <Checkbox.Group label="Operators whose stores begin empty" value={restart} onChange={choose}>
              <Group gap="sm" mt={4}>
                {found.operators
                  .filter(({ store, verdict: what }) => store !== null && what !== "removed")
                  .map(({ operator }) => (
                    <Checkbox key={operator} value={operator} label={operator} />
                  ))}
              </Group>
            </Checkbox.Group>
          )}
        </Stack>
      )}
    </Answered>
  );
}

interface Judged {
  readonly operator: string;
  readonly verdict: string;
  readonly detail: string;
}

function streamsOf({ sinks, sources }: Verdict): Judged[] {
  const changed = [...sources, ...sinks].filter(({ verdict }) => verdict !== "unchanged");
  return changed.map(({ stream, verdict, detail }) => ({ operator: stream, verdict, detail }));
}

const judged = createColumnHelper<Judged>();
const VERDICTS = [
  judged.accessor("operator", { header: "operator or stream" }),
  judged.accessor("verdict", { header: "verdict" }),
  judged.accessor("detail", { header: "what it means" }),
];

