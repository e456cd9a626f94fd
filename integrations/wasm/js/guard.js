// Calls into the module.

import start, { takePanic } from "./bindings.js";
import { shown, tagOf } from "./check.js";

const SOURCES = ["URL", "Request", "Response", "ArrayBuffer", "Uint8Array", "WebAssembly.Module"];

let exports;

/** The bytes of a file, for Node, which fetches none; undefined for another source. */
async function fileOf(source) {
  if (!globalThis.process?.versions?.node) return undefined;
  const isPath = typeof source === "string" && !/^(file|https?|data|blob):/i.test(source);
  const isFile = /^file:/i.test(typeof source === "string" || tagOf(source) === "URL" ? String(source) : "");
  if (!isPath && !isFile) return undefined;
  // Bundlers for browsers look for a module that is named in the call, and fail.
  const builtin = "node:fs/promises";
  const { readFile } = await import(/* webpackIgnore: true */ /* @vite-ignore */ builtin);
  return readFile(isPath ? source : new URL(source));
}

/** Starts the module. */
export async function load(given) {
  const source = await given;
  if (typeof source !== "string" && !SOURCES.includes(tagOf(source))) {
    throw new TypeError(
      `the module is ${shown(source)}, expected its address, its bytes, a response or a compiled module`,
    );
  }
  exports = await start({ module_or_path: (await fileOf(source)) ?? source });
}

/** What ended a call: a panic has a message, and memory that cannot be had ends one without. */
function reason(error) {
  const message = takePanic();
  if (message !== undefined) return message;
  return /unreachable/i.test(error.message) ? "it has not enough memory" : error.message;
}

/**
 * What `call` returns. A panic, as the tokenizers library has on some malformed files, becomes an error with its message.
 * The memory that the call had taken is lost, and its stack is given back; everything else stays as it was.
 */
export function guarded(call) {
  const stack = exports.__stack_pointer.value;
  try {
    return call();
  } catch (error) {
    exports.__stack_pointer.value = stack;
    if (!(error instanceof WebAssembly.RuntimeError)) throw error;
    throw new Error(`the module failed: ${reason(error)}`, { cause: error });
  }
}

/** Frees what is inside the module. */
export function freed(owner) {
  try {
    guarded(() => owner?.free());
  } catch {
    // One of its calls has panicked and holds it for ever: its memory is lost.
  }
}
