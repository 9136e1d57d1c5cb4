// Each part of the client against a service that works. It throws where something is not as it should be. It is bundled for
// browsers and run with what a page has (in-a-page.mjs), which puts in the service's address and gives it the key.
import {
  ApiError,
  Client,
  Consumer,
  DeliveryFailed,
  Job,
  JobFailed,
  Producer,
  Store,
  SubscriptionConsumer,
  TimedOut,
  type SubscriptionView,
} from "../src/index.js";

declare const KEY: string;

const url = "http://127.0.0.1:8080";
const client = new Client({ url, key: KEY });

interface Numbered {
  n: number;
}

function equal(found: unknown, expected: unknown): void {
  const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
  if (one !== other) throw new Error(`${one} is not ${other}`);
}

async function thrown<T extends Error>(kind: new (...args: never[]) => T, promise: Promise<unknown>): Promise<T> {
  const error: unknown = await promise.then(
    () => new Error("nothing was thrown"),
    (reason: unknown) => reason,
  );
  if (!(error instanceof kind)) throw error;
  return error;
}

async function taken<T>(consumer: AsyncIterable<T>, count: number): Promise<T[]> {
  const found: T[] = [];
  for await (const record of consumer) {
    found.push(record);
    if (found.length === count) break;
  }
  return found;
}

async function made(name: string, settings: object = {}): Promise<string> {
  await client.call("POST", "/v1/streams", { name, partitions: 2, ...settings }, { isRepeatable: true });
  return name;
}

async function producersAndConsumers(): Promise<void> {
  const stream = await made("ts-clicks");
  const producer = new Producer(client, stream, { maxRecords: 7, bufferLength: 400 });
  const sent = [];
  for (let n = 0; n < 30; n++) sent.push(await producer.send({ n, text: "\u2028\n\n" }, { key: `k${n % 3}`, partition: 0 }));
  await producer.flush();
  equal((await sent[29]?.appended)?.offsets[0]?.last, 29);
  const all = await taken(new Consumer<Numbered>(client, stream), 30);
  equal(
    all.map((record) => record.value.n),
    Array.from({ length: 30 }, (_, n) => n),
  );
  equal(all[0]?.value, { n: 0, text: "\u2028\n\n" });
  const rest = new Consumer(client, stream, { start: all[9]?.position ?? "" });
  equal((await taken(rest, 20)).map((record) => record.offset).at(-1), 29);
  equal(rest.position, all[28]?.position);
  equal((await taken(new Consumer(client, stream, { key: "k1" }), 10)).length, 10);
  const chosen = new Consumer<Numbered>(client, stream, { where: "(value->>'n')::bigint > 27" });
  equal((await taken(chosen, 2)).map((record) => record.value.n), [28, 29]);
  await producer.close();
  await thrown(Error, producer.send(1));
  equal((await thrown(ApiError, taken(new Consumer(client, "ts-nobody"), 1))).code, "unknown_stream");
}

async function subscriptions(): Promise<void> {
  const stream = await made("ts-orders");
  const producer = new Producer<Numbered>(client, stream);
  for (let n = 0; n < 10; n++) await producer.send({ n }, { partition: 0 });
  await producer.flush();
  const path = `/v1/streams/${stream}/subscriptions`;
  await client.call("POST", path, { name: "billing", start: "earliest" }, { isRepeatable: true });
  const subscribe = (options: object): SubscriptionConsumer<Numbered> =>
    new SubscriptionConsumer(client, stream, "billing", { waitMs: 1_000, ...options });
  const next = async (records: AsyncIterator<{ partition: number; value: Numbered }>): Promise<number[]> => {
    const { value } = (await records.next()) as { value: { partition: number; value: Numbered } };
    return [value.partition, value.value.n];
  };

  // a batch is acknowledged when the next one is asked for; who goes on otherwise gets it again
  const first = subscribe({ maxRecords: 4 });
  equal((await taken(first, 6)).map((record) => record.value.n), [0, 1, 2, 3, 4, 5]);
  equal((await taken(first, 1)).map((record) => record.value.n), [4]);
  await first.close();
  const second = subscribe({ maxRecords: 4, name: "second" });
  equal((await taken(second, 5)).map((record) => record.value.n), [4, 5, 6, 7, 8]);
  const view = await client.call<SubscriptionView>("GET", `${path}/billing`);
  equal([view.lag_records, view.consumers.map((consumer) => consumer.consumer)], [2, ["second"]]);
  const rest = await taken(second, 2); // its second batch, again
  await second.acknowledge(...rest.slice(0, 1));
  equal((await client.call<SubscriptionView>("GET", `${path}/billing`)).lag_records, 1);
  await second.close();
  equal((await thrown(ApiError, second.acknowledge(...rest))).code, "lease_lost");

  // two of them share the partitions
  await producer.send({ n: 10 }, { partition: 1 });
  await producer.close();
  const [one, other] = [subscribe({ maxRecords: 1 }), subscribe({ maxRecords: 1 })];
  const ofOne = one[Symbol.asyncIterator]();
  const ofOther = other[Symbol.asyncIterator]();
  equal([await next(ofOne), await next(ofOther)].sort(), [[0, 9], [1, 10]]);
  await Promise.all([one.close(), other.close()]);

  // a lease that is lost: the records come again
  const slow = subscribe({ maxRecords: 1, leaseMs: 100 });
  const ofSlow = slow[Symbol.asyncIterator]();
  const [partition] = await next(ofSlow);
  while ((await client.call<SubscriptionView>("GET", `${path}/billing`)).consumers.length > 0);
  const again = [await next(ofSlow), await next(ofSlow)];
  equal(again.filter((found) => found[0] === partition).length > 0, true);
  equal([...again].sort(), [[0, 9], [1, 10]]);
  await slow.close();

  await thrown(ApiError, taken(new SubscriptionConsumer(client, stream, "nobody"), 1));
}

