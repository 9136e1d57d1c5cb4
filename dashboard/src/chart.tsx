// Figures over time, as lines: drawn when it is needed, read out by mouse and keyboard, and as a table.
//
//   const seen = useLive("/v1/jobs/{job}/series", { path: { job }, query: useSpan() }, CHART_MS);
//   <Chart title="Records, a second" at={now.at_ms} lines={[{ name: "read", values: now.records_in }]} shown={rate} />
//
// `SpanSwitch` chooses how far back (in the address: `?span=6h`), `useSpan` is that as the query of `…/series`.
import { SegmentedControl, Table } from "@mantine/core";
import { Suspense, useId, useState, type KeyboardEvent } from "react";
import { useSearchParams } from "wouter";

import { chunk } from "./chunk";
import { count } from "./figures";
import { Time, inZone, useZone } from "./time";

const Canvas = chunk(() => import("./chart-canvas"));

/** How often a chart asks: its points are 10 s or a minute apart. */
export const CHART_MS = 10_000;
const MOST_ROWS = 30;

export interface Line {
  readonly name: string;
  readonly values: readonly (number | null)[];
}

interface Charted {
  readonly title: string;
  /** The moments of all values, ms. */
  readonly at: readonly number[];
  readonly lines: readonly Line[];
  /** A value in words. */
  readonly shown?: (value: number) => string;
  /** Of levels that are far from 0 (times, sizes): the axis begins where they do. */
  readonly isFromZero?: boolean;
  readonly height?: number;
}

const SPANS = { "1h": 3_600_000, "6h": 21_600_000, "24h": 86_400_000 } as const;
type Span = keyof typeof SPANS;

function useChosen(): [Span, (span: Span) => void] {
  const [params, setParams] = useSearchParams();
  const given = params.get("span");
  const span = given !== null && given in SPANS ? (given as Span) : "1h";
  const choose = (chosen: Span) =>
    setParams((before) => {
      before.set("span", chosen);
      return before;
    });
  return [span, choose];
}

/** How far back people want to see, as the query of `…/series`. */
export function useSpan(): { span_ms: number } {
  return { span_ms: SPANS[useChosen()[0]] };
}

export function SpanSwitch() {
  const [span, choose] = useChosen();
  return (
    <SegmentedControl
      size="xs"
      aria-label="How far back"
      value={span}
      onChange={(chosen) => choose(chosen as Span)}
      data={Object.keys(SPANS).map((value) => ({ value, label: value.replace("h", " h") }))}
    />
  );
}

export function Chart({ title, at, lines, shown = count, isFromZero = true, height = 150 }: Charted) {
  const [place, look] = useState<number | null>(null);
  const zone = useZone();
  const id = useId();
  const last = lastKnown(lines, at.length);
  const here = place !== null && place < at.length ? place : last;
  const move = (event: KeyboardEvent) => {
    const to = moved(event.key, here, at.length);
    if (to === null) return;
    event.preventDefault();
    look(to);
  };
  return (
    <figure className="chart" aria-labelledby={id}>
      <figcaption id={id}>{title}</figcaption>
      {last === null ? (
        <p className="chart-empty" style={{ minHeight: height }}>
          Nothing is known of this time yet: figures are noted every 10 s.
        </p>
      ) : (
        <div
          className="chart-ground"
          role="slider"
          tabIndex={0}
          aria-labelledby={id}
          aria-valuemin={0}
          aria-valuemax={at.length - 1}
          aria-valuenow={here ?? 0}
          aria-valuetext={here === null ? "nothing" : `${inZone(at[here]!, zone)}: ${inWords(lines, here, shown)}`}
          onKeyDown={move}
          onBlur={() => look(null)}
          style={{ height }}
        >
          <Suspense fallback={null}>
            <Canvas at={at} lines={lines} shown={shown} isFromZero={isFromZero} height={height} place={place} look={look} />
          </Suspense>
        </div>
      )}
      {here !== null && (
        <div className="chart-read number">
          <Time ms={at[here]!} />
          {lines.map((line, number) => (
            <span key={line.name} className="chart-line">
              <span className={`chart-key chart-key-${number}`} aria-hidden />
              {line.name} <b>{valueOf(line, here, shown)}</b>
            </span>
          ))}
        </div>
      )}
      {last !== null && <AsTable title={title} at={at} lines={lines} shown={shown} />}
    </figure>
  );
}

/** The same in numbers: no more rows than somebody reads, the latest of each stretch. */
function AsTable({ title, at, lines, shown }: { title: string; at: readonly number[]; lines: readonly Line[]; shown: (value: number) => string }) {
  const [isOpen, open] = useState(false);
  const every = Math.max(1, Math.ceil(at.length / MOST_ROWS));
  const places = at.map((_, place) => at.length - 1 - place).filter((_, number) => number % every === 0);
  return (
    <details className="chart-table" onToggle={(event) => open(event.currentTarget.open)}>
      <summary>as a table</summary>
      {isOpen && (
        <div className="scrolled" role="region" aria-label={`${title}, as a table`} tabIndex={0}>
          <Table withRowBorders>
            <Table.Thead>
              <Table.Tr>
                <Table.Th>at</Table.Th>
                {lines.map(({ name }) => (
                  <Table.Th key={name} className="number">
                    {name}
                  </Table.Th>
                ))}
              </Table.Tr>
            </Table.Thead>
            <Table.Tbody>
              {places.map((place) => (
                <Table.Tr key={at[place]}>
                  <Table.Td>
                    <Time ms={at[place]!} />
                  </Table.Td>
                  {lines.map((line) => (
                    <Table.Td key={line.name} className="number">
                      {valueOf(line, place, shown)}
                    </Table.Td>
                  ))}
                </Table.Tr>
              ))}
            </Table.Tbody>
          </Table>
        </div>
      )}
    </details>
  );
}

function valueOf(line: Line, place: number, shown: (value: number) => string): string {
  const value = line.values[place];
  return value === null || value === undefined ? "–" : shown(value);
}

function inWords(lines: readonly Line[], place: number, shown: (value: number) => string): string {
  return lines.map((line) => `${line.name} ${valueOf(line, place, shown)}`).join(", ");
}

function lastKnown(lines: readonly Line[], points: number): number | null {
  for (let place = points - 1; place >= 0; place--) if (lines.some(({ values }) => values[place] != null)) return place;
  return null;
}

function moved(key: string, from: number | null, points: number): number | null {
  const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10, Home: -points, End: points };
  const step = steps[key];
  return step === undefined || from === null ? null : Math.min(points - 1, Math.max(0, from + step));
}
