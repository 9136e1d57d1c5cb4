// An explanation, drawn: the verdict, the records it is about, the way through the operators, and the windows.
import { Alert, Code, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import type { ReactNode } from "react";

import type { Job } from "../../../api";
import { count } from "../../../figures";
import { Answered, Badge, Empty, Facts, Json, Rows, Section, To } from "../../../parts";
import { useRecord } from "../../../queries";
import { Time, inZone, useZone } from "../../../time";
import { pageOf } from "../frame";
import {
  besides,
  exactly,
  inWords,
  kindOf,
  operatorsOf,
  recordName,
  specOf,
  why,
  windowInWords,
  type At,
  type Explanation,
  type ExplainedWindow,
  type Fate,
  type Operator,
  type Topology,
} from "./words";

interface Shown {
  readonly job: Job;
  readonly stream: string;
  readonly topology: Topology | undefined;
  readonly said: Explanation;
}

const COLOURS = { in: "green", out: "red", unknown: "gray" } as const;

export function ExplanationShown({ job, stream, topology, said }: Shown) {
  const zone = useZone();
  const place = said.record;
  const partition = place?.partition ?? null;
  const whole: At = (ms) => inZone(ms, zone);
  const at = place === null ? whole : besides(whole, place.timestamp);
  const { title, sentences } = inWords(said, topology, at, stream);
  return (
    <>
      <div role="status" aria-label="Verdict">
        <Alert color={COLOURS[said.verdict]} variant="outline" title={title} role="group">
          <Stack gap={4}>
            {sentences.map((each) => (
              <Text key={each} className="breakable">
                {each}
              </Text>
            ))}
          </Stack>
        </Alert>
      </div>
      <Facts facts={factsOf(said)} />
      {place !== null && (
        <div className="why-records">
          <OneRecord title="The record" stream={stream} partition={place.partition} offset={place.offset} />
          {said.cause?.offset != null && (
            <OneRecord
              title="Because of"
              stream={said.cause.stream ?? stream}
              partition={said.cause.partition ?? place.partition}
              offset={said.cause.offset}
            />
          )}
        </div>
      )}
      {place !== null && said.path.length > 0 && (
        <Section title="Its way">
          <Way operators={operatorsOf(topology, stream)} topology={topology} said={said} stream={stream} />
        </Section>
      )}
      {said.outputs.length > 0 && (
        <Section title="What came out because of it">
          {said.cut.includes("outputs") && <Text size="sm">The first {count(said.outputs.length)}; there are more.</Text>}
          <Rows caption="What came out because of it" columns={OUTPUTS} rows={said.outputs} />
        </Section>
      )}
      {said.windows.length > 0 && (
        <Section title="Its windows" beside={<To page={pageOf(job.name, "time")}>what is open, and what closes next</To>}>
          <Stack>
            {said.cut.includes("windows") && <Text size="sm">The last {count(said.windows.length)}; there are more.</Text>}
            {said.windows.map((each) => (
              <Window key={`${each.operator} ${each.start} ${each.end}`} window={each} job={job} stream={stream} partition={partition} at={at} />
            ))}
          </Stack>
        </Section>
      )}
      {said.matched > 1 && partition !== null && (
        <Section title={`All ${count(said.matched)} records that were asked for${said.known_from ? `, from record ${count(said.known_from)} on` : ""}`}>
          {said.cut.includes("records") && <Text size="sm">The last {count(said.records.length)} of them, in their order.</Text>}
          <Rows
            caption="Records that were asked for"
            columns={FATES}
            rows={said.records.map((fate) => ({
              ...fate,
              place: `${pageOf(job.name, "why")}?${new URLSearchParams({ stream, partition: String(partition), offset: String(fate.offset) })}`,
              why: fate.verdict === "out" ? why(fate, specOf(topology, fate.operator), at, stream) : (fate.reason ?? ""),
            }))}
          />
        </Section>
      )}
    </>
  );
}

function factsOf(said: Explanation): [string, ReactNode][] {
  const facts: [string, ReactNode][] = [["verdict", <Badge key="verdict" kind={said.verdict} />]];
  if (said.operator !== null) facts.push(["operator", said.operator]);
  if (said.reason !== null) facts.push(["reason", <Code key="reason">{said.reason}</Code>]);
  if (said.by_ms !== null) facts.push(["by, ms", count(said.by_ms)]);
  if (said.record !== null) facts.push(["its time", <Time key="time" ms={said.record.timestamp} />]);
  if (said.cause !== null) facts.push([said.cause.offset === null ? "stream time went to" : "time of the other", <Time key="cause" ms={said.cause.timestamp} />]);
  if (said.known_from !== null) facts.push(["known from record", count(said.known_from)]);
  return facts;
}

function OneRecord({ title, stream, partition, offset }: { title: string; stream: string; partition: number; offset: number }) {
  const record = useRecord(stream, partition, offset);
  const page = `/streams/${encodeURIComponent(stream)}?partition=${partition}&from_offset=${offset}`;
  return (
    <Section title={title} beside={<To page={page}>{`${stream}/${partition}, offset ${offset}`}</To>}>
      <Answered asked={record} what="The record">
        {(found) => (found === null ? <Text>It is not there any more.</Text> : <Json value={found} />)}
      </Answered>
    </Section>
  );
}

/** The operators in their order, each with what it did with the record. */
function Way({ operators, topology, said, stream }: { operators: readonly Operator[]; topology: Topology | undefined; said: Explanation; stream: string }) {
  const outcomes = new Map(said.path.map((each) => [each.operator, each]));
  const names = new Set(operators.map(({ name }) => name));
  const further = said.path.filter(({ operator }) => !names.has(operator));
  const streams = [...new Set(said.outputs.map((each) => each.stream))];
  return (
    <ol className="why-way" aria-label="Its way">
      <li>
        <To page={`/streams/${encodeURIComponent(stream)}`}>{stream}</To>
      </li>
      {operators.map(({ name, op, parent }, place) => (
        <Station
          key={name}
          name={name}
          op={op}
          behind={(parent ?? -1) === place - 1 ? undefined : parent == null ? stream : operators[parent]?.name}
          outcome={outcomes.get(name)}
        />
      ))}
      {further.map((each) => (
        <Station key={each.operator} name={each.operator} op={kindOf(topology, each.operator)} outcome={each} />
      ))}
      {streams.map((each) => (
        <li key={each}>
          <To page={`/streams/${encodeURIComponent(each)}?from_timestamp=${Math.min(...said.outputs.filter(({ stream }) => stream === each).map(({ timestamp }) => timestamp))}`}>
            {each}
          </To>{" "}
          <Badge kind="came out" />
        </li>
      ))}
    </ol>
  );
}

function Station({ name, op, behind, outcome }: { name: string; op: string; behind?: string | undefined; outcome: Explanation["path"][number] | undefined }) {
  const reason = outcome?.reason;
  return (
    <li>
      <span className="breakable">{name}</span>{" "}
      <Text span size="sm" c="dimmed">
        {op}
        {behind !== undefined && `, behind ${behind}`}
      </Text>{" "}
      <Badge kind={outcome?.outcome ?? "not reached"} />
      {reason != null && <Code>{reason}</Code>}
    </li>
  );
}

interface WindowProps {
  readonly window: ExplainedWindow;
  readonly job: Job;
  readonly stream: string;
  readonly partition: number | null;
  readonly at: At;
}

function Window({ window, job, stream, partition, at }: WindowProps) {
  const closer = window.closed?.offset ?? null;
  const name = `${window.operator}, ${at(window.start)} – ${at(window.end)}`;
  return (
    <article className="why-window" aria-label={name}>
      <Text fw={600}>
        {window.operator}, <Time ms={window.start} /> – <Time ms={window.end} /> <Badge kind={window.closed === null ? "open" : "closed"} />
      </Text>
      <Text>
        {windowInWords(window, job.spec.idle_close_after_ms ?? undefined, at, stream)}{" "}
        {closer !== null && (
          <To page={`/streams/${encodeURIComponent(window.closed?.stream ?? stream)}?partition=${window.closed?.partition ?? partition}&from_offset=${closer}`}>
            see it
          </To>
        )}
      </Text>
      {window.finals.map((final, place) => (
        <div key={place}>
          <Text>
            Final at “{final.operator}”{final.offset === null ? ` (${final.reason})` : `, by ${recordName(final, stream)}`}:
          </Text>
          <Json value={final.value} />
        </div>
      ))}
      {window.updated === 0 ? (
        <Empty>No record is in it.</Empty>
      ) : (
        <details>
          <summary>
            {window.updated === 1 ? "1 record is" : `${count(window.updated)} records are`} in it
            {window.updated > window.updates.length && `, the last ${count(window.updates.length)}`}
          </summary>
          <Rows caption={`Records in ${name}`} columns={UPDATES} rows={window.updates} />
        </details>
      )}
    </article>
  );
}

const meta = { isNumber: true };
const output = createColumnHelper<Explanation["outputs"][number]>();
const OUTPUTS = [
  output.accessor("stream", {
    header: "stream",
    cell: ({ row: { original } }) => (
      <To page={`/streams/${encodeURIComponent(original.stream)}?from_timestamp=${original.timestamp}`}>{original.stream}</To>
    ),
  }),
  output.accessor("timestamp", { header: "time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  output.accessor("key", { header: "key", cell: (cell) => (cell.getValue() === null ? "–" : <Code className="breakable">{cell.getValue()}</Code>) }),
  output.accessor((row) => row.window?.start ?? 0, {
    id: "window",
    header: "window",
    cell: ({ row: { original } }) =>
      original.window === null ? (
        "–"
      ) : (
        <>
          <Time ms={original.window.start} /> – <Time ms={original.window.end} />
        </>
      ),
  }),
  output.accessor("value", { header: "value", enableSorting: false, cell: (cell) => <Json value={cell.getValue()} /> }),
];

const fate = createColumnHelper<Fate & { place: string; why: string }>();
const FATES = [
  fate.accessor("offset", { header: "offset", meta, cell: ({ row: { original } }) => <To page={original.place}>{count(original.offset)}</To> }),
  fate.accessor("timestamp", { header: "time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
  fate.accessor("verdict", { header: "verdict", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  fate.accessor("operator", { header: "operator", cell: (cell) => cell.getValue() ?? "–" }),
  fate.accessor("by_ms", {
    header: "by",
    meta,
    cell: (cell) => (cell.getValue() === null ? "–" : exactly(cell.getValue() ?? 0)),
  }),
  fate.accessor("why", { header: "why", cell: (cell) => <div className="why-reason">{cell.getValue()}</div> }),
];

const update = createColumnHelper<ExplainedWindow["updates"][number]>();
const UPDATES = [
  update.accessor("stream", { header: "stream", cell: (cell) => cell.getValue() ?? "–" }),
  update.accessor("partition", { header: "partition", meta, cell: (cell) => cell.getValue() ?? "–" }),
  update.accessor("offset", {
    header: "offset",
    meta,
    cell: ({ row: { original } }) =>
      original.stream === null || original.offset === null ? (
        "–"
      ) : (
        <To page={`/streams/${encodeURIComponent(original.stream)}?partition=${original.partition}&from_offset=${original.offset}`}>
          {count(original.offset)}
        </To>
      ),
  }),
  update.accessor("timestamp", { header: "time", meta, cell: (cell) => <Time ms={cell.getValue()} /> }),
];
