// How instances stand, in words. Pure.
import type { components } from "@millrace/client";

import type { Instance } from "../../api";
import { span } from "../../time";
import { missing, nodeNames, type Group } from "../job/assignment/moves";

export interface GroupOfJob {
  readonly job: string;
  readonly group: Group;
}

export interface RoundOfJob {
  readonly job: string;
  readonly round: components["schemas"]["RebalanceView"];
}

/** What to do about a part of the service that is not well. */
export function partWords(part: string): string {
  return PARTS[part] ?? "";
}

const PARTS: Record<string, string> = {
  database: "Nothing is taken in or committed until it answers: bring it back; its log says why it went.",
  storage: "Records can not be written: look at its space, its rights and the network.",
  redis: "Lookups have no view to read: bring it back.",
  instances: "No job runs until one is alive and has executors: start one, or see below what it lacks.",
  loops: "That is a fault of the service: start the API anew, and report its log.",
  intake: "This process is about to stop: another one takes over, or its next start.",
};

/** Within so long of its last commit a slot counts as busy. */
const BUSY_MS = 5_000;

export function slotWords(slot: Instance["slots"][number], now: number): string {
  if (slot.tasks.length === 0 || slot.worked_at === null) return "no task yet";
  const ago = now - Date.parse(slot.worked_at);
  return ago < BUSY_MS ? "busy" : `idle for ${span(ago)}`;
}

export interface Next {
  readonly isSafe: boolean;
  readonly words: string;
  readonly missing: { readonly job: string | null; readonly what: string }[];
}

/** Whether another instance may be taken for a restart, or what is missing for that. */
export function nextWords(instances: readonly Instance[], groups: readonly GroupOfJob[]): Next {
  const live = instances.filter(({ state }) => state === "live");
  const leaving = instances.filter(({ state, slots }) => state === "leaving" && slots.length > 0);
  const drained = instances.filter(({ state, slots }) => state === "leaving" && slots.length === 0);
  const without = live.filter(({ shortage }) => shortage !== null);
  const lacks = [
    ...leaving.map(({ name }) => ({ job: null, what: `${name} still hands its tasks over` })),
    ...drained.map(({ name }) => ({ job: null, what: `${name} is drained, but not started again: restart its process` })),
    ...without.map(({ name }) => ({ job: null, what: `${name} has no executors` })),
    ...(live.length < 2 ? [{ job: null, what: "there is no other instance to take its tasks" }] : []),
    ...groups.flatMap(({ job, group }) => missing(group, nodeNames(group.nodes)).map((what) => ({ job, what }))),
  ];
  return lacks.length === 0
    ? { isSafe: true, words: `Safe to take the next instance: every task has an owner, nothing moves, ${live.length} are live.`, missing: [] }
    : { isSafe: false, words: "Not yet: take the next instance once this is done", missing: lacks };
}

const LOST = "an instance was lost";
const LEFT = new Set(["an instance leaves", "an instance left", "a slot left", "tasks had no owner", LOST]);
/** How long after its lease an instance's end may show in a round. */
const AFTER_MS = 15_000;
/** And before: one that leaves hands its tasks over first. */
const DRAIN_MS = 120_000;

/** What became of the tasks of an instance that is gone: the rounds that its end set off. */
export function lost(instance: Instance, rounds: readonly RoundOfJob[]): { wasLost: boolean; found: RoundOfJob[] } {
  const [from, until] = [Date.parse(instance.heard_at), Date.parse(instance.lease_until) + AFTER_MS];
  const near = rounds.filter(({ round }) => {
    const at = Date.parse(round.at);
    return LEFT.has(round.reason) && at >= (round.reason === LOST ? from : from - DRAIN_MS) && at <= until;
  });
  const ended = near.filter(({ round }) => round.reason === LOST && Date.parse(round.at) >= Date.parse(instance.lease_until));
  const found = ended.length > 0 ? ended : near.filter(({ round }) => round.reason !== LOST);
  return { wasLost: instance.was_lost, found: found.filter(({ round }) => Object.keys(round.moved).length > 0) };
}
