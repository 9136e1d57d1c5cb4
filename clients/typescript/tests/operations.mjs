// Calls operations that are named on standard input, a line each: [method, path, what is sent]. A line of the answer:
// [status, data, ETag]. `node operations.mjs URL KEY`.
import { createInterface } from "node:readline";

import { operationsOf } from "../dist/src/index.js";

const [url, key] = process.argv.slice(2);
const api = operationsOf({ url, key });

for await (const line of createInterface({ input: process.stdin })) {
  const [method, path, init] = JSON.parse(line);
  const isText = path === "/metrics" || path.endsWith("/tail") || path.endsWith("/events") || path.endsWith("/export");
  const { data, error, response } = await api.request(method, path, isText ? { ...init, parseAs: "text" } : init);
  const answer = [response.status, data ?? error ?? null, response.headers.get("ETag") ?? ""];
  process.stdout.write(`${JSON.stringify(answer)}\n`);
}
