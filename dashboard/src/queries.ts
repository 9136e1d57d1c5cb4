// How what the API answers is kept: for how long, and what becomes of a session that has ended.
import { ApiError, type components, type paths } from "@millrace/client";
import {
  QueryCache,
  QueryClient,
  queryOptions,
  useQueries,
  useQuery,
  type UseQueryResult,
} from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";

import {
  api,
  currentSession,
  good,
  readRecords,
  type Instance,
  type Job,
  type JobMetrics,
  type Readiness,
  type Session,
  type Stream,
  type StreamRecord,
  type Task,
  type Transition,
} from "./api";
import { Events, LIVE_MS, type Came } from "./events";

export { LIVE_MS };
const LIVE = "live";
const SHORTEST_MS = 1_000;
const SLOW_MS = 10_000;
export const SESSION = ["session"];

export const queries: QueryClient = new QueryClient({
  queryCache: new QueryCache({ onError: noticeEnd }),
  defaultOptions: {
    queries: {
      retry: (failures, error) => failures < 3 && !(error instanceof ApiError && !error.isTransient),
      refetchIntervalInBackground: false,
      staleTime: 1_000,
    },
  },
});

/** Whatever it was that met a session's end: people sign in again, and are where they were. */
export function noticeEnd(error: unknown): void {
  if (error instanceof ApiError && error.status === 401) queries.setQueryData(SESSION, null);
}

export function useSession(): UseQueryResult<Session | null> {
  return useQuery({ queryKey: SESSION, queryFn: currentSession, refetchInterval: 60_000, staleTime: Infinity });
}

/** Whether who is signed in may change something. */
export function useMayWrite(): boolean {
  const role = useSession().data?.role;
  return role === "writer" || role === "admin";
}

export function useIsAdmin(): boolean {
  return useSession().data?.role === "admin";
}

export interface Seen<T> {
  readonly at: number;
  readonly now: T;
}

/** What has a GET that answers JSON. */
type Resource = { [P in keyof paths]: paths[P] extends { get: object } ? P : never }[keyof paths];
type Content<P extends Resource> = paths[P]["get"] extends { responses: { 200: { content: { "application/json": infer T } } } }
  ? T
  : never;
type Parameters<P extends Resource, Place extends string> = paths[P]["get"] extends { parameters: infer All }
  ? Place extends keyof All
    ? Partial<NonNullable<All[Place]>>
    : Record<never, never>
  : never;

export interface Asked<P extends Resource> {
  readonly path?: Parameters<P, "path">;
  readonly query?: Parameters<P, "query">;
}

