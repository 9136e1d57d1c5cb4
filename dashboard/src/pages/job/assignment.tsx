// Who runs a job's tasks, where their copies are and how far; what moved when and why; what would, if nodes came or went.
import { Alert, Button, Checkbox, Group as Row, NumberInput, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useSearchParams } from "wouter";
import type { components } from "@millrace/client";

import { api, good } from "../../api";
import { count } from "../../figures";
import { Answered, Curl, Empty, Facts, Rows, Section, To } from "../../parts";
import { useJob, useLive } from "../../queries";
import { Time, span } from "../../time";
import { JobFrame, pageOf } from "./frame";
import { Matrix, type Cell, type Column } from "./assignment/matrix";
import {
  buildingOf,
  lagWords,
  listed,
  missing,
  movesOf,
  nodeNames,
  runsAfter,
  runsOn,
  stayed,
  triggerWords,
  type Answer,
  type Building,
  type Case,
  type Group,
  type Move,
  type NameOf,
} from "./assignment/moves";

type Round = components["schemas"]["RebalanceView"];
type Plan = components["schemas"]["PlanView"];

const ROUNDS = 50;

export default function AssignmentPage({ job }: { job: string }) {
  const group = useLive("/v1/groups/{job}", { path: { job } });
  return (
    <JobFrame job={job} tab="assignment" beside={<Curl path={`/v1/groups/${job}`} />}>
      <Answered asked={group} what="The group">
        {({ now: shown }) => {
          const now = shown as Group; // as asked: not in Kafka Streams' bytes
          const name = nodeNames(now.nodes);
          return (
            <>
              <Standing group={now} name={name} />
              <Section title="Tasks by nodes">
                <Present job={job} group={now} name={name} />
              </Section>
              <Planning job={job} group={now} name={name} />
              <Rounds job={job} group={now} name={name} />
            </>
          );
        }}
      </Answered>
    </JobFrame>
  );
}

// ---------------------------------------------------------------- as it is

function Standing({ group, name }: { group: Group; name: NameOf }) {
  const lacks = missing(group, name);
  const tasks = Object.keys(group.assignment).length;
  const owned = Object.values(group.assignment).filter((slot) => slot !== null).length;
  return (
    <>
      {lacks.length === 0 ? (
        <Text role="status">Every task has an owner, no standby is missing, nothing moves.</Text>
      ) : (
        <Alert color="yellow" variant="outline" role="status" title={owned < tasks ? "Not every task runs" : "On its way"}>
          <ul className="assignment-lacks">
            {lacks.map((each) => (
              <li key={each}>{each}</li>
            ))}
          </ul>
        </Alert>
      )}
      <Facts
        facts={[
          ["tasks that run", `${count(owned)} of ${count(tasks)}`],
          ["slots", count(group.members.length)],
          ["nodes", count(group.nodes.length)],
          ["standbys missing", count(group.missing_standbys)],
          ["round", <To key="round" page={`${pageOf(group.job, "assignment")}?generation=${group.generation}`}>{group.generation}</To>],
        ]}
      />
    </>
  );
}

function columnsOf(group: Group, name: NameOf): Column[] {
  return group.nodes.map(({ node, slots, tags }) => {
    const zones = Object.entries(tags).filter(([tag]) => tag !== "host");
    const places = slots === 0 ? "leaves" : `${slots} ${slots === 1 ? "slot" : "slots"}`;
    return { node, name: name(node), note: [places, ...zones.map(([tag, value]) => `${tag} ${value}`)].join(" · ") };
  });
}

