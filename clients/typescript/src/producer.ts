// A producer: records are gathered into posts, which go out one after another, so that records stay in order. A post that
// failed for now is sent again under the key that it had, so it is appended once; the next one waits for it.
import { pathOf, randomId, type Client } from "./client.js";
import { DeliveryFailed, type FailedBatch } from "./errors.js";
import type { components } from "./schema.js";

export type Appended = components["schemas"]["AppendedView"];

export interface Limits {
  /** A post has so many records and characters at most (a larger record goes alone), and waits so long for more. */
  readonly maxRecords: number;
  readonly maxLength: number;
  readonly lingerMs: number;
  /** So many characters wait in all, then `send` does. */
  readonly bufferLength: number;
  /** A post is tried until it is so old. */
  readonly deliveryMs: number;
}

export interface RecordParts {
  readonly key?: string;
  /** ms; the time of arrival where it is absent. */
  readonly timestamp?: number;
  readonly partition?: number;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Sent {
  /** The answer to the whole post that the record is in. */
  readonly appended: Promise<Appended>;
}

interface Batch {
  readonly records: string[];
  readonly idempotencyKey: string;
  readonly began: number;
  readonly isSealed: Promise<void>;
  length: number;
  seal: () => void;
  appended: Promise<Appended>;
}

const LIMITS: Limits = {
  maxRecords: 1_000,
  maxLength: 1 << 20,
  lingerMs: 10,
  bufferLength: 32 << 20,
  deliveryMs: 120_000,
};

/** Gathers records into posts. `V`: what the values of the stream are. */
export class Producer<V = unknown> {
  readonly #client: Client;
  readonly #path: string;
  readonly #limits: Limits;
  #open: Batch | null = null;
  #last: Promise<unknown> = Promise.resolve();
  #unfinished = 0;
  #failed: FailedBatch[] = [];
  #waiting: (() => void)[] = [];
  #isClosed = false;

  constructor(client: Client, stream: string, limits: Partial<Limits> = {}) {
    this.#client = client;
    this.#path = `${pathOf("streams", stream)}/records`;
    this.#limits = { ...LIMITS, ...limits };
  }

  /** Hand a record in; resolves when there is room for it. Nobody has to look at what it gives. */
  async send(value: V, parts: RecordParts = {}): Promise<Sent> {
    const record = JSON.stringify({ value: value ?? null, ...parts });
    while (!this.#isClosed && this.#unfinished > 0 && this.#unfinished + record.length > this.#limits.bufferLength) {
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
    if (this.#isClosed) throw new Error("the producer is closed");
    const fits = this.#open !== null && this.#open.length + record.length <= this.#limits.maxLength;
    const batch = fits && this.#open !== null ? this.#open : this.#begin();
    batch.records.push(record);
    batch.length += record.length;
    this.#unfinished += record.length;
    if (batch.records.length >= this.#limits.maxRecords || batch.length >= this.#limits.maxLength) this.#seal(batch);
    return { appended: batch.appended };
  }

  /** Resolves when all that was sent is durable. Throws DeliveryFailed with what, since the last flush, is not. */
  async flush(): Promise<void> {
    this.#seal(this.#open);
    await this.#last;
    const failed = this.#failed;
    this.#failed = [];
    if (failed.length > 0) throw new DeliveryFailed(failed);
  }

  /** Flush and end. Throws DeliveryFailed. */
  async close(): Promise<void> {
    this.#isClosed = true;
    this.#wake();
    await this.flush();
  }

  #begin(): Batch {
    this.#seal(this.#open);
    let seal = (): void => undefined;
    const isSealed = new Promise<void>((resolve) => (seal = resolve));
    const batch: Batch = {
      records: [],
      idempotencyKey: randomId(),
      began: performance.now(),
      isSealed,
      length: 0,
      seal,
      appended: this.#last.then(() => this.#post(batch)),
    };
    this.#last = batch.appended.catch((error: unknown) => {
      const records = batch.records.map((record) => JSON.parse(record) as unknown);
      this.#failed.push({ records, idempotencyKey: batch.idempotencyKey, error });
    });
    return (this.#open = batch);
  }

  #seal(batch: Batch | null): void {
    batch?.seal();
    if (batch === this.#open) this.#open = null;
  }

  async #post(batch: Batch): Promise<Appended> {
    const left = batch.began + this.#limits.lingerMs - performance.now();
    const timer = setTimeout(batch.seal, Math.max(0, left));
    await batch.isSealed;
    clearTimeout(timer);
    this.#seal(batch);
    const limitMs = this.#limits.deliveryMs - (performance.now() - batch.began);
    try {
      return await this.#client.call<Appended>("POST", this.#path, undefined, {
        text: `{"records":[${batch.records.join(",")}]}`,
        headers: { "Idempotency-Key": batch.idempotencyKey },
        isRepeatable: true,
        retries: { ...this.#client.retries, limitMs },
      });
    } finally {
      this.#unfinished -= batch.length;
      this.#wake();
    }
  }

  #wake(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const resolve of waiting) resolve();
  }
}
