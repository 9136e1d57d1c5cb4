// A consumer: the records of a stream, for ever, from a place on. It follows the stream's tail; where that breaks off, or
// the service restarts, it goes on behind the last record that it had.
import { answered, errorOf, errorOfEvent, pause, pauseAfter, type Client, type Query } from "./client.js";
import { MillraceError, type Problem } from "./errors.js";
import type { components } from "./schema.js";

export interface StreamRecord extends Readonly<components["schemas"]["RecordView"]> {
  /** The place behind it, from which a consumer resumes. */
  readonly position: string;
}

export interface ConsumerOptions {
  /** `earliest`, `latest`, a time in ms, a position of a record or of a post. */
  readonly start?: string | number;
  /** Only of this partition. */
  readonly partition?: number;
  /** Only with this key. */
  readonly key?: string;
}

const SILENCE_MS = 45_000; // the service says something every 15 s

interface Event {
  readonly kind: string;
  readonly id: string | undefined;
  readonly data: unknown;
}

/** Server-Sent Events out of pieces of their text; lines end with LF, as the service writes them. */
export class EventParser {
  #rest = "";

  feed(piece: string): Event[] {
    const whole = (this.#rest + piece).split("\n\n");
    this.#rest = whole.pop() ?? "";
    return whole.map((text) => {
      const fields = new Map(text.split("\n").map((line) => [line.split(": ", 1)[0], line.slice(line.indexOf(": ") + 2)]));
      const data = fields.get("data");
      return {
        kind: fields.get("event") ?? "message",
        id: fields.get("id"),
        data: data === undefined ? undefined : (JSON.parse(data) as unknown),
      };
    });
  }
}

export class Consumer implements AsyncIterable<StreamRecord> {
  /** Behind the last record that was used: one whose successor was asked for. */
  position: string | null = null;
  readonly #client: Client;
  readonly #path: string;
  readonly #query: Query;
  #seen: string | null = null;
  #failures = 0;

  constructor(client: Client, stream: string, options: ConsumerOptions = {}) {
    this.#client = client;
    this.#path = `/v1/streams/${stream}/tail`;
    this.#query = { from: options.start ?? "earliest", partition: options.partition, key: options.key };
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<StreamRecord, void> {
    for await (const batch of this.batches()) {
      for (const record of batch) {
        yield record;
        this.position = record.position;
      }
    }
  }

  /** The same records, as many at a time as came together. What it can not go on from is thrown. */
  async *batches(): AsyncGenerator<StreamRecord[], void> {
    for (;;) {
      let retryAfterMs: number | null = null;
      try {
        yield* this.#followed();
      } catch (error) {
        if (!(error instanceof MillraceError) || !error.isTransient) throw error;
        retryAfterMs = error.retryAfterMs;
      }
      await pause(pauseAfter(this.#failures++, this.#client.retries, retryAfterMs));
    }
  }

  async *#followed(): AsyncGenerator<StreamRecord[], void> {
    const headers: Record<string, string> = this.#seen === null ? {} : { "Last-Event-ID": this.#seen };
    const ending = new AbortController();
    try {
      const asked = { query: this.#query, headers };
      const answer = await quick(ending, this.#client.send("GET", this.#path, undefined, asked, ending.signal));
      if (!answer.ok || answer.body === null) throw errorOf(answer, await answered(answer.text()));
      const parser = new EventParser();
      const decoder = new TextDecoder();
      const reader = answer.body.getReader();
      for (;;) {
        const piece = await quick(ending, answered(reader.read()));
        if (piece.done) return;
        const events = parser.feed(decoder.decode(piece.value, { stream: true }));
        const records = this.#records(events);
        if (records.length > 0) yield records;
        this.position = this.#seen;
        const end = events.find((event) => event.kind === "error");
        if (end !== undefined) throw errorOfEvent(end.data as Partial<Problem>);
      }
    } finally {
      ending.abort();
    }
  }

  #records(events: readonly Event[]): StreamRecord[] {
    const found: StreamRecord[] = [];
    for (const event of events) {
      this.#failures = 0;
      this.#seen = event.id ?? this.#seen;
      if (event.kind === "message" && event.data !== undefined) {
        found.push({ ...(event.data as components["schemas"]["RecordView"]), position: event.id ?? "" });
      }
    }
    return found;
  }
}

/** Aborts what takes longer than a tail is ever silent. */
async function quick<T>(ending: AbortController, awaited: Promise<T>): Promise<T> {
  const timer = setTimeout(() => ending.abort(), SILENCE_MS);
  try {
    return await awaited;
  } finally {
    clearTimeout(timer);
  }
}
