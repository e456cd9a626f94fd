// A model from its files: all-MiniLM-L6-v2, in the folder that CANDLE_ATTENTION_MINILM names.

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { test } from "node:test";
import assert from "node:assert/strict";
import { SentenceEncoder } from "../pkg/index.js";
import { assertClose, expected } from "./expected.mjs";

const folder = process.env.CANDLE_ATTENTION_MINILM;
const skip = folder ? false : "CANDLE_ATTENTION_MINILM is not set";
const names = [
  "config.json",
  "model.safetensors",
  "tokenizer.json",
  "modules.json",
  "1_Pooling/config.json",
  "sentence_bert_config.json",
];

/** The files of the model; `leave` is left out. */
async function files(leave) {
  const kept = names.filter((name) => name !== leave);
  return new Map(
    await Promise.all(kept.map(async (name) => [name, new Uint8Array(await readFile(join(folder, name)))])),
  );
}

test("embeddings are those of the native program", { skip }, async () => {
  const { texts, embeddings } = expected("minilm.jsonl");
  const encoder = await SentenceEncoder.fromBytes(await files());
  assert.equal(encoder.dimension, 384);
  assert.equal(encoder.maxSeqLength, 256);
  assertClose(encoder.encode(texts), embeddings);
  encoder.free();
});

test("a missing file is named", { skip }, async () => {
  const message = "1_Pooling/config.json: the file is not among those in memory";
  await assert.rejects(SentenceEncoder.fromBytes(await files("1_Pooling/config.json")), { message });
});
