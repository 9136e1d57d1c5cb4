// Runs bundles one after another with what a page of a browser has, and nothing of Node: `node in-a-page.mjs URL KEY BUNDLE…`.
// The service is at URL where they say http://127.0.0.1:8080, and KEY is its key.
import { readFile } from "node:fs/promises";
import { createContext, runInContext } from "node:vm";

const OF_A_PAGE = [
  "AbortController",
  "AbortSignal",
  "DOMException",
  "Headers",
  "ReadableStream",
  "Request",
  "Response",
  "TextDecoder",
  "TextEncoder",
  "URL",
  "URLSearchParams",
  "clearTimeout",
  "fetch",
  "performance",
  "setTimeout",
];

const [url, key, ...bundles] = process.argv.slice(2);

// a page without TLS has no more of `crypto`
const crypto = { getRandomValues: (array) => globalThis.crypto.getRandomValues(array) };
const quiet = {
  log() {},
  assert(isSo) {
    if (!isSo) throw new Error("an assertion of the example does not hold");
  },
};
const ofAPage = Object.fromEntries(OF_A_PAGE.map((name) => [name, globalThis[name]]));
const page = createContext({ ...ofAPage, crypto, console: quiet, KEY: key });
for (const bundle of bundles) {
  const code = (await readFile(bundle, "utf8")).replaceAll("http://127.0.0.1:8080", url);
  await runInContext(`(async () => {${code}\n})()`, page, { filename: bundle });
}
