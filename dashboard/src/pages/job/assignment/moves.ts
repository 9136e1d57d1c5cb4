// What a round of assignment changed, and why, in words. Pure: the case that it decided and its answer in, sentences out.
import type { components } from "@millrace/client";

import { count } from "../../../figures";

export type Case = components["schemas"]["AssignmentCaseView"];
export type Answer = components["schemas"]["AssignmentAnswerView"];
export type Group = components["schemas"]["GroupView"];
type Member = Case["members"][number];

/** What people call a node. */
export type NameOf = (node: string) => string;

export interface Move {
  readonly task: string;
  /** Null: nobody ran it. */
  readonly from: string | null;
  readonly to: string;
  readonly why: string;
}

export interface Building {
  readonly task: string;
  readonly node: string;
  /** Records that its copy is behind; null: it begins from nothing. */
  readonly lag: number | null;
}

export function runsOn(members: readonly Member[]): Map<string, string> {
  return new Map(members.flatMap(({ id, active }) => active.map((task) => [task, id] as const)));
}

export function runsAfter(answer: Answer): Map<string, string> {
  return new Map(Object.entries(answer.active).flatMap(([node, tasks]) => tasks.map((task) => [task, node] as const)));
}

/** Tasks that come to run elsewhere than they did, or at all. */
export function movesOf(decided: Case, answer: Answer, name: NameOf, reason = ""): Move[] {
  const [before, after] = [runsOn(decided.members), runsAfter(answer)];
  return decided.tasks.flatMap((task) => {
    const [from, to] = [before.get(task) ?? null, after.get(task)];
    if (to === undefined || from === to) return [];
    return [{ task, from, to, why: `${from === null ? (ENDS[reason] ?? "nobody ran it") : cause(decided, answer, from, to, name)}; ${copyWords(decided, task, to, name)}` }];
  });
}

/** Why nobody runs a task, where the end of its owner is what set the round off. */
const ENDS: Record<string, string> = {
  "an instance was lost": "who ran it was lost",
  "a slot was lost": "who ran it was lost",
  "an executor was lost": "who ran it was lost",
  "an instance left": "who ran it left",
  "a slot left": "who ran it left",
};

function cause(decided: Case, answer: Answer, from: string, to: string, name: NameOf): string {
  const [source, target] = [from, to].map((id) => decided.members.find((each) => each.id === id));
  if (source === undefined || source.slots === 0) return `${name(from)} leaves`;
  const had = [source.active.length, target?.active.length ?? 0] as const;
  const has = [from, to].map((id) => answer.active[id]?.length ?? 0);
  if (had[0] > had[1]) return `evened: ${name(from)} ran ${had[0]} and ${name(to)} ${had[1]}, now ${has[0]} and ${has[1]}`;
  return `so that what each node runs, and where copies are, comes out even in the end`;
}

function copyWords(decided: Case, task: string, to: string, name: NameOf): string {
  if (!decided.stateful.includes(task)) return "it keeps no stores";
  const lag = decided.members.find(({ id }) => id === to)?.lags[task];
  if (lag === undefined) return `no copy was on ${name(to)}: its stores are restored there`;
  if (lag === 0) return `${name(to)}'s copy was caught up`;
  if (lag <= decided.acceptable_recovery_lag) return `${name(to)}'s copy was caught up but for ${count(lag)} records`;
  return `${name(to)}'s copy was ${count(lag)} records behind, and no other was nearer`;
}

/** Copies that are built, or brought up, on the way to where tasks and standbys belong. */
export function buildingOf(decided: Case, answer: Answer): Building[] {
  const members = new Map(decided.members.map((each) => [each.id, each]));
  return Object.entries(answer.standby).flatMap(([node, tasks]) =>
    tasks.flatMap((task) => {
      const member = members.get(node);
      if (member?.active.includes(task)) return [];
      const lag = member?.lags[task] ?? null;
      return lag === null || lag > decided.acceptable_recovery_lag ? [{ task, node, lag }] : [];
    }),
  );
}

