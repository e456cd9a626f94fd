// Sources of the module: what `init` takes, and what it says of the rest.

import { relative } from "node:path";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import assert from "node:assert/strict";
import { init, SentenceEncoder } from "../pkg/index.js";

const module = new URL("../pkg/bindings_bg.wasm", import.meta.url);

// In turn: once the module is started, `init` only waits for it.
test("a wrong source of the module is named", async () => {
  const expected = "expected its address, its bytes, a response or a compiled module";
  for (const [source, found] of [
    [null, "null"],
    [5, "of type number"],
    [{}, "of type Object"],
    [Promise.resolve([]), "an array"],
  ]) {
    await assert.rejects(init(source), { name: "TypeError", message: `the module is ${found}, ${expected}` });
  }
  await assert.rejects(init("nowhere/bindings_bg.wasm"), { code: "ENOENT" });
  await assert.rejects(init(new Uint8Array(10)), WebAssembly.CompileError);
});

test("a path is an address in Node", async () => {
  await init(relative(process.cwd(), fileURLToPath(module)));
  assert.equal((await SentenceEncoder.embedded()).dimension, 128);
});
