// Every stream: what comes in, what it holds, who writes and who reads it, and who is behind.
import { Button, Checkbox, Group, Modal, NumberInput, Stack, TextInput } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useState } from "react";
import { useLocation, useSearchParams } from "wouter";

import { api, good, type Stream } from "../api";
import { bytes, count, rate, sum } from "../figures";
import { Answered, Curl, Empty, Failure, Page, Rows, To, curlOf } from "../parts";
import { lookAgain, noticeEnd, useMayWrite, useStreams, useUsage } from "../queries";
import { useRates } from "../rates";
import { span } from "../time";
import { pageOf } from "./job/frame";
import type { Usage } from "./stream/users";

interface Row {
  readonly stream: Stream;
  readonly arriving: number | undefined;
  readonly usage: Usage | undefined;
}

export default function StreamsPage() {
  const streams = useStreams();
  const usage = useUsage().data?.now ?? [];
  const users = new Map(usage.map((each) => [each.stream, each]));
  const mayWrite = useMayWrite();
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
    <Page
      title="Streams"
      beside={
        <>
          {mayWrite && <MakeStream />}
          <Curl path="/v1/streams?limit=1000" />
        </>
      }
    >
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
          const rows = shown.map((stream) => ({ stream, arriving: arriving.get(stream.name), usage: users.get(stream.name) }));
          return <Rows caption="Streams" columns={STREAMS} rows={rows} />;
        }}
      </Answered>
    </Page>
  );
}

/** A new stream: its width never changes, so that is asked for and said. */
function MakeStream() {
  const [, go] = useLocation();
  const [isOpen, open] = useState(false);
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState(4);
  const [error, setError] = useState<unknown>(null);
  const make = async () => {
    setError(null);
    try {
      await good(api.POST("/v1/streams", { body: { name, partitions } as never }));
      await lookAgain();
      go(`/streams/${encodeURIComponent(name)}`);
    } catch (failure) {
      noticeEnd(failure);
      setError(failure);
    }
  };
  return (
    <>
      <Button size="compact-sm" variant="default" onClick={() => open(true)}>
        make a stream
      </Button>
      <Modal opened={isOpen} onClose={() => open(false)} title="make a stream" lockScroll={false} closeButtonProps={{ "aria-label": "close" }}>
        <form
          onSubmit={(event) => {
            event.preventDefault();
            void make();
          }}
        >
          <Stack>
            <TextInput label="Name" data-autofocus value={name} onChange={(event) => setName(event.currentTarget.value)} />
            <NumberInput
              label="Partitions"
              description="As many tasks can read it at once. It never changes."
              min={1}
              max={1024}
              value={partitions}
              onChange={(value) => setPartitions(Number(value) || 1)}
            />
            {error !== null && <Failure error={error} what="It was not made" />}
            <Group justify="flex-end">
              <Curl path="/v1/streams" method="POST" body={{ name, partitions }} />
              <Button type="submit" disabled={name === ""}>
                make it
              </Button>
            </Group>
          </Stack>
        </form>
      </Modal>
    </>
  );
}

function lagOf(usage: Usage | undefined): number {
  return Math.max(0, ...(usage?.readers ?? []).map(({ lag_records }) => lag_records));
}

const column = createColumnHelper<Row>();
const meta = { isNumber: true };
const STREAMS = [
  column.accessor((row) => row.stream.name, {
    id: "stream",
    header: "stream",
    cell: (cell) => <To page={`/streams/${encodeURIComponent(cell.getValue())}?reverse=true`}>{cell.getValue()}</To>,
  }),
  column.accessor((row) => row.stream.kind, { id: "kind", header: "kind" }),
  column.accessor("arriving", { header: "in/s", meta, cell: (cell) => rate(cell.getValue()) }),
  column.accessor((row) => row.stream.records, { id: "records", header: "records", meta, cell: (cell) => count(cell.getValue()) }),
  column.accessor((row) => row.stream.bytes, { id: "size", header: "size", meta, cell: (cell) => bytes(cell.getValue()) }),
  column.accessor((row) => row.stream.partitions.length, { id: "partitions", header: "partitions", meta }),
  column.accessor((row) => row.stream.retention_ms, {
    id: "kept",
    header: "kept",
    meta,
    cell: (cell) => (cell.getValue() === null ? "for ever" : span(cell.getValue()!)),
  }),
  column.accessor((row) => (row.usage?.writers ?? []).map(({ job }) => job).join(" "), {
    id: "writers",
    header: "written by",
    cell: (cell) =>
      (cell.row.original.usage?.writers ?? []).map(({ job }) => (
        <div key={job}>
          <To page={pageOf(job)}>{job}</To>
        </div>
      )),
  }),
  column.accessor((row) => lagOf(row.usage), {
    id: "readers",
    header: "read by, lag",
    cell: (cell) =>
      (cell.row.original.usage?.readers ?? []).map(({ kind, name, lag_records, error }) => (
        <div key={`${kind} ${name}`}>
          {kind === "job" ? <To page={pageOf(name)}>{name}</To> : `${kind} ${name}`}, {count(lag_records)}
          {error !== null && " · fails"}
        </div>
      )),
  }),
];
