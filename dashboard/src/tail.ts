// A stream as it comes: Server-Sent Events, followed only while somebody can see them.
import { useEffect, useState } from "react";

import type { StreamRecord } from "./api";

const MOST_RECORDS = 200;
/** How often what came is shown: a page for each record would be slower than the stream. */
const SHOWN_EVERY_MS = 100;

export interface Tail {
  /** Latest first. */
  readonly records: StreamRecord[];
  readonly state: string;
  readonly clear: () => void;
}

/** Which records are followed: all of them, or those that these parameters of the API choose. */
export type Followed = Readonly<Record<string, string>>;

export function followed(stream: string, chosen: Followed = {}): string {
  return `/v1/streams/${encodeURIComponent(stream)}/tail?${new URLSearchParams({ from: "latest", ...chosen })}`;
}

/** Browsers allow six connections to a host: a page that nobody looks at gives its own back. */
export function useTail(stream: string, isPaused: boolean, chosen: Followed = {}): Tail {
  const address = followed(stream, chosen);
  const [records, setRecords] = useState<StreamRecord[]>([]);
  const [state, setState] = useState("connecting");
  const isHidden = useIsHidden();
  useEffect(() => setRecords([]), [address]); // of others than are followed now
  useEffect(() => {
    if (isPaused || isHidden) {
      setState("paused");
      return;
    }
    const come: StreamRecord[] = [];
    const events = new EventSource(address);
    events.onopen = () => setState("following");
    events.onmessage = (event: MessageEvent<string>) => {
      come.unshift(JSON.parse(event.data) as StreamRecord);
      if (come.length > MOST_RECORDS) come.length = MOST_RECORDS;
    };
    events.addEventListener("overrun", () => setState("too much came to show all of it"));
    events.addEventListener("error", (event) => {
      if (event instanceof MessageEvent) {
        events.close(); // the service says why; the browser would come back for ever
        setState(detailOf(event.data));
      } else {
        setState(events.readyState === EventSource.CLOSED ? "ended" : "connecting again");
      }
    });
    const showing = setInterval(() => {
      const latest = come.splice(0);
      if (latest.length > 0) setRecords((before) => [...latest, ...before].slice(0, MOST_RECORDS));
    }, SHOWN_EVERY_MS);
    return () => {
      clearInterval(showing);
      events.close();
    };
  }, [address, isPaused, isHidden]);
  return { records, state, clear: () => setRecords([]) };
}

function detailOf(data: unknown): string {
  try {
    return String((JSON.parse(String(data)) as { detail?: string }).detail ?? "ended");
  } catch {
    return "ended";
  }
}

function useIsHidden(): boolean {
  const [isHidden, set] = useState(document.hidden);
  useEffect(() => {
    const look = () => set(document.hidden);
    document.addEventListener("visibilitychange", look);
    return () => document.removeEventListener("visibilitychange", look);
  }, []);
  return isHidden;
}
