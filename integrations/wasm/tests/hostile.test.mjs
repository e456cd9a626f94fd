// What a user passes and changes meanwhile, or of another realm, or too large: no call reads it twice, and the module works
// as before.

import { readFileSync } from "node:fs";
import { test } from "node:test";
import vm from "node:vm";
import assert from "node:assert/strict";
import start from "../pkg/bindings.js";
import { guarded } from "../pkg/guard.js";
import { SentenceEncoder } from "../pkg/index.js";

const encoder = await SentenceEncoder.embedded();
const before = encoder.encode("A cat sleeps.");

/** Runs a test, after which the module has to give what it gave before. */
function unharmed(name, run) {
  test(name, async () => {
    await run();
    assert.deepEqual(encoder.encode("A cat sleeps."), before);
    assert.deepEqual((await SentenceEncoder.embedded()).encode("A cat sleeps."), before);
  });
}

/** `["A cat sleeps.", "b"]`, whose second text gives `then()` from its second reading on. */
function changing(then) {
  const texts = ["A cat sleeps.", "b"];
  let reads = 0;
  Object.defineProperty(texts, 1, { enumerable: true, get: () => (++reads < 2 ? "b" : then(texts)) });
  return texts;
}

for (const method of ["encode", "encodeQuery", "encodeDocument", "index"]) {
  unharmed(`texts that become more: ${method}`, () => {
    for (const more of [1, 1000, 100_000]) {
      const texts = changing((texts) => {
        for (let i = 0; i < more; i++) texts.push("c");
        return "b";
      });
      assert.equal(encoder[method](texts).length, 2);
    }
  });
}

unharmed("texts that become something else", () => {
  assert.equal(encoder.encode(changing(() => 5)).length, 2);
  assert.equal(encoder.encode(changing((texts) => (texts.length = 1) && "b")).length, 2);
});

unharmed("an option that throws, as often as it happens", () => {
  const own = new Error("of the user");
  const options = {
    get batchSize() {
      throw own;
    },
  };
  for (let i = 0; i < 5000; i++)
    assert.throws(
      () => encoder.encode("a", options),
      (error) => error === own,
    );
});

unharmed("a call that throws gives its stack back", async () => {
  const { __stack_pointer: stack } = await start();
  const { value } = stack;
  for (const [error, message] of [
    [new Error("of the user"), "of the user"],
    [new WebAssembly.RuntimeError("memory access out of bounds"), "the module failed: memory access out of bounds"],
    [new WebAssembly.RuntimeError("unreachable"), "the module failed: it has not enough memory"],
  ]) {
    const call = () => {
      stack.value -= 64;
      throw error;
    };
    assert.throws(() => guarded(call), { message });
    assert.equal(stack.value, value);
  }
});

unharmed("an option that uses the encoder", () => {
  const options = {
    get truncateDim() {
      encoder.index(["b"]).free();
      return encoder.encode("b").length - 125;
    },
  };
  assert.equal(encoder.encode("a", options).length, 3);
});

unharmed("bytes that give another length", async () => {
  class Long extends Uint8Array {
    get length() {
      return 4;
    }
  }
  await assert.rejects(SentenceEncoder.fromBytes({ "config.json": new Long(1 << 20) }), /^Error: config.json: /);
});

unharmed("bytes of a buffer that was transferred", async () => {
  const bytes = new Uint8Array(9);
  structuredClone(bytes.buffer, { transfer: [bytes.buffer] });
  const message = "config.json cannot be read: its buffer was transferred";
  await assert.rejects(SentenceEncoder.fromBytes({ "config.json": bytes }), { message });
});

unharmed("values of another realm", async () => {
  const other = (code) => vm.runInNewContext(code, { TextEncoder });
  assert.equal(encoder.encode("a", other("({ truncateDim: 3 })")).length, 3);
  assert.equal(encoder.encode(other("['a', 'b']")).length, 2);
  assert.equal(
    encoder.similarity(other("new Float32Array(128).fill(1)"), new Float32Array(128).fill(1)).toFixed(5),
    "1.00000",
  );
  const files = other("new Map([['config.json', new Uint8Array(3)]])");
  await assert.rejects(SentenceEncoder.fromBytes(files), /^Error: config.json: expected value/);
});

unharmed("options without a prototype", () => {
  assert.equal(encoder.encode("a", Object.assign(Object.create(null), { truncateDim: 3 })).length, 3);
});

unharmed("options of a class", () => {
  class Three {
    get truncateDim() {
      return 3;
    }
  }
  for (const [options, found] of [
    [new Three(), "of type Three"],
    [new Map(), "of type Map"],
    [new Date(), "of type Date"],
    [() => 3, "of type function"],
  ]) {
    assert.throws(() => encoder.encode("a", options), {
      message: `the options argument is ${found}, expected a plain object`,
    });
  }
});

unharmed("a text that is too long is named before any is copied", () => {
  const long = "a".repeat(2 ** 24 + 1),
    wide = "猫".repeat(2 ** 23);
  const said = "has more than 16777216 bytes: cut it, only its first tokens are used";
  for (const text of [long, wide]) {
    assert.throws(() => encoder.encode(["a", text, "c"]), { message: `text 1 ${said}` });
    assert.throws(() => encoder.attention(text), { message: `the text ${said}` });
  }
  assert.throws(() => encoder.search(long, ["b"]), { message: `the query ${said}` });
  assert.throws(() => encoder.encode("a", { prompt: long }), { message: `prompt ${said}` });
});

unharmed("a maximum length that is infinite is that of a model that cuts nothing", async () => {
  const folder = new URL("../../../tests/fixtures/sentence-modules/static/", import.meta.url);
  const names = ["modules.json", "model.safetensors", "tokenizer.json", "1_Normalize/config.json"];
  const files = Object.fromEntries(names.map((name) => [name, new Uint8Array(readFileSync(new URL(name, folder)))]));
  const tokenizer = JSON.parse(new TextDecoder().decode(files["tokenizer.json"]));
  files["tokenizer.json"] = new TextEncoder().encode(JSON.stringify({ ...tokenizer, truncation: null }));
  const endless = await SentenceEncoder.fromBytes(files);
  assert.equal(endless.maxSeqLength, Infinity);
  assert.deepEqual(endless.encode("a cat", { maxLength: endless.maxSeqLength }), endless.encode("a cat"));
  endless.free();
});
