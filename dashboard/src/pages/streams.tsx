// Every stream, with what comes in.
import { Checkbox, Group, TextInput } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useSearchParams } from "wouter";

import type { Stream } from "../api";
import { bytes, count, rate, sum } from "../figures";
import { Answered, Curl, Empty, Page, Rows, To, curlOf } from "../parts";
import { useStreams } from "../queries";
import { useRates } from "../rates";
import { span } from "../time";

interface Row {
  readonly stream: Stream;
  readonly arriving: number | undefined;
}

export default function StreamsPage() {
  const streams = useStreams();
  const [params, setParams] = useSearchParams();
  const wanted = params.get("q") ?? "";
  const withInternal = params.get("internal") === "true";
  const arriving = useRates(
    streams.data,
    (now) => new Map(now.map((stream) => [stream.name, sum(stream.partitions.map((at) => at.end_offset))])),
  );
  const set = (name: string, value: string) =>
    setParams(
      (before) => {
        const after = new URLSearchParams(before);
        if (value === "") after.delete(name);
        else after.set(name, value);
        return after;
      },
      { replace: true },
    );
  return (
    <Page title="Streams" beside={<Curl path="/v1/streams?limit=1000" />}>
      <Group align="end">
        <TextInput label="Name holds" value={wanted} onChange={(event) => set("q", event.currentTarget.value)} />
        <Checkbox
          label="those that jobs keep for themselves"
          checked={withInternal}
          onChange={(event) => set("internal", event.currentTarget.checked ? "true" : "")}
        />
      </Group>
      <Answered asked={streams} what="The streams">
        {({ now }) => {
          const shown = now.filter(({ name, kind }) => name.includes(wanted) && (withInternal || kind === "user"));
          if (now.length === 0) {
            const curl = curlOf("/v1/streams", "POST", { name: "clicks", partitions: 4 });
            return <Empty curl={curl}>No stream was made yet. Make one:</Empty>;
          }
          if (shown.length === 0) return <Empty>None of {count(now.length)} streams is called so.</Empty>;
          const rows = shown.map((stream) => ({ stream, arriving: arriving.get(stream.name) }));
          return <Rows caption="Streams" columns={STREAMS} rows={rows} />;
        }}
      </Answered>
    </Page>
  );
}

const column = createColumnHelper<Row>();
const meta = { isNumber: true };
const STREAMS = [
  column.accessor((row) => row.stream.name, {
    id: "stream",
    header: "stream",
    cell: (cell) => <To page={`/streams/${cell.getValue()}`}>{cell.getValue()}</To>,
  }),
  column.accessor((row) => row.stream.kind, { id: "kind", header: "kind" }),
  column.accessor((row) => row.stream.partitions.length, { id: "partitions", header: "partitions", meta }),
  column.accessor("arriving", { header: "in/s", meta, cell: (cell) => rate(cell.getValue()) }),
  column.accessor((row) => row.stream.records, { id: "records", header: "records", meta, cell: (cell) => count(cell.getValue()) }),
  column.accessor((row) => row.stream.bytes, { id: "size", header: "size", meta, cell: (cell) => bytes(cell.getValue()) }),
  column.accessor((row) => row.stream.retention_ms, {
    id: "kept",
    header: "kept",
    meta,
    cell: (cell) => (cell.getValue() === null ? "for ever" : span(cell.getValue()!)),
  }),
];