async function whatIsAborted(): Promise<void> {
  const stream = await made("ts-silent");
  const path = `/v1/streams/${stream}/subscriptions`;
  await client.call("POST", path, { name: "billing" }, { isRepeatable: true });
  const ended = new AbortController();
  const { signal } = ended;
  const waiting = [
    taken(new Consumer(client, stream, { signal }), 1),
    taken(new SubscriptionConsumer(client, stream, "billing", { signal }), 1),
    client.call("GET", `/v1/streams/${stream}/records`, undefined, { query: { wait_ms: 20_000 }, waitMs: 20_000, signal }),
  ];
  const found = waiting.map((promise) => thrown(RangeError, promise));
  await client.call("GET", path); // they wait by now, or are about to ask
  ended.abort(new RangeError("enough"));
  equal((await Promise.all(found)).map(({ message }) => message), ["enough", "enough", "enough"]);
  await thrown(RangeError, client.call("GET", path, undefined, { signal }));
}

async function whatIsRefused(): Promise<void> {
  const producer = new Producer(client, await made("ts-typed", { fields: { n: "long" } }), { maxRecords: 1 });
  for (const n of [1, "one", 2]) await producer.send({ n });
  const [batch, ...others] = (await thrown(DeliveryFailed, producer.flush())).batches;
  equal(others, []);
  equal(batch?.records, [{ value: { n: "one" } }]);
  equal(batch?.error instanceof ApiError && batch.error.is("invalid_records"), true);
  equal((await taken(new Consumer(client, "ts-typed"), 2)).length, 2);
  const nowhere = new Client({ url: "http://127.0.0.1:9", retries: { firstMs: 1, mostMs: 1 } });
  const lost = new Producer(nowhere, "clicks", { deliveryMs: 50 });
  await lost.send(1);
  await thrown(DeliveryFailed, lost.close());
}

async function jobsAndStores(): Promise<void> {
  const count = { op: "aggregate", name: "n", aggregates: { n: { fn: "count" } } } as const;
  const spec = { name: "ts-job", source: await made("ts-source"), operators: [count] };
  const job = await Job.submit(client, spec);
  const records = { records: ["a", "b/c", "a"].map((key) => ({ key, value: 1 })) };
  const { position } = await client.call<{ position: string }>("POST", "/v1/streams/ts-source/records", records);
  await job.wait("caught_up");
  const store = new Store<Numbered>(client, "ts-job-n");
  const { entries, asOf } = await store.get("a", { min_position: position, timeout_ms: 30_000 });
  equal([entries[0]?.value.n, asOf.lag_records], [2, 0]);
  const found = [];
  for await (const entry of store.range({ limit: 1 })) found.push(entry.key);
  equal(found, ["a", "b/c"]);
  equal((await store.toArrow()).length > 100, true);
  await thrown(TimedOut, job.wait("stopped", 1));
  const other = new Job(client, job.name);
  await other.pause();
  await other.resume(); // which gives it another tag, not another specification
  equal((await job.change({ commit_interval_ms: 50 })).spec.commit_interval_ms, 50);
  equal((await thrown(ApiError, other.change({ commit_interval_ms: 60 }))).code, "stale_tag");
  const renamed = { ...spec, operators: [{ ...count, name: "m" }] };
  const verdict = await other.dryRun(renamed, { renames: { n: "m" } });
  equal([verdict.is_possible, verdict.version], [true, 3]);
  equal((await other.update(renamed, { renames: { n: "m" } })).stores, ["ts-job-m"]);
  await job.stop();
  equal((await job.wait("stopped")).state, "stopped");
  equal((await thrown(JobFailed, job.wait("running"))).state, "stopped");
  await job.delete();
  equal((await thrown(ApiError, job.view())).is("unknown_job"), true);
}

async function theRest(): Promise<void> {
  const names: string[] = [];
  for await (const stream of client.items<{ name: string }>("/v1/streams", { limit: 1 })) names.push(stream.name);
  equal(["ts-clicks", "ts-source", "ts-typed"].every((name) => names.includes(name)), true);
  equal((await thrown(ApiError, new Client({ url, key: "wrong" }).call("GET", "/v1/jobs"))).status, 401);
}

await producersAndConsumers();
await subscriptions();
await whatIsAborted();
await whatIsRefused();
await jobsAndStores();
await theRest();
