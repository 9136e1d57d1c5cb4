// What lies where in a stream: offsets, times, sizes and files of each partition; and for how long it is kept.
import { Group, NumberInput, Select, Text } from "@mantine/core";
import type { components } from "@millrace/client";
import { createColumnHelper } from "@tanstack/react-table";
import { useState } from "react";
import { useLocation } from "wouter";

import { api, good, type Stream } from "../../api";
import { bytes, count, sum } from "../../figures";
import { Confirmed, Curl, Empty, Rows, Section, To } from "../../parts";
import { lookAgain, useMayWrite } from "../../queries";
import { Time, span } from "../../time";

type Content = components["schemas"]["StreamContentView"];
type Partition = components["schemas"]["PartitionContentView"] & { readonly share: number; readonly stream: string };

export function Partitions({ stream, content }: { stream: Stream; content: Content }) {
  const all = sum(content.partitions.map(({ records }) => records));
  const rows = content.partitions.map((each): Partition => ({ ...each, stream: stream.name, share: all === 0 ? 0 : each.records / all }));
  return (
    <Section title="Partitions and files" beside={<Curl path={`/v1/streams/${stream.name}:usage`} />}>
      <Rows caption="Partitions" columns={PARTITIONS} rows={rows} />
    </Section>
  );
}

const UNITS = { minutes: 60_000, hours: 3_600_000, days: 86_400_000 } as const;
type Unit = keyof typeof UNITS | "for ever";

export function Settings({ stream, content }: { stream: Stream; content: Content }) {
  const mayWrite = useMayWrite();
  if (stream.kind !== "user") return <Empty>Its job keeps it for itself: it is made, kept and deleted with that.</Empty>;
  return (
    <>
      <Section title="How long records are kept">
        <Kept stream={stream} content={content} />
        {mayWrite && <Retention stream={stream} content={content} />}
      </Section>
      {mayWrite && (
        <Section title="Delete it">
          <Deletion stream={stream} content={content} />
        </Section>
      )}
    </>
  );
}

function Kept({ stream, content }: { stream: Stream; content: Content }) {
  const behind = content.readers.filter(({ lag_records }) => lag_records > 0).map(({ kind, name, lag_records }) => `${kind} ${name} (${count(lag_records)})`);
  return (
    <Text size="sm">
      {stream.retention_ms === null ? "For ever." : `${span(stream.retention_ms)} after they arrived, file by file.`}{" "}
      {stream.retention_ms !== null && stream.retention_overrides_jobs && "Also those that a job has not read yet."}
      {stream.retention_ms !== null && !stream.retention_overrides_jobs && behind.length > 0 && `What these have not read stays longer: ${behind.join(", ")}.`}
    </Text>
  );
}

function Retention({ stream, content }: { stream: Stream; content: Content }) {
  const [unit, setUnit] = useState<Unit>(stream.retention_ms === null ? "for ever" : stream.retention_ms % UNITS.days === 0 ? "days" : stream.retention_ms % UNITS.hours === 0 ? "hours" : "minutes");
  const [amount, setAmount] = useState(unit === "for ever" ? 7 : stream.retention_ms! / UNITS[unit]);
  const ms = unit === "for ever" ? null : Math.round(amount * UNITS[unit]);
  const body = { retention_ms: ms };
  const act = async () => {
    const { response } = await api.GET("/v1/streams/{stream}", { params: { path: { stream: stream.name } } });
    const header = { "If-Match": response.headers.get("ETag") ?? "" };
    await good(api.PATCH("/v1/streams/{stream}", { params: { path: { stream: stream.name }, header }, body }));
    await lookAgain();
  };
  return (
    <Group align="end" mt="xs">
      {unit !== "for ever" && <NumberInput label="Keep for" w={110} min={1} value={amount} onChange={(value) => setAmount(Number(value) || 1)} />}
      <Select
        label={unit === "for ever" ? "Keep" : "Unit"}
        w={120}
        allowDeselect={false}
        value={unit}
        data={["minutes", "hours", "days", "for ever"]}
        onChange={(chosen) => setUnit(chosen as Unit)}
      />
      <Confirmed
        label="change retention"
        question={`keep records of ${stream.name} ${ms === null ? "for ever" : `for ${span(ms)}`}?`}
        meaning={whatGoes(stream, content, ms)}
        path={`/v1/streams/${stream.name}`}
        method="PATCH"
        body={body}
        condition="$ETAG"
        isDangerous={ms !== null && (stream.retention_ms === null || ms < stream.retention_ms)}
        isDisabled={ms === stream.retention_ms}
        act={act}
      >
        <Text size="sm">$ETAG is the ETag of GET /v1/streams/{stream.name}.</Text>
      </Confirmed>
    </Group>
  );
}

