// The page's side of the model in the worker.

export class Model {
  #worker = new Worker(new URL("./worker.js", import.meta.url), { type: "module" });
  #waiting = new Map();
  #asked = 0;

  /** `onStopped(message)` is called if the model can answer nothing any more. */
  constructor(onStopped) {
    this.#worker.addEventListener("message", ({ data: { id, progress, result, error } }) => {
      const { done, failed, onProgress } = this.#waiting.get(id);
      if (progress) return onProgress?.(...progress);
      this.#waiting.delete(id);
      return error === undefined ? done(result) : failed(new Error(error));
    });
    this.#worker.addEventListener("error", (event) => {
      event.preventDefault();
      onStopped(event.message || "worker.js cannot be loaded");
    });
  }

  #ask(type, values, onProgress, transferred = []) {
    const id = ++this.#asked;
    return new Promise((done, failed) => {
      this.#waiting.set(id, { done, failed, onProgress });
      this.#worker.postMessage({ id, type, ...values }, transferred);
    });
  }

  /** Loads the embedded model: `{ dimension, maxSeqLength }`. */
  load(onProgress) {
    return this.#ask("load", {}, onProgress);
  }
  /** Loads a model from `[[path, ArrayBuffer]]`; the one in use stays if this fails. */
  open(files) {
    return this.#ask("open", { files }, null, files.map(([, bytes]) => bytes));
  }
  /** Embeds the sentences of a version of the text: `{ count, failed, error }`, or null if later ones replaced them. */
  texts(texts, version, onProgress) {
    return this.#ask("texts", { texts, version }, onProgress);
  }
  /** The `k` best sentences: `{ hits: [{ index, score }], middle, searched, version }`. */
  search(query, k) {
    return this.#ask("search", { query, k });
  }
  attend(text) {
    return this.#ask("attend", { text });
  }
}

/**
 * Runs one call `run(value, isNewest)` at a time; of the calls made meanwhile, only the newest follows. `isNewest()` says
 * whether there are none.
 */
export function newest(run) {
  let next = null, isRunning = false;
  return async (value) => {
    next = { value };
    if (isRunning) return;
    isRunning = true;
    while (next) {
      const now = next;
      next = null;
      await run(now.value, () => !next);
    }
    isRunning = false;
  };
}
