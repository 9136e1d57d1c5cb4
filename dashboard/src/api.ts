// The public API, as its own TypeScript client has it; and the session, which is the dashboard's alone.
import { ApiError, operationsOf, type Problem, type components } from "@millrace/client";

export type Job = components["schemas"]["JobView"];
export type JobMetrics = components["schemas"]["JobMetricsView"];
export type Task = components["schemas"]["JobTaskView"];
export type Transition = components["schemas"]["TransitionView"];
export type Stream = components["schemas"]["StreamView"];
export type StreamRecord = components["schemas"]["RecordView"];
export type RecordPage = components["schemas"]["RecordPage"];
export type Instance = components["schemas"]["InstanceView"];
export type Overview = components["schemas"]["OverviewView"];
export type JobFigures = components["schemas"]["JobOverviewView"];
export type Readiness = components["schemas"]["ReadinessView"];

export interface Session {
  readonly name: string;
  readonly role: "reader" | "writer" | "admin";
  /** Authentication is off: there is nothing to sign out of. */
  readonly is_open: boolean;
  readonly ends_at: string | null;
  readonly csrf_token: string | null;
}

let csrfToken: string | null = null;

function withToken(request: Request): Promise<Response> {
  if (csrfToken !== null) request.headers.set("X-CSRF-Token", csrfToken);
  return fetch(request);
}

/** Each operation of the API, typed by its OpenAPI document. */
export const api = operationsOf({ url: location.origin, fetch: withToken as typeof fetch });

/** What an operation answered. Throws ApiError. */
export async function good<T>(asked: Promise<{ data?: T; error?: unknown; response: Response }>): Promise<T> {
  const { data, error, response } = await asked;
  if (!response.ok) throw new ApiError(response.status, (error ?? {}) as Partial<Problem>);
  return data as T;
}

export interface Place {
  readonly partition?: number;
  readonly from_offset?: number;
  readonly from_timestamp?: number;
  readonly cursor?: string;
}

export async function readRecords(stream: string, place: Place, limit: number): Promise<RecordPage> {
  const params = { path: { stream }, query: { ...place, limit } };
  return (await good<RecordPage | string>(api.GET("/v1/streams/{stream}/records", { params }))) as RecordPage; // as asked: JSON
}

/** Who is signed in; null: nobody. A code in the address (a link of `millrace up`) signs in, and is gone from there. */
export async function currentSession(): Promise<Session | null> {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (code !== null) {
    history.replaceState(null, "", location.pathname + location.search);
    try {
      return await signIn({ code });
    } catch (error) {
      if (!(error instanceof ApiError) || error.status !== 401) throw error;
    }
  }
  const answer = await fetch("/admin/session");
  return answer.status === 401 ? keep(null) : keep(await answered<Session>(answer));
}

export async function signIn(given: { key: string } | { code: string }): Promise<Session> {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetch("/admin/session", { method: "POST", headers, body: JSON.stringify(given) });
  return keep(await answered<Session>(answer));
}

export async function signOut(): Promise<void> {
  const answer = await withToken(new Request("/admin/session", { method: "DELETE" }));
  if (!answer.ok && answer.status !== 401) await answered(answer);
  keep(null);
}

function keep<T extends Session | null>(session: T): T {
  csrfToken = session?.csrf_token ?? null;
  return session;
}

async function answered<T>(answer: Response): Promise<T> {
  const content: unknown = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new ApiError(answer.status, content as Partial<Problem>);
  return content as T;
}
