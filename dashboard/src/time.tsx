// Times as people read them, in the zone that they chose: their own, or UTC.
import { SegmentedControl } from "@mantine/core";
import { createContext, useContext, useState, type ReactNode } from "react";

export type Zone = "local" | "utc";
const KEPT = "millrace-zone";
const Chosen = createContext<{ zone: Zone; choose: (zone: Zone) => void }>({ zone: "utc", choose: () => {} });

export function ZoneProvider({ children }: { children: ReactNode }) {
  const [zone, set] = useState<Zone>(localStorage.getItem(KEPT) === "utc" ? "utc" : "local");
  const choose = (chosen: Zone) => {
    localStorage.setItem(KEPT, chosen);
    set(chosen);
  };
  return <Chosen.Provider value={{ zone, choose }}>{children}</Chosen.Provider>;
}

export function useZone(): Zone {
  return useContext(Chosen).zone;
}

export function ZoneSwitch() {
  const { zone, choose } = useContext(Chosen);
  return (
    <SegmentedControl
      size="xs"
      aria-label="Time zone"
      value={zone}
      onChange={(chosen) => choose(chosen as Zone)}
      data={[
        { value: "local", label: "local time" },
        { value: "utc", label: "UTC" },
      ]}
    />
  );
}

/** ISO 8601 without the letters, to the second or, where there are some, the millisecond. */
export function inZone(ms: number, zone: Zone): string {
  const shift = zone === "utc" ? 0 : new Date(ms).getTimezoneOffset() * 60_000;
  const date = new Date(ms - shift);
  if (Number.isNaN(date.getTime())) return String(ms); // beyond the calendar: streams take any integer
  const text = date.toISOString().replace("T", " ").replace("Z", "");
  return text.endsWith(".000") ? text.slice(0, -4) : text;
}

/** The time that a field of dates says, in ms; undefined where it is empty. */
export function ofZone(text: string, zone: Zone): number | undefined {
  const ms = Date.parse(zone === "utc" ? `${text}Z` : text);
  return Number.isNaN(ms) ? undefined : ms;
}

export function Time({ ms }: { ms: number | null }) {
  const zone = useZone();
  return ms === null ? <>–</> : <time className="number">{inZone(ms, zone)}</time>;
}

/** A span in its two largest units. */
export function span(ms: number): string {
  const units: [string, number][] = [["y", 31_557_600_000], ["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];
  const parts: string[] = [];
  let left = Math.max(0, Math.round(ms / 1000) * 1000);
  for (const [name, size] of units) {
    const count = Math.floor(left / size);
    if (count > 0 && parts.length < 2) parts.push(`${count} ${name}`);
    left -= count * size;
  }
  return parts.join(" ") || "0 s";
}
