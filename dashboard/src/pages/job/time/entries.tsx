// What is open, by key: the first of it, where it is asked for.
import { Button, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useState } from "react";

import type { components } from "@millrace/client";

import { Answered, Json, Rows, To } from "../../../parts";
import { useLive } from "../../../queries";
import { Time } from "../../../time";
import type { Operator } from "./waits";

type Entry = components["schemas"]["EntryView"];
const MOST = 20;

export function OpenEntries({ job, operator }: { job: string; operator: Operator }) {
  const [isShown, show] = useState(false);
  if (!isShown) {
    return (
      <Button size="compact-sm" variant="default" className="narrow" onClick={() => show(true)}>
        which ones
      </Button>
    );
  }
  const path = { store: operator.store };
  switch (operator.what) {
    case "session":
      return <Sessions job={job} path={path} />;
    case "window":
      return <Windows job={job} path={path} from={Math.max(0, (operator.open?.open_from ?? 0) - (operator.length_ms ?? 0))} />;
    default:
      return <Keys job={job} path={path} />;
  }
}

function Sessions({ job, path }: { job: string; path: { store: string } }) {
  const asked = useLive("/v1/stores/{store}/sessions", { path, query: { open: true, limit: MOST } });
  return <Answered asked={asked} what="The open sessions">{({ now }) => <Found job={job} store={path.store} items={now.items} isAll={now.next === null} />}</Answered>;
}

function Windows({ job, path, from }: { job: string; path: { store: string }; from: number }) {
  const asked = useLive("/v1/stores/{store}/windows", { path, query: { from, limit: MOST } });
  return (
    <Answered asked={asked} what="The open windows">
      {({ now }) => {
        const open = now.items.filter(({ is_final }) => !is_final);
        return <Found job={job} store={path.store} items={open} isAll={now.next === null} />;
      }}
    </Answered>
  );
}

function Keys({ job, path }: { job: string; path: { store: string } }) {
  const asked = useLive("/v1/stores/{store}/keys", { path, query: { limit: MOST } });
  return <Answered asked={asked} what="What is held back">{({ now }) => <Found job={job} store={path.store} items={now.items} isAll={now.next === null} />}</Answered>;
}

function Found({ job, store, items, isAll }: { job: string; store: string; items: Entry[]; isAll: boolean }) {
  return (
    <Stack gap={4}>
      <Rows caption="What is open" columns={columnsOf(job, store)} rows={items} />
      {!isAll && <Text size="sm">These are the first, of all tasks; the others by key under State.</Text>}
    </Stack>
  );
}

const entry = createColumnHelper<Entry>();

function columnsOf(job: string, store: string) {
  return [
    entry.accessor("key", {
      header: "key",
      cell: (cell) => {
        const key = cell.getValue();
        return key === null ? "–" : <To page={`/jobs/${job}/state?store=${store}&key=${encodeURIComponent(key)}`}>{key === "" ? "(empty)" : key}</To>;
      },
    }),
    entry.accessor((at) => at.window?.start ?? null, { id: "start", header: "from", meta: { isNumber: true }, cell: (cell) => <Time ms={cell.getValue()} /> }),
    entry.accessor((at) => at.window?.end ?? null, { id: "end", header: "to", meta: { isNumber: true }, cell: (cell) => <Time ms={cell.getValue()} /> }),
    entry.accessor("closes_at", { header: "closes at", meta: { isNumber: true }, cell: (cell) => <Time ms={cell.getValue()} /> }),
    entry.accessor("value", { header: "value", enableSorting: false, cell: (cell) => <Json value={cell.getValue()} /> }),
  ];
}