function Present({ job, group, name }: { job: string; group: Group; name: NameOf }) {
  const tasks = Object.keys(group.assignment);
  const state = useJob(job).data?.now.state;
  if (group.nodes.length === 0 && (state === "failed" || state === "stopped")) {
    return (
      <Empty>
        The job {state === "failed" ? "failed" : "is stopped"}, so it has no slots: <To page={pageOf(job)}>its status</To> says why, and starts it again.
      </Empty>
    );
  }
  if (group.nodes.length === 0) {
    return (
      <Empty curl={`millrace instance --api ${location.origin} --spark-master 'local[2]'`}>
        No slot of this job is there, so nothing of it runs: it waits for an instance with a core for it.
      </Empty>
    );
  }
  const copies = new Map(group.copies.map((copy) => [`${copy.task} ${copy.node}`, copy]));
  const nodeOf = new Map(group.members.map(({ slot, node }) => [slot, node]));
  const owner = (task: string) => nodeOf.get(group.assignment[task] ?? "");
  const cell = (task: string, node: string): Cell | null => {
    const copy = copies.get(`${task} ${node}`);
    const lag = copy === undefined ? undefined : lagWords(copy.lag_records, copy.lag_s);
    if (owner(task) === node) {
      const restores = copy?.state === "restoring" ? `restores, ${lag}` : undefined;
      return { role: "active", ...(restores === undefined ? {} : { note: restores }) };
    }
    if (copy === undefined) return null;
    if (copy.slot === null) return { role: "kept", note: `${lag}, nobody brings it up` };
    const state = copy.state === "running" || copy.lag_records === 0 ? "" : `, ${copy.state}`;
    return { role: copy.role === "warm-up" ? "warm-up" : "standby", note: `${lag}${state}` };
  };
  const now = (task: string) => {
    const target = group.moving[task];
    if (target !== undefined) {
      const to = nodeOf.get(target);
      return `handed over to ${to === undefined ? "another slot" : to === owner(task) ? "another slot there" : name(to)}`;
    }
    const warm = group.copies.find((copy) => copy.task === task && copy.role === "warm-up" && copy.slot !== null);
    if (warm !== undefined) return `moves to ${name(warm.node)} once its copy is caught up`;
    return owner(task) === undefined ? "nobody runs it" : "stays";
  };
  return <Matrix caption="Tasks by nodes" tasks={tasks} columns={columnsOf(group, name)} cell={cell} beside={now} />;
}

// ---------------------------------------------------------------- what was decided

function Rounds({ job, group, name }: { job: string; group: Group; name: NameOf }) {
  const [params] = useSearchParams();
  const chosen = Number(params.get("generation")) || null;
  const rounds = useLive("/v1/groups/{job}/rebalances", { path: { job }, query: { limit: ROUNDS } }, 4_000);
  return (
    <>
      {chosen !== null && <Decided job={job} generation={chosen} latest={group.generation} name={name} />}
      <Section title="Rebalances" beside={<Curl path={`/v1/groups/${job}/rebalances?limit=${ROUNDS}`} />}>
        <Answered asked={rounds} what="The rebalances">
          {({ now }) =>
            now.items.length === 0 ? (
              <Empty>No task was given to anybody yet: that happens once a slot joins.</Empty>
            ) : (
              <Rows caption="Rebalances" columns={columnsOfRounds(job)} rows={now.items} />
            )
          }
        </Answered>
      </Section>
    </>
  );
}

function Decided({ job, generation, latest, name }: { job: string; generation: number; latest: number; name: NameOf }) {
  const asked = useLive("/v1/groups/{job}/rebalances/{generation}", { path: { job, generation } }, 4_000);
  return (
    <Section title={`Round ${generation}`} beside={<Curl path={`/v1/groups/${job}/rebalances/${generation}`} />}>
      <Answered asked={asked} what={`Round ${generation}`}>
        {({ now }) => (
          <Stack gap="xs">
            <Text>
              <Time ms={Date.parse(now.at)} />: {triggerWords(now.reason)}.{" "}
              {now.took_ms === null ? "A hand-over of it is still under way." : now.took_ms > 0 && `Hands changed within ${span(now.took_ms) === "0 s" ? `${now.took_ms} ms` : span(now.took_ms)}.`}
            </Text>
            {now.case === null || now.answer === null ? (
              <Text>What it was decided by is not kept: slots were still awaited, or it is of a former version.</Text>
            ) : (
              <>
                <Outcome
                  moves={movesOf(now.case, now.answer, name, now.reason)}
                  within={Object.keys(now.moved)}
                  building={buildingOf(now.case, now.answer)}
                  stays={stayed(now.case, now.answer)}
                  name={name}
                />
                <After decided={now.case} answer={now.answer} name={name} caption={`Tasks by nodes in round ${generation}`} />
                {now.answer.probing && <Text>Something moves once those copies have caught up; that is looked at again then, or after ten seconds.</Text>}
              </>
            )}
            <Row gap="md">
              {generation > 1 && <To page={`${pageOf(job, "assignment")}?generation=${generation - 1}`}>the round before</To>}
              {generation < latest && <To page={`${pageOf(job, "assignment")}?generation=${generation + 1}`}>what followed</To>}
            </Row>
          </Stack>
        )}
      </Answered>
    </Section>
  );
}

