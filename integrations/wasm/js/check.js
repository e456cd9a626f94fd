// Checks of what a user passes, in the words of the errors of the module. What is passed on is a copy that nobody else
// holds: an array that changes while the module reads it would make it write where other things are.

const MOST_BYTES = 2 ** 24; // of a text, as in the crate

/** The kind of a typed array, of any window or realm: "Float32Array"; undefined for all else. */
const kindOf = Object.getOwnPropertyDescriptor(Object.getPrototypeOf(Uint8Array.prototype), Symbol.toStringTag).get;
const isKind = (value, kind) => kindOf.call(value) === kind;
export const tagOf = (value) => Object.prototype.toString.call(value).slice(8, -1);

/** Whether an object has no class: `{}`, of any realm, or `Object.create(null)`. */
function isPlain(value) {
  if (typeof value !== "object" || value === null) return false;
  const prototype = Object.getPrototypeOf(value);
  return prototype === null || Object.getPrototypeOf(prototype) === null;
}

/** An object by its class, another value by its type. */
export function shown(value) {
  if (value === null || value === undefined) return String(value);
  if (Array.isArray(value)) return "an array";
  if (typeof value !== "object") return `of type ${typeof value}`;
  const name = value.constructor?.name;
  return `of type ${typeof name === "string" && name ? name : tagOf(value)}`;
}

function checkLength(what, text) {
  // A unit of UTF-16 has one to three bytes.
  const isLong =
    text.length > MOST_BYTES || (3 * text.length > MOST_BYTES && new TextEncoder().encode(text).length > MOST_BYTES);
  if (isLong) throw new RangeError(`${what} has more than ${MOST_BYTES} bytes: cut it, only its first tokens are used`);
}

export function checkText(what, text) {
  if (typeof text !== "string") throw new TypeError(`${what} is ${shown(text)}, expected a string`);
  checkLength(what, text);
}

/** A copy of an array of texts. */
export function checkTexts(texts) {
  if (!Array.isArray(texts))
    throw new TypeError(`the text is ${shown(texts)}, expected a string or an array of strings`);
  const copy = [...texts];
  copy.forEach((text, i) => checkText(`text ${i}`, text));
  return copy;
}

export function checkCount(what, count) {
  if (!Number.isInteger(count) || count < 0 || count >= 2 ** 32) {
    const found = typeof count === "number" ? count : shown(count);
    throw new TypeError(`${what} is ${found}, expected a whole number below 2^32`);
  }
}

/** A copy of the options of a call; the module says which there are. */
export function checkOptions(options) {
  if (options === undefined) return undefined;
  if (!isPlain(options)) throw new TypeError(`the options argument is ${shown(options)}, expected a plain object`);
  const copy = { ...options };
  if (typeof copy.prompt === "string") checkLength("prompt", copy.prompt);
  return copy;
}

/** One embedding or several as numbers one after another. */
export function joined(what, embeddings) {
  if (!Array.isArray(embeddings) && !isKind(embeddings, "Float32Array")) {
    throw new TypeError(`${what} is ${shown(embeddings)}, expected a Float32Array or an array of them`);
  }
  const rows = Array.isArray(embeddings) ? [...embeddings] : [embeddings];
  const size = rows[0]?.length ?? 0;
  rows.forEach((row, i) => {
    const name = `embedding ${i} of ${what}`;
    if (!isKind(row, "Float32Array")) throw new TypeError(`${name} is ${shown(row)}, expected a Float32Array`);
    if (row.length === 0) throw new Error(`${name} has no features`);
    if (row.length !== size)
      throw new Error(`${name} has ${row.length} features, expected ${size} as the first one has`);
    if (!row.every(Number.isFinite)) throw new Error(`${name} is not finite, expected finite numbers`);
  });
  const numbers = new Float32Array(rows.length * size);
  rows.forEach((row, i) => numbers.set(row, i * size));
  return { numbers, count: rows.length };
}

/** `numbers` cut into `count` arrays of the same length. */
export function split(numbers, count) {
  const size = count === 0 ? 0 : numbers.length / count;
  return Array.from({ length: count }, (_, i) => numbers.slice(i * size, (i + 1) * size));
}

/** The paths and bytes of an object or a Map. The bytes are not copied. */
export function checkFiles(files) {
  const isMap = tagOf(files) === "Map";
  if (!isMap && !isPlain(files)) {
    throw new TypeError(`the files are ${shown(files)}, expected an object or a Map from paths to Uint8Array`);
  }
  const entries = isMap ? [...Map.prototype.entries.call(files)] : Object.entries(files);
  return entries.map(([path, bytes]) => {
    checkText("the path of a file", path);
    if (!isKind(bytes, "Uint8Array")) throw new TypeError(`${path} is ${shown(bytes)}, expected a Uint8Array`);
    try {
      return [path, new Uint8Array(bytes.buffer, bytes.byteOffset, bytes.byteLength)]; // whose length is no class's own
    } catch (error) {
      throw new TypeError(`${path} cannot be read: its buffer was transferred`, { cause: error });
    }
  });
}