/** Tasks that stayed where they ran. */
export function stayed(decided: Case, answer: Answer): number {
  const [before, after] = [runsOn(decided.members), runsAfter(answer)];
  return decided.tasks.filter((task) => before.has(task) && before.get(task) === after.get(task)).length;
}

/** What set a round off, as people say it, and what it means for them. */
export function triggerWords(reason: string): string {
  return TRIGGERS[reason] ?? reason;
}

const TRIGGERS: Record<string, string> = {
  "a slot joined": "a slot joined: there is one more to share with",
  "a slot was started again": "a slot was started again: the one before it had ended",
  "a slot left": "a slot left, and gave its tasks up",
  "a slot was lost": "a slot was lost: it was not heard of for a lease",
  "an executor was lost": "a Spark executor was lost, with all slots in it",
  "an instance leaves": "an instance leaves: it hands its tasks over first",
  "an instance left": "an instance left",
  "an instance was lost": "an instance was lost: it was not heard of for a lease",
  "the instance was started again": "an instance was started again under the same name",
  "cores were shared anew": "cores were shared anew between jobs",
  "a copy has caught up": "a copy has caught up: what waited for it can move",
  "tasks have moved": "tasks have moved: the copies that they left behind can serve others",
  "tasks had no owner": "tasks had no owner",
  "what was waited for is there, or late": "slots or copies that were waited for are there, or late",
};

/** How a copy stands, in words. */
export function lagWords(records: number, seconds: number | null): string {
  if (records === 0) return "caught up";
  return `${count(records)} behind${seconds === null ? "" : `, ${seconds} s`}`;
}

/** Of a job with a thousand tasks each may have a copy on its way. */
const MOST_COPIES = 5;

/** What keeps a job from losing another instance without a pause; empty: nothing. */
export function missing(group: Group, name: NameOf): string[] {
  const without = Object.entries(group.assignment).filter(([, slot]) => slot === null).map(([task]) => task);
  const moving = Object.keys(group.moving);
  const behind = group.copies
    .filter((copy) => copy.role !== "active" && copy.slot !== null && copy.state !== "running" && copy.lag_records > 0)
    .sort((one, other) => other.lag_records - one.lag_records);
  const more = behind.length - MOST_COPIES;
  return [
    ...(without.length > 0 ? [`nobody runs ${listed(without)}`] : []),
    ...(moving.length > 0 ? [`${listed(moving)} ${moving.length === 1 ? "is" : "are"} being handed over`] : []),
    ...(group.missing_standbys > 0
      ? [`${count(group.missing_standbys)} ${group.missing_standbys === 1 ? "standby is" : "standbys are"} not caught up`]
      : []),
    ...(group.missing_standbys > 0 || group.probing
      ? [
          ...behind.slice(0, MOST_COPIES).map((copy) => `the copy of ${copy.task} on ${name(copy.node)} is ${lagWords(copy.lag_records, copy.lag_s)}`),
          ...(more > 0 ? [`${count(more)} more ${more === 1 ? "copy is" : "copies are"} behind, by less`] : []),
        ]
      : []),
    ...(group.probing && behind.length === 0 ? ["copies are on their way"] : []),
  ];
}

export function listed(names: readonly string[]): string {
  const shown = names.slice(0, 5).join(", ");
  return names.length > 5 ? `${shown} and ${names.length - 5} more` : shown;
}

/** Nodes by the instances that use them; else by their host. Of two with one name each has its id's beginning too. */
export function nodeNames(nodes: Group["nodes"]): NameOf {
  const plain = new Map(nodes.map((node) => [node.node, node.instances.join(", ") || node.host]));
  const often = new Map<string, number>();
  for (const each of plain.values()) often.set(each, (often.get(each) ?? 0) + 1);
  return (node) => {
    const found = plain.get(node);
    if (found === undefined) return node.length > 12 ? `node ${node.slice(0, 8)}` : node;
    return often.get(found) === 1 ? found : `${found} (${node.slice(0, 8)})`;
  };
}
