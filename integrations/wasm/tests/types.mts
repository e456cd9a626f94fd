// What TypeScript makes of the package: each line compiles, and each expected error is one.

import { init, SearchIndex, SentenceEncoder, type Attention, type Hit } from "../pkg/index.js";

await init(new URL("https://example.org/bindings_bg.wasm"));
const encoder = await SentenceEncoder.fromBytes(new Map([["config.json", new Uint8Array()]]));
const one: Float32Array = encoder.encode("a", { truncateDim: 16, normalizeEmbeddings: true });
const many: Float32Array[] = encoder.encodeDocument(["a", "b"], { promptName: "document" });
const score: number = encoder.similarity(one, one);
const scores: Float32Array[] = encoder.similarity(one, many);
const attention: Attention = encoder.attention("a", { maxLength: 512 });
const index: SearchIndex = encoder.index(["a", "b"]);
const hits: Hit[] = encoder.search("a", index, 3).concat(index.search("a"), encoder.search("a", ["a"]));
console.log(score, scores, attention.weights.length, attention.totalTokens, hits[0]?.index, encoder.dimension + encoder.maxSeqLength);
// @ts-expect-error
encoder.encode(5);
// @ts-expect-error
encoder.encode("a", { batchsize: 3 });
// @ts-expect-error
encoder.attention("a", { truncateDim: 3 });
// @ts-expect-error
new SentenceEncoder();
// @ts-expect-error
encoder.dimension = 3;
