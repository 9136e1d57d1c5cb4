// Who runs jobs: each instance with its slots, what they do, what it lacks; whether the next one may be taken.
import { Alert, Anchor, Group, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import type { ReactNode } from "react";

import { api, good, type Instance, type Job } from "../api";
import { backWords } from "../attention";
import { count, sum } from "../figures";
import { Answered, Badge, Confirmed, Curl, Empty, Facts, Page, Rows, Section, To } from "../parts";
import { lookAgain, useInstances, useIsAdmin, useJobs, useLiveEach, useReadiness } from "../queries";
import { Time, span } from "../time";
import { lost, nextWords, partWords, slotWords, type GroupOfJob, type RoundOfJob } from "./instances/standing";
import { pageOf } from "./job/frame";
import { listed, triggerWords, type Group as GroupView } from "./job/assignment/moves";

type Slot = Instance["slots"][number];

/** Of more jobs each has its own page. */
const MOST_JOBS = 50;
const GROUPS_MS = 5_000;
const ROUNDS_MS = 15_000;
/** How long what became of an instance is shown. */
const SHOWN_GONE_MS = 24 * 3_600_000;

export default function InstancesPage() {
  const instances = useInstances();
  const jobs = useJobs().data?.now ?? [];
  const isAdmin = useIsAdmin();
  return (
    <Page title="Instances" beside={<Curl path="/v1/instances?limit=1000" />}>
      <Ready />
      <Answered asked={instances} what="The instances">
        {(found) => {
          const now = Date.now();
          const here = found.filter(({ state }) => state !== "gone");
          const gone = found.filter(({ state, lease_until }) => state === "gone" && now - Date.parse(lease_until) < SHOWN_GONE_MS);
          return (
            <>
              <Cores instances={here} jobs={jobs} />
              {here.length === 0 ? (
                <Empty curl={`millrace instance --api ${location.origin} --spark-master 'local[2]'`}>
                  No instance is here, so no job runs. Start one:
                </Empty>
              ) : (
                <>
                  <Next instances={here} jobs={jobs} />
                  {here.map((each) => (
                    <OneInstance key={each.id} instance={each} others={here.filter(({ id, state }) => state === "live" && id !== each.id).length} isAdmin={isAdmin} />
                  ))}
                </>
              )}
              {gone.length > 0 && <Gone instances={gone} jobs={jobs} />}
            </>
          );
        }}
      </Answered>
    </Page>
  );
}

/** The parts of the service that are not well, with what to do; one line where all are. */
function Ready() {
  const readiness = useReadiness().data;
  if (readiness === undefined) return null;
  const parts = Object.entries(readiness.parts);
  const unwell = parts.filter(([, said]) => said !== "ok");
  if (unwell.length === 0) return <Text role="status">The service is ready: {parts.map(([part]) => part).join(", ")} are well.</Text>;
  return (
    <Alert color="red" variant="outline" role="alert" title="The service is not ready">
      <Stack gap={4}>
        {unwell.map(([part, said]) => (
          <Text key={part} size="sm">
            <b>{part}</b>: {said}. {partWords(part)}
          </Text>
        ))}
      </Stack>
    </Alert>
  );
}

function Cores({ instances, jobs }: { instances: Instance[]; jobs: Job[] }) {
  const cores = sum(instances.filter(({ state }) => state === "live").map((each) => each.cores));
  const slots = instances.flatMap((each) => each.slots);
  const waiting = jobs.filter(({ shortage }) => shortage !== null);
  const byJob = new Map<string, number>();
  for (const { job } of slots) byJob.set(job, (byJob.get(job) ?? 0) + 1);
  return (
    <>
      <Facts
        facts={[
          ["instances", count(instances.length)],
          ["cores", count(cores)],
          ["slots", count(slots.length)],
          ["who has them", [...byJob].map(([job, many]) => `${job} ${many}`).join(", ") || "nobody"],
        ]}
      />
      {waiting.length > 0 && (
        <Alert color="yellow" variant="outline" role="alert" title={`${waiting.length === 1 ? "A job waits" : `${waiting.length} jobs wait`} for a core`}>
          <Text size="sm">
            {waiting.map(({ name }, at) => (
              <span key={name}>
                {at > 0 && ", "}
                <To page={pageOf(name)}>{name}</To>
              </span>
            ))}
            : other jobs have all {count(cores)}. Each job keeps one at least: add an instance or cores, or stop a job.
          </Text>
        </Alert>
      )}
    </>
  );
}

// ---------------------------------------------------------------- may the next one be taken

function useGroups(jobs: string[]): GroupOfJob[] {
  const asked = useLiveEach("/v1/groups/{job}", jobs.slice(0, MOST_JOBS).map((job) => ({ path: { job } })), GROUPS_MS);
  return asked.flatMap(({ data }, at) => (data === undefined ? [] : [{ job: jobs[at]!, group: data.now as GroupView }]));
}

function Next({ instances, jobs }: { instances: Instance[]; jobs: Job[] }) {
  const staffed = jobs.filter(({ state }) => !["stopped", "failed", "draining"].includes(state));
  const groups = useGroups(staffed.map(({ name }) => name));
  if (groups.length < Math.min(staffed.length, MOST_JOBS)) return null; // not all is known
  const { isSafe, words, missing } = nextWords(instances, groups);
  return (
    <Section title="Rolling restart">
      {isSafe ? (
        <Text role="status">{words}</Text>
      ) : (
        <Alert color="yellow" variant="outline" role="status" title={words}>
          <ul className="assignment-lacks">
            {missing.map(({ job, what }) => (
              <li key={`${job} ${what}`}>
                {job !== null && (
                  <>
                    <To page={pageOf(job, "assignment")}>{job}</To>:{" "}
                  </>
                )}
                {what}
              </li>
            ))}
          </ul>
        </Alert>
      )}
    </Section>
  );
}

// ---------------------------------------------------------------- one

function OneInstance({ instance, others, isAdmin }: { instance: Instance; others: number; isAdmin: boolean }) {
  const { name, state, host, cores, spark, slots, tags } = instance;
  const facts: [string, ReactNode][] = [
    ["host", host],
    ["cores", count(cores)],
    ["slots", `${count(slots.length)}${slots.length < cores && state === "live" ? `, ${count(cores - slots.length)} cores free` : ""}`],
    ["heard", <Heard key="heard" at={instance.heard_at} until={instance.lease_until} />],
    ["here since", <Time key="since" ms={Date.parse(instance.joined_at)} />],
  ];
  if (spark.millrace) facts.push(["version", spark.millrace]);
  if (spark.version) facts.push(["Spark", spark.version]);
  if (spark.master) facts.push(["master", spark.master]);
  if (spark.app_id) facts.push(["application", spark.ui ? <Anchor key="ui" href={spark.ui} underline="always">{spark.app_id}</Anchor> : spark.app_id]);
  if (Object.keys(tags).length > 0) facts.push(["tags", Object.entries(tags).map(([tag, value]) => `${tag} ${value}`).join(", ")]);
  return (
    <Section
      title={name}
      beside={
        <Group gap="xs">
          <Badge kind={state === "leaving" ? "draining" : state} />
          {isAdmin && state === "live" && <Drain instance={instance} others={others} />}
        </Group>
      }
    >
      <Stack gap="xs">
        {state === "leaving" && <Leaving instance={instance} />}
        {instance.shortage !== null && (
          <Alert color="yellow" variant="outline" role="alert" title="Its Spark has no executors">
            <Text size="sm">
              Nothing runs here until it has. The cluster has no cores or memory left, or no workers: look at its master ({spark.master ?? "–"}), add
              workers, or have other applications take fewer cores (--cores).
            </Text>
          </Alert>
        )}
        {instance.lost_executors.map((lost) => (
          <LostExecutor key={lost.executor} {...lost} />
        ))}
        <Facts facts={facts} />
        {slots.length === 0 ? (
          <Text>{state === "leaving" ? "It has no slots any more." : "It runs nothing: no job needs its cores."}</Text>
        ) : (
          <Rows caption={`Slots of ${name}`} columns={SLOTS} rows={slots} />
        )}
      </Stack>
    </Section>
  );
}

/** What ended while the instance went on. */
function LostExecutor({ executor, lost_at, slots, back }: Instance["lost_executors"][number]) {
  return (
    <Text size="sm" role="status">
      <Badge kind="executor" /> Executor {executor} was lost at <Time ms={Date.parse(lost_at)} /> ({span(Date.now() - Date.parse(lost_at))} ago) with {count(slots)}{" "}
      {slots === 1 ? "slot" : "slots"}: {backWords(slots, back)}.{" "}
      {back < slots && "Their tasks are others' until Spark has started another executor: where it does not, its cluster has no room, or that executor's log says why it ended. "}
    </Text>
  );
}

function Heard({ at, until }: { at: string; until: string }) {
  const now = Date.now();
  const left = Date.parse(until) - now;
  return (
    <>
      {span(now - Date.parse(at))} ago{left < 0 && ": its lease is over, it counts as lost"}
    </>
  );
}

function Leaving({ instance }: { instance: Instance }) {
  const tasks = instance.slots.flatMap((slot) => slot.tasks).length;
  const left = instance.leaves_by === null ? 0 : Date.parse(instance.leaves_by) - Date.now();
  if (instance.slots.length === 0) {
    return <Text role="status">It has handed everything over: stop its process, and start it anew to have it take part again.</Text>;
  }
  return (
    <Text role="status">
      It hands its tasks over: {count(tasks)} {tasks === 1 ? "is" : "are"} still here
      {left > 0 ? `, and go without waiting for copies in ${span(left)}` : ""}.
    </Text>
  );
}

function Drain({ instance, others }: { instance: Instance; others: number }) {
  const tasks = instance.slots.flatMap((slot) => slot.tasks).length;
  return (
    <Confirmed
      label="drain"
      question={`drain ${instance.name}?`}
      meaning={
        others === 0
          ? `It is the only instance: its ${count(tasks)} tasks stand still until another one comes. It takes no more until its process is started again.`
          : `Its ${count(tasks)} tasks go to the other ${others === 1 ? "instance" : `${others} instances`}, each once a copy of its stores is caught up there, all within a minute or what MILLRACE_SCALE_DOWN_TIMEOUT_MS says. It takes no more until its process is started again.`
      }
      path={`/v1/instances/${instance.id}:drain`}
      isDangerous
      act={async () => {
        await good(api.POST("/v1/instances/{instance}:drain", { params: { path: { instance: instance.id } } }));
        await lookAgain();
      }}
    />
  );
}

const slot = createColumnHelper<Slot>();
const SLOTS = [
  slot.accessor("job", { header: "job", cell: (cell) => <To page={pageOf(cell.getValue(), "assignment")}>{cell.getValue()}</To> }),
  slot.accessor("index", { header: "slot", meta: { isNumber: true } }),
  slot.accessor((row) => row.tasks.join(", "), { id: "tasks", header: "tasks", cell: (cell) => cell.getValue() || "none" }),
  slot.accessor((row) => row.worked_at ?? "", { id: "does", header: "does", cell: ({ row }) => slotWords(row.original, Date.now()) }),
  slot.accessor("executor", { header: "executor", cell: (cell) => cell.getValue() || "–" }),
  slot.accessor("lease_until", {
    header: "lease",
    enableSorting: false,
    cell: (cell) => {
      const left = Date.parse(cell.getValue()) - Date.now();
      return left < 0 ? "over" : "kept";
    },
  }),
];

// ---------------------------------------------------------------- those that are gone

function useRounds(jobs: string[]): RoundOfJob[] {
  const which = jobs.slice(0, MOST_JOBS).map((job) => ({ path: { job }, query: { limit: 100 } }));
  const asked = useLiveEach("/v1/groups/{job}/rebalances", which, ROUNDS_MS);
  return asked.flatMap(({ data }, at) => (data === undefined ? [] : data.now.items.map((round) => ({ job: jobs[at]!, round }))));
}

function Gone({ instances, jobs }: { instances: Instance[]; jobs: Job[] }) {
  const rounds = useRounds(jobs.map(({ name }) => name));
  return (
    <Section title="Gone within a day">
      <ul className="findings">
        {instances.map((each) => {
          const { wasLost, found } = lost(each, rounds);
          return (
            <li key={each.id}>
              <Badge kind={wasLost ? "lost" : "left"} />
              <b>{each.name}</b>
              <span>
                {wasLost ? "not heard of since " : "gone since "}
                <Time ms={Date.parse(wasLost ? each.heard_at : each.lease_until)} />
                {wasLost && (
                  <>
                    , its lease ended at <Time ms={Date.parse(each.lease_until)} />
                  </>
                )}
                .{" "}
                {found.length === 0
                  ? "It ran no task of a job that is still there."
                  : found.map(({ job, round }) => (
                      <span key={`${job} ${round.generation}`}>
                        <To page={`${pageOf(job, "assignment")}?generation=${round.generation}`}>{`${job}, round ${round.generation}`}</To>:{" "}
                        {triggerWords(round.reason)}; {Object.keys(round.moved).length} of its tasks went to others ({listed(Object.keys(round.moved))})
                        {round.took_ms !== null && round.took_ms > 0 ? `, within ${count(round.took_ms)} ms` : ""}.{" "}
                      </span>
                    ))}
              </span>
            </li>
          );
        })}
      </ul>
    </Section>
  );
}
