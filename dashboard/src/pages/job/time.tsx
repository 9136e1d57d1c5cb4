// When what is open in a job will close, and what it waits for.
import { Alert, Anchor, Group, Select, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import type { ReactNode } from "react";
import { useSearchParams } from "wouter";

import { api, good } from "../../api";
import { bytes, count } from "../../figures";
import { Answered, Badge, Confirmed, Curl, Empty, Facts, Rows, Section, To } from "../../parts";
import { addressOf, lookAgain, useIsAdmin, useJob, useLive, useMayWrite } from "../../queries";
import { Time, span } from "../../time";
import { JobFrame } from "./frame";
import { OpenEntries } from "./time/entries";
import {
  counted,
  findingsOf,
  firstOfKinds,
  holdsBack,
  openIn,
  passing,
  placeOf,
  silenceIn,
  silenceOf,
  waitsOf,
  years,
  type Clock,
  type Finding,
  type JobTime,
  type Operator,
  type Wait,
} from "./time/waits";

const MOST_TASKS = 1000;
const MOST_WAITS = 8;
const MOST_OF_KIND = 3;
const CLOSED_WHEN_IDLE = { idle_close_after_ms: 300_000 };

export default function TimePage({ job }: { job: string }) {
  const asked = { path: { job }, query: { limit: MOST_TASKS } };
  const time = useLive("/v1/jobs/{job}/time", asked);
  return (
    <JobFrame job={job} tab="time" beside={<Curl path={addressOf("/v1/jobs/{job}/time", asked)} />}>
      <Answered asked={time} what="The time of the job">
        {({ now }) => <Told time={now} />}
      </Answered>
    </JobFrame>
  );
}

function Told({ time }: { time: JobTime }) {
  const [params, setParams] = useSearchParams();
  const waits = waitsOf(time);
  const findings = findingsOf(time);
  const shown = firstOfKinds(findings, MOST_OF_KIND);
  const chosen = time.items.find(({ task }) => task === params.get("task")) ?? waits[0]?.task ?? time.items[0];
  const choose = (task: string) =>
    setParams((before) => {
      before.set("task", task);
      return before;
    });
  if (chosen === undefined) return <Empty>It has no tasks yet, so it has no time.</Empty>;
  return (
    <>
      {shown.map((finding) => (
        <Found key={`${finding.kind}/${"task" in finding ? finding.task.task : ""}`} finding={finding} time={time} />
      ))}
      {shown.length < findings.length && <Text size="sm">{`${count(findings.length - shown.length)} more tasks are like these: they are below.`}</Text>}
      <Section title="What closes next">
        <Waits time={time} waits={waits} />
        <Ways time={time} />
      </Section>
      <Section title="Stream time of the tasks">
        <Tasks time={time} choose={choose} />
      </Section>
      <Section
        title={`Task ${chosen.task}`}
        beside={
          <Select
            aria-label="Task"
            size="xs"
            w="7rem"
            value={chosen.task}
            data={time.items.map(({ task }) => task)}
            allowDeselect={false}
            searchable
            onChange={(task) => task !== null && choose(task)}
          />
        }
      >
        <Task time={time} task={chosen} />
      </Section>
    </>
  );
}

// ---------------------------------------------------------------- what somebody should know first

function Found({ finding, time }: { finding: Finding; time: JobTime }) {
  const [title, text] = saidOf(finding, time);
  const color = finding.kind === "moved" ? "blue" : "yellow";
  return (
    <Alert className="time-finding" color={color} variant="outline" title={title} role={color === "yellow" ? "alert" : "note"}>
      {text}
    </Alert>
  );
}

function saidOf(finding: Finding, time: JobTime): [string, ReactNode] {
  switch (finding.kind) {
    case "ahead":
      return [`Task ${finding.task.task}: stream time is ${far(finding.ahead.by_ms)} ahead of the clock`, <Ahead key="" {...finding} time={time} />];
    case "stalled":
      return [
        `Task ${finding.task.task} stands still, ${span(finding.byMs)} behind task ${finding.front.task}`,
        <Text key="" size="sm">
          It is at <Time ms={finding.task.stream_time} />, {finding.front.task} at <Time ms={finding.front.stream_time} />. It has read all
          that is in its inputs{silent(silenceIn(finding.task))}: each task has a stream time of its own, so what is open here
          ({count(openIn(finding.task))}) does not close with what the others read. It closes by a record for this task, by silence of the
          whole input, or by a flush.
        </Text>,
      ];
    case "waiting":
      return [
        `Task ${finding.task.task} waits for ${finding.input.stream}/${finding.input.partition}`,
        <Text key="" size="sm">
          What others brought may come behind a record of that partition, which has been read up to <Time ms={finding.input.read_to} />
          {silent(finding.input.silent_ms)}. It goes on with the next record there, or once it was silent for max_task_idle_ms.
        </Text>,
      ];
    case "endless":
      return [
        "Nothing comes, and silence closes nothing",
        <Text key="" size="sm">
          {count(finding.open)} open, nothing has come for {span(finding.silentMs)}, and idle close is off (idle_close_after_ms): what is open
          stays open until a record of the time below comes, or a flush is asked for.
        </Text>,
      ];
    case "moved":
      return [
        `Task ${finding.task.task} was closed by ${finding.advanced.reason === "idle" ? "silence" : "a flush"}`,
        <Text key="" size="sm">
          At <Time ms={finding.advanced.at_ms} /> its stream time was moved to <Time ms={finding.advanced.to} /> without a record. Records of
          windows that were closed by it are dropped as closed_idle.
        </Text>,
      ];
  }
}

function Ahead({ task, ahead, time }: { task: Clock; ahead: NonNullable<Clock["ahead"]>; time: JobTime }) {
  const late = task.operators.filter((operator) => holdsBack(operator) && (operator.open?.open_from ?? -1) > time.now);
  return (
    <Stack gap="xs">
      <Text size="sm">
        It is at <Time ms={task.stream_time} />
        {ahead.stream === null || ahead.partition === null || ahead.offset === null ? (
          <>; no record that is still there moved it so far.</>
        ) : (
          <>
            , since <Time ms={ahead.since_ms} />, by{" "}
            <To page={`/streams/${ahead.stream}?partition=${ahead.partition}&from_offset=${ahead.offset}`}>
              {`${ahead.stream}/${ahead.partition}, offset ${ahead.offset}`}
            </To>
            .
          </>
        )}{" "}
        {late.length === 0
          ? "No window of now is closed by it yet."
          : `All that comes now is late for ${late.map(({ operator }) => operator).join(", ")}: windows of now are closed.`}
      </Text>
      <WayBack time={time} />
    </Stack>
  );
}

/** Set back by whoever may; what for and how by everybody. */
function WayBack({ time }: { time: JobTime }) {
  const isAdmin = useIsAdmin();
  const isQuiet = time.state === "stopped" || time.state === "failed";
  const path = `/v1/jobs/${time.job}:reset-time`;
  const body = { stream_time: time.now };
  const act = async () => {
    await good(api.POST("/v1/jobs/{job}:reset-time", { params: { path: { job: time.job } }, body }));
    await lookAgain();
  };
  return (
    <Group>
      <Text size="sm">
        The way back: stop the job, set its stream time back (:reset-time), start it. What was closed stays closed. A lower max_future_ms of
        the stream refuses such records.
      </Text>
      {isAdmin && isQuiet && (
        <Confirmed
          label="set stream time back"
          question={`set the stream time of ${time.job} back to now?`}
          meaning="Positions, stores and sinks stay. What the higher time had closed stays closed and takes no more records; what comes for windows of now is taken in again."
          path={path}
          body={body}
          isDangerous
          act={act}
        />
      )}
    </Group>
  );
}

// ---------------------------------------------------------------- what closes next

function Waits({ time, waits }: { time: JobTime; waits: Wait[] }) {
  const unknown = time.items.flatMap(({ task, operators }) => operators.flatMap(({ operator, unknown: why }) => (why === null ? [] : [{ task, operator, why }])));
  const left = waits.length - MOST_WAITS;
  return (
    <Stack gap="xs">
      {waits.length === 0 && <Text>{nothingOpen(time)}</Text>}
      <ul className="findings" aria-label="What closes next">
        {waits.slice(0, MOST_WAITS).map((wait) => (
          <li key={`${wait.task.task}/${wait.operator.operator}/${wait.ending.end}`}>
            <Sentence wait={wait} time={time} />
          </li>
        ))}
      </ul>
      {left > 0 && <Text size="sm">{`${left} later ends are with the tasks below.`}</Text>}
      {unknown.map(({ task, operator, why }) => (
        <Text key={`${task}/${operator}`} size="sm">
          {`Task ${task}, ${operator}: not known what is open: ${why}`}
        </Text>
      ))}
    </Stack>
  );
}

function nothingOpen(time: JobTime): string {
  const some = time.items.flatMap(({ operators }) => operators);
  if (some.some(({ open }) => open !== null && open.next === null)) return "Too much is open to know what closes first: the figures are with the tasks below.";
  return some.some(holdsBack)
    ? "Nothing is open: no window, no session, no update held back."
    : "Nothing of this job ever closes: none of its operators has windows, sessions or a buffer.";
}

function Sentence({ wait: { task, operator, ending, missingMs }, time }: { wait: Wait; time: JobTime }) {
  const due = time.idle_close?.due_in_ms;
  return (
    <Text>
      <strong>{counted(operator, ending.number, ending.is_all)}</strong> <Span operator={operator} end={ending.end} /> of{" "}
      <To page={`/jobs/${time.job}/state?store=${operator.store}`}>{operator.operator}</To> {ending.number === 1 ? verb(operator, true) : verb(operator, false)}{" "}
      {ending.stream_time === null ? (
        <>never by time alone: by silence or a flush neither.</>
      ) : missingMs === 0 ? (
        <>with the next record, whatever its time, that arrives in {placeOf(task)}{passing(operator)}</>
      ) : (
        <>
          when a record of <strong><Time ms={ending.stream_time} /></strong> or later arrives in {placeOf(task)}
          {passing(operator)}
          {missingMs !== null && ` (${exactly(missingMs)} after stream time)`}
        </>
      )}
      {due != null && `; or in ${span(due)}, by idle close (idle_close_after_ms ${time.idle_close!.after_ms})`}
      {silent(silenceIn(task), "; nothing has come for ")}.
    </Text>
  );
}

function Span({ operator, end }: { operator: Operator; end: number }) {
  if (operator.length_ms !== null) {
    return (
      <>
        [<Time ms={end - operator.length_ms} />, <Time ms={end} />)
      </>
    );
  }
  if (operator.what === "identity") return <>seen at <Time ms={end} /></>;
  if (operator.what === "buffered") return <>(buffer time <Time ms={end} />)</>;
  return <>with the last record at <Time ms={end} /></>;
}

function verb(operator: Operator, isOne: boolean): string {
  if (operator.what === "identity") return isOne ? "is forgotten" : "are forgotten";
  if (operator.what === "buffered") return isOne ? "comes out" : "come out";
  return isOne ? "closes" : "close";
}

/** What else closes: silence, and a flush. */
function Ways({ time }: { time: JobTime }) {
  const mayWrite = useMayWrite();
  const job = useJob(time.job).data?.now;
  const open = time.items.reduce((total, task) => total + openIn(task), 0);
  const act = async () => {
    await good(api.POST("/v1/jobs/{job}:flush", { params: { path: { job: time.job } } }));
    await lookAgain();
  };
  const closeWhenIdle = async () => {
    const path = { job: time.job };
    const { response } = await api.GET("/v1/jobs/{job}", { params: { path } });
    const header = { "If-Match": response.headers.get("ETag") ?? "" };
    await good(api.PATCH("/v1/jobs/{job}", { params: { path, header }, body: CLOSED_WHEN_IDLE }));
    await lookAgain();
  };
  return (
    <Stack gap="xs" mt="xs">
      <Facts
        facts={[
          ["now", <Time key="now" ms={time.now} />],
          ["open in all tasks", count(open)],
          ["nothing has come for", orDash(silenceOf(time))],
          ["idle close", <Idle key="idle" time={time} />],
        ]}
      />
      {time.is_flushing && <Text size="sm">A flush is under way: it closes what was open when it was asked for.</Text>}
      {mayWrite && open > 0 && (
        <Group role="group" aria-label="Close now">
          {!time.is_flushing && (job === undefined || ["starting", "running", "rebalancing", "changing"].includes(job.state)) && (
            <Confirmed
              label="flush"
              question={`flush ${time.job}?`}
              meaning={<Flushed time={time} />}
              path={`/v1/jobs/${time.job}:flush`}
              isDangerous
              act={act}
            />
          )}
          {time.idle_close === null && (
            <Confirmed
              label="close after 5 min of silence"
              question={`close what is open in ${time.job} when its input is silent?`}
              meaning="It gets idle_close_after_ms 300000: once nothing was published to any of its sources for five minutes, all that is open closes. Records of those windows that come later are dropped as closed_idle."
              path={`/v1/jobs/${time.job}`}
              method="PATCH"
              body={CLOSED_WHEN_IDLE}
              condition="$ETAG"
              act={closeWhenIdle}
            >
              <Text size="sm">$ETAG is the ETag of GET /v1/jobs/{time.job}.</Text>
            </Confirmed>
          )}
        </Group>
      )}
    </Stack>
  );
}

function Flushed({ time }: { time: JobTime }) {
  const lines = time.items.flatMap(({ task, operators }) =>
    operators.flatMap((operator) =>
      holdsBack(operator) && operator.open !== null && operator.open.number > 0 ? [{ task, operator, open: operator.open }] : [],
    ),
  );
  return (
    <>
      Once what is there now is read, this closes, and stream time is moved so far; records of it that come later are dropped:
      <ul>
        {lines.slice(0, 10).map(({ task, operator, open }) => (
          <li key={`${task}/${operator.operator}`}>
            {`${counted(operator, open.number, open.is_all)} of ${operator.operator} in task ${task}`}
            {open.last_stream_time !== null && (
              <>
                , up to <Time ms={open.last_stream_time} />
              </>
            )}
          </li>
        ))}
      </ul>
      {lines.length > 10 && `and in ${lines.length - 10} more. `}That can not be undone.
    </>
  );
}

function Idle({ time }: { time: JobTime }) {
  const idle = time.idle_close;
  if (idle === null) return <>off: silence closes nothing</>;
  const after = `after ${span(idle.after_ms)} of silence`;
  if (idle.unread > 0) return <>{`${after}, once ${count(idle.unread)} records are read`}</>;
  if (idle.due_in_ms === null) return <>{`${after}; nothing is open`}</>;
  const last = idle.last_input;
  return <>{`in ${span(idle.due_in_ms)}, ${after}${last === null ? "" : ` (last spoke ${last.stream}/${last.partition})`}`}</>;
}

// ---------------------------------------------------------------- tasks

interface TaskRow {
  readonly clock: Clock;
  readonly behindMs: number | null;
  readonly nowMs: number | null;
  readonly next: number | null;
}

function Tasks({ time, choose }: { time: JobTime; choose: (task: string) => void }) {
  const furthest = Math.max(...time.items.map(({ stream_time }) => stream_time ?? -1));
  const rows = time.items.map((clock): TaskRow => {
    const next = clock.operators.filter(holdsBack).flatMap(({ open }) => open?.next?.[0]?.stream_time ?? []);
    return {
      clock,
      behindMs: clock.stream_time === null ? null : furthest - clock.stream_time,
      nowMs: clock.stream_time === null ? null : time.now - clock.stream_time,
      next: next.length === 0 ? null : Math.min(...next),
    };
  });
  return <Rows caption="Stream time of the tasks" columns={columnsOf(choose)} rows={rows} />;
}

const meta = { isNumber: true };
const row = createColumnHelper<TaskRow>();

function columnsOf(choose: (task: string) => void) {
  return [
    row.accessor(({ clock }) => clock.task, {
      id: "task",
      header: "task",
      cell: (cell) => (
        <Anchor component="button" type="button" onClick={() => choose(cell.getValue())} underline="always">
          {cell.getValue()}
        </Anchor>
      ),
    }),
    row.accessor(({ clock }) => clock.stream_time, { id: "at", header: "stream time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
    row.accessor("nowMs", { header: "against now", meta, cell: (cell) => againstNow(cell.getValue()) }),
    row.accessor("behindMs", {
      header: "behind the furthest",
      meta,
      cell: (cell) => (cell.getValue() === null ? "–" : cell.getValue() === 0 ? "furthest" : far(cell.getValue()!)),
    }),
    row.accessor(({ clock }) => silenceIn(clock), { id: "silent", header: "silent for", meta, cell: (cell) => orDash(cell.getValue()) }),
    row.accessor(({ clock }) => openIn(clock), { id: "open", header: "open", meta, cell: (cell) => count(cell.getValue()) }),
    row.accessor("next", { header: "first closes at", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  ];
}

function againstNow(ms: number | null): string {
  if (ms === null) return "–";
  return ms >= 0 ? `${far(ms)} behind` : `${far(-ms)} ahead`;
}

function Task({ time, task }: { time: JobTime; task: Clock }) {
  return (
    <Stack gap="sm">
      <Facts
        facts={[
          ["runs on", task.instance ?? "nobody"],
          ["stream time", <Time key="at" ms={task.stream_time} />],
          ["moved without a record", task.advanced == null || task.advanced.to === null ? "never, as far as is known" : `by ${task.advanced.reason}`],
        ]}
      />
      <Rows caption={`Inputs of ${task.task}`} columns={INPUTS} rows={task.inputs} />
      {task.operators.length === 0 && <Text>It keeps nothing: what it reads goes on at once.</Text>}
      {task.operators.map((operator) => (
        <OperatorTime key={operator.operator} time={time} task={task} operator={operator} />
      ))}
    </Stack>
  );
}

type Input = Clock["inputs"][number];
const ROLES: Record<Input["role"], string> = { reading: "is read", waited_for: "holds the others back", silent: "all is read" };
const input = createColumnHelper<Input>();
const INPUTS = [
  input.accessor((at) => `${at.stream}/${at.partition}`, {
    id: "input",
    header: "input",
    cell: (cell) => {
      const { stream, partition, is_internal, end } = cell.row.original;
      return is_internal ? cell.getValue() : <To page={`/streams/${stream}?partition=${partition}&from_offset=${Math.max(0, end - 20)}`}>{cell.getValue()}</To>;
    },
  }),
  input.accessor("role", { header: "how it stands", cell: (cell) => ROLES[cell.getValue()] }),
  input.accessor("lag", { header: "unread", meta, cell: (cell) => count(cell.getValue()) }),
  input.accessor("read_to", { header: "read up to", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  input.accessor("last_timestamp", { header: "last came", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  input.accessor("silent_ms", { header: "silent for", meta, cell: (cell) => orDash(cell.getValue()) }),
];

function OperatorTime({ time, task, operator }: { time: JobTime; task: Clock; operator: Operator }) {
  const { open } = operator;
  return (
    <section className="time-operator" aria-label={`${operator.operator} in ${task.task}`}>
      <Group gap="xs">
        <strong>{operator.operator}</strong>
        <Badge kind={operator.kind} />
        {open !== null && <Text size="sm">{counted(operator, open.number, open.is_all)}</Text>}
      </Group>
      <Text size="sm" c="dimmed">
        {meaningOf(operator)}
      </Text>
      {operator.unknown !== null && <Text size="sm">{`Not known just now: ${operator.unknown}`}</Text>}
      {open !== null && (
        <>
          <Facts
            facts={[
              ["its stream time", <Time key="at" ms={operator.stream_time} />],
              [operator.what === "identity" ? "remembers what came from" : operator.what === "buffered" ? "lets go of what is older than" : "closed what ended before", <Time key="from" ms={open.open_from < 0 ? null : open.open_from} />],
              ["all is over at", <Time key="last" ms={open.last_stream_time} />],
              ...(open.held === null ? [] : ([["holds", holding(open.held)]] as [string, ReactNode][])),
            ]}
          />
          {open.next !== null && open.next.length > 0 && (
            <ul className="findings" aria-label={`What ends first in ${operator.operator}`}>
              {open.next.map((ending) => (
                <li key={ending.end}>
                  <Text size="sm">
                    {counted(operator, ending.number, ending.is_all)} <Span operator={operator} end={ending.end} />: {verb(operator, ending.number === 1)} at{" "}
                    <Time ms={ending.stream_time} />
                  </Text>
                </li>
              ))}
            </ul>
          )}
          {open.next === null && <Text size="sm">Too much lies there to know what ends first.</Text>}
          {holdsBack(operator) && open.number > 0 && <OpenEntries job={time.job} operator={operator} />}
        </>
      )}
    </section>
  );
}

function meaningOf({ what, delay_ms, is_emitted }: Operator): string {
  const delay = delay_ms === null ? "for ever" : exactly(delay_ms);
  switch (what) {
    case null:
      return "A value a key, for ever: nothing of it closes.";
    case "identity":
      return `A repetition is dropped until stream time is ${delay} past what was let through.`;
    case "buffered":
      return delay_ms === null ? "Held back for ever." : `Held back until stream time is ${delay} past its time.`;
    default:
      return `A ${what} closes when stream time is ${delay} past its end; then ${is_emitted ? "its result comes out" : "it takes no more records (results came out as they changed)"}.`;
  }
}

function holding({ bytes: size, max_bytes, max_records, when_full }: NonNullable<NonNullable<Operator["open"]>["held"]>): string {
  const most = [max_records === null ? [] : `${count(max_records)} records`, max_bytes === null ? [] : bytes(max_bytes)].flat().join(", ");
  return `${bytes(size)}${most === "" ? ", no bound" : ` of at most ${most}${when_full === null ? "" : `, then ${when_full}`}`}`;
}

// ---------------------------------------------------------------- words

function silent(ms: number | null, before = ", and nothing has come for "): string {
  return ms === null || ms < 1000 ? "" : `${before}${span(ms)}`;
}

function orDash(ms: number | null): string {
  return ms === null ? "–" : span(ms);
}

function far(ms: number): string {
  const found = years(ms);
  return found === null ? span(ms) : `${found} years`;
}

/** To the millisecond where there are some. */
function exactly(ms: number): string {
  const rest = ms % 1000;
  if (rest === 0 || ms >= 86_400_000) return far(ms);
  return ms < 1000 ? `${ms} ms` : `${span(ms - rest)} ${rest} ms`;
}
