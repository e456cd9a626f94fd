// Checks of what a user passes, in the words of the errors of the module.

function shown(value) {
  if (value === null || value === undefined) return String(value);
  return Array.isArray(value) ? "an array" : `of type ${typeof value}`;
}

export function checkText(what, text) {
  if (typeof text !== "string") throw new TypeError(`${what} is ${shown(text)}, expected a string`);
}

export function checkTexts(texts) {
  if (!Array.isArray(texts))
    throw new TypeError(`the text is ${shown(texts)}, expected a string or an array of strings`);
  for (let i = 0; i < texts.length; i++) checkText(`text ${i}`, texts[i]);
}

export function checkCount(what, count) {
  if (!Number.isInteger(count) || count < 0 || count >= 2 ** 32) {
    throw new TypeError(`${what} is ${typeof count === "number" ? count : shown(count)}, expected a whole number`);
  }
}

/** One embedding or several as numbers one after another. */
export function joined(what, embeddings) {
  const rows = embeddings instanceof Float32Array ? [embeddings] : embeddings;
  if (!Array.isArray(rows)) {
    throw new TypeError(`${what} is ${shown(rows)}, expected a Float32Array or an array of them`);
  }
  const size = rows[0]?.length ?? 0;
  const numbers = new Float32Array(rows.length * size);
  rows.forEach((row, i) => {
    if (!(row instanceof Float32Array)) {
      throw new TypeError(`embedding ${i} of ${what} is ${shown(row)}, expected a Float32Array`);
    }
    if (row.length === 0) throw new Error(`embedding ${i} of ${what} has no features`);
    if (row.length !== size) {
      throw new Error(`embedding ${i} of ${what} has ${row.length} features, expected ${size} as the first one has`);
    }
    numbers.set(row, i * size);
  });
  return { numbers, count: rows.length };
}

/** `numbers` cut into `count` arrays of the same length. */
export function split(numbers, count) {
  const size = count === 0 ? 0 : numbers.length / count;
  return Array.from({ length: count }, (_, i) => numbers.slice(i * size, (i + 1) * size));
}

/** The paths and bytes of an object or a Map. */
export function checkFiles(files) {
  if (typeof files !== "object" || files === null || Array.isArray(files) || ArrayBuffer.isView(files)) {
    throw new TypeError(`the files are ${shown(files)}, expected an object or a Map from paths to Uint8Array`);
  }
  const entries = files instanceof Map ? [...files] : Object.entries(files);
  for (const [path, bytes] of entries) {
    checkText("the path of a file", path);
    if (!(bytes instanceof Uint8Array)) throw new TypeError(`${path} is ${shown(bytes)}, expected a Uint8Array`);
  }
  return entries;
}
