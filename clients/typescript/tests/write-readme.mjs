// The examples of README.md as one program, tests/readme.ts, which is compiled and run with the others.
import { readFile, writeFile } from "node:fs/promises";

const page = await readFile(new URL("../README.md", import.meta.url), "utf8");
const examples = [...page.matchAll(/^```ts\n(.*?)^```/gms)].map(([, code]) => code);
const head = "// Written by write-readme.mjs.\ndeclare const KEY: string;\n";
await writeFile(new URL("readme.ts", import.meta.url), head + examples.join("\n"));
