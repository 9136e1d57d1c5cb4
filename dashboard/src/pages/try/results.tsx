// What came out of a trial, beside what the running version gives for the same records.
import { Alert, Checkbox, Group, SegmentedControl, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useMemo, useState, type ReactNode } from "react";

import { count } from "../../figures";
import { Badge, Empty, Facts, Json, Rows, Section } from "../../parts";
import { Time } from "../../time";
import type { Trial } from "./bench";
import { compare, countDropped, lastOfEach, type Dropped, type Output, type Pair, type Simulation } from "./compare";

const MOST_ROWS = 300;

export function Results({ trial, isOld, isCompared }: { trial: Trial; isOld: boolean; isCompared: boolean }) {
  const [shown, show] = useState("all");
  const [isLast, setLast] = useState(false);
  const pairs = useMemo(() => {
    const chosen = (simulation: Simulation | undefined) => (simulation === undefined ? [] : isLast ? lastOfEach(simulation.outputs) : simulation.outputs);
    return compare(chosen(trial.yours), chosen(trial.running));
  }, [trial, isLast]); // not with each letter that is written above
  const different = pairs.filter(({ verdict }) => verdict !== "same");
  const rows = isCompared && shown === "differences" ? different : pairs;
  return (
    <Section title="What comes out">
      <div aria-live="polite">
        {isOld && (
          <Alert color="yellow" variant="outline" title="The specification has changed since">
            Run it again to see what it gives now.
          </Alert>
        )}
        <FedFacts trial={trial} pairs={pairs} isCompared={isCompared} />
      </div>
      <Group my="xs">
        {isCompared && (
          <SegmentedControl
            aria-label="Which results are shown"
            value={shown}
            onChange={show}
            data={[
              { value: "all", label: "all" },
              { value: "differences", label: `differences (${count(different.length)})` },
            ]}
          />
        )}
        <Checkbox label="the last of each key and window alone" checked={isLast} onChange={(event) => setLast(event.currentTarget.checked)} />
      </Group>
      {rows.length === 0 ? (
        <Empty>{pairs.length === 0 ? "Nothing comes out of these records. What is held back comes when its window closes: have it close what is open." : "Both give the same."}</Empty>
      ) : (
        <div className="try-rows">
          <Rows caption="Results" columns={isCompared ? COMPARED : ALONE} rows={rows.slice(0, MOST_ROWS)} />
        </div>
      )}
      {rows.length > MOST_ROWS && <Text size="sm">The first {count(MOST_ROWS)} of {count(rows.length)} are shown.</Text>}
      <DroppedRecords yours={trial.yours.dropped} running={trial.running?.dropped} />
    </Section>
  );
}

function FedFacts({ trial, pairs, isCompared }: { trial: Trial; pairs: readonly Pair[]; isCompared: boolean }) {
  const { fed, yours, running } = trial;
  const times = fed.records.map(({ timestamp }) => timestamp);
  const both = (of: (simulation: Simulation) => number): ReactNode =>
    running === undefined ? count(of(yours)) : `${count(of(yours))}, running ${count(of(running))}`;
  const verdicts = (verdict: Pair["verdict"]) => count(pairs.filter((pair) => pair.verdict === verdict).length);
  const facts: [string, ReactNode][] = [
    ["records", count(fed.records.length)],
    ["of", times.length === 0 ? "–" : <span key="of"><Time ms={least(times)} /> – <Time ms={most(times)} /></span>],
    ["results", both(({ outputs }) => outputs.length)],
    ["keys and windows", both(({ outputs }) => lastOfEach(outputs).length)],
    ["dropped", both(({ dropped }) => dropped.length)],
    ["in stores", both(({ stores }) => Object.values(stores).reduce((all, entries) => all + entries.length, 0))],
  ];
  if (isCompared) facts.push(["same", verdicts("same")], ["changed", verdicts("changed")], ["only yours", verdicts("only yours")], ["only running", verdicts("only running")]);
  return (
    <>
      <Facts facts={facts} />
      {fed.leftOut > 0 && <Text size="sm">The oldest {count(fed.leftOut)} were left out: with the role reader a request has 256 KiB.</Text>}
      {fed.hasWindows && <Text size="sm">The windows of these records are not known to a simulation: it sees them as plain records.</Text>}
    </>
  );
}

function least(times: readonly number[]): number {
  return times.reduce((one, other) => Math.min(one, other));
}

function most(times: readonly number[]): number {
  return times.reduce((one, other) => Math.max(one, other));
}

function DroppedRecords({ yours, running }: { yours: readonly Dropped[]; running: readonly Dropped[] | undefined }) {
  const counts = countDropped(yours, running ?? []);
  if (counts.length === 0) return <Text mt="xs">Nothing is dropped.</Text>;
  return (
    <>
      <Rows caption="Dropped by operator and reason" columns={running === undefined ? COUNTS.slice(0, 3) : COUNTS} rows={counts} />
      {yours.length > 0 && (
        <div className="try-rows">
          <Rows caption="Dropped records" columns={DROPPED} rows={yours.slice(0, MOST_ROWS)} />
        </div>
      )}
    </>
  );
}

const meta = { isNumber: true };
const pair = createColumnHelper<Pair>();
const of = (row: Pair): Output => (row.yours ?? row.running)!;
const PLACE = [
  pair.accessor((row) => of(row).timestamp, { id: "time", header: "time", cell: (cell) => <Time ms={cell.getValue()} /> }),
  pair.accessor((row) => of(row).key, { id: "key", header: "key", cell: (cell) => cell.getValue() ?? "–" }),
  pair.accessor((row) => of(row).window?.start, {
    id: "window",
    header: "window",
    cell: (cell) => {
      const { window } = of(cell.row.original);
      return window === null ? "–" : <><Time ms={window.start} /> – <Time ms={window.end} /></>;
    },
  }),
  pair.accessor((row) => of(row).stream, { id: "sink", header: "sink" }),
];
const YOURS = (header: string) =>
  pair.accessor((row) => row.yours?.value, {
    id: "yours",
    header,
    enableSorting: false,
    cell: (cell) => (cell.row.original.yours === undefined ? "–" : <Json value={cell.getValue()} />),
  });
const ALONE = [...PLACE, YOURS("value")];
const COMPARED = [
  pair.accessor("verdict", { header: "compared", cell: (cell) => (cell.getValue() === "same" ? "same" : <Badge kind={cell.getValue()} />) }),
  ...PLACE,
  YOURS("yours"),
  pair.accessor((row) => row.running?.value, {
    id: "running",
    header: "running version",
    enableSorting: false,
    cell: (cell) => (cell.row.original.running === undefined ? "–" : <Json value={cell.getValue()} />),
  }),
];
const counted = createColumnHelper<ReturnType<typeof countDropped>[number]>();
const COUNTS = [
  counted.accessor("operator", { header: "operator" }),
  counted.accessor("reason", { header: "dropped as" }),
  counted.accessor("yours", { header: "yours", meta, cell: (cell) => count(cell.getValue()) }),
  counted.accessor("running", { header: "running version", meta, cell: (cell) => count(cell.getValue()) }),
];
const drop = createColumnHelper<Dropped>();
const DROPPED = [
  drop.accessor("timestamp", { header: "time", cell: (cell) => <Time ms={cell.getValue()} /> }),
  drop.accessor("key", { header: "key", cell: (cell) => cell.getValue() ?? "–" }),
  drop.accessor("operator", { header: "operator" }),
  drop.accessor("reason", { header: "dropped as" }),
  drop.accessor("error", { header: "error", cell: (cell) => cell.getValue() ?? "" }),
];
