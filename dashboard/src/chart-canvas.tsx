// What draws a chart; loaded with the first one. It knows uPlot, and nothing of what is drawn.
import "uplot/dist/uPlot.min.css";

import { useComputedColorScheme } from "@mantine/core";
import { useEffect, useRef } from "react";
import uPlot from "uplot";

import type { Line } from "./chart";
import { inZone, useZone, type Zone } from "./time";

interface Drawn {
  readonly at: readonly number[];
  readonly lines: readonly Line[];
  readonly shown: (value: number) => string;
  readonly isFromZero: boolean;
  readonly height: number;
  readonly place: number | null;
  readonly look: (place: number | null) => void;
}

/** Lines differ by more than their colour. */
const DASHES: number[][] = [[], [6, 3], [2, 3], [10, 3, 2, 3]];
const DAY_S = 86_400;

export default function Canvas({ at, lines, shown, isFromZero, height, place, look }: Drawn) {
  const ground = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const scheme = useComputedColorScheme("light");
  const zone = useZone();
  const latest = useRef({ shown, look });
  latest.current = { shown, look };
  const names = lines.map(({ name }) => name).join("\n");

  useEffect(() => {
    const element = ground.current!;
    const made = new uPlot(
      options(element, names.split("\n"), zone, height, isFromZero, latest.current),
      [[], ...names.split("\n").map(() => [])],
      element,
    );
    plot.current = made;
    const sized = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    sized.observe(element);
    return () => {
      sized.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [scheme, zone, names, height, isFromZero]);

  useEffect(() => {
    plot.current?.setData([at.map((ms) => ms / 1000), ...lines.map(({ values }) => [...values])]);
  }, [at, lines, scheme, zone, names, height, isFromZero]);

  useEffect(() => {
    const made = plot.current;
    if (made === null || place === null || made.cursor.idx === place) return;
    made.setCursor({ left: made.valToPos(at[place]! / 1000, "x"), top: 0 }, false);
  }, [at, place]);

  return <div ref={ground} className="chart-canvas" aria-hidden onMouseLeave={() => look(null)} />;
}

function options(
  element: HTMLElement,
  names: readonly string[],
  zone: Zone,
  height: number,
  isFromZero: boolean,
  said: { shown: (value: number) => string; look: (place: number | null) => void },
): uPlot.Options {
  const colours = getComputedStyle(element);
  const colour = (name: string) => colours.getPropertyValue(name).trim();
  const axis: uPlot.Axis = {
    stroke: colour("--mantine-color-text"),
    grid: { stroke: colour("--line"), width: 1 },
    ticks: { show: false },
    font: "12px system-ui, sans-serif",
  };
  return {
    width: element.clientWidth,
    height,
    legend: { show: false },
    padding: [8, 20, 0, 0], // the last time of the axis is whole
    tzDate: (s) => (zone === "utc" ? uPlot.tzDate(new Date(s * 1000), "Etc/UTC") : new Date(s * 1000)),
    cursor: { drag: { x: false, y: false }, y: false, points: { size: 7 } },
    scales: { y: { range: (_, low, high) => within(low, high, isFromZero) } },
    axes: [
      { ...axis, size: 28, values: (_, splits) => splits.map((s) => clock(s, splits, zone)) },
      { ...axis, size: 62, values: (_, splits) => splits.map((value) => said.shown(value)) },
    ],
    series: [
      {},
      ...names.map((label, number) => ({
        label,
        stroke: colour(`--chart-${number}`),
        dash: DASHES[number % DASHES.length]!,
        width: 1.75,
        spanGaps: false,
        points: { show: true, size: 4, filter: alone },
      })),
    ],
    hooks: {
      setCursor: [
        (made: uPlot) => {
          const over = made.cursor.left ?? -1;
          if (over >= 0) said.look(made.cursor.idx ?? null);
        },
      ],
    },
  };
}

/** Values between two gaps, which no line shows. */
function alone(made: uPlot, line: number): number[] {
  const values = made.data[line]!;
  return [...values.keys()].filter((at) => values[at] != null && values[at - 1] == null && values[at + 1] == null);
}

function within(low: number | null, high: number | null, isFromZero: boolean): [number, number] {
  if (low === null || high === null) return [0, 1];
  if (isFromZero) return [0, high > 0 ? high * 1.1 : 1];
  return low === high ? [low - 1, high + 1] : [low, high];
}

/** The time of day; the date where another day begins. */
function clock(s: number, all: readonly number[], zone: Zone): string {
  const text = inZone(s * 1000, zone);
  const isMidnight = text.slice(11, 16) === "00:00" && text.slice(17, 19) === "00";
  const isLong = (all.at(-1) ?? s) - (all[0] ?? s) >= 2 * DAY_S;
  return isMidnight || isLong ? text.slice(5, 10) : text.slice(17, 19) === "00" ? text.slice(11, 16) : text.slice(11, 19);
}
