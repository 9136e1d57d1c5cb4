// Where a job is tried: its specification, the records that it is to see, what comes out, beside what another gives.
import { Button, Checkbox, Group, Loader, NumberInput, Select, Text, TextInput } from "@mantine/core";
import { ApiError } from "@millrace/client";
import { useQuery } from "@tanstack/react-query";
import { Suspense, useState, type ReactNode } from "react";
import { useSearchParams } from "wouter";

import type { Stream } from "../../api";
import { chunk } from "../../chunk";
import { count } from "../../figures";
import { Curl, Failure, Section } from "../../parts";
import { noticeEnd, useSession } from "../../queries";
import { inZone, ofZone, useZone } from "../../time";
import type { Simulation } from "./compare";
import type { Mark } from "./editor";
import { Results } from "./results";
import { SpecSchema, isObject, type Json, type Schema } from "./schema";
import { READERS_BYTES, afterAll, bare, feed, simulate, simulationOf, sourcesOf, type Choice, type Fed, type SimulateBody } from "./trial";

const Editor = chunk(() => import("./editor"));
const MAX_RECORDS = 10_000;
const MAX_BYTES = 16 << 20;
const STANDARD_RECORDS = 200;

export interface Trial {
  readonly text: string;
  readonly fed: Fed;
  /** What was asked. */
  readonly body: SimulateBody;
  readonly yours: Simulation;
  readonly running: Simulation | undefined;
}

/** The schema of a job as the service has it; `root`: which body is written. */
export function useSpecSchema(root: "JobSpec" | "ChangeRequest") {
  return useQuery({
    queryKey: ["openapi", root],
    staleTime: Infinity,
    queryFn: async () => {
      const answer = await fetch("/openapi.json");
      if (!answer.ok) throw new ApiError(answer.status, {});
      const { schemas } = ((await answer.json()) as { components: { schemas: Record<string, Schema> } }).components;
      return new SpecSchema(schemas, schemas[root] ?? {});
    },
  });
}

export function parsedSpec(text: string): Json | undefined {
  try {
    return JSON.parse(text) as Json;
  } catch {
    return undefined;
  }
}

/** What the service found wrong, as marks; undefined: it could not look. Throws what is no refusal of the specification. */
export function marksOf(error: unknown): Mark[] | undefined {
  noticeEnd(error);
  if (!(error instanceof ApiError)) throw error;
  if (error.faults.length > 0) return error.faults.map(({ pointer, detail }) => ({ pointer, detail }));
  if (error.status === 409) return [{ pointer: "/name", detail: error.problem.detail ?? "is taken" }];
  return error.isTransient ? undefined : [{ pointer: "", detail: error.problem.detail ?? error.message }];
}

/** Changes what of the address is sent to the service, and leaves the specification in it. */
export function useQueryInAddress(): [URLSearchParams, (changes: Record<string, string | undefined>) => void] {
  const [params] = useSearchParams();
  const change = (changes: Record<string, string | undefined>) => {
    const after = new URLSearchParams(location.search);
    for (const [name, value] of Object.entries(changes)) {
      if (value === undefined || value === "") after.delete(name);
      else after.set(name, value);
    }
    const query = after.size === 0 ? "" : `?${after}`;
    history.replaceState(history.state, "", `${location.pathname}${query}${location.hash}`);
  };
  return [params, change];
}

interface BenchProps {
  readonly text: string;
  readonly onChange: (text: string) => void;
  readonly schema: SpecSchema;
  readonly streams: readonly Stream[];
  readonly check: (spec: Json) => Promise<Mark[] | undefined>;
  /** The specification that runs, to be compared with. */
  readonly running?: Json;
  /** What it is checked against: anew, where that is another. */
  readonly checkedFor?: unknown;
  readonly actions: (spec: Json | undefined, marks: readonly Mark[]) => ReactNode;
}

export function Bench({ text, onChange, schema, streams, check, running, checkedFor, actions }: BenchProps) {
  const [marks, setMarks] = useState<Mark[]>();
  const [trial, setTrial] = useState<Trial>();
  const [error, setError] = useState<unknown>(null);
  const [isBusy, setBusy] = useState(false);
  const [choice, choose] = useChoice();
  const isReader = useSession().data?.role === "reader";
  const spec = parsedSpec(text);
  const sources = spec === undefined ? [] : sourcesOf(spec);
  const run = async () => {
    const tried = parsedSpec(text);
    if (tried === undefined || isBusy) return;
    setBusy(true);
    setError(null);
    try {
      setTrial(await tryOut(text, tried, running, choice, isReader ? READERS_BYTES - 2 * text.length - 4_096 : MAX_BYTES));
    } catch (failure) {
      noticeEnd(failure);
      setError(failure);
    } finally {
      setBusy(false);
    }
  };
  const names = {
    source: streams.filter(({ kind }) => kind === "user").map(({ name }) => name),
    stream: streams.filter(({ kind }) => kind === "user").map(({ name }) => name),
    sink: [],
    after: ["source", ...operatorsOf(spec)],
  };
  return (
    <>
      <Section title="Specification">
        <Suspense fallback={<Loader role="progressbar" aria-label="the editor is loading" />}>
          <Editor
            label="Specification of the job"
            text={text}
            schema={schema}
            names={names}
            onChange={onChange}
            onRun={run}
            check={check}
            onMarks={setMarks}
            checkedFor={checkedFor}
          />
        </Suspense>
        {text.trim() === "" ? (
          <Text size="sm" role="status" className="try-marks">
            Nothing is written yet: begin with one of the above, or write a job here (Ctrl + Space offers what fits).
          </Text>
        ) : (
          <Marks marks={marks} />
        )}
        {actions(spec, marks ?? [])}
      </Section>
      <Section title="Try it on live records">
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void run();
          }}
        >
          <Group align="end">
            <ChoiceFields choice={choice} choose={choose} partitions={partitionsOf(streams, sources)} />
            <Button type="submit" loading={isBusy} disabled={spec === undefined || sources.length === 0} title="Ctrl + Enter in the editor">
              {sources.length === 0 ? "run: it names no source yet" : `run over the last ${count(choice.records)} of ${sources.join(", ")}`}
            </Button>
            {trial !== undefined && <Curl path="/v1/jobs:simulate" method="POST" body={trial.body} />}
          </Group>
        </form>
        <Text size="sm" c="dimmed" mt="xs">
          Nothing is kept or written: it begins with empty stores, and sees these records alone. At most {count(MAX_RECORDS)} records
          {isReader ? ", 256 KiB with the role reader" : ""}; an answer of 100,000 results in 30 s.
        </Text>
      </Section>
      {error !== null && <Failure error={error} what="It could not be tried" />}
      {trial !== undefined && <Results trial={trial} isOld={trial.text !== text} isCompared={running !== undefined} />}
    </>
  );
}

