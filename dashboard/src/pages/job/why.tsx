// Why a record came out of a job, or not: what is asked, by an address that can be shared, and what is answered.
import { Button, Group, Loader, NativeSelect, SegmentedControl, Stack, Text, TextInput } from "@mantine/core";
import { ApiError } from "@millrace/client";
import { useQueries, useQuery, type UseQueryResult } from "@tanstack/react-query";
import { useEffect, useState, type FormEvent } from "react";
import { useSearchParams } from "wouter";

import { api, good, readRecords, type Job, type StreamRecord } from "../../api";
import { sourcesOf } from "../../attention";
import { Answered, Curl, Empty, Failure, Section, To, curlOf } from "../../parts";
import { useJob, useLive, useStream } from "../../queries";
import { inZone, ofZone, useZone } from "../../time";
import { JobFrame, pageOf } from "./frame";
import { ExplanationShown } from "./why/answer";
import type { Explanation, Topology } from "./why/words";

/** What of the address is asked of the API, under the same names: a link to a question is a link to this page. */
const ASKED = ["stream", "key", "id", "timestamp", "partition", "offset"] as const;
type Asked = Partial<Record<(typeof ASKED)[number], string>>;
const NUMBERS = new Set(["timestamp", "partition", "offset"]);
const BUSY_PAUSE_MS = 2_000;

export default function WhyPage({ job: name }: { job: string }) {
  const [params, setParams] = useSearchParams();
  const asked = Object.fromEntries(ASKED.flatMap((each) => (params.has(each) ? [[each, params.get(each)!]] : []))) as Asked;
  const isAsked = asked.key !== undefined || asked.offset !== undefined;
  const job = useJob(name);
  const path = `/v1/jobs/${name}:explain?${new URLSearchParams(isAsked ? asked : { key: "KEY" })}`;
  return (
    <JobFrame job={name} tab="why" beside={<Curl path={path} />}>
      <Answered asked={job} what="The job">
        {({ now }) => (
          <Question key={params.toString()} job={now} asked={asked} isAsked={isAsked} ask={(given) => setParams(given as Record<string, string>)} />
        )}
      </Answered>
    </JobFrame>
  );
}

interface QuestionProps {
  readonly job: Job;
  readonly asked: Asked;
  readonly isAsked: boolean;
  readonly ask: (asked: Asked) => void;
}

function Question({ job, asked, isAsked, ask }: QuestionProps) {
  const topology = useLive("/v1/jobs/{job}/topology", { path: { job: job.name } }, 60_000);
  const sources = sourcesOf(job);
  const [stream, setStream] = useState(asked.stream ?? sources[0] ?? "");
  return (
    <>
      <Form job={job} asked={asked} ask={ask} sources={sources} stream={stream} setStream={setStream} />
      {isAsked ? (
        <Answer job={job} asked={asked} stream={asked.stream ?? sources[0] ?? ""} topology={topology.data?.now as Topology | undefined} />
      ) : (
        <Examples job={job} stream={stream} isOneOfSeveral={sources.length > 1} />
      )}
    </>
  );
}

type FormProps = Omit<QuestionProps, "isAsked"> & {
  readonly sources: string[];
  readonly stream: string;
  readonly setStream: (stream: string) => void;
};

function Form({ job, asked, ask, sources, stream, setStream }: FormProps) {
  const zone = useZone();
  const partitions = useStream(stream).data?.partitions.length ?? 1;
  const [by, choose] = useState(asked.offset === undefined ? "key" : "place");
  const [given, set] = useState({ ...asked, time: asked.timestamp === undefined ? "" : inZone(Number(asked.timestamp), zone).replace(" ", "T") });
  const field = (name: (typeof ASKED)[number] | "time") => ({
    value: given[name] ?? "",
    onChange: (event: { currentTarget: { value: string } }) => {
      const value = event.currentTarget.value;
      set((before) => ({ ...before, [name]: value }));
    },
  });
  const hasId = (job.spec.operators ?? []).some((each) => "id" in each);
  const isWithPartition = by === "place" || partitions > 1;
  const submit = (event: FormEvent) => {
    event.preventDefault();
    const at = ofZone(given.time, zone);
    const time = at === undefined ? {} : { timestamp: String(at) };
    const own = by === "key" ? { key: given.key ?? "", id: given.id, ...time } : { offset: given.offset };
    const where = isWithPartition ? { partition: given.partition } : by === "place" ? { partition: "0" } : {};
    const all = { ...(sources.length > 1 ? { stream } : {}), ...own, ...where };
    ask(Object.fromEntries(Object.entries(all).filter(([name, value]) => name === "key" || (value ?? "") !== "")));
  };
  return (
    <form onSubmit={submit} aria-label="Which record">
      <Stack gap="xs">
        <SegmentedControl
          aria-label="By what"
          className="narrow"
          value={by}
          onChange={choose}
          data={[
            { value: "key", label: "by its key" },
            { value: "place", label: "by its place" },
          ]}
        />
        <Group align="end">
          {sources.length > 1 && (
            <NativeSelect label="Stream" value={stream} data={sources} onChange={(event) => setStream(event.currentTarget.value)} />
          )}
          {by === "key" && (
            <>
              <TextInput label="Key" {...field("key")} />
              {hasId && <TextInput label="Id (any)" {...field("id")} />}
              <TextInput type="datetime-local" step="0.001" label={`Of this time or earlier (any), ${zone === "utc" ? "UTC" : "local"}`} {...field("time")} />
            </>
          )}
          {isWithPartition && (
            <TextInput label={by === "key" ? "Partition (the key's)" : "Partition"} w={150} inputMode="numeric" pattern="[0-9]*" required={by === "place"} {...field("partition")} />
          )}
          {by === "place" && <TextInput label="Offset" w={150} inputMode="numeric" pattern="[0-9]*" required {...field("offset")} />}
          <Button type="submit">why?</Button>
        </Group>
      </Stack>
    </form>
  );
}

