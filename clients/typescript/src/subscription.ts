// A consumer of a subscription: the service keeps how far it is, and shares the partitions between those that pull. A batch
// is acknowledged when the next one is asked for, a record whenever its user says so; what was not comes again, here or to
// another consumer.
import { pathOf, randomId, type Asked, type Client } from "./client.js";
import type { StreamRecord } from "./consumer.js";
import { ApiError } from "./errors.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];
type Positions = Schemas["SubscriptionPosition"][];
/** Offsets from `start` up to `end` (not included) that retention took before they were acknowledged. */
export type Gap = Schemas["GapView"];

export interface SubscriptionOptions {
  /** So many records at a time at most. */
  readonly maxRecords?: number;
  /** So long a pull waits for records; then comes the next one. */
  readonly waitMs?: number;
  /** Its partitions go to others where it is silent for so long: a batch must take less. */
  readonly leaseMs?: number;
  /**
   * A name that no other consumer has, and that this one has again after a restart: then it goes on at once, with what it
   * had, where any other waits for the end of a lease.
   */
  readonly name?: string;
  /** Hears what retention took; who throws has it told again. */
  readonly onGap?: (gap: Gap) => void;
  /** Ends the iteration, which throws the signal's reason; what is not acknowledged comes again. */
  readonly signal?: AbortSignal;
}

/**
 * Iterates over what a subscription has for it, for ever: each record at least once, in order within a partition. Several
 * of them, in any number of processes, share the partitions; `close` gives those that it has to the others.
 */
export class SubscriptionConsumer<V = unknown> implements AsyncIterable<StreamRecord<V>> {
  readonly #client: Client;
  readonly #path: string;
  readonly #options: SubscriptionOptions;
  readonly #consumer: string;
  readonly #asked: Asked;

  constructor(client: Client, stream: string, subscription: string, options: SubscriptionOptions = {}) {
    this.#client = client;
    this.#path = `${pathOf("streams", stream)}/subscriptions/${encodeURIComponent(subscription)}`;
    this.#options = options;
    this.#consumer = options.name ?? randomId();
    const retries = { ...client.retries, limitMs: Number.POSITIVE_INFINITY };
    this.#asked = { isRepeatable: true, retries, signal: options.signal };
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<StreamRecord<V>, void> {
    for await (const batch of this.batches()) yield* batch;
  }

  /** The same records, a batch at a time: asking for the next one acknowledges it. */
  async *batches(): AsyncGenerator<StreamRecord<V>[], void> {
    let used: Positions = [];
    for (;;) {
      if (used.length > 0) await this.#settle(used);
      const { records, positions, gaps } = await this.#pull();
      for (const gap of gaps) this.#options.onGap?.(gap);
      if (records.length > 0) yield records as StreamRecord<V>[];
      used = positions;
    }
  }

  /**
   * Say that records are done with, and what is before them in their partitions, without asking for more. The lease begins
   * anew. Throws ApiError: `lease_lost`, others may have them again.
   */
  async acknowledge(...records: readonly StreamRecord[]): Promise<void> {
    const reached = new Map<number, number>();
    for (const { partition, offset } of records) {
      reached.set(partition, Math.max(offset + 1, reached.get(partition) ?? 0));
    }
    const positions = Array.from(reached, ([partition, position]) => ({ partition, position }));
    await this.#say(positions, { isRepeatable: true, signal: this.#options.signal });
  }

  /** Leave. What was given and is not acknowledged comes again. */
  async close(): Promise<void> {
    await this.#say([], { isRepeatable: true }, { leave: true });
  }

  #pull(): Promise<Schemas["PulledView"]> {
    const { maxRecords = 500, waitMs = 20_000, leaseMs = 30_000 } = this.#options;
    const body: Schemas["PullRequest"] = {
      consumer: this.#consumer,
      pull_id: randomId(),
      lease_ms: leaseMs,
      max: maxRecords,
      wait_ms: waitMs,
    };
    return this.#client.call("POST", `${this.#path}:pull`, body, { ...this.#asked, waitMs });
  }

  async #settle(positions: Positions): Promise<void> {
    try {
      await this.#say(positions, this.#asked);
    } catch (error) {
      // it took too long: another consumer gets those records again
      if (!(error instanceof ApiError && error.is("lease_lost"))) throw error;
    }
  }

  async #say(positions: Positions, asked: Asked, more: { leave?: boolean } = {}): Promise<void> {
    const body: Schemas["AcknowledgeRequest"] = { consumer: this.#consumer, positions, ...more };
    await this.#client.call("POST", `${this.#path}:ack`, body, asked);
  }
}
