// What a job did not let through: why, by how much, whether more grace would have kept it, the records, and replaying them.
import { NativeSelect, Stack, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useSearchParams } from "wouter";

import type { Job, JobMetrics, Transition } from "../../api";
import { CHART_MS, Chart, SpanSwitch, useSpan } from "../../chart";
import { count, rate, sum } from "../../figures";
import { Answered, Badge, Curl, Empty, Rows, Section, To } from "../../parts";
import { addressOf, useJob, useJobMetrics, useLive, type Seen } from "../../queries";
import { useRates } from "../../rates";
import { Time } from "../../time";
import { hindsight, inWords, hedgeOf, meaningOf, stepsOf, windowOf, within, worstFirst, worthTrying, type Dropped, type Missed, type Step } from "./dropped/missed";
import { Kept } from "./dropped/kept";
import { JobFrame, pageOf } from "./frame";

const HISTORY_MS = 10_000;

export default function DroppedPage({ job: name }: { job: string }) {
  const job = useJob(name);
  const asked = { path: { job: name }, query: { limit: 1000 } };
  const dropped = useLive("/v1/jobs/{job}/dropped", asked);
  const metrics = useJobMetrics(name);
  return (
    <JobFrame job={name} tab="dropped" beside={<Curl path={`/v1/jobs/${name}/dropped`} />}>
      <Answered asked={job} what="The job">
        {({ now }) => (
          <Answered asked={dropped} what="What was dropped">
            {(found) => <Drops job={now} seen={found} stream={found.now.stream} metrics={metrics.data?.now} />}
          </Answered>
        )}
      </Answered>
      <Errors job={name} />
      <Replays job={name} />
    </JobFrame>
  );
}

interface Row extends Dropped {
  readonly perSecond: number | undefined;
  readonly given: number | undefined;
}

function Drops({ job, seen, stream, metrics }: { job: Job; seen: Seen<{ items: Dropped[] }>; stream: string | null; metrics: JobMetrics | undefined }) {
  const [params] = useSearchParams();
  const rates = useRates(seen, (now) => new Map(now.items.map((each) => [`${each.operator}/${each.reason}`, each.records])));
  const items = worstFirst(seen.now.items);
  if (items.length === 0)
    return (
      <Section title="Dropped">
        <Empty>Nothing was dropped since the job was made or reset: every record that it read went on, or is in a store.</Empty>
      </Section>
    );
  const [operator, reason] = [params.get("operator"), params.get("reason")];
  const chosen = items.find((each) => (operator === null || each.operator === operator) && (reason === null || each.reason === reason));
  const rows = items.map((each): Row => ({
    ...each,
    perSecond: rates.get(`${each.operator}/${each.reason}`),
    given: metrics?.flow[each.operator]?.records_in,
  }));
  return (
    <>
      <Section title="By operator and reason">
        <Text mb="xs">
          {count(sum(items.map(({ records }) => records)))} records were dropped since{" "}
          {metrics === undefined ? "the job was made" : <Time ms={Date.parse(metrics.since)} />}.
        </Text>
        <Rows caption="Dropped by operator and reason" columns={columnsOf(job.name)} rows={rows} />
      </Section>
      <WhenDropped job={job.name} operator={operator} reason={reason} />
      {chosen === undefined ? (
        <Empty>
          {operator} dropped nothing{reason === null ? "" : ` as ${reason}`}.
        </Empty>
      ) : (
        <Section title={`${chosen.operator}: ${chosen.reason}`}>
          <Stack gap="xs">
            <Text>{meaningOf(chosen.reason)}</Text>
            {chosen.missed == null ? null : <HowFar job={job} dropped={chosen} missed={chosen.missed} />}
          </Stack>
        </Section>
      )}
      <Kept job={job} stream={stream} chosen={{ operator, reason }} />
    </>
  );
}

const MOST_LINES = 4;

