// The dropped records themselves, latest first, and taking them in again.
import { Code, Group, Progress, Stack, Text, TextInput } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { api, good, readRecords, type Job, type StreamRecord, type Task } from "../../../api";
import { sourcesOf } from "../../../attention";
import { count, sum } from "../../../figures";
import { Answered, Confirmed, Curl, Empty, Json, Rows, Section, To, curlOf } from "../../../parts";
import { lookAgain, useMayWrite, useStream, useTasks } from "../../../queries";
import { Time, ofZone, useZone } from "../../../time";
import { pageOf } from "../frame";

const LAST = 20; // records of each partition
const MOST_PARTITIONS = 16;
const OURS = ["millrace-operator", "millrace-reason", "millrace-offset", "millrace-error"] as const;

export interface Chosen {
  readonly operator: string | null;
  readonly reason: string | null;
}

interface KeptRecord extends StreamRecord {
  readonly operator: string;
  readonly reason: string;
  /** Of the record in the job's input that it comes from; undefined: of none. */
  readonly cause: number | undefined;
  readonly error: string | undefined;
}

export function Kept({ job, stream, chosen }: { job: Job; stream: string | null; chosen: Chosen }) {
  if (stream === null)
    return (
      <Section title="The records">
        <Empty curl={curlOf(`/v1/jobs/${job.name}`, "PATCH", { keep_dropped: true }, "$ETAG")}>
          They were counted and not kept. To keep those that are dropped from now on, stop the job, have it keep them, and start it again.
        </Empty>
      </Section>
    );
  return <KeptIn job={job} stream={stream} chosen={chosen} />;
}

function KeptIn({ job, stream: name, chosen }: { job: Job; stream: string; chosen: Chosen }) {
  const stream = useStream(name);
  const partitions = stream.data?.partitions.slice(0, MOST_PARTITIONS) ?? [];
  const ends = partitions.map((at) => at.end_offset);
  const page = useQuery({
    queryKey: ["streams", name, "latest", ends],
    queryFn: async () => {
      const pages = await Promise.all(
        partitions.map(({ partition, start_offset: start, end_offset: end }) =>
          start === end ? null : readRecords(name, { partition, from_offset: Math.max(start, end - LAST) }, LAST),
        ),
      );
      return pages.flatMap((found) => found?.records ?? []).map(keptOf).sort((a, b) => (b.timestamp ?? 0) - (a.timestamp ?? 0));
    },
    enabled: stream.data !== undefined,
    placeholderData: (before) => before,
  });
  const mayWrite = useMayWrite();
  const isChosen = ({ operator, reason }: KeptRecord) =>
    (chosen.operator === null || operator === chosen.operator) && (chosen.reason === null || reason === chosen.reason);
  return (
    <Section
      title="The records"
      beside={
        <Group gap="xs">
          <Text size="sm">
            in <To page={`/streams/${name}`}>{name}</To>
          </Text>
          {mayWrite && <Replay job={job.name} chosen={chosen} />}
          <Curl path={`/v1/streams/${name}/records`} />
        </Group>
      }
    >
      <Replaying job={job.name} />
      <Answered asked={page} what="The dropped records">
        {(found) => {
          const rows = found.filter(isChosen);
          return rows.length === 0 ? (
            <Empty>None of the last {LAST} of each partition is one of these.</Empty>
          ) : (
            <Rows caption="Dropped records" columns={columnsOf(job, name)} rows={rows} />
          );
        }}
      </Answered>
    </Section>
  );
}

function keptOf(record: StreamRecord): KeptRecord {
  const headers = record.headers ?? {};
  const [operator, reason, offset, error] = OURS.map((name) => headers[name]);
  const cause = offset === undefined || offset === null || Number(offset) < 0 ? undefined : Number(offset);
  return { ...record, operator: operator ?? "", reason: reason ?? "", cause, error: error ?? undefined };
}

