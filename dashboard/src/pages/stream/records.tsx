// Records as a table, and which keys are most of them.
import { Code, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";

import type { StreamRecord } from "../../api";
import { count } from "../../figures";
import { Json, Rows } from "../../parts";
import { Time } from "../../time";

export function Records({ caption, records, isOfKey = false }: { caption: string; records: StreamRecord[]; isOfKey?: boolean }) {
  return (
    <>
      {!isOfKey && <Frequent records={records} />}
      <Rows caption={caption} columns={RECORDS} rows={records} />
    </>
  );
}

/** Says who most records are of, where that is few: a partition's work may be one key's. */
function Frequent({ records }: { records: readonly StreamRecord[] }) {
  const counts = new Map<string, number>();
  for (const { key } of records) if (key !== null) counts.set(key, (counts.get(key) ?? 0) + 1);
  const most = [...counts].sort((one, other) => other[1] - one[1]).filter(([, times]) => times > 1).slice(0, 3);
  if (most.length === 0) return null;
  return (
    <Text size="sm" className="breakable">
      Most frequent keys of those shown:{" "}
      {most.map(([key, times], place) => (
        <span key={key}>
          {place > 0 && ", "}
          <Code>{key}</Code> {Math.round((100 * times) / records.length)} %
        </span>
      ))}
    </Text>
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
