// Records from any place on or back, and as they come: all, or those of a partition, with a key, that meet a condition.
import { Button, Group, SegmentedControl, Select, TextInput } from "@mantine/core";
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { api, good, type RecordPage, type Stream } from "../../api";
import { Answered, Empty, curlOf } from "../../parts";
import { useTail } from "../../tail";
import { inZone, ofZone, useZone } from "../../time";
import { Records } from "./records";

export const PAGE_RECORDS = 100;
/** What of the address is asked of the API, under the same names: a link to records is a link to this page. */
const ASKED = ["partition", "key", "where", "from_offset", "from_timestamp", "reverse", "cursor"];
const CHOOSING = ["partition", "key", "where"];

type Query = Record<string, string>;

function taken(params: URLSearchParams, names: readonly string[]): Query {
  return Object.fromEntries(names.flatMap((name) => (params.get(name) ? [[name, params.get(name)!]] : [])));
}

export function chosenIn(params: URLSearchParams): Query {
  return taken(params, CHOOSING);
}

export function recordsPath(name: string, params: URLSearchParams): string {
  const query = new URLSearchParams({ ...taken(params, ASKED), limit: String(PAGE_RECORDS) });
  return `/v1/streams/${encodeURIComponent(name)}/records?${query}`;
}

async function read(stream: string, query: Query): Promise<RecordPage> {
  const numbers = new Set(["partition", "from_offset", "from_timestamp"]);
  const typed = Object.fromEntries(Object.entries(query).map(([name, value]) => [name, numbers.has(name) ? Number(value) : value]));
  const params = { path: { stream }, query: { ...typed, limit: PAGE_RECORDS } };
  return (await good<RecordPage | string>(api.GET("/v1/streams/{stream}/records", { params }))) as RecordPage; // as asked: JSON
}

interface Placed {
  readonly stream: Stream;
  readonly params: URLSearchParams;
  readonly go: (params: Query) => void;
}

export function Browse({ stream, params, go }: Placed) {
  const query = taken(params, ASKED);
  const page = useQuery({ queryKey: ["streams", stream.name, "records", query], queryFn: () => read(stream.name, query), retry: false });
  const isBack = params.get("reverse") === "true";
  const kept = { ...chosenIn(params), ...(isBack ? { reverse: "true" } : {}) };
  const isSearch = params.has("key") || params.has("where");
  return (
    <>
      <Choosing stream={stream} params={params} go={go} hasPlace />
      <Group>
        <SegmentedControl
          aria-label="In which order"
          value={isBack ? "newest" : "onward"}
          onChange={(order) => {
            const { reverse: _reverse, cursor: _cursor, ...rest } = query;
            go(order === "newest" ? { ...rest, reverse: "true" } : rest);
          }}
          data={[
            { value: "onward", label: "onward" },
            { value: "newest", label: "newest first" },
          ]}
        />
        <Button variant="default" onClick={() => go(kept)}>
          {isBack ? "to the end" : "to the start"}
        </Button>
      </Group>
      <Answered asked={page} what="The records">
        {({ records, next, at_end }) => (
          <>
            {records.length > 0 ? <Records caption="Records" records={records} isOfKey={params.has("key")} /> : <Nothing stream={stream} isSearch={isSearch} isAll={at_end} />}
            <Group>
              <Button variant="default" disabled={at_end} onClick={() => go({ ...kept, cursor: next })}>
                {at_end ? `this is the ${isBack ? "start" : "end"}` : "further"}
              </Button>
              {at_end && !isBack && (
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

function Nothing({ stream, isSearch, isAll }: { stream: Stream; isSearch: boolean; isAll: boolean }) {
  if (!isSearch) return <NoRecord stream={stream} what="No record is here, from this place on." />;
  return <Empty>{isAll ? "No record is like that, from this place on." : "None of those that there was time to look at is like that: look further."}</Empty>;
}

function NoRecord({ stream, what }: { stream: Stream; what: string }) {
  if (stream.kind !== "user") return <Empty>{what} Its job writes them.</Empty>;
  const body = { records: [{ key: "k", value: { n: 1 } }] };
  const curl = curlOf(`/v1/streams/${stream.name}/records`, "POST", body);
  return <Empty curl={curl}>{what} Post a record:</Empty>;
}

/** Which records, and from where. */
function Choosing({ stream, params, go, hasPlace = false }: Placed & { hasPlace?: boolean }) {
  const zone = useZone();
  const since = params.get("from_timestamp");
  const [time, setTime] = useState(since === null ? "" : inZone(Number(since), zone).replace(" ", "T"));
  const [offset, setOffset] = useState(params.get("from_offset") ?? "");
  const [key, setKey] = useState(params.get("key") ?? "");
  const [where, setWhere] = useState(params.get("where") ?? "");
  const partition = params.get("partition") ?? "";
  const chosen = (of: string): Query => ({
    ...(hasPlace ? taken(params, ["reverse"]) : { view: "tail" }),
    ...(of === "" ? {} : { partition: of }),
    ...(key === "" ? {} : { key }),
    ...(where === "" ? {} : { where }),
  });
  const jump = () => {
    const at = ofZone(time, zone);
    const place: Query = !hasPlace ? {} : offset !== "" ? { from_offset: offset } : at === undefined ? {} : { from_timestamp: String(Math.max(0, at)) };
    go({ ...chosen(partition), ...place });
  };
  const changed = (set: (value: string) => void) => (event: { currentTarget: HTMLInputElement }) => set(event.currentTarget.value);
  return (
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
          value={partition === "" ? "all" : partition}
          allowDeselect={false}
          data={["all", ...stream.partitions.map((at) => String(at.partition))]}
          onChange={(of) => go(chosen(of === null || of === "all" ? "" : of))}
        />
        {hasPlace && (
          <>
            <TextInput
              type="datetime-local"
              step="0.001"
              label={zone === "utc" ? "From (UTC)" : "From (local time)"}
              value={time}
              onChange={changed(setTime)}
            />
            <TextInput
              label="From offset"
              w={130}
              inputMode="numeric"
              pattern="[0-9]*"
              disabled={partition === "" && stream.partitions.length > 1}
              placeholder={partition === "" && stream.partitions.length > 1 ? "of a partition" : ""}
              value={offset}
              onChange={changed(setOffset)}
            />
          </>
        )}
        <TextInput label="Key" value={key} onChange={changed(setKey)} />
        <TextInput label="Condition (SQL)" className="stream-where" placeholder="(value->>'n')::bigint > 1" value={where} onChange={changed(setWhere)} />
        <Button type="submit" variant="default">
          {hasPlace ? "jump" : "follow these"}
        </Button>
      </Group>
    </form>
  );
}

export function Tail({ stream, params, go }: Placed) {
  const [isPaused, pause] = useState(false);
  const { records, state, clear } = useTail(stream.name, isPaused, chosenIn(params));
  return (
    <>
      <Choosing stream={stream} params={params} go={go} />
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
        <NoRecord stream={stream} what="Nothing has come since this was opened." />
      ) : (
        <Records caption="Records as they come, latest first" records={records} isOfKey={params.has("key")} />
      )}
    </>
  );
}
