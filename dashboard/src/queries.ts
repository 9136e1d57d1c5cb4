// How what the API answers is kept: for how long, and what becomes of a session that has ended.
import { ApiError } from "@millrace/client";
import { QueryCache, QueryClient, useQuery, type UseQueryResult } from "@tanstack/react-query";

import {
  api,
  currentSession,
  good,
  type Instance,
  type Job,
  type JobMetrics,
  type Readiness,
  type Session,
  type Stream,
  type Task,
  type Transition,
} from "./api";

export const LIVE_MS = 2_000;
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

interface Page<T> {
  items: T[];
  next: string | null;
}

async function all<T>(page: (cursor: string | undefined) => Promise<Page<T>>): Promise<T[]> {
  const found: T[] = [];
  let cursor: string | undefined;
  do {
    const { items, next } = await page(cursor);
    found.push(...items);
    cursor = next ?? undefined;
  } while (cursor !== undefined);
  return found;
}

function paged(cursor: string | undefined): { limit: number; cursor?: string } {
  return cursor === undefined ? { limit: 1000 } : { limit: 1000, cursor };
}

export interface Seen<T> {
  readonly at: number;
  readonly now: T;
}

async function seen<T>(asked: Promise<T>): Promise<Seen<T>> {
  const now = await asked;
  return { at: performance.now(), now };
}

export function useJobs(): UseQueryResult<Seen<Job[]>> {
  return useQuery({
    queryKey: ["jobs"],
    queryFn: () => seen(all((cursor) => good<Page<Job>>(api.GET("/v1/jobs", { params: { query: paged(cursor) } })))),
    refetchInterval: LIVE_MS,
  });
}

export function useJob(job: string): UseQueryResult<Seen<Job>> {
  return useQuery({
    queryKey: ["jobs", job],
    queryFn: () => seen(good<Job>(api.GET("/v1/jobs/{job}", { params: { path: { job } } }))),
    refetchInterval: LIVE_MS,
  });
}

export function useJobMetrics(job: string): UseQueryResult<Seen<JobMetrics>> {
  return useQuery({
    queryKey: ["jobs", job, "metrics"],
    queryFn: () => seen(good<JobMetrics>(api.GET("/v1/jobs/{job}/metrics", { params: { path: { job } } }))),
    refetchInterval: LIVE_MS,
  });
}

export function useTasks(job: string): UseQueryResult<Task[]> {
  const params = (cursor: string | undefined) => ({ params: { path: { job }, query: paged(cursor) } });
  return useQuery({
    queryKey: ["jobs", job, "tasks"],
    queryFn: () => all((cursor) => good<Page<Task>>(api.GET("/v1/jobs/{job}/tasks", params(cursor)))),
    refetchInterval: LIVE_MS * 2,
  });
}

export function useHistory(job: string): UseQueryResult<Transition[]> {
  const params = { path: { job }, query: { limit: 20 } };
  return useQuery({
    queryKey: ["jobs", job, "history"],
    queryFn: async () => (await good<Page<Transition>>(api.GET("/v1/jobs/{job}/history", { params }))).items,
    refetchInterval: SLOW_MS,
  });
}

export function useStreams(): UseQueryResult<Seen<Stream[]>> {
  const list = (cursor: string | undefined) =>
    good<Page<Stream>>(api.GET("/v1/streams", { params: { query: paged(cursor) } }));
  return useQuery({ queryKey: ["streams"], queryFn: () => seen(all(list)), refetchInterval: LIVE_MS });
}

export function useStream(stream: string): UseQueryResult<Stream> {
  return useQuery({
    queryKey: ["streams", stream],
    queryFn: () => good<Stream>(api.GET("/v1/streams/{stream}", { params: { path: { stream } } })),
    refetchInterval: LIVE_MS * 2,
  });
}

export function useInstances(): UseQueryResult<Instance[]> {
  const list = (cursor: string | undefined) =>
    good<Page<Instance>>(api.GET("/v1/instances", { params: { query: paged(cursor) } }));
  return useQuery({ queryKey: ["instances"], queryFn: () => all(list), refetchInterval: LIVE_MS * 2 });
}

export function useReadiness(): UseQueryResult<Readiness> {
  return useQuery({
    queryKey: ["readyz"],
    queryFn: async () => {
      const { data, error } = await api.GET("/readyz", {});
      return (data ?? error) as Readiness; // 503 says which part it is
    },
    refetchInterval: SLOW_MS,
  });
}
