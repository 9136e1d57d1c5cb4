// A new job: from what a stream's records look like, over live records, to its making.
import { Alert, Button, Group, Loader, Select, Stack, Text } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { api, good, type Job, type Stream } from "../api";
import { count } from "../figures";
import { Answered, Confirmed, Curl, Empty, Failure, Page, Section, To, curlOf } from "../parts";
import { lookAgain, useMayWrite, useStreams } from "../queries";
import { pageOf } from "./job/frame";
import { Bench, marksOf, useQueryInAddress, useSpecSchema } from "./try/bench";
import type { Mark } from "./try/editor";
import { linkSpec, linkedSpec } from "./try/link";
import { isObject, type Json } from "./try/schema";
import { fitOf, templatesFor, type Template } from "./try/templates";
import { newest } from "./try/trial";

const LOOKED_AT = 200;

export default function TryPage() {
  const [text, setText] = useLinkedText();
  const streams = useStreams();
  const schema = useSpecSchema("JobSpec");
  return (
    <Page title="Try a job" beside={<Curl path="/v1/jobs:validate" method="POST" body={parsedOrEmpty(text)} />}>
      <Answered asked={streams} what="The streams">
        {({ now }) => (
          <>
            <Templates streams={now} isEmpty={text === ""} onPick={({ spec }) => setText(JSON.stringify(spec, null, 2))} />
            {text === undefined ? (
              <Loader role="progressbar" aria-label="loading" />
            ) : (
              <Answered asked={schema} what="The schema of a job">
                {(found) => (
                  <Bench
                    text={text}
                    onChange={setText}
                    schema={found}
                    streams={now}
                    check={validate}
                    actions={(spec, marks) => <Submit spec={spec} marks={marks} />}
                  />
                )}
              </Answered>
            )}
          </>
        )}
      </Answered>
    </Page>
  );
}

/** The text of the editor, which is in the address too; undefined until that was looked at. */
export function useLinkedText(): [string | undefined, (text: string) => void] {
  const [text, setText] = useState<string>();
  useEffect(() => {
    const look = async () => setText((await linkedSpec()) ?? "");
    void look();
    addEventListener("hashchange", look);
    return () => removeEventListener("hashchange", look);
  }, []);
  useEffect(() => {
    if (text === undefined || text === "") return;
    const later = setTimeout(() => void linkSpec(text), 300);
    return () => clearTimeout(later);
  }, [text]);
  return [text, setText];
}

function parsedOrEmpty(text: string | undefined): unknown {
  try {
    return JSON.parse(text ?? "{}");
  } catch {
    return {};
  }
}

async function validate(spec: Json): Promise<Mark[] | undefined> {
  try {
    await good(api.POST("/v1/jobs:validate", { body: spec as never }));
    return [];
  } catch (error) {
    return marksOf(error);
  }
}

interface TemplatesProps {
  readonly streams: readonly Stream[];
  readonly isEmpty: boolean;
  readonly onPick: (template: Template) => void;
}

/** Jobs to begin with, as they fit the stream that was chosen. */
function Templates({ streams, isEmpty, onPick }: TemplatesProps) {
  const [params, change] = useQueryInAddress();
  const readable = streams.filter(({ kind }) => kind === "user");
  const stream = params.get("stream");
  const records = useQuery({
    queryKey: ["streams", stream, "newest"],
    enabled: stream !== null,
    queryFn: () => newest(stream!, { records: LOOKED_AT, partition: undefined, until: undefined, closes: false }),
  });
  const templates = stream === null || records.data === undefined ? [] : templatesFor(stream, records.data);
  const hasBegun = useRef(false);
  useEffect(() => {
    if (templates[0] === undefined || hasBegun.current) return;
    hasBegun.current = true; // who empties the editor wants it empty
    if (isEmpty) onPick(templates[0]);
  }, [isEmpty, templates.length > 0]);
  if (readable.length === 0) {
    const curl = curlOf("/v1/streams", "POST", { name: "clicks", partitions: 4 });
    return <Empty curl={curl}>There is no stream whose records a job could read. Make one, and post records:</Empty>;
  }
  return (
    <Section title="Begin with">
      <Group align="end">
        <Select
          label="Stream"
          placeholder="choose one"
          searchable
          value={stream}
          data={readable.map(({ name }) => name)}
          onChange={(chosen) => change({ stream: chosen ?? undefined, partition: undefined })}
        />
        {templates.map((template) => (
          <Button key={template.name} variant="default" title={template.about} onClick={() => onPick(template)}>
            {template.name}
          </Button>
        ))}
      </Group>
      {records.error !== null && <Failure error={records.error} what={`The records of ${stream}`} />}
      {stream !== null && records.data !== undefined && <Fitted records={records.data} />}
      {stream === null && <Text size="sm" mt="xs">Choose a stream: jobs to begin with are fitted to its newest records.</Text>}
    </Section>
  );
}

function Fitted({ records }: { records: Awaited<ReturnType<typeof newest>> }) {
  const { ids, numbers } = fitOf(records);
  if (records.length === 0) return <Text size="sm" mt="xs">The stream is empty: what is offered is a guess.</Text>;
  const found = [...(ids[0] === undefined ? [] : [`identity ${ids[0]}`]), ...(numbers[0] === undefined ? [] : [`number ${numbers.find((each) => each !== ids[0]) ?? numbers[0]}`])];
  return (
    <Text size="sm" mt="xs">
      Fitted to the newest {count(records.length)} records: {[...found, "times and gaps of their keys"].join(", ")}.
    </Text>
  );
}

function Submit({ spec, marks }: { spec: Json | undefined; marks: readonly Mark[] }) {
  const mayWrite = useMayWrite();
  const [made, setMade] = useState<Job & { warnings?: { pointer: string; detail: string }[] | null }>();
  if (!mayWrite) return <Text size="sm" mt="xs">To make the job takes the role writer.</Text>;
  const name = isObject(spec) && typeof spec.name === "string" ? spec.name : "";
  const act = async () => {
    setMade(await good(api.POST("/v1/jobs", { body: spec as never })));
    await lookAgain();
  };
  return (
    <Stack gap="xs" mt="xs" align="flex-start">
      <Confirmed
        label="make the job"
        question={`make ${name}?`}
        meaning="It begins to read where its start says, from the first record there is unless that says otherwise, and goes on until it is stopped. Its sink is made where it is not there."
        path="/v1/jobs"
        body={spec}
        isDisabled={spec === undefined || marks.length > 0}
        act={act}
      />
      {made !== undefined && (
        <Alert color="green" variant="outline" role="status" title={`${made.name} is ${made.state}`}>
          <To page={pageOf(made.name)}>Its page</To>
          {(made.warnings ?? []).map(({ pointer, detail }) => (
            <Text key={pointer} size="sm">
              {pointer}: {detail}
            </Text>
          ))}
        </Alert>
      )}
    </Stack>
  );
}