/** How far a replay is, while there is one. */
function Replaying({ job }: { job: string }) {
  const replays = (useTasks(job).data ?? []).flatMap(({ replay }: Task) => replay ?? []);
  if (replays.length === 0) return null;
  const left = sum(replays.map(({ position, end }) => end - position));
  const all = sum(replays.map(({ end }) => end));
  return (
    <Stack gap={4} role="status" mb="xs">
      <Text size="sm">A replay is under way: {count(left)} kept records are still to be looked at.</Text>
      <Progress value={all === 0 ? 0 : ((all - left) * 100) / all} aria-label="How far the replay is" />
    </Stack>
  );
}

function Replay({ job, chosen }: { job: string; chosen: Chosen }) {
  const zone = useZone();
  const [from, setFrom] = useState("");
  const [to, setTo] = useState("");
  const [first, last] = [ofZone(from, zone), ofZone(to, zone)];
  const body = {
    ...(chosen.reason !== null && { reason: [chosen.reason] }),
    ...(chosen.operator !== null && { operator: chosen.operator }),
    ...(first !== undefined && { from_timestamp: first }),
    ...(last !== undefined && { to_timestamp: last }),
  };
  const act = async () => {
    await good(api.POST("/v1/jobs/{job}/dropped:replay", { params: { path: { job } }, body }));
    await lookAgain();
  };
  const which = chosen.operator === null ? "all records" : `records of ${chosen.operator}${chosen.reason === null ? "" : ` (${chosen.reason})`}`;
  const zoned = zone === "utc" ? "UTC" : "local time";
  return (
    <Confirmed
      label="replay"
      question={`replay dropped records of ${job}?`}
      meaning={`What ${job} kept until now is looked through, and ${which} go through it again, each from the operator on that dropped it. What dropped them drops them again, unless it was changed: late ones stay late unless grace is longer now. Those that were replayed before and went through go through twice. What comes out of it can not be taken back.`}
      path={`/v1/jobs/${job}/dropped:replay`}
      body={body}
      isDangerous
      act={act}
    >
      <Group grow>
        <TextInput type="datetime-local" step="0.001" label={`From (${zoned})`} value={from} onChange={(event) => setFrom(event.currentTarget.value)} />
        <TextInput type="datetime-local" step="0.001" label={`To (${zoned})`} value={to} onChange={(event) => setTo(event.currentTarget.value)} />
      </Group>
    </Confirmed>
  );
}

function explained(page: string | null) {
  return page === null ? null : <To page={page}>why</To>;
}

const column = createColumnHelper<KeptRecord>();
const meta = { isNumber: true };

function columnsOf(job: Job, stream: string) {
  const sources = sourcesOf(job);
  const why = ({ partition, cause, key, timestamp }: KeptRecord) => {
    const isFound = key !== null && key !== undefined; // by its key and time also where it came by a replay or a repartition stream
    const place = sources.length === 1 && cause !== undefined ? { partition: String(partition), offset: String(cause) } : undefined;
    const query = isFound ? { key, timestamp: String(timestamp) } : place;
    if (query === undefined) return null;
    return `${pageOf(job.name, "why")}?${new URLSearchParams(query)}`;
  };
  return [
    column.accessor("timestamp", { header: "time", cell: (cell) => <Time ms={cell.getValue()} /> }),
    column.accessor("operator", { header: "operator" }),
    column.accessor("reason", { header: "reason" }),
    column.accessor("key", { header: "key" }),
    column.display({ id: "value", header: "value", cell: ({ row }) => <Json value={row.original.value} /> }),
    column.accessor((row) => row.error ?? "", { id: "error", header: "error", cell: (cell) => (cell.getValue() === "" ? null : <Code>{cell.getValue()}</Code>) }),
    column.accessor("offset", {
      header: "kept at",
      meta,
      cell: ({ row: { original } }) => (
        <To page={`/streams/${stream}?partition=${original.partition}&from_offset=${original.offset}`}>{`${original.partition}, offset ${original.offset}`}</To>
      ),
    }),
    column.display({ id: "why", header: "why", cell: ({ row }) => explained(why(row.original)) }),
  ];
}
