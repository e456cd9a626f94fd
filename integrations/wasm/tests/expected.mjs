// What the native program computed: see README.md.

import { readFileSync } from "node:fs";
import assert from "node:assert/strict";

/** The texts and embeddings of a file of tests/. */
export function expected(file) {
  const lines = readFileSync(new URL(file, import.meta.url), "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line));
  return { texts: lines.map((line) => line.text), embeddings: lines.map((line) => line.embedding) };
}

/** Asserts that embeddings differ by at most 1e-6 in each feature. */
export function assertClose(found, wanted) {
  assert.equal(found.length, wanted.length);
  found.forEach((embedding, i) => {
    assert.ok(embedding instanceof Float32Array);
    assert.equal(embedding.length, wanted[i].length);
    const largest = Math.max(...wanted[i].map((x, j) => Math.abs(x - embedding[j])));
    assert.ok(largest <= 1e-6, `text ${i} differs by ${largest}`);
  });
}
