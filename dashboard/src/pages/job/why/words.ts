// What an explanation says, in words. Knows verdicts and reasons; refuses to know how they are drawn.
import type { components } from "@millrace/client";

export type Explanation = components["schemas"]["ExplanationView"];
export type Fate = components["schemas"]["RecordFateView"];
export type Cause = components["schemas"]["CauseView"];
export type ExplainedWindow = components["schemas"]["ExplainedWindowView"];
export type Topology = components["schemas"]["TopologyView"];
export type Operator = components["schemas"]["OperatorNodeView"];
export type AnySpec = Readonly<Record<string, unknown>>;
/** How a moment is written. */
export type At = (ms: number) => string;

/** A span to the millisecond, in its largest units. */
export function exactly(ms: number): string {
  if (ms < 1000) return `${ms} ms`;
  const units: [string, number][] = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000]];
  const parts: string[] = [];
  let left = ms;
  for (const [name, size] of units) {
    const count = Math.floor(left / size);
    if (count > 0) parts.push(`${count} ${name}`);
    left -= count * size;
  }
  if (left > 0) parts.push(`${left / 1000} s`);
  return parts.join(" ");
}

/** A moment of the day alone where that is enough: on the day of what is explained. */
export function besides(at: At, day: number): At {
  const own = at(day).slice(0, 10);
  return (ms) => (at(ms).startsWith(own) ? at(ms).slice(11) : at(ms));
}

/** The operators that records of a source go through first, in their order. */
export function operatorsOf(topology: Topology | undefined, stream: string): readonly Operator[] {
  return topology?.sub_topologies.find((each) => each.sources.includes(stream))?.nodes ?? [];
}

export function specOf(topology: Topology | undefined, operator: string | null): AnySpec {
  for (const { nodes } of topology?.sub_topologies ?? []) {
    const found = nodes.find((node) => node.name === operator);
    if (found !== undefined) return found.spec as unknown as AnySpec;
  }
  return {};
}

/** What an operator is that is not among those of the first tasks: one behind a repartition, or what stands between. */
export function kindOf(topology: Topology | undefined, operator: string): string {
  const node = topology?.sub_topologies.flatMap(({ nodes }) => nodes).find(({ name }) => name === operator);
  if (node !== undefined) return node.op;
  return operator.startsWith("sink-") ? "condition of a sink" : "target of a repartition";
}

export interface Said {
  readonly title: string;
  readonly sentences: readonly string[];
}

/** The verdict on the record that was asked for. */
export function inWords(said: Explanation, topology: Topology | undefined, at: At, stream: string): Said {
  if (said.verdict === "unknown") return unknownInWords(said);
  const spec = specOf(topology, said.operator);
  if (said.verdict === "in") {
    const { title, sentences } = inInWords(said, spec);
    return { title, sentences: [...sentences, ...again(said, topology, at)] };
  }
  return { title: "It did not come out", sentences: [why(said, spec, at, stream)] };
}

function inInWords(said: Explanation, spec: AnySpec): Said {
  const streams = [...new Set(said.outputs.map((each) => each.stream))].join(", ");
  const came = `${said.outputs.length === 1 ? "one record" : `${said.outputs.length} records`} in ${streams}`;
  if (said.operator === null) {
    const where = said.outputs.length > 0 ? `As ${came}.` : "It passed every operator; no sink is behind them.";
    return { title: "It came out", sentences: [where] };
  }
  const kept = spec["window"] !== undefined && said.windows.length > 0;
  const where = kept ? `is in ${said.windows.length === 1 ? "a window" : `${said.windows.length} windows`} of it` : "is in what that keeps";
  const what = said.outputs.length > 0 ? `Because of it there came ${came}.` : "Nothing has come out because of it yet.";
  return { title: `It is in “${said.operator}”`, sentences: [`“${said.operator}” has taken it: it ${where}.`, what] };
}

/** Why a record came out though one with its key had come out before: where an operator is there to drop repetitions. */
function again({ record, records }: Explanation, topology: Topology | undefined, at: At): string[] {
  const before = records.filter(({ offset, verdict }) => verdict === "in" && record !== null && offset < record.offset).at(-1);
  const once = topology?.sub_topologies.flatMap(({ nodes }) => nodes).find(({ spec }) => spec.op === "deduplicate_by_key");
  if (record === null || before === undefined || once === undefined) return [];
  const spec = once.spec as unknown as AnySpec;
  const [apart, interval] = [record.timestamp - before.timestamp, Number(spec["interval_ms"])];
  if (apart <= interval) return [];
  const who = `${capital(recordName({ stream: null, partition: record.partition, offset: before.offset }))} (${at(before.timestamp)})`;
  const more = `${exactly(apart - interval)} more than “${once.name}” (${exactly(interval)}) takes for a repetition`;
  return [`${who} has the same key, came out too, and is ${exactly(apart)} older: ${more}.`];
}

const OF_RECORD: Readonly<Record<string, string>> = {
  null_key: "it has no key, and that operator groups by the key",
  null_value: "its value is null, which takes nothing into account here",
  key_too_long: "its key is longer than a store takes",
  before_version: "its window began before this version of the job made the store anew",
  expression_failed: "an expression fails on its value",
  integer_overflow: "a sum went beyond 64 bits with it",
  aggregate_too_large: "with it the result would be larger than a store takes",
  aggregator_failed: "the installed aggregator raised an error on it",
};

