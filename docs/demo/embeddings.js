// The embeddings of the sentences of a text, in the worker.

const BATCH_MILLISECONDS = 60; // longer batches would keep a search waiting
const MOST_IN_BATCH = 64;

/** The rest of the worker's messages come first. */
function rest() {
  return new Promise((done) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { port1.close(); done(); };
    port2.postMessage(null);
  });
}

export class Embeddings {
  #encoder;
  #known = new Map(); // text → embedding, or the error that it gave
  #texts = [];
  #version = 0;
  #batch = 4;
  #searched = null; // the texts that are embedded, and their embeddings

  constructor(encoder) {
    this.#encoder = encoder;
  }

  /**
   * Embeds the sentences of a version of the text that are new, a batch at a time, with `onProgress(done, all)` after each.
   * Sentences of an earlier call that are not yet embedded are forgotten. Returns the number of sentences and the first error,
   * if a sentence gave one; null if a later call replaced this one.
   */
  async take(texts, version, onProgress) {
    this.#texts = texts;
    this.#version = version;
    this.#searched = null;
    const all = [...new Set(texts)], missing = all.filter((text) => !this.#known.has(text));
    for (let at = 0; at < missing.length;) {
      const batch = missing.slice(at, at + this.#batch), start = performance.now();
      this.#embed(batch);
      const spent = performance.now() - start;
      if (spent < BATCH_MILLISECONDS / 2) this.#batch = Math.min(this.#batch * 2, MOST_IN_BATCH);
      else if (spent > BATCH_MILLISECONDS) this.#batch = Math.max(this.#batch >> 1, 1);
      at += batch.length;
      this.#searched = null;
      onProgress(all.length - missing.length + at, all.length);
      await rest();
      if (this.#texts !== texts) return null;
    }
    this.#known = new Map(all.map((text) => [text, this.#known.get(text)]));
    const failed = all.filter((text) => this.#known.get(text) instanceof Error);
    return { count: all.length, failed: failed.length, error: failed.length ? this.#known.get(failed[0]).message : null };
  }

  #embed(batch) {
    try {
      this.#encoder.encodeDocument(batch).forEach((embedding, i) => this.#known.set(batch[i], embedding));
    } catch (error) {
      // One text of the batch is at fault: the others have embeddings.
      if (batch.length === 1) this.#known.set(batch[0], error);
      else for (const text of batch) this.#embed([text]);
    }
  }

  /** Ends a `take` that is under way. */
  stop() {
    this.#texts = [];
  }

  /**
   * The `k` sentences that are most similar to a query, the best first: `{ hits: [{ index, score }], middle, searched, version }`.
   * `index` is the first place of a sentence in that version of the text, `middle` the median of the scores of all that were
   * searched: the different sentences that are embedded.
   */
  search(query, k) {
    const { places, embeddings } = (this.#searched ??= this.#embedded());
    if (!places.length) return { hits: [], middle: 0, searched: 0, version: this.#version };
    const [scores] = this.#encoder.similarity([this.#encoder.encodeQuery(query)], embeddings);
    const order = Array.from(places, (_, i) => i).sort((a, b) => scores[b] - scores[a]);
    const hits = order.slice(0, k).map((i) => ({ index: places[i], score: scores[i] }));
    return { hits, middle: scores[order[order.length >> 1]], searched: places.length, version: this.#version };
  }

  #embedded() {
    const places = [], embeddings = [], seen = new Set();
    this.#texts.forEach((text, place) => {
      const embedding = this.#known.get(text);
      if (!(embedding instanceof Float32Array) || seen.has(text)) return;
      seen.add(text);
      places.push(place);
      embeddings.push(embedding);
    });
    return { places, embeddings };
  }
}
