// Wrong inputs: each one is an error that says what is wrong, after which the module works as before.

import { test } from "node:test";
import assert from "node:assert/strict";
import { SearchIndex, SentenceEncoder } from "../pkg/index.js";

const encoder = await SentenceEncoder.embedded();
const before = encoder.encode("A cat sleeps.");

/** Asserts an error with exactly this message. */
function wrong(name, call, message) {
  test(name, async () => {
    await assert.rejects(
      async () => call(),
      (error) => {
        assert.ok(error instanceof Error);
        assert.equal(error.message, message);
        return true;
      },
    );
    assert.deepEqual(encoder.encode("A cat sleeps."), before);
  });
}

const names = "batchSize, maxBatchTokens, maxLength, normalizeEmbeddings, prompt, promptName, task or truncateDim";
wrong(
  "a text that is a number",
  () => encoder.encode(5),
  "the text is of type number, expected a string or an array of strings",
);
wrong("no text", () => encoder.encode(), "the text is undefined, expected a string or an array of strings");
wrong("a text that is missing", () => encoder.encode(["a", , "b"]), "text 1 is undefined, expected a string");
wrong(
  "an unknown option",
  () => encoder.encode("a", { batchsize: 3 }),
  `\`batchsize\` is not an option, expected ${names}`,
);
wrong(
  "options that are a string",
  () => encoder.encode("a", "query"),
  "the options argument is of type string, expected a plain object",
);
wrong(
  "options that are null",
  () => encoder.encode("a", null),
  "the options argument is null, expected a plain object",
);
wrong(
  "a fraction",
  () => encoder.encode("a", { truncateDim: 1.5 }),
  "truncateDim is 1.5, expected a whole number below 2^32",
);
wrong(
  "a negative number",
  () => encoder.encode("a", { batchSize: -1 }),
  "batchSize is -1, expected a whole number below 2^32",
);
wrong(
  "no number",
  () => encoder.encode("a", { batchSize: NaN }),
  "batchSize is NaN, expected a whole number below 2^32",
);
wrong(
  "a number that is too large",
  () => encoder.encode("a", { maxLength: 2 ** 32 }),
  "maxLength is 4294967296, expected a whole number below 2^32",
);
wrong(
  "a number without end",
  () => encoder.encode("a", { maxLength: Infinity }),
  "maxLength is Infinity, expected a whole number below 2^32",
);
wrong(
  "a number as a string",
  () => encoder.encode("a", { maxLength: "3" }),
  "maxLength is of type string, expected a whole number below 2^32",
);
wrong(
  "no flag",
  () => encoder.encode("a", { normalizeEmbeddings: 1 }),
  "normalizeEmbeddings is 1, expected true or false",
);
wrong("no prompt", () => encoder.encode("a", { prompt: {} }), "prompt is of type object, expected a string");
wrong(
  "an option that attention does not have",
  () => encoder.attention("a", { truncateDim: 3 }),
  "`truncateDim` is not an option, expected maxLength",
);
wrong(
  "an attention of a fraction of a token",
  () => encoder.attention("a", { maxLength: 2.5 }),
  "maxLength is 2.5, expected a whole number below 2^32",
);
wrong(
  "an attention of too many tokens",
  () => encoder.attention("a", { maxLength: 2000 }),
  "config: max_length = 2000 is not allowed: expected at most 128, the positions of the model",
);
wrong("an attention of two texts", () => encoder.attention(["a", "b"]), "the text is an array, expected a string");
wrong("a query that is an array", () => encoder.search(["a"], ["b"]), "the query is an array, expected a string");
wrong(
  "texts that are a string",
  () => encoder.search("a", "b"),
  "the text is of type string, expected a string or an array of strings",
);
wrong(
  "a k that is too large",
  () => encoder.search("a", ["b"], 2 ** 32),
  "k is 4294967296, expected a whole number below 2^32",
);
wrong("a k that is negative", () => encoder.search("a", ["b"], -1), "k is -1, expected a whole number below 2^32");
wrong(
  "an embedding that is an array",
  () => encoder.similarity([1, 2], before),
  "embedding 0 of the first argument is of type number, expected a Float32Array",
);
wrong(
  "an embedding that is missing",
  () => encoder.similarity([before, , before], before),
  "embedding 1 of the first argument is undefined, expected a Float32Array",
);
wrong(
  "an embedding of another type",
  () => encoder.similarity(before, new Float64Array(128)),
  "the second argument is of type Float64Array, expected a Float32Array or an array of them",
);
wrong(
  "an embedding that is not finite",
  () => encoder.similarity([before, before.map((x, i) => (i === 7 ? NaN : x))], before),
  "embedding 1 of the first argument is not finite, expected finite numbers",
);
wrong(
  "no embeddings",
  () => encoder.similarity(before, "a"),
  "the second argument is of type string, expected a Float32Array or an array of them",
);
wrong(
  "embeddings of two sizes",
  () => encoder.similarity(before, [before, before.slice(1)]),
  "embedding 1 of the second argument has 127 features, expected 128 as the first one has",
);
wrong(
  "files that are an array",
  () => SentenceEncoder.fromBytes([]),
  "the files are an array, expected an object or a Map from paths to Uint8Array",
);
wrong(
  "files that are a set",
  () => SentenceEncoder.fromBytes(new Set()),
  "the files are of type Set, expected an object or a Map from paths to Uint8Array",
);
wrong(
  "a file that is a buffer",
  () => SentenceEncoder.fromBytes({ "config.json": new ArrayBuffer(2) }),
  "config.json is of type ArrayBuffer, expected a Uint8Array",
);
wrong(
  "a file that is a string",
  () => SentenceEncoder.fromBytes({ "config.json": "{}" }),
  "config.json is of type string, expected a Uint8Array",
);
wrong(
  "a constructor",
  () => new SentenceEncoder(),
  "expected `await SentenceEncoder.embedded()` or `.fromBytes(files)`",
);
wrong("the constructor of an index", () => new SearchIndex(), "expected `encoder.index(texts)`");
wrong(
  "an empty embedding",
  () => encoder.similarity(before, new Float32Array()),
  "embedding 0 of the second argument has no features",
);
// In the words of the crate.
wrong(
  "no batch",
  () => encoder.encode("a", { batchSize: 0 }),
  "config: batch_size = 0 is not allowed: expected at least 1",
);
wrong(
  "no feature",
  () => encoder.encode("a", { truncateDim: 0 }),
  "config: truncate_dim = 0 is not allowed: expected at least 1",
);
wrong(
  "too many tokens",
  () => encoder.encode("a", { maxLength: 2000 }),
  "config: max_length = 2000 is not allowed: expected at most 128, the positions of the model",
);
wrong(
  "a prompt that is missing",
  () => encoder.encode("a", { promptName: "nope" }),
  "prompt_name is nope, expected document or query",
);
wrong(
  "two sizes",
  () => encoder.similarity(new Float32Array(3), before),
  "the second embeddings has shape [1, 128], expected (m, 3)",
);
