// Each part of the client against a service that works: `node live.js URL KEY`. It throws where something is not as it
// should be.
import { ApiError, Client, Consumer, DeliveryFailed, Job, JobFailed, Producer, Store, type StreamRecord } from "../src/index.js";

declare const process: { argv: string[] };

const [, , url = "", key = ""] = process.argv;
const client = new Client({ url, key });

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

async function taken(consumer: Consumer, count: number): Promise<StreamRecord[]> {
  const found: StreamRecord[] = [];
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
  const all = await taken(new Consumer(client, stream), 30);
  equal(
    all.map((record) => (record.value as { n: number }).n),
    Array.from({ length: 30 }, (_, n) => n),
  );
  equal(all[0]?.value, { n: 0, text: "\u2028\n\n" });
  const rest = new Consumer(client, stream, { start: all[9]?.position ?? "" });
  equal((await taken(rest, 20)).map((record) => record.offset).at(-1), 29);
  equal(rest.position, all[28]?.position);
  equal((await taken(new Consumer(client, stream, { key: "k1" }), 10)).length, 10);
  await producer.close();
  await thrown(Error, producer.send(1));
  equal((await thrown(ApiError, taken(new Consumer(client, "ts-nobody"), 1))).code, "unknown_stream");
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
  const store = new Store(client, "ts-job-n");
  const { entries, asOf } = await store.get("a", { min_position: position, timeout_ms: 30_000 });
  equal([entries[0]?.value, asOf.lag_records], [{ n: 2 }, 0]);
  const found = [];
  for await (const entry of store.range({ limit: 1 })) found.push(entry.key);
  equal(found, ["a", "b/c"]);
  equal((await store.toArrow()).length > 100, true);
  const other = new Job(client, job.name);
  await other.view();
  equal((await job.change({ commit_interval_ms: 50 })).spec.commit_interval_ms, 50);
  equal((await thrown(ApiError, other.change({ commit_interval_ms: 60 }))).code, "stale_tag");
  equal((await job.update({ ...spec, commit_interval_ms: 70 })).spec_version, 3);
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
await whatIsRefused();
await jobsAndStores();
await theRest();
