// The built files go into the Python package, which serves them (service/api/dashboard.py).
import { readFileSync, readdirSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const path = (relative) => fileURLToPath(new URL(relative, import.meta.url));
const BUILT = path("../service/dashboard");

/** Packed once here, not at each request. */
const packed = {
  name: "packed",
  writeBundle() {
    for (const name of readdirSync(`${BUILT}/assets`)) {
      if (/\.(js|css|svg)$/.test(name)) {
        const file = `${BUILT}/assets/${name}`;
        writeFileSync(`${file}.gz`, gzipSync(readFileSync(file), { level: 9 }));
      }
    }
  },
};

export default {
  base: "/admin/",
  // The client's types and errors, from its sources: its package is built elsewhere, and needs no build for this.
  resolve: {
    alias: { "@millrace/client": path("../clients/typescript/src/index.ts") },
    dedupe: ["openapi-fetch"],
  },
  build: { outDir: BUILT, emptyOutDir: true, target: "es2022" },
  plugins: [packed],
};
