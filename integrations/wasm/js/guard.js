// Calls into the module.

import start, { takePanic } from "./bindings.js";

let exports;

/** Starts the module. */
export async function load(source) {
  // Node fetches no files.
  if (source instanceof URL && source.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    source = await readFile(source);
  }
  exports = await start({ module_or_path: source });
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
    if (!(error instanceof WebAssembly.RuntimeError)) throw error;
    exports.__stack_pointer.value = stack;
    throw new Error(`the module failed: ${takePanic() ?? "it has not enough memory"}`, { cause: error });
  }
}

/** Frees what is inside the module. */
export function freed(owner) {
  try {
    owner?.free();
  } catch {
    // One of its calls has panicked and holds it for ever: its memory is lost.
  }
}
