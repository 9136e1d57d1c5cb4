// A job's topology as it runs: what goes through each stream and operator, and how busy it is; or the same as a table.
import { SegmentedControl, Text } from "@mantine/core";
import { createColumnHelper } from "@tanstack/react-table";
import { useSearchParams } from "wouter";

import type { Job, JobMetrics } from "../../../api";
import { bytes, count, rate } from "../../../figures";
import { Answered, Curl, Rows, Section, To } from "../../../parts";
import { addressOf, useLive, type Seen } from "../../../queries";
import { pageOf } from "../frame";
import { loadOf, share, storeSize, through, useFlow, type Box, type BoxFlow, type Topology } from "./flow";

const ROLES = { source: "source", operator: "operator", repartition: "repartition", sink: "sink", entry: "entry", sub_topology: "tasks" };
/** It changes with the job's version, which nobody waits for here. */
const TOPOLOGY_MS = 10_000;

interface Shown {
  readonly job: Seen<Job>;
  readonly metrics: Seen<JobMetrics> | undefined;
}

export function TopologySection({ job, metrics }: Shown) {
  const [params, setParams] = useSearchParams();
  const asked = { path: { job: job.now.name }, query: { layout: true } };
  const topology = useLive("/v1/jobs/{job}/topology", asked, TOPOLOGY_MS);
  const isTable = params.get("topology") === "table";
  const choose = (view: string) =>
    setParams((now) => {
      if (view === "table") now.set("topology", view);
      else now.delete("topology");
      return now;
    });
  return (
    <Section
      title="Topology"
      beside={
        <>
          <SegmentedControl
            size="xs"
            aria-label="Topology as"
            value={isTable ? "table" : "graph"}
            onChange={choose}
            data={["graph", "table"]}
          />
          <Curl path={addressOf("/v1/jobs/{job}/topology", asked)} />
        </>
      }
    >
      <Answered asked={topology} what="The topology">
        {({ now }) => <Flowing topology={now} job={job} metrics={metrics} isTable={isTable} />}
      </Answered>
    </Section>
  );
}

function Flowing({ topology, job, metrics, isTable }: Shown & { topology: Topology; isTable: boolean }) {
  const flow = useFlow(topology, job, metrics);
  const name = job.now.name;
  return isTable ? <Rows caption="Operators and streams" columns={columnsOf(name)} rows={flow} /> : <Graph topology={topology} flow={flow} job={name} />;
}

function Graph({ topology, flow, job }: { topology: Topology; flow: BoxFlow[]; job: string }) {
  const { layout } = topology;
  if (layout == null) return null;
  const around = layout.boxes.filter(({ role }) => role === "sub_topology" || role === "entry");
  return (
    <>
      <div className="scrolled" role="region" aria-label="Topology" tabIndex={0}>
        <div className="graph" style={{ width: layout.width, height: layout.height }}>
          {around.map((box) => (
            <div key={`${box.role} ${box.sub_topology}`} className={`graph-${box.role}`} style={placeOf(box)}>
              <span>{box.lines[0]}</span>
            </div>
          ))}
          <svg width={layout.width} height={layout.height} aria-hidden focusable="false">
            <marker id="graph-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
              <path className="graph-head" d="M0 0 L8 4 L0 8 z" />
            </marker>
            {layout.arrows.map(({ points }, at) => (
              <path
                key={at}
                className="graph-arrow"
                d={`M${points.map(({ x, y }) => `${x} ${y}`).join(" L")}`}
                markerEnd="url(#graph-head)"
              />
            ))}
          </svg>
          {flow.map((each) => (
            <Node key={`${each.box.role} ${each.box.name} ${each.box.counted_as}`} flow={each} job={job} />
          ))}
        </div>
      </div>
      <Text size="sm" component="div" className="graph-legend">
        busy, of the time of its tasks: <span className="graph-idle">under 1 %</span> <span className="graph-light">under 30 %</span>{" "}
        <span className="graph-busy">under 70 %</span> <span className="graph-full">70 % and more</span>
      </Text>
    </>
  );
}

function placeOf({ x, y, width, height }: Box) {
  return { left: x, top: y, width, height };
}

function Node({ flow, job }: { flow: BoxFlow; job: string }) {
  const { box } = flow;
  const isStream = box.role !== "operator";
  return (
    <div
      role="group"
      aria-label={`${ROLES[box.role]} ${box.name}`}
      className={`graph-node graph-${isStream ? box.role : loadOf(flow.busy)}`}
      style={placeOf(box)}
    >
      <div className="graph-name">{isStream ? <To page={`/streams/${box.name}`}>{box.lines[0]}</To> : box.lines[0]}</div>
      {box.lines.slice(1).map((line, at) => (
        <div key={at} className="graph-more" title={line}>
          {flow.store !== undefined && at === box.lines.length - 2 ? (
            <To page={`${pageOf(job, "state")}?store=${flow.store}`}>{storeSize(flow)}</To>
          ) : (
            line
          )}
        </div>
      ))}
      <div className="number">{through(flow)}</div>
      <div className="number">
        {box.role === "source" && `lag ${count(flow.lag ?? 0)}`}
        {(box.role === "operator" || box.role === "repartition") && `busy ${share(flow.busy)}`}
        {flow.dropped > 0 && (
          <>
            {" · "}
            <To page={dropsOf(job, flow)}>{count(flow.dropped)} dropped</To>
          </>
        )}
      </div>
    </div>
  );
}

function dropsOf(job: string, { box }: BoxFlow): string {
  return `${pageOf(job, "dropped")}?operator=${box.counted_as ?? box.name}`;
}

const column = createColumnHelper<BoxFlow>();
const meta = { isNumber: true };

function columnsOf(job: string) {
  return [
    column.accessor(({ box }) => (box.sub_topology === null ? "" : String(box.sub_topology)), { id: "part", header: "sub-topology" }),
    column.accessor(({ box }) => ROLES[box.role], { id: "kind", header: "kind" }),
    column.accessor(({ box }) => box.name, {
      id: "name",
      header: "name",
      cell: ({ row: { original }, getValue }) =>
        original.box.role === "operator" ? getValue() : <To page={`/streams/${getValue()}`}>{getValue()}</To>,
    }),
    column.accessor("taken", { header: "in/s", meta, cell: (cell) => rate(cell.getValue()) }),
    column.accessor("given", { header: "out/s", meta, cell: (cell) => rate(cell.getValue()) }),
    column.accessor("total", { header: "in all", meta, cell: (cell) => count(cell.getValue()) }),
    column.accessor("busy", { header: "busy", meta, cell: (cell) => share(cell.getValue()) }),
    column.accessor("lag", { header: "lag", meta, cell: (cell) => (cell.getValue() === undefined ? "" : count(cell.getValue()!)) }),
    column.accessor("dropped", {
      header: "dropped",
      meta,
      cell: ({ row: { original }, getValue }) => (getValue() === 0 ? "0" : <To page={dropsOf(job, original)}>{count(getValue())}</To>),
    }),
    column.accessor("entries", {
      header: "entries",
      meta,
      cell: ({ row: { original }, getValue }) =>
        original.store === undefined ? "" : <To page={`${pageOf(job, "state")}?store=${original.store}`}>{getValue() === undefined ? "–" : count(getValue()!)}</To>,
    }),
    column.accessor("bytes", { header: "size", meta, cell: (cell) => (cell.getValue() === undefined ? "" : bytes(cell.getValue()!)) }),
  ];
}
