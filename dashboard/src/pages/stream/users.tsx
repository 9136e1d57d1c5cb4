// Who writes a stream and who reads it, how far behind, and why one does not go on.
import { Text } from "@mantine/core";
import type { components } from "@millrace/client";
import { createColumnHelper } from "@tanstack/react-table";
import type { ReactNode } from "react";

import type { Stream } from "../../api";
import { count } from "../../figures";
import { Badge, Curl, Empty, Rows, Section, To } from "../../parts";
import { useLive } from "../../queries";
import { Time, span } from "../../time";
import { pageOf } from "../job/frame";

export type Usage = components["schemas"]["StreamUsageView"];
type Reader = components["schemas"]["StreamReaderView"];
type Subscription = components["schemas"]["SubscriptionView"];

interface Row extends Reader {
  readonly subscription: Subscription | undefined;
}

export function Users({ stream, usage }: { stream: Stream; usage: Usage }) {
  const subscriptions = useLive("/v1/streams/{stream}/subscriptions", { path: { stream: stream.name }, query: { limit: 1000 } }, 5_000).data?.now.items ?? [];
  const rows = usage.readers.map((reader): Row => ({
    ...reader,
    subscription: reader.kind === "job" ? undefined : subscriptions.find(({ name }) => name === reader.name),
  }));
  return (
    <Section title="Who writes and reads it" beside={<Curl path={`/v1/streams/${stream.name}:usage`} />}>
      <Text size="sm">
        {usage.writers.length === 0 ? (stream.kind === "user" ? "No job writes it: records are posted." : "Its job is gone.") : "Written by "}
        {usage.writers.map(({ job, state }, place) => (
          <span key={job}>
            {place > 0 && ", "}
            <To page={pageOf(job)}>{job}</To> <Badge kind={state} />
          </span>
        ))}
      </Text>
      {rows.length === 0 ? <Empty>{nobody(stream)}</Empty> : <Rows caption="Who reads it" columns={READERS} rows={rows} />}
    </Section>
  );
}

function nobody(stream: Stream): ReactNode {
  if (stream.kind === "changelog") return "Copies of its store follow it, and what is restored begins here; nobody else reads it.";
  if (stream.kind === "dropped") return "Nobody reads it: a replay takes these records in again.";
  return (
    <>
      Nobody reads it. <To page={`/try?stream=${encodeURIComponent(stream.name)}`}>Try a job over its records</To>.
    </>
  );
}

/** How far a subscription is, in words. */
function told({ kind, error, subscription }: Row): ReactNode {
  const push = subscription?.push;
  const failure = push?.failures[0];
  if (failure !== undefined) {
    const of = push!.failures.length === 1 ? "" : ` of ${count(push!.failures.length)} partitions`;
    const tried = `${count(failure.attempts)} ${failure.attempts === 1 ? "attempt" : "attempts"}`;
    return (
      <>
        {`${push!.url} does not take the next record${of}: ${failure.detail}; ${tried} since `}
        <Time ms={Math.floor(Date.parse(failure.since) / 1000) * 1000} />
      </>
    );
  }
  if (error !== null) return error;
  if (kind === "webhook") return push === undefined || push === null ? "" : `posted to ${push.url}`;
  if (subscription === undefined) return "";
  if (subscription.is_expired) return "nobody has pulled for so long that it holds nothing back";
  return subscription.consumers.length === 0 ? "nobody pulls" : `pulled by ${subscription.consumers.map(({ consumer }) => consumer).join(", ")}`;
}

const column = createColumnHelper<Row>();
const meta = { isNumber: true };
const READERS = [
  column.accessor("kind", { header: "reader" }),
  column.accessor("name", {
    header: "name",
    cell: (cell) => (cell.row.original.kind === "job" ? <To page={pageOf(cell.getValue())}>{cell.getValue()}</To> : cell.getValue()),
  }),
  column.accessor("state", { header: "state", cell: (cell) => <Badge kind={cell.getValue()} /> }),
  column.accessor("lag_records", { header: "lag, records", meta, cell: (cell) => count(cell.getValue()) }),
  column.accessor("lag_ms", {
    header: "oldest of them",
    meta,
    cell: (cell) => (cell.getValue() === null ? "–" : cell.getValue() === 0 ? "none" : `${span(cell.getValue()!)} ago`),
  }),
  column.accessor((row) => row.error ?? "", { id: "told", header: "how it goes", cell: (cell) => <span className="breakable">{told(cell.row.original)}</span> }),
];
