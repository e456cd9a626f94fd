// A model from its files: the embedded one, and what is wrong with changed ones.

import { readFileSync } from "node:fs";
import { test } from "node:test";
import assert from "node:assert/strict";
import { SentenceEncoder } from "../pkg/index.js";

const bytes = (name) => new Uint8Array(readFileSync(new URL(`../../../weights/${name}`, import.meta.url)));
const names = ["config.json", "tokenizer.json", "model.safetensors", "modules.json", "1_Pooling/config.json"];
const files = Object.fromEntries(names.map((name) => [name, bytes(name)]));
const changed = (name, change) => {
  const json = JSON.parse(new TextDecoder().decode(files[name]));
  change(json);
  return { ...files, [name]: new TextEncoder().encode(JSON.stringify(json)) };
};
const embedded = await SentenceEncoder.embedded();

test("the files of the embedded model are the embedded model", async () => {
  for (const given of [files, new Map(Object.entries(files))]) {
    const encoder = await SentenceEncoder.fromBytes(given);
    assert.deepEqual(encoder.encode("A cat sleeps."), embedded.encode("A cat sleeps."));
    encoder.free();
    assert.throws(() => encoder.encode("a"), { message: "the encoder was freed" });
    encoder.free();
  }
});

test("an index is of its encoder", async () => {
  const encoder = await SentenceEncoder.fromBytes(files);
  const index = encoder.index(["A cat sleeps."]);
  assert.throws(() => embedded.search("cat", index), { message: "the index is of another encoder" });
  index.free();
  assert.throws(() => encoder.search("cat", index), { message: "the index was freed" });
  encoder.free();
});

/** Asserts an error that says `parts` for these files. */
function wrong(name, given, ...parts) {
  test(name, async () => {
    await assert.rejects(SentenceEncoder.fromBytes(given), (error) => {
      parts.forEach((part) => assert.ok(error.message.includes(part), error.message));
      return error instanceof Error;
    });
    assert.equal(embedded.encode("a").length, 128);
  });
}

wrong("no files", {}, "config.json", "not among those in memory");
wrong("no weights", { ...files, "model.safetensors": new Uint8Array(7) }, "model.safetensors");
wrong(
  "weights that are cut",
  { ...files, "model.safetensors": files["model.safetensors"].slice(0, -4) },
  "model.safetensors",
);
/** A safetensors file whose header lists one tensor, and which ends after it. */
const headerAlone = (shape) => {
  const data_offsets = [0, shape.reduce((product, size) => product * size, 4)];
  const header = new TextEncoder().encode(JSON.stringify({ x: { dtype: "F32", shape, data_offsets } }));
  const length = new Uint8Array(new BigUint64Array([BigInt(header.length)]).buffer);
  return { ...files, "model.safetensors": new Uint8Array([...length, ...header]) };
};
// 614 MB, whose bits do not fit into 32 bits.
wrong("a large tensor that is cut", headerAlone([200_000, 768]), "its data ends at 614400000, the file's at 0");
wrong("a tensor that no memory holds", headerAlone([2 ** 30, 2 ** 29]), "is larger than any memory");
wrong(
  "a path out of the folder",
  { "../config.json": new Uint8Array() },
  "../config.json",
  "is not the name of a file inside a folder",
);
wrong("weights in parts", { "model-00001-of-00002.safetensors": new Uint8Array() }, "expected the weights in one file");
wrong(
  "a file of more than 2 GiB",
  { "config.json": new Uint8Array(2 ** 31 + 8) },
  "the module failed: it has not enough memory",
);
wrong("no JSON", { ...files, "config.json": new Uint8Array([65]) }, "config.json");
wrong(
  "another size",
  changed("config.json", (config) => (config.hidden_size = 120)),
  "120",
);
wrong(
  "another family",
  changed("config.json", (config) => (config.model_type = "gpt9")),
  "gpt9",
);

test("a panic of the tokenizers library is an error, as often as it happens", async () => {
  const given = changed(
    "tokenizer.json",
    (tokenizer) => (tokenizer.pre_tokenizer = { type: "FixedLength", length: 0 }),
  );
  const broken = await SentenceEncoder.fromBytes(given);
  const before = embedded.encode("A cat sleeps.");
  for (let i = 0; i < 2000; i++) assert.throws(() => broken.encode("a"), /^Error: the module failed: /);
  assert.deepEqual(embedded.encode("A cat sleeps."), before);
  broken.free();
  assert.deepEqual(embedded.encode("A cat sleeps."), before);
});
