// Another version of a job that runs: what it would give beside what runs now, what it would mean for its stores, and its change.
import { Alert, List, Loader, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import type { components } from "@millrace/client";
import { useCallback, useEffect, useRef, useState } from "react";

import { api, good, type Job } from "../../api";
import { Answered, Badge, Confirmed, Curl, Rows, Section } from "../../parts";
import { lookAgain, useJob, useMayWrite, useStreams } from "../../queries";
import { Bench, marksOf, useSpecSchema } from "../try/bench";
import type { Mark } from "../try/editor";
import type { SpecSchema } from "../try/schema";
import { isObject, type Json } from "../try/schema";
import { bare } from "../try/trial";
import { useLinkedText } from "../try";
import { JobFrame } from "./frame";

type Verdict = components["schemas"]["ChangeVerdictView"];

/** What would change, as the service judged a text, and the tag of the version that it was judged against. */
interface Judged {
  readonly spec: string;
  readonly tag: string;
  readonly verdict: Verdict;
}

export default function TryPage({ job: name }: { job: string }) {
  const job = useJob(name);
  const schema = useSpecSchema("ChangeRequest");
  return (
    <JobFrame job={name} tab="try" beside={<Curl path={`/v1/jobs/${name}/versions`} />}>
      <Answered asked={job} what="The job">
        {({ now }) => (
          <Answered asked={schema} what="The schema of a job">
            {(found) => <Change job={now} schema={found} />}
          </Answered>
        )}
      </Answered>
    </JobFrame>
  );
}

function Change({ job, schema }: { job: Job; schema: SpecSchema }) {
  const [text, setText] = useLinkedText();
  const [judged, setJudged] = useState<Judged>();
  const mayWrite = useMayWrite();
  const streams = useStreams().data?.now ?? [];
  const running = job.spec as unknown as Json;
  useEffect(() => {
    if (text === "") setText(JSON.stringify(schema.withoutDefaults(running), null, 2));
  }, [text === ""]); // once, where the address has none
  const latest = useRef(0);
  const check = useCallback(
    async (spec: Json): Promise<Mark[] | undefined> => {
      const turn = ++latest.current;
      const keep = (found: Judged | undefined) => turn === latest.current && setJudged(found);
      if (isObject(spec) && spec.name !== job.name) {
        keep(undefined);
        return [{ pointer: "/name", detail: `stays ${job.name}: a change keeps the name` }];
      }
      try {
        if (!mayWrite) return await validated(spec);
        const found = await judge(job.name, spec);
        keep(found);
        return found.verdict.errors.map(({ pointer, detail }) => ({ pointer, detail }));
      } catch (error) {
        keep(undefined);
        return marksOf(error);
      }
    },
    [job.name, mayWrite],
  );
  if (text === undefined || text === "") return <Loader role="progressbar" aria-label="loading" />;
  return (
    <>
      <Text size="sm">
        {mayWrite
          ? `Version ${job.spec_version} runs. Edit it here: what the change would mean for its stores is judged while you write, it can be tried on live records, and nothing changes before “change the job” is confirmed.`
          : `Version ${job.spec_version} runs. Edit it here and try it on live records: nothing is changed by that.`}
      </Text>
      <Bench
        text={text}
        onChange={setText}
        schema={schema}
        streams={streams}
        check={check}
        running={running}
        checkedFor={job.version}
        actions={(spec, marks) => (mayWrite ? <Meaning job={job} spec={spec} marks={marks} judged={judged} /> : <Text size="sm" mt="xs">To change the job takes the role writer.</Text>)}
      />
    </>
  );
}

/** A specification by itself, under a name that is free. */
async function validated(spec: Json): Promise<Mark[]> {
  const job = isObject(spec) ? { ...(bare(spec) as Record<string, Json>), name: `tried_${Date.now()}` } : spec;
  await good(api.POST("/v1/jobs:validate", { body: job as never }));
  return [];
}

async function judge(name: string, spec: Json): Promise<Judged> {
  const { response } = await api.GET("/v1/jobs/{job}", { params: { path: { job: name } } });
  const tag = response.headers.get("ETag") ?? "";
  const params = { path: { job: name }, query: { dry_run: true }, header: { "If-Match": tag } };
  const verdict = (await good(api.PUT("/v1/jobs/{job}", { params, body: spec as never }))) as Verdict;
  return { spec: JSON.stringify(spec), tag, verdict };
}

const WORDS: Record<string, string> = {
  unchanged: "stays as it is",
  keeps: "goes on with the store it has",
  empty: "is new, and begins with an empty store",
  restarts: "begins again with an empty store",
  removed: "goes; its store is put aside",
  returns: "comes back, with the store it had",
  refused: "can not be done",
  added: "is new",
};

/** Of what keeps no store, or is no operator, `keeps` says less. */
function inWords(verdict: string, hasStore = true): string {
  return verdict === "keeps" && !hasStore ? "goes on, by the new version from here on" : (WORDS[verdict] ?? verdict);
}

interface MeaningProps {
  readonly job: Job;
  readonly spec: Json | undefined;
  readonly marks: readonly Mark[];
  readonly judged: Judged | undefined;
}

/** What a change would mean for each operator, sink and source, and the change itself. */
function Meaning({ job, spec, marks, judged }: MeaningProps) {
  const [done, setDone] = useState<Job>();
  const isJudged = judged !== undefined && spec !== undefined && judged.spec === JSON.stringify(spec);
  const isSame = isJudged && judged.verdict.operators.every(({ verdict }) => verdict === "unchanged") && sameText(judged.verdict.spec, job.spec);
  const act = async () => {
    const params = { path: { job: job.name }, header: { "If-Match": judged!.tag } };
    setDone((await good(api.PUT("/v1/jobs/{job}", { params, body: spec as never }))) as Job);
    await lookAgain();
  };
  return (
    <Section title="What the change means">
      <Stack gap="xs" align="stretch">
        {judged === undefined ? (
          <Text size="sm">{marks.length > 0 ? "It can not be judged before what is wrong above is mended." : "The service is looking at it."}</Text>
        ) : isSame ? (
          <Text size="sm">Nothing: this is what runs.</Text>
        ) : (
          <Verdicts verdict={judged.verdict} />
        )}
        {done !== undefined && (
          <Alert color="green" variant="outline" role="status" title={done.state === "changing" ? "It becomes that version as soon as what is on its way is read" : `It is version ${done.spec_version}`} />
        )}
        <div>
          <Confirmed
            label="change the job"
            question={`change ${job.name} to version ${job.spec_version + 1}?`}
            meaning={judged === undefined ? "" : <ChangeInWords verdict={judged.verdict} />}
            path={`/v1/jobs/${job.name}`}
            method="PUT"
            body={spec}
            condition={judged?.tag}
            isDangerous={isJudged && judged.verdict.operators.some(({ verdict }) => verdict === "restarts" || verdict === "removed")}
            isDisabled={!isJudged || isSame || marks.length > 0 || !judged.verdict.is_possible}
            act={act}
          />
        </div>
      </Stack>
    </Section>
  );
}

function sameText(one: unknown, other: unknown): boolean {
  return JSON.stringify(one) === JSON.stringify(other);
}

function ChangeInWords({ verdict }: { verdict: Verdict }) {
  const changed = verdict.operators.filter((each) => each.verdict !== "unchanged");
  return (
    <>
      <Text>Positions stay: nothing is read or written twice. A job that works comes to rest first where results are on their way.</Text>
      <List size="sm" mt="xs">
        {changed.map(({ operator, verdict: each, detail, store }) => (
          <List.Item key={operator}>
            {operator} {inWords(each, store !== null)}: {detail}
          </List.Item>
        ))}
        {verdict.warnings.map(({ pointer, detail }) => (
          <List.Item key={pointer}>{detail}</List.Item>
        ))}
      </List>
    </>
  );
}

interface VerdictRow {
  readonly what: string;
  readonly name: string;
  readonly verdict: string;
  readonly words: string;
  readonly detail: string;
}

function Verdicts({ verdict }: { verdict: Verdict }) {
  const rows: VerdictRow[] = [
    ...verdict.operators.map(({ operator, former, verdict: each, detail, store }) => ({
      what: "operator",
      name: former !== null && former !== operator ? `${operator}, was ${former}` : operator,
      verdict: each,
      words: inWords(each, store !== null),
      detail,
    })),
    ...verdict.sinks.map((each) => ({ what: "sink", name: each.stream, verdict: each.verdict, words: inWords(each.verdict, false), detail: each.detail })),
    ...verdict.sources.map((each) => ({ what: "source", name: each.stream, verdict: each.verdict, words: inWords(each.verdict, false), detail: each.detail })),
  ];
  return (
    <div className="try-rows">
      <Rows caption="Verdicts" columns={VERDICTS} rows={rows} />
    </div>
  );
}

const row = createColumnHelper<VerdictRow>();
const VERDICTS = [
  row.accessor("what", { header: "part" }),
  row.accessor("name", { header: "name" }),
  row.accessor("verdict", { header: "verdict", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  row.accessor("words", { header: "it" }),
  row.accessor("detail", { header: "why" }),
];
