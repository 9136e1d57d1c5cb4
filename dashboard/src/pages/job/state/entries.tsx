// What is in a store: of one key, or key by key from a beginning on; sessions of a key on a line of time.
import { Anchor, Button, Group, Stack, Text, TextInput } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import type { components } from "@millrace/client";
import { useState } from "react";
import { useSearchParams } from "wouter";

import { ApiError } from "@millrace/client";

import { count } from "../../../figures";
import { Answered, Badge, Curl, Empty, Facts, Json, Rows, To } from "../../../parts";
import { addressOf, useLive } from "../../../queries";
import { Time, span } from "../../../time";

type Store = components["schemas"]["StoreView"];
type Entry = components["schemas"]["EntryView"];
type Page = components["schemas"]["LookupPage"];

const MOST = 50;
const OF_KEY = 200;
const PAST_ALL = "\u{10FFFF}"; // sorts behind whatever else a key goes on with

/** Keys by their beginning, or one of them: both are in the address. */
export function Entries({ job, store }: { job: string; store: Store }) {
  const [params, setParams] = useSearchParams();
  const key = params.get("key");
  const prefix = params.get("prefix") ?? "";
  const set = (name: "key" | "prefix", value: string | null) =>
    setParams((before) => {
      before.delete("cursor");
      before.delete("key");
      if (value === null) before.delete(name);
      else before.set(name, value);
      return before;
    });
  return (
    <Stack gap="sm">
      <Group align="flex-end" gap="sm">
        <Field key={`key/${key ?? ""}`} label="Key" given={key ?? ""} submit="look up" act={(value) => set("key", value)} />
        <Field key={`prefix/${prefix}`} label="Keys that begin with" given={prefix} submit="browse" act={(value) => set("prefix", value === "" ? null : value)} />
        {key !== null && (
          <Button size="compact-md" variant="default" onClick={() => set("key", null)}>
            all keys
          </Button>
        )}
      </Group>
      {key === null ? <Browsed store={store} prefix={prefix} /> : <OfKey job={job} store={store} of={key} />}
    </Stack>
  );
}

function Field({ label, given, submit, act }: { label: string; given: string; submit: string; act: (value: string) => void }) {
  const [text, type] = useState(given);
  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        act(text);
      }}
    >
      <Group align="flex-end" gap={4}>
        <TextInput label={label} size="xs" value={text} onChange={(event) => type(event.currentTarget.value)} />
        <Button size="xs" variant="default" type="submit">
          {submit}
        </Button>
      </Group>
    </form>
  );
}

/** A page of a store, whatever its type: the same shape. */
function useEntries(store: Store, query: { key?: string; from_key?: string; to_key?: string; cursor?: string; limit: number }) {
  const path = { store: store.name };
  const kinds = { session: "/v1/stores/{store}/sessions", window: "/v1/stores/{store}/windows", key_value: "/v1/stores/{store}/keys" } as const;
  const resource = kinds[store.type];
  const asked = useLive(resource, { path, query });
  return { asked, address: addressOf(resource, { path, query }) };
}

function Browsed({ store, prefix }: { store: Store; prefix: string }) {
  const [params, setParams] = useSearchParams();
  const cursor = params.get("cursor");
  const range = prefix === "" ? {} : { from_key: prefix, to_key: prefix + PAST_ALL };
  const { asked, address } = useEntries(store, { ...range, ...(cursor === null ? {} : { cursor }), limit: MOST });
  const turn = (next: string | null) =>
    setParams((before) => {
      if (next === null) before.delete("cursor");
      else before.set("cursor", next);
      return before;
    });
  return (
    <Answered asked={asked} what="The entries">
      {({ now }) => (
        <Stack gap="xs">
          <Found page={now} address={address} />
          {now.items.length === 0 ? (
            <Empty>{prefix === "" ? "Nothing is in it (any more)." : `No key begins with ${prefix}.`}</Empty>
          ) : (
            <Rows caption="Entries" columns={columnsOf(true)} rows={now.items} />
          )}
          <Group>
            {cursor !== null && (
              <Button size="compact-sm" variant="default" onClick={() => turn(null)}>
                first page
              </Button>
            )}
            {now.next !== null && (
              <Button size="compact-sm" variant="default" onClick={() => turn(now.next)}>
                next page
              </Button>
            )}
          </Group>
        </Stack>
      )}
    </Answered>
  );
}