function Outcome(props: { moves: Move[]; within: string[]; building: Building[]; stays: number; name: NameOf }) {
  const { moves, within, building, stays, name } = props;
  const between = new Set(moves.map(({ task }) => task));
  const slots = within.filter((task) => !between.has(task));
  return (
    <ul className="findings" aria-label="What moved and why">
      {moves.map(({ task, from, to, why }) => (
        <li key={task}>
          <b>{task}</b>
          <span>
            {from === null ? `to ${name(to)}` : `from ${name(from)} to ${name(to)}`}: {why}
          </span>
        </li>
      ))}
      {slots.length > 0 && (
        <li>
          <b>{listed(slots)}</b>
          <span>to another slot of the same node</span>
        </li>
      )}
      {building.map(({ task, node, lag }) => (
        <li key={`${task} ${node}`}>
          <b>{task}</b>
          <span>
            a copy is {lag === null ? "built" : "brought up"} on {name(node)}
            {lag !== null && `, ${count(lag)} records behind`}
          </span>
        </li>
      ))}
      <li>
        <span>{moves.length === 0 && slots.length === 0 ? "Nothing moved. " : ""}{stays} {stays === 1 ? "task stays where it runs." : "tasks stay where they run."}</span>
      </li>
    </ul>
  );
}

function After({ decided, answer, name, caption }: { decided: Case; answer: Answer; name: NameOf; caption: string }) {
  const [before, after] = [runsOn(decided.members), runsAfter(answer)];
  const columns = decided.members.map(({ id, slots }) => ({
    node: id,
    name: name(id),
    note: slots === 0 ? "leaves" : `${slots} ${slots === 1 ? "slot" : "slots"}`,
  }));
  const members = new Map(decided.members.map((each) => [each.id, each]));
  const cell = (task: string, node: string): Cell | null => {
    if (after.get(task) === node) return { role: "active", isNew: before.get(task) !== node };
    const lag = members.get(node)?.lags[task];
    const had = before.get(task) === node ? "ran here" : lag === undefined ? undefined : lag === 0 ? "caught up" : `${count(lag)} behind`;
    if (answer.standby[node]?.includes(task)) return { role: "standby", isNew: lag === undefined, ...(had === undefined ? {} : { note: had }) };
    return had === undefined ? null : { role: "kept", note: had };
  };
  return <Matrix caption={caption} tasks={decided.tasks} columns={columns} cell={cell} />;
}

const round = createColumnHelper<Round>();
const columnsOfRounds = (job: string) => [
  round.accessor("generation", {
    header: "round",
    cell: (cell) => <To page={`${pageOf(job, "assignment")}?generation=${cell.getValue()}`}>{cell.getValue()}</To>,
  }),
  round.accessor("at", { header: "at", cell: (cell) => <Time ms={Date.parse(cell.getValue())} /> }),
  round.accessor("reason", { header: "because", cell: (cell) => triggerWords(cell.getValue()) }),
  round.accessor((row) => Object.keys(row.moved).length, {
    id: "moved",
    header: "moved",
    cell: ({ row }) => listed(Object.keys(row.original.moved)) || "nothing",
  }),
  round.accessor((row) => row.took_ms ?? Infinity, {
    id: "took",
    header: "took, ms",
    meta: { isNumber: true },
    cell: ({ row }) => (row.original.took_ms === null ? "under way" : count(row.original.took_ms)),
  }),
];

// ---------------------------------------------------------------- what would be

const NEW = "new-";

interface Wanted {
  readonly add: { node: string; slots: number }[];
  readonly remove: string[];
}

function wantedOf(params: URLSearchParams): Wanted | null {
  const slots = (params.get("add") ?? "").split(",").map(Number).filter((each) => Number.isInteger(each) && each > 0);
  const remove = (params.get("remove") ?? "").split(",").filter((each) => each !== "");
  if (slots.length === 0 && remove.length === 0) return null;
  return { add: slots.map((each, at) => ({ node: `${NEW}${at + 1}`, slots: each })), remove };
}

