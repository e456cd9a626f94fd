// The same vectors in a browser as in the native program.

import { test } from "node:test";
import assert from "node:assert/strict";
import { assertClose, expected } from "./expected.mjs";
import { visit } from "./page.mjs";

const { texts, embeddings } = expected("embedded.jsonl");

const page = `<!doctype html><script type="module">
  const found = {};
  try {
    const { init, SentenceEncoder } = await import("/index.js");
    await init("/bindings_bg.wasm");
    const encoder = await SentenceEncoder.embedded();
    found.embeddings = encoder.encode(${JSON.stringify(texts)}).map((embedding) => [...embedding]);
    found.hits = encoder.search("a sleeping cat", ${JSON.stringify(texts)}, 1);
    try { encoder.encode(5); } catch (error) { found.error = error.message; }
  } catch (error) {
    found.failed = String(error);
  }
  await fetch("/found", { method: "POST", body: JSON.stringify(found) });
</script>`;

test("the embedded model in a browser", { timeout: 120_000 }, async () => {
  const found = await visit(page, new URL("../pkg/", import.meta.url));
  assert.equal(found.failed, undefined);
  assertClose(
    found.embeddings.map((embedding) => new Float32Array(embedding)),
    embeddings,
  );
  assert.equal(found.hits[0].index, 0);
  assert.equal(found.error, "the text is of type number, expected a string or an array of strings");
});
