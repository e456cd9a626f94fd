// The model, in a thread of its own, so that the page never waits for it.

import { Embeddings } from "./embeddings.js";

// A module with one vector instruction.
const SIMD = new Uint8Array([
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 10, 1, 8, 0, 65, 0, 253, 15, 253, 98, 11,
]);
const MOST_TOKENS = 256; // of a text whose weights are shown: their memory is quadratic, and so is what a reader looks at
const MODULE = "pkg/bindings_bg.wasm";

let library, encoder, embeddings;

/** The module as it arrives, with `onProgress(bytes, all)`; `all` is 0 if it is not known. */
async function fetchModule(onProgress) {
  const response = await fetch(new URL(MODULE, import.meta.url));
  if (!response.ok) throw new Error(`${MODULE}: the server answered ${response.status}`);
  const isPlain = !response.headers.get("content-encoding");
  const all = isPlain ? Number(response.headers.get("content-length") ?? 0) : 0;
  let bytes = 0;
  const counted = new TransformStream({
    transform(chunk, to) {
      bytes += chunk.length;
      onProgress(bytes, all);
      to.enqueue(chunk);
    },
  });
  return new Response(response.body.pipeThrough(counted), { headers: { "content-type": "application/wasm" } });
}

function use(loaded) {
  embeddings?.stop();
  encoder?.free();
  encoder = loaded;
  embeddings = new Embeddings(encoder);
  return { dimension: encoder.dimension, maxSeqLength: encoder.maxSeqLength };
}

const answers = {
  async load(_, progress) {
    if (typeof WebAssembly !== "object" || !WebAssembly.validate(SIMD)) {
      throw new Error("this browser has no WebAssembly SIMD, which the model needs");
    }
    const arriving = fetchModule(progress);
    arriving.catch(() => {}); // `init` throws it, once it is loaded itself
    library = await import("./pkg/index.js");
    await library.init(arriving);
    return use(await library.SentenceEncoder.embedded());
  },
  // The model in use stays if the files are none.
  async open({ files }) {
    return use(await library.SentenceEncoder.fromBytes(new Map(files.map(([path, bytes]) => [path, new Uint8Array(bytes)]))));
  },
  texts: ({ texts, version }, progress) => embeddings.take(texts, version, progress),
  search: ({ query, k }) => embeddings.search(query, k),
  attend({ text }) {
    return encoder.attention(text, { maxLength: Math.min(MOST_TOKENS, encoder.maxSeqLength) });
  },
};

addEventListener("message", async ({ data: { id, type, ...values } }) => {
  try {
    const result = await answers[type](values, (...progress) => postMessage({ id, progress }));
    postMessage({ id, result }, result?.weights ? [result.weights.buffer] : []);
  } catch (error) {
    postMessage({ id, error: String(error?.message ?? error) });
  }
});