/** Since when, and how many a second. */
function WhenDropped({ job, operator, reason }: { job: string; operator: string | null; reason: string | null }) {
  const asked = { path: { job }, query: useSpan() };
  const series = useLive("/v1/jobs/{job}/series", asked, CHART_MS);
  return (
    <Section
      title="When"
      beside={
        <>
          <SpanSwitch />
          <Curl path={addressOf("/v1/jobs/{job}/series", asked)} />
        </>
      }
    >
      <Answered asked={series} what="The drops over time">
        {({ now }) => {
          const found = now.dropped_by
            .filter((each) => (operator === null || each.operator === operator) && (reason === null || each.reason === reason))
            .sort((a, b) => b.total - a.total);
          const places = now.at_ms.map((_, place) => place).filter((place) => found.some(({ records }) => (records[place] ?? 0) > 0));
          const [first, last] = [places[0], places.at(-1)];
          return (
            <>
              <Text mb="xs">
                {first === undefined || last === undefined ? (
                  "None of these in this time."
                ) : (
                  <>
                    {count(sum(found.map(({ total }) => total)))} in this time, first at <Time ms={now.at_ms[first]!} />, last at{" "}
                    <Time ms={now.at_ms[last]!} />.
                  </>
                )}
              </Text>
              {found.length > 0 && (
                <Chart
                  title="Dropped, records a second"
                  at={now.at_ms}
                  lines={found.slice(0, MOST_LINES).map(({ operator: by, reason: why, records }) => ({ name: `${by}: ${why}`, values: records }))}
                  shown={rate}
                />
              )}
            </>
          );
        }}
      </Answered>
    </Section>
  );
}

/** By how much they missed, and what more grace (or a shorter interval) would have made of it. */
function HowFar({ job, dropped, missed }: { job: Job; dropped: Dropped; missed: Missed }) {
  const [params, setParams] = useSearchParams();
  const { operator, reason } = dropped;
  const window = windowOf(job, operator);
  const steps = stepsOf(missed);
  const bounds = steps.flatMap(({ below }) => below ?? []);
  const asked = Number(params.get("more") ?? NaN);
  const more = bounds.includes(asked) ? asked : worthTrying(missed);
  const choose = (chosen: string) =>
    setParams((now) => {
      now.set("more", chosen);
      return now;
    });
  const hedge = hedgeOf(window);
  return (
    <>
      {more !== undefined && (
        <Text role="status" fw={600}>
          {hindsight(reason, missed, more, hedge)}
        </Text>
      )}
      <Text>
        {reason === "late" && window !== undefined && `Grace is ${inWords(window.grace_ms)} now. `}
        {`By ${inWords(Math.round(missed.average_ms))} on average, by ${inWords(missed.max_ms)} at most.`}
        {reason === "late" && hedge === "" && ` ${inWords(missed.max_ms + 1)} more would have kept them all.`}{" "}
        {reason === "late" && <To page={pageOf(job.name, "try")}>Try it with the last records.</To>}
      </Text>
      {more !== undefined && reason !== "closed_idle" && (
        <NativeSelect
          w={180}
          label={reason === "late" ? "More grace" : "A shorter interval, by"}
          value={String(more)}
          onChange={(event) => choose(event.currentTarget.value)}
          data={bounds.map((ms) => ({ value: String(ms), label: inWords(ms) }))}
        />
      )}
      <Rows caption="How far they missed" columns={stepColumns(reason, missed, hedge)} rows={steps} />
    </>
  );
}

function Errors({ job }: { job: string }) {
  const asked = { path: { job }, query: { limit: 20 } };
  const errors = useLive("/v1/jobs/{job}/errors", asked, HISTORY_MS);
  return (
    <Section title="Errors" beside={<Curl path={`/v1/jobs/${job}/errors?limit=20`} />}>
      <Answered asked={errors} what="The errors">
        {({ now }) => (now.items.length === 0 ? <Text>It never failed.</Text> : <Rows caption="Errors" columns={ERRORS} rows={now.items} />)}
      </Answered>
    </Section>
  );
}

const LAST_CHANGES = 200;

function Replays({ job }: { job: string }) {
  const asked = { path: { job }, query: { limit: LAST_CHANGES } };
  const history = useLive("/v1/jobs/{job}/history", asked, HISTORY_MS);
  return (
    <Section title="Replays and skips" beside={<Curl path={`/v1/jobs/${job}/history?limit=${LAST_CHANGES}`} />}>
      <Answered asked={history} what="The history">
        {({ now }) => {
          const found = now.items.filter(({ kind }) => kind === "replay" || kind === "skip");
          return found.length === 0 ? <Text>There was none.</Text> : <Rows caption="Replays and skips" columns={REPLAYS} rows={found} />;
        }}
      </Answered>
    </Section>
  );
}

