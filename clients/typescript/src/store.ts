// Stores: entries by key, over a range of keys, as Arrow. A store's type, and so its path, is asked for once.
import { pathOf, type Client, type Query } from "./client.js";
import type { components } from "./schema.js";

type Schemas = components["schemas"];
/** An entry of a store whose values are, as its reader knows, of such a type. */
export type Entry<V = unknown> = Omit<Schemas["EntryView"], "value"> & { value: V };
export type StoreView = Schemas["StoreView"];

export interface Lookup<V = unknown> {
  readonly entries: Entry<V>[];
  readonly asOf: Schemas["AsOfView"];
}

const PLACES = { session: "sessions", window: "windows", key_value: "keys" } as const;
const PAGE = 1_000;

export class Store<V = unknown> {
  readonly #client: Client;
  readonly #path: string;
  #place: string | null = null;

  constructor(
    client: Client,
    readonly name: string,
  ) {
    this.#client = client;
    this.#path = pathOf("stores", name);
  }

  async view(): Promise<StoreView> {
    const view = await this.#client.call<StoreView>("GET", this.#path);
    this.#place = PLACES[view.type];
    return view;
  }

  /** All entries of a key, none where it is not known, and as of when. `filters`: the query of the store's type. */
  async get(key: string, filters: Query = {}): Promise<Lookup<V>> {
    const found: Lookup<V>[] = [];
    for await (const page of this.#pages({ ...filters, key })) found.push(page);
    const [first] = found;
    if (first === undefined) throw new RangeError("no page");
    return { entries: found.flatMap((page) => page.entries), asOf: first.asOf };
  }

  /** Entries of all keys, or of those from `from_key` to `to_key`, page by page. */
  async *range(filters: Query = {}): AsyncGenerator<Entry<V>, void> {
    for await (const page of this.#pages(filters)) yield* page.entries;
  }

  /** All entries as an Arrow IPC stream, for `tableFromIPC` of apache-arrow. */
  async toArrow(filters: Query = {}): Promise<Uint8Array> {
    const headers = { Accept: "application/vnd.apache.arrow.stream" };
    const answer = await this.#client.answer("GET", await this.#entries(), undefined, { query: filters, headers });
    return new Uint8Array(await answer.arrayBuffer());
  }

  async *#pages(query: Query): AsyncGenerator<Lookup<V>, void> {
    const path = await this.#entries();
    const waitMs = Number(query["timeout_ms"] ?? 0);
    let cursor: string | null = null;
    do {
      const page: Schemas["LookupPage"] = await this.#client.call("GET", path, undefined, {
        query: { limit: PAGE, ...query, cursor },
        waitMs,
      });
      yield { entries: page.items as Entry<V>[], asOf: page.as_of };
      cursor = page.next;
    } while (cursor !== null);
  }

  async #entries(): Promise<string> {
    if (this.#place === null) await this.view();
    return `${this.#path}/${this.#place}`;
  }
}
