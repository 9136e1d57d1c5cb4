// A consumer: the records of a stream, for ever, from a place on. It follows the stream's tail; where that breaks off, or
// the service restarts, it goes on behind the last record that it had.
import { answered, Ending, errorOf, errorOfEvent, pathOf, pause, pauseAfter, type Client, type Query } from "./client.js";
import { MillraceError, type Problem } from "./errors.js";
import type { components } from "./schema.js";

type RecordView = components["schemas"]["RecordView"];

/** A record of a stream whose values are, as its reader knows, of such a type. */
export interface StreamRecord<V = unknown> extends Readonly<Omit<RecordView, "value">> {
  readonly value: V;
}

export interface PlacedRecord<V = unknown> extends StreamRecord<V> {
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
  /** Only for which this condition (SQL, as of the operator filter) holds. */
  readonly where?: string;
  /** Ends the iteration, which throws the signal's reason. */
  readonly signal?: AbortSignal;
}

const SILENCE_MS = 45_000; // a tail is never silent for so long: the service says something every 15 s

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

/** Iterates over the records of a stream, and never ends by itself. What it can not go on from is thrown. */
export class Consumer<V = unknown> implements AsyncIterable<PlacedRecord<V>> {
  /** Behind the last record that was used: one whose successor was asked for. */
  position: string | null = null;
  readonly #client: Client;
  readonly #path: string;
  readonly #query: Query;
  readonly #signal: AbortSignal | undefined;
  #seen: string | null = null;
  #failures = 0;

  constructor(client: Client, stream: string, options: ConsumerOptions = {}) {
    this.#client = client;
    this.#path = `${pathOf("streams", stream)}/tail`;
    const { start = "earliest", partition, key, where } = options;
    this.#query = { from: start, partition, key, where };
    this.#signal = options.signal;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<PlacedRecord<V>, void> {
    for await (const batch of this.batches()) {
      for (const record of batch) {
        yield record;
        this.position = record.position;
      }
    }
  }

  /** The same records, as many at a time as came together: for one transaction each. */
  async *batches(): AsyncGenerator<PlacedRecord<V>[], void> {
    for (;;) {
      let retryAfterMs: number | null = null;
      try {
        yield* this.#followed();
      } catch (error) {
        this.#signal?.throwIfAborted();
        if (!(error instanceof MillraceError) || !error.isTransient) throw error;
        retryAfterMs = error.retryAfterMs;
      }
      await pause(pauseAfter(this.#failures++, this.#client.retries, retryAfterMs), this.#signal);
    }
  }

  async *#followed(): AsyncGenerator<PlacedRecord<V>[], void> {
    const headers: Record<string, string> = this.#seen === null ? {} : { "Last-Event-ID": this.#seen };
    const ending = new Ending(this.#signal);
    try {
      const asked = { query: this.#query, headers };
      const answering = this.#client.send("GET", this.#path, undefined, asked, ending.signal);
      const answer = await ending.within(SILENCE_MS, answering);
      if (!answer.ok || answer.body === null) throw errorOf(answer, await answered(answer.text()));
      const parser = new EventParser();
      const decoder = new TextDecoder();
      const reader = answer.body.getReader();
      for (;;) {
        const piece = await ending.within(SILENCE_MS, answered(reader.read()));
        if (piece.done) return;
        const events = parser.feed(decoder.decode(piece.value, { stream: true }));
        const records = this.#records(events);
        if (records.length > 0) yield records;
        this.position = this.#seen;
        const end = events.find((event) => event.kind === "error");
        if (end !== undefined) throw errorOfEvent(end.data as Partial<Problem>);
      }
    } finally {
      ending.end();
    }
  }

  #records(events: readonly Event[]): PlacedRecord<V>[] {
    const found: PlacedRecord<V>[] = [];
    for (const event of events) {
      this.#failures = 0;
      this.#seen = event.id ?? this.#seen;
      if (event.kind === "message" && event.data !== undefined) {
        found.push({ ...(event.data as StreamRecord<V>), position: event.id ?? "" });
      }
    }
    return found;
  }
}
