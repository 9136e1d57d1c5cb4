// One stream: its records from any place on, and as they come.
import { Button, Code, Group, SegmentedControl, Select, TextInput } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";
import { useSearchParams } from "wouter";

import { readRecords, type Place, type Stream, type StreamRecord } from "../api";
import { bytes, count } from "../figures";
import { Answered, Curl, Empty, Facts, Json, Page, Rows, curlOf } from "../parts";
import { useStream } from "../queries";
import { followed, useTail } from "../tail";
import { Time, inZone, ofZone, span, useZone } from "../time";

const PAGE_RECORDS = 100;

export default function StreamPage({ stream: name }: { stream: string }) {
  const stream = useStream(name);
  const [params, setParams] = useSearchParams();
  const isTail = params.get("view") === "tail";
  return (
    <Page title={name} beside={<Curl path={isTail ? followed(name) : recordsPath(name, params)} />}>
      <Answered asked={stream} what="The stream">
        {(found) => (
          <>
            <Facts
              facts={[
                ["kind", found.kind],
                ["records", count(found.records)],
                ["size", bytes(found.bytes)],
                ["partitions", count(found.partitions.length)],
                ["kept", found.retention_ms === null ? "for ever" : span(found.retention_ms)],
              ]}
            />
            <SegmentedControl
              aria-label="How it is read"
              className="narrow"
              value={isTail ? "tail" : "browse"}
              onChange={(view) => setParams(view === "tail" ? { view } : {})}
              data={[
                { value: "browse", label: "browse" },
                { value: "tail", label: "as they come" },
              ]}
            />
            {isTail ? <Tail stream={found} /> : <Browse stream={found} params={params} go={setParams} />}
          </>
        )}
      </Answered>
    </Page>
  );
}

/** What of the address is asked of the API, under the same names: a link to records is a link to this page. */
const ASKED = ["partition", "from_offset", "from_timestamp", "cursor"];

function queryOf(params: URLSearchParams): Record<string, string> {
  return Object.fromEntries(ASKED.flatMap((name) => (params.has(name) ? [[name, params.get(name)!]] : [])));
}

function placeOf(query: Record<string, string>): Place {
  return Object.fromEntries(
    Object.entries(query).map(([name, value]) => [name, name === "cursor" ? value : Number(value)]),
  );
}

function recordsPath(name: string, params: URLSearchParams): string {
  const query = new URLSearchParams({ ...queryOf(params), limit: String(PAGE_RECORDS) });
  return `/v1/streams/${encodeURIComponent(name)}/records?${query}`;
}

interface BrowseProps {
  readonly stream: Stream;
  readonly params: URLSearchParams;
  readonly go: (params: Record<string, string>) => void;
}

function Browse({ stream, params, go }: BrowseProps) {
  const zone = useZone();
  const query = queryOf(params);
  const partition = params.get("partition");
  const since = params.get("from_timestamp");
  const [time, setTime] = useState(since === null ? "" : inZone(Number(since), zone).replace(" ", "T"));
  const page = useQuery({
    queryKey: ["streams", stream.name, "records", query],
    queryFn: () => readRecords(stream.name, placeOf(query), PAGE_RECORDS),
  });
  const within: Record<string, string> = partition === null ? {} : { partition };
  const jump = () => {
    const at = ofZone(time, zone);
    go(at === undefined ? within : { ...within, from_timestamp: String(Math.max(0, at)) });
  };
  return (
    <>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          jump();
        }}
      >
        <Group align="end">
          <Select
            label="Partition"
            w={110}
            value={partition ?? "all"}
            allowDeselect={false}
            data={["all", ...stream.partitions.map((at) => String(at.partition))]}
            onChange={(chosen) => go(chosen === null || chosen === "all" ? {} : { partition: chosen })}
          />
          <TextInput
            type="datetime-local"
            step="0.001"
            label={zone === "utc" ? "From (UTC)" : "From (local time)"}
            value={time}
            onChange={(event) => setTime(event.currentTarget.value)}
          />
          <Button type="submit" variant="default">
            jump
          </Button>
          <Button variant="default" onClick={() => go(within)}>
            to the start
          </Button>
        </Group>
      </form>
      <Answered asked={page} what="The records">
        {({ records, next, at_end }) => (
          <>
            {records.length === 0 ? (
              <NoRecord stream={stream} />
            ) : (
              <Rows caption="Records" columns={RECORDS} rows={records} />
            )}
            <Group>
              <Button variant="default" disabled={at_end} onClick={() => go({ ...within, cursor: next })}>
                {at_end ? "this is the end" : "further"}
              </Button>
              {at_end && (
                <Button variant="default" onClick={() => page.refetch()}>
                  look again
                </Button>
              )}
            </Group>
          </>
        )}
      </Answered>
    </>
  );
}

function NoRecord({ stream }: { stream: Stream }) {
  if (stream.kind !== "user") return <Empty>No record is here, from this place on. Its job writes them.</Empty>;
  const body = { records: [{ key: "k", value: { n: 1 } }] };
  const curl = curlOf(`/v1/streams/${stream.name}/records`, "POST", body);
  return <Empty curl={curl}>No record is here, from this place on. Post one:</Empty>;
}

function Tail({ stream }: { stream: Stream }) {
  const [isPaused, pause] = useState(false);
  const { records, state, clear } = useTail(stream.name, isPaused);
  return (
    <>
      <Group>
        <Button variant="default" onClick={() => pause(!isPaused)}>
          {isPaused ? "go on" : "pause"}
        </Button>
        <Button variant="default" onClick={clear}>
          clear
        </Button>
        <span role="status">{state}</span>
      </Group>
      {records.length === 0 ? (
        <>
          <Empty>Nothing has come since this was opened.</Empty>
          {stream.kind === "user" && <NoRecord stream={stream} />}
        </>
      ) : (
        <Rows caption="Records as they come, latest first" columns={RECORDS} rows={records} />
      )}
    </>
  );
}

const column = createColumnHelper<StreamRecord>();
const meta = { isNumber: true };
const RECORDS = [
  column.accessor("partition", { header: "partition", meta, enableSorting: false }),
  column.accessor("offset", { header: "offset", meta, enableSorting: false, cell: (cell) => count(cell.getValue()) }),
  column.accessor("timestamp", { header: "time", meta, enableSorting: false, cell: (cell) => <Time ms={cell.getValue()} /> }),
  column.accessor("key", {
    header: "key",
    enableSorting: false,
    cell: (cell) => (cell.getValue() === null ? "–" : <Code className="breakable">{cell.getValue()}</Code>),
  }),
  column.accessor("window", {
    header: "window",
    enableSorting: false,
    cell: (cell) => {
      const window = cell.getValue();
      return window === null ? (
        "–"
      ) : (
        <>
          <Time ms={window.start} /> – <Time ms={window.end} />
        </>
      );
    },
  }),
  column.accessor("value", {
    header: "value",
    enableSorting: false,
    cell: (cell) => <Json value={cell.getValue()} />,
  }),
];
