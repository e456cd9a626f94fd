// Bundled for browsers by others' tools, which look for every module that is named in an `import`, the package still runs.
// Requires the npm registry.

import { execFile } from "node:child_process";
import { cp, rm } from "node:fs/promises";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import assert from "node:assert/strict";
import { visit } from "../page.mjs";

const pathOf = (url) => fileURLToPath(url);
const [app, module] = [new URL("app.mjs", import.meta.url), new URL("../../pkg/bindings_bg.wasm", import.meta.url)];
const made = new URL("../../target/bundlers/", import.meta.url);

/** Runs a program of npm packages. */
const npx = (packages, ...command) =>
  promisify(execFile)("npx", ["--yes", ...packages.flatMap((name) => ["--package", name]), ...command]);

const bundlers = {
  esbuild: (out) =>
    npx(
      ["esbuild@0.28.2"],
      ...["esbuild", pathOf(app), "--bundle", "--minify", "--format=esm", `--outfile=${pathOf(new URL("app.js", out))}`],
    ),
  webpack: (out) =>
    npx(
      ["webpack@5.112.2", "webpack-cli@7.3.1"],
      ...["webpack", "--mode", "production", "--entry", pathOf(app), "--output-filename", "app.js"],
      ...["--output-path", pathOf(out), "--output-public-path", "/"],
    ),
};

for (const [name, bundle] of Object.entries(bundlers)) {
  test(`bundled by ${name}`, { timeout: 300_000 }, async () => {
    const out = new URL(`${name}/`, made);
    await rm(out, { recursive: true, force: true });
    await bundle(out);
    // webpack has copied it under another name.
    await cp(module, new URL("bindings_bg.wasm", out));
    const found = await visit(`<!doctype html><script type="module" src="/app.js"></script>`, out);
    assert.equal(found.failed, undefined);
    assert.equal(found.hits[0].index, 1);
  });
}
