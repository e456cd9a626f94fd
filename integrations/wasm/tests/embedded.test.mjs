// The embedded model: the same vectors as by the native program, and every method.

import { test } from "node:test";
import assert from "node:assert/strict";
import { SearchIndex, SentenceEncoder } from "../pkg/index.js";
import { assertClose, expected } from "./expected.mjs";

const { texts, embeddings } = expected("embedded.jsonl");
const encoder = await SentenceEncoder.embedded();

test("embeddings are those of the native program", () => {
  assert.equal(encoder.dimension, 128);
  assert.equal(encoder.maxSeqLength, 128);
  assertClose(encoder.encode(texts), embeddings);
});

test("a text alone, in any batch and by every method has the same bits", () => {
  const all = encoder.encode(texts);
  texts.forEach((text, i) => {
    assert.deepEqual(encoder.encode(text), all[i]);
    assert.deepEqual(encoder.encodeQuery(text), all[i], "the model's prompts are empty");
    assert.deepEqual(encoder.encodeDocument([text])[0], all[i]);
  });
  assert.deepEqual(encoder.encode([...texts].reverse(), { batchSize: 2 }), [...all].reverse());
  assert.deepEqual(encoder.encode([]), []);
});

test("options do what they say", () => {
  const cut = encoder.encode("A cat sleeps.", { truncateDim: 16 });
  assert.deepEqual(cut, encoder.encode("A cat sleeps.").slice(0, 16));
  const unit = encoder.encode("A cat sleeps.", { truncateDim: 16, normalizeEmbeddings: true });
  assert.ok(Math.abs(Math.hypot(...unit) - 1) < 1e-6);
  const prompted = encoder.encode("sleeps.", { prompt: "A cat " });
  assert.deepEqual(prompted, encoder.encode("A cat sleeps."));
  const short = encoder.encode("A cat sleeps.", { maxLength: 4, maxBatchTokens: 4, promptName: undefined });
  assert.deepEqual(short, encoder.encode("A cat"));
});

test("similarity is the cosine", () => {
  const [cat, kitten, stocks] = encoder.encode(texts.slice(0, 3));
  const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
  assert.ok(Math.abs(encoder.similarity(cat, kitten) - dot(cat, kitten)) < 1e-6);
  assert.ok(encoder.similarity(cat, kitten) > encoder.similarity(cat, stocks));
  const table = encoder.similarity([cat, kitten], [cat, kitten, stocks]);
  assert.equal(table.length, 2);
  assert.ok(Math.abs(table[1][2] - encoder.similarity(kitten, stocks)) < 1e-6);
  assert.deepEqual(encoder.similarity(cat, [kitten, stocks])[0].length, 2);
  assert.deepEqual(encoder.similarity([cat], []), [new Float32Array()]);
  assert.deepEqual(encoder.similarity([], [cat]), []);
});

test("attention weights are distributions over the tokens", () => {
  const { tokens, totalTokens, layers, heads, weights } = encoder.attention("A cat sleeps.");
  assert.deepEqual(tokens, ["[CLS]", "A", "cat", "sleep", "s", ".", "[SEP]"]);
  assert.equal(totalTokens, tokens.length);
  assert.equal(weights.length, layers * heads * tokens.length ** 2);
  for (let row = 0; row < weights.length; row += tokens.length) {
    const sum = weights.slice(row, row + tokens.length).reduce((sum, weight) => sum + weight);
    assert.ok(Math.abs(sum - 1) < 1e-5, `row ${row}: ${sum}`);
  }
});

test("attention cuts a text where it is told to", () => {
  const cut = encoder.attention("A cat sleeps.", { maxLength: 4 });
  assert.deepEqual(cut, { ...encoder.attention("A cat"), totalTokens: 7 });
  const long = encoder.attention("cat ".repeat(1000));
  assert.deepEqual([long.tokens.length, long.totalTokens], [128, 1002]);
});

test("search finds the nearest texts, with and without an index", () => {
  const index = encoder.index(texts);
  assert.ok(index instanceof SearchIndex);
  assert.equal(index.length, texts.length);
  const hits = encoder.search("a sleeping cat", index, 2);
  assert.equal(hits.length, 2);
  assert.equal(hits[0].index, 0);
  assert.ok(hits[0].score >= hits[1].score);
  assert.ok(Math.abs(hits[0].score - encoder.similarity(...encoder.encode(["a sleeping cat", texts[0]]))) < 1e-6);
  assert.deepEqual(encoder.search("a sleeping cat", texts, 2), hits);
  assert.deepEqual(index.search("a sleeping cat", 2), hits);
  assert.equal(index.search("a sleeping cat").length, texts.length, "fewer than 10");
  assert.deepEqual(index.search("a sleeping cat", 0), []);
  assert.deepEqual(encoder.search("a sleeping cat", []), []);
  const small = encoder.index(texts, { truncateDim: 32 });
  assert.equal(small.search("a sleeping cat", 1)[0].index, 0);
  small.free();
  index.free();
});

test("equal texts are found in their order", () => {
  const hits = encoder.search("x", ["y", "x", "x"], 3);
  assert.deepEqual(
    hits.map((hit) => hit.index),
    [1, 2, 0],
  );
});

test("an index stays when its encoder is freed", async () => {
  const other = await SentenceEncoder.embedded();
  const index = other.index(texts);
  other.free();
  assert.equal(index.search("a sleeping cat", 1)[0].index, 0);
});