async function tryOut(text: string, spec: Json, running: Json | undefined, choice: Choice, maxBytes: number): Promise<Trial> {
  const fed = await feed(spec, choice, maxBytes);
  const other = running === undefined ? undefined : bare(running);
  const until = choice.closes ? Math.max(afterAll(spec, fed.records), other === undefined ? 0 : afterAll(other, fed.records)) : undefined;
  const sources = new Set(other === undefined ? [] : sourcesOf(other));
  const theirs = fed.records.filter(({ stream }) => sources.has(stream));
  const body = simulationOf(spec, fed.records, until);
  const yours = await simulate(body);
  return { text, fed, body, yours, running: other === undefined ? undefined : await simulate(simulationOf(other, theirs, until)) };
}

function operatorsOf(spec: Json | undefined): string[] {
  const operators = isObject(spec) && Array.isArray(spec.operators) ? spec.operators : [];
  return operators.flatMap((each) => (isObject(each) && typeof each.name === "string" ? [each.name] : []));
}

function partitionsOf(streams: readonly Stream[], sources: readonly string[]): number {
  return Math.max(0, ...streams.filter(({ name }) => sources.includes(name)).map(({ partitions }) => partitions.length));
}

/** What is wrong, in words, each with its place: for who sees no marks, and to get there by keyboard. */
function Marks({ marks }: { marks: readonly Mark[] | undefined }) {
  const go = async (pointer: string) => (await import("./editor")).goTo(pointer);
  return (
    <div role="status" aria-label="What is wrong" className="try-marks">
      {marks === undefined ? (
        <Text size="sm">The service has not looked at it.</Text>
      ) : marks.length === 0 ? (
        <Text size="sm">The service would take it.</Text>
      ) : (
        <ul>
          {marks.map(({ pointer, detail }, at) => (
            <li key={at}>
              <button type="button" className="try-mark" onClick={() => go(pointer)}>
                {pointer || "the whole"}
              </button>{" "}
              {detail}
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

function useChoice(): [Choice, (changes: Record<string, string | undefined>) => void] {
  const [params, change] = useQueryInAddress();
  const number = (name: string) => (params.has(name) && Number.isSafeInteger(Number(params.get(name))) ? Number(params.get(name)) : undefined);
  const records = Math.min(Math.max(number("records") ?? STANDARD_RECORDS, 1), MAX_RECORDS);
  return [{ records, partition: number("partition"), until: number("until"), closes: params.get("closes") === "true" }, change];
}

interface FieldsProps {
  readonly choice: Choice;
  readonly choose: (changes: Record<string, string | undefined>) => void;
  readonly partitions: number;
}

function ChoiceFields({ choice, choose, partitions }: FieldsProps) {
  const zone = useZone();
  return (
    <>
      <NumberInput
        label="Records"
        w={110}
        min={1}
        max={MAX_RECORDS}
        clampBehavior="blur"
        value={choice.records}
        onChange={(value) => choose({ records: String(value) })}
      />
      <Select
        label="Partition"
        w={110}
        allowDeselect={false}
        value={choice.partition === undefined ? "all" : String(choice.partition)}
        data={["all", ...Array.from({ length: partitions }, (_, at) => String(at))]}
        onChange={(chosen) => choose({ partition: chosen === "all" || chosen === null ? undefined : chosen })}
      />
      <TextInput
        type="datetime-local"
        step="0.001"
        label={zone === "utc" ? "Before (UTC)" : "Before (local time)"}
        defaultValue={choice.until === undefined ? "" : inZone(choice.until, zone).replace(" ", "T")}
        onChange={(event) => {
          const at = ofZone(event.currentTarget.value, zone);
          choose({ until: at === undefined ? undefined : String(Math.max(0, at)) });
        }}
      />
      <Checkbox
        mb={8}
        label="then close what is open"
        checked={choice.closes}
        onChange={(event) => choose({ closes: event.currentTarget.checked ? "true" : undefined })}
      />
    </>
  );
}

