// Sentence embeddings, for Node and browsers. The types and their documentation are in index.d.ts.

import { Encoder, Files, Index } from "./bindings.js";
import { checkCount, checkFiles, checkOptions, checkText, checkTexts, joined, split } from "./check.js";
import { freed, guarded, load } from "./guard.js";

let started;

export function init(source = new URL("bindings_bg.wasm", import.meta.url)) {
  started ??= load(source).catch((error) => {
    started = undefined;
    throw error;
  });
  return started;
}

export class SentenceEncoder {
  #encoder;

  constructor(encoder) {
    if (!(encoder instanceof Encoder)) {
      throw new TypeError("expected `await SentenceEncoder.embedded()` or `.fromBytes(files)`");
    }
    this.#encoder = encoder;
  }

  static async embedded() {
    await init();
    return new SentenceEncoder(guarded(() => Encoder.embedded()));
  }

  static async fromBytes(files) {
    const entries = checkFiles(files);
    await init();
    const all = new Files();
    try {
      guarded(() => entries.forEach(([path, bytes]) => all.add(path, bytes)));
      return new SentenceEncoder(guarded(() => Encoder.fromFiles(all)));
    } finally {
      freed(all);
    }
  }

  #use(call) {
    if (!this.#encoder) throw new Error("the encoder was freed");
    return guarded(() => call(this.#encoder));
  }

  /** A copy of options. An infinite `maxLength` is that of a model that cuts nothing. */
  #options(options) {
    const copy = checkOptions(options);
    if (copy?.maxLength === Infinity && this.maxSeqLength === Infinity) copy.maxLength = undefined;
    return copy;
  }

  /** Embeds by a method of the module. */
  #embed(method, texts, options) {
    const given = checkTexts(typeof texts === "string" ? [texts] : texts);
    const chosen = this.#options(options);
    const numbers = this.#use((encoder) => encoder[method](given, chosen));
    return typeof texts === "string" ? numbers : split(numbers, given.length);
  }

  get dimension() {
    return this.#use((encoder) => encoder.dimension);
  }

  get maxSeqLength() {
    return this.#use((encoder) => encoder.maxSeqLength);
  }

  encode(texts, options) {
    return this.#embed("encode", texts, options);
  }

  encodeQuery(texts, options) {
    return this.#embed("encodeQuery", texts, options);
  }

  encodeDocument(texts, options) {
    return this.#embed("encodeDocument", texts, options);
  }

  similarity(a, b) {
    const [from, to] = [joined("the first argument", a), joined("the second argument", b)];
    if (from.count === 0 || to.count === 0) return Array.from({ length: from.count }, () => new Float32Array());
    const scores = this.#use((encoder) => encoder.similarity(from.numbers, from.count, to.numbers, to.count));
    return !Array.isArray(a) && !Array.isArray(b) ? scores[0] : split(scores, from.count);
  }

  attention(text, options) {
    checkText("the text", text);
    const { maxLength, ...others } = this.#options(options) ?? {};
    for (const name in others) throw new TypeError(`\`${name}\` is not an option, expected maxLength`);
    if (maxLength !== undefined) checkCount("maxLength", maxLength);
    return this.#use((encoder) => {
      const made = encoder.attention(text, maxLength);
      try {
        const { tokens, totalTokens, layers, heads } = made;
        return { tokens, totalTokens, layers, heads, weights: made.takeWeights() };
      } finally {
        freed(made);
      }
    });
  }

  index(texts, options) {
    const given = checkTexts(texts);
    const chosen = this.#options(options);
    return new SearchIndex(
      this,
      this.#use((encoder) => new Index(encoder, given, chosen)),
    );
  }

  search(query, texts, k) {
    checkText("the query", query);
    if (!(texts instanceof SearchIndex)) {
      const index = this.index(texts);
      try {
        return index.search(query, k);
      } finally {
        index.free();
      }
    }
    if (texts.encoder !== this) throw new Error("the index is of another encoder");
    return texts.search(query, k);
  }

  free() {
    freed(this.#encoder);
    this.#encoder = undefined;
  }
}

export class SearchIndex {
  #index;

  constructor(encoder, index) {
    if (!(index instanceof Index)) throw new TypeError("expected `encoder.index(texts)`");
    this.encoder = encoder;
    this.#index = index;
  }

  #use(call) {
    if (!this.#index) throw new Error("the index was freed");
    return guarded(() => call(this.#index));
  }

  get length() {
    return this.#use((index) => index.length);
  }

  search(query, k = 10) {
    checkText("the query", query);
    checkCount("k", k);
    const hits = this.#use((index) => index.search(query, k));
    return Array.from({ length: hits.length / 2 }, (_, i) => ({ index: hits[2 * i], score: hits[2 * i + 1] }));
  }

  free() {
    freed(this.#index);
    this.#index = undefined;
  }
}
