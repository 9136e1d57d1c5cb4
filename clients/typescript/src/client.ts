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
  /** In place of the global one: behind a proxy, say. */
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
  /** Ends it, with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
}

const MOST_DOUBLINGS = 16;

/** The path of one of a collection, whatever its name holds. */
export function pathOf(collection: string, name: string): string {
  return `/v1/${collection}/${encodeURIComponent(name)}`;
}

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
    const answer = await this.answer(method, path, body, asked);
    const text = await answer.text();
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
      const ending = new Ending(asked.signal);
      try {
        return await ending.within(this.#timeoutMs + (asked.waitMs ?? 0), this.#whole(method, path, body, asked, ending.signal));
      } catch (error) {
        asked.signal?.throwIfAborted();
        if (!(error instanceof MillraceError) || !error.isTransient) throw error;
        const wasRefused = error instanceof ApiError && error.status === 429;
        const pauseMs = pauseAfter(attempt, retries, error.retryAfterMs);
        if (!(isRepeatable || wasRefused) || performance.now() + pauseMs > until) throw error;
        await pause(pauseMs, asked.signal);
      } finally {
        ending.end();
      }
    }
  }

  async #whole(method: string, path: string, body: unknown, asked: Asked, signal: AbortSignal): Promise<Response> {
    const answer = await this.send(method, path, body, asked, signal);
    const content = await answered(answer.arrayBuffer());
    const { status, headers } = answer;
    if (answer.ok) return new Response(status === 204 ? null : content, { status, headers });
    throw errorOf(answer, new TextDecoder().decode(content));
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
    const question = query.toString();
    const url = this.#url + path + (question === "" ? "" : `?${question}`);
    return answered(this.#fetch(url, { method, headers, body: text ?? null, signal }));
  }
}

/** A signal for requests: aborted when they are to end, when one takes too long, or with another signal. */
export class Ending {
  readonly #controller = new AbortController();
  readonly #other: AbortSignal | undefined;
  readonly #follow = (): void => this.#controller.abort(this.#other?.reason);

  constructor(other?: AbortSignal) {
    this.#other = other;
    if (other?.aborted) this.#follow();
    other?.addEventListener("abort", this.#follow);
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Aborted where it takes longer. */
  async within<T>(ms: number, awaited: Promise<T>): Promise<T> {
    const timer = setTimeout(() => this.#controller.abort(new Error(`no answer in ${ms} ms`)), ms);
    try {
      return await awaited;
    } finally {
      clearTimeout(timer);
    }
  }

  end(): void {
    this.#other?.removeEventListener("abort", this.#follow);
    this.#controller.abort();
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

/** Throws the signal's reason when it is aborted. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => end(resolve), ms);
    const abort = (): void => end(() => reject(signal?.reason));
    function end(how: () => void): void {
      clearTimeout(timer);
      signal?.removeEventListener("abort", abort);
      how();
    }
    if (signal?.aborted) abort();
    else signal?.addEventListener("abort", abort);
  });
}

/** A name that nobody else has. `crypto.randomUUID` is not there on pages without TLS. */
export function randomId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