/** Why an operator let a record go, in a sentence. */
export function why(fate: Fate | Explanation, spec: AnySpec, at: At, stream: string): string {
  const { reason, cause, by_ms: by } = fate;
  const by_name = `“${fate.operator}” dropped it`;
  if (reason === "skipped") return "Somebody had the job pass over it (“skip”), so no operator has seen it.";
  if (reason === "filtered") {
    const where = typeof spec["where"] === "string" ? ` (${spec["where"]})` : "";
    return `“${fate.operator}” let it go: its condition${where} is not true of it.`;
  }
  if (cause !== null && reason === "duplicate") {
    const stamp = "record" in fate ? (fate.record?.timestamp ?? 0) : fate.timestamp;
    return `${by_name}, ${duplicate(stamp, cause, by ?? 0, spec, at, stream)}`;
  }
  if (cause !== null && (reason === "late" || reason === "closed_idle")) {
    return `${by_name}: ${late(cause, by ?? 0, spec, at, stream)}`;
  }
  if (reason === "duplicate") return `${by_name}: there was the same before, and it lets each through once.`;
  return `${by_name}: ${OF_RECORD[reason ?? ""] ?? reason}.`;
}

function duplicate(stamp: number, cause: Cause, by: number, spec: AnySpec, at: At, stream: string): string {
  const same = { deduplicate_by_key: "key", deduplicate: "id" }[String(spec["op"])] ?? "key and id";
  const apart = Math.abs(stamp - cause.timestamp);
  const order = stamp > cause.timestamp ? `${exactly(apart)} older` : stamp < cause.timestamp ? `${exactly(apart)} newer` : "of the same time";
  const otherwise =
    stamp >= cause.timestamp
      ? `More than ${exactly(by)} later it would have come out`
      : `It lies ${exactly(by)} inside the interval before it`;
  return (
    `because ${recordName(cause, stream)} (${at(cause.timestamp)}) has the same ${same} and is ${order}; ` +
    `the interval is ${exactly(apart + by)}. ${otherwise}.`
  );
}

function late(cause: Cause, by: number, spec: AnySpec, at: At, stream: string): string {
  const window = (spec["window"] ?? {}) as AnySpec;
  const isSession = window["type"] === "session";
  const [gap, grace] = [Number(window["gap_ms"] ?? 0), Number(window["grace_ms"] ?? 0)];
  const end = isSession ? `the end of the session that it would be, the gap (${exactly(gap)}) and the grace (${exactly(grace)})` : `its window's end and the grace (${exactly(grace)})`;
  const past = by === 0 ? `just to ${end}` : `${exactly(by)} past ${end}`;
  if (cause.offset === null) {
    const who = cause.reason === "flush" ? "a flush" : "the close on idle input";
    return `${who} had closed what it belongs to. That took stream time to ${at(cause.timestamp)}, ${past}.`;
  }
  const more = exactly(isSession ? by : by + 1);
  return (
    `it was late. ${capital(recordName(cause, stream))} had taken stream time to ${at(cause.timestamp)}, ${past}. ` +
    `With ${more} more grace it would have been in time.`
  );
}

interface Place {
  readonly stream: string | null;
  readonly partition: number | null;
  readonly offset: number | null;
}

/** A record by its place; of another stream than the one that was asked about by that too. */
export function recordName({ stream, partition, offset }: Place, asked?: string): string {
  return `record ${offset} of ${asked === undefined || stream === asked ? "" : `${stream}, `}partition ${partition}`;
}

function capital(text: string): string {
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** What one can do where nobody knows. */
const INSTEAD: Readonly<Record<string, string>> = {
  no_record: "Look whether it is in the stream at all: keys are compared letter by letter, and a time asks for records of that time or earlier.",
  unread: "This page looks again once the job has read it. How far the job is, and whether it runs, is on its page.",
  retention: "What is still there can be run again under Try. Keep records of the stream longer (retention_ms) to be able to ask next time.",
  several_inputs: "What was dropped is counted, and with keep_dropped kept, under Dropped; what is stored of the key is under State.",
  repartitioned: "Less is to be run again for a job that began later. What was dropped behind the repartition is under Dropped, what is stored of the key under State.",
  version_changed: "Records that the task read before the change are explained. A reset begins a new history; under Try the job runs over the same records at once.",
  replayed: "Records that the task read before the replay are explained. A reset begins a new history.",
  not_recorded: "A reset begins a history that is recorded; under Try the job runs over the same records at once.",
  sliding: "It shows once these windows come out.",
};

function unknownInWords(said: Explanation): Said {
  const instead = INSTEAD[said.reason ?? ""];
  const whyNot = `${capital(said.why ?? "nobody recorded it")}.`;
  const title = { no_record: "There is no such record", unread: "It was not read yet" }[said.reason ?? ""] ?? "Nobody knows";
  const from = said.reason === "retention" && said.known_from !== null ? [`The first record that is there is ${said.known_from}.`] : [];
  return { title, sentences: [whyNot, ...from, ...(instead === undefined ? [] : [instead])] };
}

/** Why a window closed, or what it waits for. */
export function windowInWords(window: ExplainedWindow, idleCloseMs: number | undefined, at: At, stream: string): string {
  const { closed, closes_at: due, stream_time: now } = window;
  if (closed !== null) {
    if (closed.offset === null) {
      const who = closed.reason === "flush" ? "A flush" : "The job's close on idle input";
      return `${who} closed it: that took stream time to ${at(closed.timestamp)}.`;
    }
    return `${capital(recordName(closed, stream))} (${at(closed.timestamp)}) closed it.`;
  }
  if (due === null) return "It never closes.";
  const togo = now === null ? "" : `; stream time is ${at(now)}, ${exactly(due - now)} before that`;
  const idle = idleCloseMs === undefined ? "" : `, or once the job's input was silent for ${exactly(idleCloseMs)}`;
  return `It is open. A record of ${at(due)} or later, of any key in this partition, closes it${togo}; so does a flush${idle}.`;
}