function isBusy(error: unknown): boolean {
  return error instanceof ApiError && error.code === "simulations_busy";
}

/** A question costs the service seconds of CPU: it is asked once, and again where something has changed or is full. */
function useExplanation(job: string, asked: Asked): UseQueryResult<Explanation> {
  const query = Object.fromEntries(Object.entries(asked).map(([name, value]) => [name, NUMBERS.has(name) ? Number(value) : value]));
  return useQuery({
    queryKey: ["explanation", job, asked],
    queryFn: () => good<Explanation>(api.GET("/v1/jobs/{job}:explain", { params: { path: { job }, query } })),
    staleTime: Infinity,
    refetchOnWindowFocus: false,
    retry: (failures, error) => isBusy(error) || (failures < 3 && !(error instanceof ApiError && !error.isTransient)),
    retryDelay: BUSY_PAUSE_MS,
  });
}

function Answer({ job, asked, stream, topology }: { job: Job; asked: Asked; stream: string; topology: Topology | undefined }) {
  const explanation = useExplanation(job.name, asked);
  const { data, isFetching, failureReason, refetch } = explanation;
  const isRead = useIsRead(job, stream, data);
  useEffect(() => {
    if (isRead) void refetch();
  }, [isRead, refetch]);
  return (
    <>
      {isFetching ? (
        <Group gap="xs" role="status" aria-label="Waiting">
          <Loader size="sm" />
          <Text size="sm">
            {isBusy(failureReason)
              ? "Two other explanations or simulations are running: this one waits, and begins when one of them ends."
              : "The records of its task run through the operators again: some seconds, 30 at most."}
          </Text>
        </Group>
      ) : (
        <Group gap="xs">
          <Button size="compact-sm" variant="default" onClick={() => void refetch()}>
            look again
          </Button>
        </Group>
      )}
      {data === undefined ? (
        explanation.error && <Failure error={explanation.error} what="Nothing was explained" />
      ) : (
        <ExplanationShown job={job} stream={stream} topology={topology} said={data} />
      )}
    </>
  );
}

/** Whether the job has read by now what it had not. */
function useIsRead(job: Job, stream: string, said: Explanation | undefined): boolean {
  const record = said?.reason === "unread" ? said.record : null;
  const at = job.positions.find((each) => each.stream === stream && each.partition === record?.partition);
  return record != null && at !== undefined && at.position > record.offset;
}

/** Some of the keys that came last, each a question. */
function Examples({ job, stream: name, isOneOfSeveral }: { job: Job; stream: string; isOneOfSeveral: boolean }) {
  const stream = useStream(name);
  const looked = (stream.data?.partitions ?? []).filter((at) => at.end_offset > at.start_offset).slice(0, 4);
  const found = useQueries({
    queries: looked.map(({ partition, start_offset, end_offset }) => ({
      queryKey: ["streams", name, "latest", partition],
      queryFn: () => readRecords(name, { partition, from_offset: Math.max(start_offset, end_offset - 20) }, 20),
    })),
    combine: (results) => results.flatMap((each) => each.data?.records ?? []),
  });
  const records = lastOfKeys(found);
  const page = (query: Record<string, string>) => `${pageOf(job.name, "why")}?${new URLSearchParams({ ...(isOneOfSeveral ? { stream: name } : {}), ...query })}`;
  return (
    <Answered asked={stream} what="The stream">
      {(known) =>
        looked.length === 0 ? (
          <Empty curl={curlOf(`/v1/streams/${name}/records`, "POST", { records: [{ key: "k", value: { n: 1 } }] })}>
            No record is in {name} yet. Post one, and ask what became of it:
          </Empty>
        ) : (
          <Section title="Ask about a record, by its key or its place">
            <Text>
              The answer says whether it came out, which operator let it go, because of which earlier record and by how much; and of its
              windows, what closed them or what they wait for. Of {known.name} these came last:
            </Text>
            <ul className="why-examples">
              {records.map(({ key, partition, offset }) => (
                <li key={`${partition}/${offset}`}>
                  {key === null ? (
                    <To page={page({ partition: String(partition), offset: String(offset) })}>{`partition ${partition}, offset ${offset}`}</To>
                  ) : (
                    <To page={page({ key, ...(known.custom_partitioning ? { partition: String(partition) } : {}) })}>{key === "" ? "(the empty key)" : key}</To>
                  )}
                </li>
              ))}
            </ul>
          </Section>
        )
      }
    </Answered>
  );
}

const MOST_EXAMPLES = 10;

/** The last record of each key, latest first; such without a key each for itself. */
function lastOfKeys(records: StreamRecord[]): StreamRecord[] {
  const latest = [...records].sort((one, other) => (other.timestamp ?? 0) - (one.timestamp ?? 0) || other.offset - one.offset);
  const seen = new Set<string | null>();
  return latest.filter(({ key }) => key === null || (!seen.has(key) && seen.add(key))).slice(0, MOST_EXAMPLES);
}
