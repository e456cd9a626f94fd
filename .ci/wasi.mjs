// Runs a program for WASI: `node wasi.mjs PROGRAM.wasm ARGUMENTS`.

import { readFile } from "node:fs/promises";
import { setFlagsFromString } from "node:v8";
import { WASI } from "node:wasi";

// Node 20 ends with a segmentation fault when a program that has run for some seconds exits through a fast call of V8.
setFlagsFromString("--no-turbo-fast-api-calls");

/** "Not supported", of WASI. */
const ENOTSUP = 58;

const args = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args, env: process.env, preopens: { "/": "/" } });
const module = await WebAssembly.compile(await readFile(args[0]));
// Functions for threads, which the C library lacks: no thread can be started.
const missing = WebAssembly.Module.imports(module).filter((entry) => entry.module === "env");
const env = Object.fromEntries(missing.map(({ name }) => [name, () => (name === "pthread_create" ? ENOTSUP : 0)]));
process.exitCode = wasi.start(await WebAssembly.instantiate(module, { ...wasi.getImportObject(), env }));