function Planning({ job, group, name }: { job: string; group: Group; name: NameOf }) {
  const [params, setParams] = useSearchParams();
  const wanted = wantedOf(params);
  const path = `/v1/groups/${job}:plan`;
  const plan = useQuery({
    queryKey: ["plan", job, wanted, group.generation],
    queryFn: () => good<Plan>(api.POST("/v1/groups/{job}:plan", { params: { path: { job } }, body: wanted! })),
    enabled: wanted !== null,
  });
  const choose = (chosen: { remove: string[]; nodes: number; slots: number }) =>
    setParams((before) => {
      const after = new URLSearchParams(before);
      after.delete("add");
      after.delete("remove");
      if (chosen.remove.length > 0) after.set("remove", chosen.remove.join(","));
      if (chosen.nodes > 0) after.set("add", Array<number>(chosen.nodes).fill(chosen.slots).join(","));
      return after;
    });
  const planned: NameOf = (node) => (node.startsWith(NEW) ? node.replace("-", " ") : name(node));
  return (
    <Section title="What if nodes came or went" beside={wanted === null ? undefined : <Curl path={path} method="POST" body={wanted} />}>
      <Stack gap="xs">
        {group.nodes.length === 0 ? (
          <Empty>There is no node to plan with.</Empty>
        ) : (
          <Choice key={params.toString()} group={group} name={name} wanted={wanted} choose={choose} />
        )}
        {wanted !== null && (
          <Answered asked={plan} what="The plan">
            {(found) => <Planned plan={found} name={planned} />}
          </Answered>
        )}
      </Stack>
    </Section>
  );
}

function Choice(props: {
  group: Group;
  name: NameOf;
  wanted: Wanted | null;
  choose: (chosen: { remove: string[]; nodes: number; slots: number }) => void;
}) {
  const { group, name, wanted, choose } = props;
  const most = Math.max(1, ...group.nodes.map(({ slots }) => slots));
  const [remove, setRemove] = useState(wanted?.remove ?? []);
  const [nodes, setNodes] = useState(wanted?.add.length ?? 0);
  const [slots, setSlots] = useState(wanted?.add[0]?.slots ?? most);
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        choose({ remove, nodes, slots });
      }}
    >
      <Row align="flex-end" gap="md">
        <Checkbox.Group label="Nodes that go" value={remove} onChange={setRemove}>
          <Row gap="md" mt={4}>
            {group.nodes.map(({ node }) => (
              <Checkbox key={node} value={node} label={name(node)} />
            ))}
          </Row>
        </Checkbox.Group>
        <NumberInput label="Nodes that come" size="xs" w={130} min={0} max={100} value={nodes} onChange={(value) => setNodes(Number(value))} />
        <NumberInput label="with slots, each" size="xs" w={130} min={1} max={1000} value={slots} onChange={(value) => setSlots(Number(value) || 1)} />
        <Button type="submit" size="xs" variant="default">
          what would move
        </Button>
        {wanted !== null && (
          <Button size="xs" variant="subtle" onClick={() => choose({ remove: [], nodes: 0, slots: most })}>
            clear
          </Button>
        )}
      </Row>
    </form>
  );
}

function Planned({ plan, name }: { plan: Plan; name: NameOf }) {
  const acceptable = plan.case.acceptable_recovery_lag;
  const how = (lag: number | null, task: string) => {
    if (!plan.case.stateful.includes(task)) return "at once: it keeps no stores";
    if (lag === null) return "once a copy is built there";
    return lag <= acceptable ? "at once: its copy there is caught up" : `once its copy there, ${count(lag)} records behind, has caught up`;
  };
  const ends = new Map(plan.moves.map((move) => [move.task, move.to_node]));
  const before = runsOn(plan.case.members);
  const answer: Answer = { active: {}, standby: plan.answer.standby, probing: plan.answer.probing };
  for (const task of plan.case.tasks) {
    const node = ends.get(task) ?? before.get(task);
    if (node !== undefined) (answer.active[node] ??= []).push(task);
  }
  const now = movesOf(plan.case, plan.answer, name).length;
  return (
    <Stack gap="xs">
      <Text role="status">
        {plan.moves.length === 0
          ? "Nothing would move."
          : `${plan.moves.length} of ${plan.case.tasks.length} tasks would move in the end, ${now} of them at once${plan.answer.probing ? "; the others once copies have caught up" : ""}. Nothing is changed by asking.`}
      </Text>
      {plan.moves.length > 0 && (
        <ul className="findings" aria-label="What would move">
          {plan.moves.map((move) => (
            <li key={move.task}>
              <b>{move.task}</b>
              <span>
                {move.from_node === null ? "" : `from ${name(move.from_node)} `}to {name(move.to_node)}, {how(move.lag_records, move.task)}
              </span>
            </li>
          ))}
        </ul>
      )}
      <After decided={plan.case} answer={answer} name={name} caption="Tasks by nodes in the end" />
    </Stack>
  );
}