const meta = { isNumber: true };
const row = createColumnHelper<Row>();

function columnsOf(job: string) {
  const page = ({ operator, reason }: Row) => `${pageOf(job, "dropped")}?${new URLSearchParams({ operator, reason })}`;
  return [
    row.accessor("operator", { header: "operator" }),
    row.accessor("reason", { header: "reason", cell: ({ row: { original } }) => <To page={page(original)}>{original.reason}</To> }),
    row.accessor("records", { header: "records", meta, cell: (cell) => count(cell.getValue()) }),
    row.accessor("perSecond", { header: "a second", meta, cell: (cell) => rate(cell.getValue()) }),
    row.accessor(({ records, given }) => (given ? records / given : undefined), {
      id: "share",
      header: "of what it was given",
      meta,
      cell: (cell) => (cell.getValue() === undefined ? "–" : `${(cell.getValue()! * 100).toFixed(cell.getValue()! < 0.1 ? 1 : 0)} %`),
    }),
    row.accessor(({ missed }) => missed?.average_ms, {
      id: "average",
      header: "by, on average",
      meta,
      cell: (cell) => (cell.getValue() === undefined ? "" : inWords(Math.round(cell.getValue()!))),
    }),
    row.accessor(({ missed }) => missed?.max_ms, {
      id: "most",
      header: "at most",
      meta,
      cell: (cell) => (cell.getValue() === undefined ? "" : inWords(cell.getValue()!)),
    }),
  ];
}

const step = createColumnHelper<Step>();

function stepColumns(reason: string, missed: Missed, hedge: string) {
  const most = Math.max(...missed.below.map(({ records }) => records));
  const sofar = reason === "late" ? "kept with that much more grace" : reason === "duplicate" ? "out with that much less" : "so far";
  return [
    step.accessor(({ below, from }) => below ?? from, {
      id: "by",
      header: "missed by",
      cell: ({ row: { original } }) => (
        <Text span inherit className="whole">
          {original.below === null ? `${inWords(original.from)} and more` : `less than ${inWords(original.below)}`}
        </Text>
      ),
    }),
    step.accessor("records", { header: "records", meta, cell: (cell) => count(cell.getValue()) }),
    step.display({
      id: "bar",
      header: "",
      cell: ({ row: { original } }) => <div aria-hidden className="drops-bar" style={{ width: `${(original.records * 100) / most}%` }} />,
    }),
    step.accessor("upTo", {
      header: sofar,
      meta,
      cell: ({ row: { original } }) =>
        original.below === null ? "" : `${reason === "late" ? hedge : ""}${count(within(missed, original.below))} of ${count(missed.records)}`,
    }),
  ];
}

const change = createColumnHelper<Transition>();
const ERRORS = [
  change.accessor("at", { header: "at", cell: (cell) => <Time ms={Date.parse(cell.getValue())} /> }),
  change.accessor((each) => each.error?.code ?? "", { id: "code", header: "code" }),
  change.accessor((each) => each.error?.operator ?? "", { id: "operator", header: "operator" }),
  change.display({
    id: "record",
    header: "record",
    cell: ({ row: { original } }) => {
      const { stream, partition, offset } = original.error ?? {};
      if (stream == null || partition == null || offset == null) return null;
      return <To page={`/streams/${stream}?partition=${partition}&from_offset=${offset}`}>{`${stream}/${partition}, offset ${offset}`}</To>;
    },
  }),
  change.accessor((each) => each.error?.detail ?? "", { id: "detail", header: "what" }),
];
const REPLAYS = [
  change.accessor("at", { header: "at", cell: (cell) => <Time ms={Date.parse(cell.getValue())} /> }),
  change.accessor("kind", { header: "what", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  change.accessor("who", { header: "who" }),
  change.accessor((each) => askedFor(each), { id: "which", header: "which" }),
];

/** What a replay or a skip was asked for, in words. */
function askedFor({ details, kind }: Transition): string {
  if (details == null) return "";
  if (kind === "skip") return `${details.stream ?? ""}/${details.partition}, offset ${details.offset}`;
  const parts = [details.operator ?? "every operator", details.reason?.join(", ") ?? "every reason"];
  return parts.join(": ");
}