function OfKey({ job, store, of }: { job: string; store: Store; of: string }) {
  const { asked, address } = useEntries(store, { key: of, limit: OF_KEY });
  const owner = useLive("/v1/stores/{store}/owner", { path: { store: store.name }, query: { key: of } });
  const has = owner.data?.now;
  const partitioned = owner.error instanceof ApiError ? owner.error.problem.detail : undefined;
  return (
    <Stack gap="xs">
      <Facts
        facts={[
          ["key", <span key="key" className="breakable">{of === "" ? "(empty)" : of}</span>],
          ["its task", has === undefined ? (partitioned ?? "–") : `${has.task}, on ${has.active?.name ?? "nobody"}`],
          ["standbys of it", has === undefined ? "–" : has.standbys.map(({ name }) => name).join(", ") || "none"],
          ["its records", <To key="why" page={`/jobs/${job}/why?key=${encodeURIComponent(of)}`}>why they are in it or not</To>],
        ]}
      />
      <Answered asked={asked} what="The entries of the key">
        {({ now }) => (
          <>
            <Found page={now} address={address} />
            {now.items.length === 0 ? (
              <Empty>Nothing is stored for this key: none came, it was dropped, or it is over.</Empty>
            ) : (
              <>
                {store.type !== "key_value" && <Timeline entries={now.items} what={store.type} />}
                <Rows caption="Entries" columns={columnsOf(false)} rows={now.items} />
                {now.next !== null && <Text size="sm">{`The first ${OF_KEY} of them.`}</Text>}
              </>
            )}
          </>
        )}
      </Answered>
    </Stack>
  );
}

function Found({ page, address }: { page: Page; address: string }) {
  const { as_of: at } = page;
  return (
    <Group justify="space-between">
      <Text size="sm">
        served by {at.served_by}, as of stream time <Time ms={at.stream_time} />
        {at.lag_records === 0 ? ", up to date" : `, ${count(at.lag_records)} records behind`}
      </Text>
      <Curl path={address} />
    </Group>
  );
}

/** Sessions or windows of a key from the first to the last, as long as they are; those that are open are hatched. */
function Timeline({ entries, what }: { entries: Entry[]; what: string }) {
  const spans = entries.flatMap((entry) => (entry.window === null ? [] : [{ ...entry.window, entry }]));
  const first = Math.min(...spans.map(({ start }) => start));
  const last = Math.max(...spans.map(({ end }) => end));
  const whole = Math.max(1, last - first);
  return (
    <figure className="state-line" aria-label={`${what === "session" ? "Sessions" : "Windows"} of the key from first to last`}>
      <svg viewBox="0 0 1000 40" preserveAspectRatio="none" role="img" aria-label={`${spans.length} from first to last`}>
        <line x1="0" x2="1000" y1="32" y2="32" className="state-axis" />
        {spans.map(({ start, end, entry }) => (
          <rect
            key={`${start}/${end}`}
            x={(990 * (start - first)) / whole}
            width={Math.max(6, (990 * (end - start)) / whole)}
            y="8"
            height="20"
            className={entry.is_final ? "state-closed" : "state-open"}
          />
        ))}
      </svg>
      <figcaption>
        <Time ms={first} /> to <Time ms={last} /> ({span(last - first)}); outlined: open, filled: closed
      </figcaption>
    </figure>
  );
}

const meta = { isNumber: true };
const row = createColumnHelper<Entry>();

function columnsOf(hasKeys: boolean) {
  const key = row.accessor("key", { header: "key", cell: (cell) => <Key of={cell.getValue()} /> });
  return [
    ...(hasKeys ? [key] : []),
    row.accessor((entry) => entry.window?.start ?? null, { id: "start", header: "from", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
    row.accessor((entry) => entry.window?.end ?? null, { id: "end", header: "to", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
    row.accessor("timestamp", { header: "last record", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
    row.accessor((entry) => stateOf(entry), {
      id: "state",
      header: "state",
      cell: (cell) => (cell.getValue() === "" ? "–" : <Badge kind={cell.getValue()} />),
    }),
    row.accessor("closes_at", { header: "closes at", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
    row.accessor("value", { header: "value", enableSorting: false, cell: (cell) => <Json value={cell.getValue()} /> }),
  ];
}

function stateOf(entry: Entry): string {
  if (entry.closes_at === null) return "";
  return entry.is_final ? "closed" : "open";
}

function Key({ of }: { of: string | null }) {
  const [, setParams] = useSearchParams();
  if (of === null) return <>(a hash)</>;
  const choose = () =>
    setParams((before) => {
      before.set("key", of);
      before.delete("cursor");
      return before;
    });
  return (
    <Anchor component="button" type="button" className="breakable entry-key" underline="always" onClick={choose}>
      {of === "" ? "(empty)" : of}
    </Anchor>
  );
}
