// Prints the bytes of each file of a folder: as it is, after gzip, after brotli.

import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { brotliCompressSync, gzipSync } from "node:zlib";

const folder = process.argv[2], sums = [0, 0, 0];
const line = (sizes, name) => console.log(`${sizes.map((size) => String(size).padStart(10)).join("")}  ${name}`);
line(["bytes", "gzip", "brotli"], folder);
const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
for (const path of files.map((entry) => join(entry.parentPath ?? entry.path, entry.name)).sort()) {
  const content = readFileSync(path);
  const sizes = [content.length, gzipSync(content, { level: 9 }).length, brotliCompressSync(content).length];
  sizes.forEach((size, i) => { sums[i] += size; });
  line(sizes, path.slice(folder.length + 1));
}
line(sums, "all files");
