// One stream: its records from any place on or back, and as they come; who writes and reads it; what lies where.
import { Group, SegmentedControl } from "@mantine/core";
import { useSearchParams } from "wouter";

import { bytes, count } from "../figures";
import { Answered, Curl, Empty, Facts, Page, To, curlOf, isMissing } from "../parts";
import { useLive, useStream } from "../queries";
import { followed } from "../tail";
import { span } from "../time";
import { Browse, Tail, chosenIn, recordsPath } from "./stream/browse";
import { Partitions, Settings } from "./stream/content";
import { Post } from "./stream/post";
import { Users } from "./stream/users";

const VIEWS = [
  { value: "browse", label: "browse" },
  { value: "tail", label: "as they come" },
  { value: "post", label: "post one" },
  { value: "partitions", label: "partitions" },
  { value: "settings", label: "settings" },
] as const;

export default function StreamPage({ stream: name }: { stream: string }) {
  const stream = useStream(name);
  const usage = useLive("/v1/streams/{stream}:usage", { path: { stream: name } }, 5_000);
  const [params, setParams] = useSearchParams();
  if (stream.data === undefined && isMissing(stream.error)) {
    return (
      <Page title={name}>
        <Empty curl={curlOf("/v1/streams", "POST", { name, partitions: 4 })}>
          No stream has this name (any more): it was deleted, or is called otherwise. Those that there are stand in{" "}
          <To page="/streams">the streams</To>; a new one is made by one request:
        </Empty>
      </Page>
    );
  }
  const view = VIEWS.find(({ value }) => value === params.get("view"))?.value ?? "browse";
  const path = view === "tail" ? followed(name, chosenIn(params)) : view === "browse" ? recordsPath(name, params) : `/v1/streams/${name}`;
  return (
    <Page
      title={name}
      beside={
        <>
          <To page={`/try?stream=${encodeURIComponent(name)}`}>try a job</To>
          <Curl path={path} />
        </>
      }
    >
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
            <Answered asked={usage} what="Who uses it">
              {({ now }) => <Users stream={found} usage={now} />}
            </Answered>
            <div className="scrolled" role="region" aria-label="Views" tabIndex={0}>
              <Group wrap="nowrap">
                <SegmentedControl
                  aria-label="What is shown"
                  value={view}
                  onChange={(chosen) => setParams(chosen === "browse" ? {} : { view: chosen })}
                  data={VIEWS.map((each) => ({ ...each }))}
                />
              </Group>
            </div>
            {view === "browse" && <Browse stream={found} params={params} go={setParams} />}
            {view === "tail" && <Tail stream={found} params={params} go={setParams} />}
            {view === "post" && <Post stream={found} />}
            {(view === "partitions" || view === "settings") && (
              <Answered asked={usage} what="What it holds">
                {({ now }) => (view === "partitions" ? <Partitions stream={found} content={now} /> : <Settings stream={found} content={now} />)}
              </Answered>
            )}
          </>
        )}
      </Answered>
    </Page>
  );
}