/** The address of a resource, to be asked for elsewhere too. */
export function addressOf<P extends Resource>(resource: P, { path = {} as never, query = {} as never }: Asked<P> = {}): string {
  const place = resource.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String((path as Record<string, unknown>)[name])));
  const given = Object.entries(query as Record<string, unknown>).filter(([, value]) => value !== undefined);
  return given.length === 0 ? place : `${place}?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

/** When an answer came as an event that a request may have overtaken. */
const came = new Map<string, number>();

const events = new Events({
  came({ topic, body, problem }: Came) {
    if (problem !== undefined) {
      void queries.refetchQueries({ queryKey: [LIVE, topic], exact: true }); // as a GET it comes with all that an error has
      return;
    }
    came.set(topic, performance.now());
    queries.setQueryData([LIVE, topic], { at: performance.now(), now: body });
  },
  stayed(topics) {
    const at = performance.now();
    for (const topic of topics) {
      const { data, status } = queries.getQueryState<Seen<unknown>>([LIVE, topic]) ?? {};
      if (status === "success" && at - data!.at >= LIVE_MS) queries.setQueryData([LIVE, topic], { at, now: data!.now });
    }
  },
  ended() {
    void lookAgain(); // a session that is over is found out so
  },
});

/** Ask for all that is shown again: something was changed here. */
export function lookAgain(): Promise<void> {
  return queries.invalidateQueries({ queryKey: [LIVE] });
}

/** Whether a resource comes by itself; while somebody asks, it is followed. */
function useEvents(addresses: readonly string[]): string {
  const all = addresses.join("\n");
  useEffect(() => {
    const leave = all === "" ? [] : all.split("\n").map((address) => events.follow(address));
    return () => leave.forEach((each) => each());
  }, [all]);
  return useSyncExternalStore(events.subscribe, () => addresses.map((address) => (events.isLive(address) ? "1" : "0")).join(""));
}

function live<P extends Resource>(resource: P, asked: Asked<P>, everyMs: number, isLive: boolean) {
  const get = api.GET as (resource: string, how: object) => Promise<{ data?: Content<P>; error?: unknown; response: Response }>;
  const address = addressOf(resource, asked);
  return queryOptions<Seen<Content<P>>>({
    queryKey: [LIVE, address],
    queryFn: async ({ client, queryKey }) => {
      const began = performance.now();
      const now = await good(accepted(resource, await get(resource, { params: asked })));
      const newer = (came.get(address) ?? 0) > began ? client.getQueryData<Seen<Content<P>>>(queryKey) : undefined;
      return newer ?? { at: performance.now(), now };
    },
    refetchInterval: isLive ? false : Math.max(everyMs, SHORTEST_MS),
  });
}

/** Of readiness a 503 is an answer too: which part it is. */
async function accepted<T>(resource: string, answer: { data?: T; error?: unknown; response: Response }) {
  return resource === "/readyz" && answer.response.status === 503
    ? { data: answer.error as T, response: new Response() }
    : answer;
}

/** A resource as it is now, and from now on; kept by its address, whoever asks for it. It comes as an event where it
 * changes, and is polled for (`everyMs`) where no events come. Why it is not there stays while it is asked for again: a
 * page that showed its parts meanwhile would follow what they show, and ask for all of it, again and again. */
export function useLive<P extends Resource>(resource: P, asked: Asked<P> = {}, everyMs = LIVE_MS): UseQueryResult<Seen<Content<P>>> {
  const address = addressOf(resource, asked);
  const isLive = useEvents([address]) === "1";
  const found = useQuery(live(resource, asked, everyMs, isLive));
  const failed = useRef<{ address: string; error: Error | null }>({ address, error: null });
  if (found.data !== undefined || found.error !== null || failed.current.address !== address)
    failed.current = { address, error: found.error };
  return { ...found, error: failed.current.error } as typeof found;
}

/** The same of several at once: of each job, say. */
export function useLiveEach<P extends Resource>(
  resource: P,
  asked: readonly Asked<P>[],
  everyMs = LIVE_MS,
): UseQueryResult<Seen<Content<P>>>[] {
  const isLive = useEvents(asked.map((each) => addressOf(resource, each)));
  return useQueries({ queries: asked.map((each, place) => live(resource, each, everyMs, isLive[place] === "1")) });
}

/** All items of a list, however many pages they are. */
function useEvery<P extends Resource, T>(resource: P, asked: Asked<P> = {}, everyMs = LIVE_MS): UseQueryResult<Seen<T[]>> {
  const [cursors, setCursors] = useState<string[]>([]);
  const pages = useLiveEach(
    resource,
    [undefined, ...cursors].map((cursor) => ({
      ...asked,
      query: { ...asked.query, limit: 1000, ...(cursor === undefined ? {} : { cursor }) } as never,
    })),
    everyMs,
  );
  const [first, ...further] = pages as UseQueryResult<Seen<{ items: T[]; next: string | null }>>[];
  const following: string[] = [];
  for (const page of [first!, ...further]) {
    const next = page.data?.now.next;
    if (next == null) break;
    following.push(next);
  }
  const place = following.join("\n");
  useEffect(() => setCursors(place === "" ? [] : place.split("\n")), [place]);
  const answers = [first!, ...further].map((page) => page.data);
  const data = useMemo(() => {
    const known = answers.filter((answer) => answer !== undefined);
    if (known.length < answers.length) return undefined;
    return { at: Math.max(...known.map(({ at }) => at)), now: known.flatMap(({ now }) => now.items) };
  }, [answers.map((answer) => answer?.at).join()]);
  const failed = further.find(({ error }) => error !== null);
  return { ...first!, error: first!.error ?? failed?.error ?? null, data } as UseQueryResult<Seen<T[]>>;
}

/** Without when it was seen: for what no rate is taken of. */
function plain<T>(found: UseQueryResult<Seen<T>>): UseQueryResult<T> {
  return { ...found, data: found.data?.now } as UseQueryResult<T>;
}

export function useJobs(): UseQueryResult<Seen<Job[]>> {
  return useEvery("/v1/jobs");
}

export function useJob(job: string): UseQueryResult<Seen<Job>> {
  return useLive("/v1/jobs/{job}", { path: { job } });
}

export function useJobMetrics(job: string): UseQueryResult<Seen<JobMetrics>> {
  return useLive("/v1/jobs/{job}/metrics", { path: { job } });
}

export function useTasks(job: string): UseQueryResult<Task[]> {
  return plain(useEvery<"/v1/jobs/{job}/tasks", Task>("/v1/jobs/{job}/tasks", { path: { job } }, LIVE_MS * 2));
}

export function useHistory(job: string): UseQueryResult<Transition[]> {
  const found = useLive("/v1/jobs/{job}/history", { path: { job }, query: { limit: 20 } }, SLOW_MS);
  return { ...found, data: found.data?.now.items } as UseQueryResult<Transition[]>;
}

export function useStreams(): UseQueryResult<Seen<Stream[]>> {
  return useEvery("/v1/streams");
}

/** Who writes and reads each stream, however many there are. */
export function useUsage(): UseQueryResult<Seen<components["schemas"]["StreamUsageView"][]>> {
  return useEvery("/v1/streams:usage", {}, 5_000);
}

export function useStream(stream: string): UseQueryResult<Stream> {
  return plain(useLive("/v1/streams/{stream}", { path: { stream } }, LIVE_MS * 2));
}

/** The record at a place; null: it is not there any more, or never was. */
export function useRecord(stream: string, partition: number, offset: number): UseQueryResult<StreamRecord | null> {
  return useQuery({
    queryKey: ["streams", stream, "record", partition, offset],
    queryFn: async () => {
      const { records } = await readRecords(stream, { partition, from_offset: offset }, 1);
      return records.find((each) => each.offset === offset) ?? null; // where it has gone the next one is answered
    },
    staleTime: Infinity, // what lies at an offset never changes
  });
}

export function useInstances(): UseQueryResult<Instance[]> {
  return plain(useEvery<"/v1/instances", Instance>("/v1/instances", {}, LIVE_MS * 2));
}

export function useReadiness(): UseQueryResult<Readiness> {
  return plain(useLive("/readyz", {}, SLOW_MS));
}
