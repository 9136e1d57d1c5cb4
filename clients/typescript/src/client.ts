// The connection to a service: requests, answers, and when a request is sent again.
import { STATUS_OF_CODE, type ErrorCode } from "./codes.js";
import { ApiError, MillraceError, NoAnswer, type Problem } from "./errors.js";

export type Query = Readonly<Record<string, string | number | boolean | null | undefined>>;

export interface Retries {
  /** After a random time up to `firstMs`, twice as much each time, `mostMs` at most, beyond what `Retry-After` asks for. */
  readonly firstMs: number;
  readonly mostMs: number;
  /** Until so long after the first attempt. */
  readonly limitMs: number;
}

export interface ClientOptions {
  readonly url?: string;
  /** An API key. */
  readonly key?: string;
  readonly timeoutMs?: number;
  readonly retries?: Partial<Retries>;
  readonly fetch?: typeof globalThis.fetch;
}

export interface Asked {
  readonly query?: Query;
  readonly headers?: Readonly<Record<string, string>>;
  /** JSON that was written already, in place of a body. */
  readonly text?: string;
  /** How long the service may wait before it answers. */
  readonly waitMs?: number;
  /** Whether it may be sent again when it is not known whether it was carried out; of GET it is so. */
  readonly isRepeatable?: boolean;
  readonly retries?: Retries;
}

const MOST_DOUBLINGS = 16;

export class Client {
  readonly retries: Retries;
  readonly #url: string;
  readonly #headers: Readonly<Record<string, string>>;
  readonly #timeoutMs: number;
  readonly #fetch: typeof globalThis.fetch;

  constructor(options: ClientOptions = {}) {
    this.#url = (options.url ?? "http://127.0.0.1:8080").replace(/\/+$/, "");
    this.#headers = options.key === undefined ? {} : { Authorization: `Bearer ${options.key}` };
    this.#timeoutMs = options.timeoutMs ?? 30_000;
    this.#fetch = options.fetch ?? globalThis.fetch.bind(globalThis);
    this.retries = { firstMs: 50, mostMs: 5_000, limitMs: 30_000, ...options.retries };
  }

  /** Ask for anything of the API: the answer's JSON. Throws ApiError, NoAnswer. */
  async call<T = unknown>(method: string, path: string, body?: unknown, asked: Asked = {}): Promise<T> {
    const text = await (await this.answer(method, path, body, asked)).text();
    return (text === "" ? null : JSON.parse(text)) as T;
  }

  /** The items of a list, from all its pages. */
  async *items<T = unknown>(path: string, query: Query = {}): AsyncGenerator<T, void> {
    let cursor: string | null = null;
    do {
      const page: { items: T[]; next: string | null } = await this.call("GET", path, undefined, {
        query: { ...query, cursor },
      });
      yield* page.items;
      cursor = page.next;
    } while (cursor !== null);
  }

  /** The good answer to a request, after retries, with its body read. Throws ApiError, NoAnswer. */
  async answer(method: string, path: string, body?: unknown, asked: Asked = {}): Promise<Response> {
    const retries = asked.retries ?? this.retries;
    const until = performance.now() + retries.limitMs;
    const isRepeatable = asked.isRepeatable ?? method === "GET";
    for (let attempt = 0; ; attempt++) {
      try {
        const signal = AbortSignal.timeout(this.#timeoutMs + (asked.waitMs ?? 0));
        const answer = await this.send(method, path, body, asked, signal);
        const content = await answered(answer.arrayBuffer());
        const { status, headers } = answer;
        if (answer.ok) return new Response(status === 204 ? null : content, { status, headers });
        throw errorOf(answer, new TextDecoder().decode(content));
      } catch (error) {
        if (!(error instanceof MillraceError) || !error.isTransient) throw error;
        const wasRefused = error instanceof ApiError && error.status === 429;
        const pauseMs = pauseAfter(attempt, retries, error.retryAfterMs);
        if (!(isRepeatable || wasRefused) || performance.now() + pauseMs > until) throw error;
        await pause(pauseMs);
      }
    }
  }

  /** One attempt, whose body is still to be read. Throws NoAnswer. */
  send(method: string, path: string, body: unknown, asked: Asked, signal: AbortSignal): Promise<Response> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(asked.query ?? {})) {
      if (value !== null && value !== undefined) query.set(name, String(value));
    }
    const text = body === undefined ? asked.text : JSON.stringify(body);
    const headers: Record<string, string> = { ...this.#headers, ...asked.headers };
    if (text !== undefined) headers["Content-Type"] ??= "application/json";
    const question = query.size > 0 ? `?${query}` : "";
    return answered(this.#fetch(this.#url + path + question, { method, headers, body: text ?? null, signal }));
  }
}

/** The error of an answer of 400 or above, also of one that something on the way made. */
export function errorOf(answer: Response, text: string): ApiError {
  const retryAfter = answer.headers.get("Retry-After") ?? "";
  return new ApiError(answer.status, problemOf(text), /^\d+$/.test(retryAfter) ? Number(retryAfter) * 1000 : null);
}

/** The error that ends a tail: its status is the one that its code has. */
export function errorOfEvent(problem: Partial<Problem>): ApiError {
  return new ApiError(STATUS_OF_CODE[problem.code as ErrorCode] ?? 500, problem);
}

function problemOf(text: string): Partial<Problem> {
  try {
    const problem: unknown = JSON.parse(text);
    if (typeof problem === "object" && problem !== null) return problem;
  } catch {
    // a page of a proxy
  }
  return { detail: text.slice(0, 200) };
}

/** What fetch rejects with, where it is no fault of the caller's, is a NoAnswer. */
export async function answered<T>(answer: Promise<T>): Promise<T> {
  try {
    return await answer;
  } catch (error) {
    throw new NoAnswer(String(error), { cause: error });
  }
}

export function pauseAfter(attempt: number, retries: Retries, retryAfterMs: number | null): number {
  const longest = Math.min(retries.mostMs, retries.firstMs * 2 ** Math.min(attempt, MOST_DOUBLINGS));
  return (retryAfterMs ?? 0) + Math.random() * longest;
}

export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