/** What a change of retention does, as far as it can be told now. */
function whatGoes(stream: Stream, content: Content, ms: number | null): string {
  if (ms === null) return "Nothing is removed from now on, until the stream is deleted.";
  const before = Date.now() - ms;
  const concerned = content.partitions.filter(({ oldest_at }) => oldest_at !== null && Date.parse(oldest_at) < before).map(({ partition }) => partition);
  const now = concerned.length === 0 ? "No file is older than that now." : `Partition ${concerned.join(", ")} ${concerned.length === 1 ? "has" : "have"} files that are older: they go soon, and do not come back.`;
  const held = stream.retention_overrides_jobs ? "Records that a job has not read yet go too." : "What a job has not read yet stays.";
  return `Files whose records all arrived longer ago are removed. ${now} ${held}`;
}

function Deletion({ stream, content }: { stream: Stream; content: Content }) {
  const [, go] = useLocation();
  const jobs = [...new Set([...content.writers.map(({ job }) => job), ...content.readers.filter(({ kind }) => kind === "job").map(({ name }) => name)])];
  const readers = content.readers.filter(({ kind }) => kind !== "job").map(({ kind, name }) => `${kind} ${name}`);
  const act = async () => {
    await good(api.DELETE("/v1/streams/{stream}", { params: { path: { stream: stream.name } } }));
    go("/streams");
    await lookAgain();
  };
  if (jobs.length > 0) {
    return (
      <Text size="sm">
        It can not be deleted while a job reads or writes it: delete{" "}
        {jobs.map((job, place) => (
          <span key={job}>
            {place > 0 && ", "}
            <To page={`/jobs/${encodeURIComponent(job)}`}>{job}</To>
          </span>
        ))}{" "}
        first.
      </Text>
    );
  }
  return (
    <Confirmed
      label="delete the stream"
      question={`delete ${stream.name}?`}
      meaning={`Its ${count(stream.records)} record(s) go and do not come back${readers.length === 0 ? "" : `; with them ${readers.join(", ")}, whose consumers are answered 404`}. Who posts to it is answered 404.`}
      path={`/v1/streams/${stream.name}`}
      method="DELETE"
      isDangerous
      act={act}
    />
  );
}

const column = createColumnHelper<Partition>();
const meta = { isNumber: true };
const time = (text: string | null) => <Time ms={text === null ? null : Date.parse(text)} />;
const PARTITIONS = [
  column.accessor("partition", {
    header: "partition",
    meta,
    cell: (cell) => <To page={`/streams/${encodeURIComponent(cell.row.original.stream)}?partition=${cell.getValue()}&reverse=true`}>{String(cell.getValue())}</To>,
  }),
  column.accessor("records", { header: "records", meta, cell: (cell) => count(cell.getValue()) }),
  column.accessor("share", { header: "share", meta, cell: (cell) => `${Math.round(100 * cell.getValue())} %` }),
  column.accessor("start_offset", { header: "from offset", meta, cell: (cell) => count(cell.getValue()) }),
  column.accessor("end_offset", { header: "up to offset", meta, cell: (cell) => count(cell.getValue()) }),
  column.accessor("first_timestamp", { header: "earliest time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  column.accessor("last_timestamp", { header: "latest time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  column.accessor("bytes", { header: "size", meta, cell: (cell) => bytes(cell.getValue()) }),
  column.accessor("files", { header: "files", meta, cell: (cell) => count(cell.getValue()) }),
  column.accessor("oldest_at", { header: "oldest file of", meta, cell: (cell) => time(cell.getValue()) }),
  column.accessor("grew_at", { header: "last came at", meta, cell: (cell) => time(cell.getValue()) }),
];
