// Times the package against ONNX Runtime in WebAssembly, on the same model and texts, in turns, one thread each.
//
//   node integrations/wasm/bench/compare.mjs MODEL_FOLDER MODEL.onnx
//
// MODEL.onnx gives the hidden states, pooled here by their mean, as MODEL_FOLDER's 1_Pooling must say. Requires
// integrations/wasm/pkg, and the peer: `npm install --no-save --prefix integrations/wasm/target/peer onnxruntime-web@1.30.0
// @huggingface/tokenizers@0.2.0`.

import { createRequire } from "node:module";
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { SentenceEncoder } from "../pkg/index.js";

const ROUNDS = 9;
const FILES = [
  "config.json",
  "tokenizer.json",
  "model.safetensors",
  "modules.json",
  "1_Pooling/config.json",
  "sentence_bert_config.json",
];

process.on("uncaughtException", (error) => {
  console.error(error.message);
  process.exit(2);
});
if (process.argv.length !== 4) throw new Error("expected MODEL_FOLDER MODEL.onnx");
const [folder, onnx] = process.argv.slice(2);
const required = createRequire(new URL("../target/peer/node_modules/", import.meta.url));
const { Tokenizer } = required("@huggingface/tokenizers");
const { InferenceSession, Tensor, env } = required("onnxruntime-web/wasm");

const read = (name) => new Uint8Array(readFileSync(join(folder, name)));
const present = FILES.filter((name) => existsSync(join(folder, name)));
const encoder = await SentenceEncoder.fromBytes(Object.fromEntries(present.map((name) => [name, read(name)])));

env.wasm.numThreads = 1;
const session = await InferenceSession.create(new Uint8Array(readFileSync(onnx)), { executionProviders: ["wasm"] });
const json = (name) => JSON.parse(readFileSync(join(folder, name), "utf8"));
const tokenizer = new Tokenizer(json("tokenizer.json"), json("tokenizer_config.json"));

/** The embeddings of texts as one padded batch. */
async function peer(texts) {
  const ids = texts.map((text) => tokenizer.encode(text).ids);
  const [n, longest] = [ids.length, Math.max(...ids.map((of) => of.length))];
  const padded = (value) => {
    const numbers = new BigInt64Array(n * longest);
    ids.forEach((of, i) => of.forEach((id, j) => (numbers[i * longest + j] = value(id))));
    return new Tensor("int64", numbers, [n, longest]);
  };
  const inputs = { input_ids: padded(BigInt), attention_mask: padded(() => 1n), token_type_ids: padded(() => 0n) };
  const outputs = await session.run(Object.fromEntries(session.inputNames.map((name) => [name, inputs[name]])));
  const hidden = outputs[session.outputNames[0]];
  const size = hidden.dims.at(-1);
  return ids.map((of, i) => {
    const mean = new Float32Array(size);
    for (let j = 0; j < of.length; j++) {
      const at = (i * longest + j) * size;
      for (let e = 0; e < size; e++) mean[e] += hidden.data[at + e];
    }
    const length = Math.hypot(...mean);
    return mean.map((x) => x / length);
  });
}

async function oneByOne(texts) {
  const all = [];
  for (const text of texts) all.push(...(await peer([text])));
  return all;
}

const words = readFileSync(new URL("../../../LICENSE-APACHE", import.meta.url), "utf8").split(/\s+/);
const texts = (count, length) =>
  Array.from({ length: count }, (_, i) => words.slice(40 * i, 40 * i + length + (i % 5)).join(" "));
const sides = { ours: (given) => encoder.encode(given), "a padded batch": peer, "one by one": oneByOne };

for (const [count, length] of [
  [32, 8],
  [8, 150],
]) {
  const given = texts(count, length);
  const times = Object.fromEntries(Object.keys(sides).map((name) => [name, []]));
  const results = {};
  for (let round = 0; round < ROUNDS; round++) {
    for (const [name, run] of Object.entries(sides)) {
      const start = performance.now();
      results[name] = await run(given);
      times[name].push(performance.now() - start);
    }
  }
  const difference = (name) =>
    Math.max(...results.ours.flatMap((of, i) => Array.from(of, (x, e) => Math.abs(x - results[name][i][e]))));
  const median = (name) => times[name].toSorted((a, b) => a - b)[ROUNDS >> 1];
  const best = Math.min(median("a padded batch"), median("one by one"));
  const milliseconds = Object.keys(sides).map((name) => `${name} ${median(name).toFixed(1)}`);
  console.log(`${count} texts of about ${length} words, ms: ${milliseconds.join(", ")}`);
  console.log(`  the better of the peer / ours: ${(best / median("ours")).toFixed(2)}`);
  console.log(`  largest difference: ${difference("a padded batch").toExponential(1)}, ${difference("one by one").toExponential(1)}`);
}
